-- rates: what holds starts back besides the number of active jobs. A limit is stored as text:
-- "w:<limit>:<per_ms>", a window that its first start opens, or "t:<capacity>:<refill per second>", a bucket of tokens.
-- Its state is "<opened>:<used>" or "<tokens>:<at>". The same arithmetic as core/limits.py.

-- A limit with its state, ready to be asked; nil for no limit.
function J.rate(text, state, now)
  if not text or text == "" then return nil end
  local kind, a, b = text:match("^(%a):([^:]+):([^:]+)$")
  local rate = { kind = kind, a = tonumber(a), b = tonumber(b), dirty = false }
  local x, y
  if state then x, y = state:match("^([^:]+):([^:]+)$") end
  x, y = tonumber(x), tonumber(y)
  if kind == "w" then
    rate.opened, rate.used = x, y or 0
    if not x or now >= x + rate.b then rate.opened, rate.used = nil, 0 end
  else
    rate.tokens, rate.at = x or rate.a, y or now
    rate.tokens = math.min(rate.a, rate.tokens + math.max(now - rate.at, 0) * rate.b / 1000)
    rate.at = now
  end
  return rate
end

-- How long until a start of this cost is allowed: 0 is now.
function J.rate_wait(rate, cost, now)
  if rate.kind == "w" then
    if rate.used < rate.a then return 0 end
    return rate.opened + rate.b - now
  end
  if rate.tokens >= cost - 1e-9 then return 0 end
  if rate.b <= 0 then return 86400000 end
  return math.max(1, math.ceil((cost - rate.tokens) * 1000 / rate.b - 1e-6))
end

function J.rate_take(rate, cost, now)
  rate.dirty = true
  if rate.kind == "w" then
    rate.opened = rate.opened or now
    rate.used = rate.used + 1
  else
    rate.tokens = rate.tokens - cost
  end
end

function J.rate_state(rate)
  if rate.kind == "w" then return string.format("%.0f:%d", rate.opened, rate.used) end
  return string.format("%.6f:%.0f", rate.tokens, rate.at)
end

-- How long the state matters: then the window is over, or the bucket full.
function J.rate_memory(rate)
  if rate.kind == "w" then return rate.b end
  return rate.b > 0 and math.ceil((rate.a - rate.tokens) * 1000 / rate.b) + 1 or 86400000
end

-- What a cost would have to fit in: the capacity of a bucket, or nil.
function J.capacity(text)
  if not text then return nil end
  local capacity = text:match("^t:([^:]+):")
  return tonumber(capacity)
end
