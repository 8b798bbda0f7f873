-- rates: what a rate limit allows. Copies core/rules/limits.py (take, starts_left);
-- tests/rules/test_rates.py compares both. A limit is stored as text: "w:<count>:<per_ms>" is a
-- window that its first start opens, "t:<capacity>:<refill per second>" a bucket of tokens. Its
-- state is "w:<starts>:<opened>" or "t:<tokens>:<at>". A state of the other kind is ignored.
local max, min, ceil, abs = math.max, math.min, math.ceil, math.abs
local EPSILON = J.RATES.epsilon -- tokens

-- How far ahead of now the state of a bucket may be: the time of a whole refill.
local function refill_ms(rate) return ceil(rate.a * 1000 / rate.b) end

-- A limit with its state; nil for no limit. `dirty`: its state has changed and must be stored.
function J.rate(text, state, now)
  if not text or text == "" then return nil end
  local kind, a, b = text:match("^(%a):([^:]+):([^:]+)$")
  local rate = { kind = kind, a = tonumber(a), b = tonumber(b), dirty = false }
  local of, value, at
  if state then of, value, at = state:match("^(%a):([^:]+):([^:]+)$") end
  if of ~= kind then value, at = nil, nil end
  value, at = tonumber(value), tonumber(at)
  if kind == "w" then
    rate.used, rate.opened = value or 0, at
    if not at or abs(now - at) >= rate.b then rate.used, rate.opened = 0, nil end
  elseif at then
    rate.tokens = max(0, min(rate.a, value + max(0, now - at) * rate.b / 1000))
    rate.at = max(now, min(at, now + refill_ms(rate)))
    rate.dirty = rate.at < at -- the clock was set back by more than a refill: count from here
  else
    rate.tokens, rate.at = rate.a, now
  end
  return rate
end

-- How long until a start of this cost is allowed, in ms; 0 for now. A cost above the capacity takes
-- a full bucket.
function J.rate_wait(rate, cost, now)
  if rate.kind == "w" then
    if rate.used < rate.a then return 0 end
    return rate.opened + rate.b - now
  end
  local price = min(cost, rate.a)
  if rate.tokens + EPSILON >= price then return 0 end
  return rate.at - now + max(1, ceil((price - rate.tokens - EPSILON / 2) * 1000 / rate.b))
end

function J.rate_take(rate, cost, now)
  rate.dirty = true
  if rate.kind == "w" then
    rate.opened = rate.opened or now
    rate.used = rate.used + 1
  else
    rate.tokens = max(0, rate.tokens - min(cost, rate.a))
  end
end

function J.rate_state(rate)
  if rate.kind == "w" then return string.format("w:%d:%.0f", rate.used, rate.opened) end
  return string.format("t:%.17g:%.0f", rate.tokens, rate.at)
end

-- How long the state matters, in ms: until the window is over, or the bucket is full.
function J.rate_memory(rate, now)
  if rate.kind == "w" then return rate.opened + rate.b - now end
  return rate.at - now + ceil((rate.a - rate.tokens) * 1000 / rate.b) + 1
end

-- Store the state of a key's limit for as long as it matters.
function J.keep_key_rate(cx, key, rate)
  local ms = J.whole(J.rate_memory(rate, cx.now) + J.RATES.margin_ms)
  call("SET", cx.prefix .. KEY.key_rate .. key, J.rate_state(rate), "PX", ms)
  rate.dirty = false
end

-- The highest cost that a limit can allow: the capacity of a bucket; nil for none.
function J.capacity(text)
  if not text then return nil end
  local capacity = text:match("^t:([^:]+):")
  return tonumber(capacity)
end
