-- presence: workers and offices, which belong to no queue. KEYS 1 is the one key of each.

local function clock(now) return J.open("", now).now end

local function parts(value) return value:match("^(%d+)\n([^\n]*)\n(.*)$") end

-- Who has the name now: its incarnation, and what was asked of it. Nothing if nobody has.
local function holder(key, name, now)
  local known = call("HGET", key, name)
  if not known then return end
  local until_ms, wish, record = parts(known)
  if tonumber(until_ms) > now then return cjson.decode(record).incarnation or "", wish end
end

-- beat. KEYS 1 workers. ARGS now, name, ttl_ms, record, incarnation, 1 to take the name from another
-- RETURNS {a wish or "", how many workers are known, 1 if another incarnation has the name}
function J.beat(keys, args)
  local now, name, ttl, record, incarnation, displace = clock(args[1]), args[2], tonumber(args[3]), args[4], args[5], args[6]
  local held, wish = holder(keys[1], name, now)
  if held ~= incarnation then
    if held and displace ~= "1" then return { "", call("HLEN", keys[1]), 1 } end
    wish = ""
  end
  call("HSET", keys[1], name, string.format("%.0f", now + ttl) .. "\n" .. wish .. "\n" .. record)
  return { wish, call("HLEN", keys[1]), 0 }
end

-- sign_off. KEYS 1 workers. ARGS now, name, incarnation. RETURNS 0 if another incarnation has the name
function J.sign_off(keys, args)
  local now, name, incarnation = clock(args[1]), args[2], args[3]
  local held = holder(keys[1], name, now)
  if held and held ~= incarnation then return 0 end
  call("HDEL", keys[1], name)
  return 1
end

-- workers. KEYS 1 workers. ARGS now. RETURNS records of those that are there; the others are forgotten
function J.workers(keys, args)
  local now, found = clock(args[1]), {}
  for name, value in pairs(J.pairs_of(call("HGETALL", keys[1]))) do
    local until_ms, _, record = parts(value)
    if tonumber(until_ms) > now then found[#found + 1] = record end
  end
  return found
end

-- ask. KEYS 1 workers. ARGS now, name, wish. RETURNS 1 if the worker is there
function J.ask(keys, args)
  local now, name, wish = unpack(args)
  local known = call("HGET", keys[1], name)
  if not known then return 0 end
  local until_ms, _, record = parts(known)
  if tonumber(until_ms) <= clock(now) then return 0 end
  call("HSET", keys[1], name, until_ms .. "\n" .. wish .. "\n" .. record)
  return 1
end

-- sweep_workers. KEYS 1 workers. ARGS now. RETURNS how many are gone
function J.sweep_workers(keys, args)
  local now, n = clock(args[1]), 0
  for name, value in pairs(J.pairs_of(call("HGETALL", keys[1]))) do
    if tonumber((parts(value))) <= now then n = n + call("HDEL", keys[1], name) end
  end
  return n
end

-- lead. KEYS 1 the office. ARGS now, who, ttl_ms. RETURNS 1 if it is theirs
function J.lead(keys, args)
  local now, who, ttl = clock(args[1]), args[2], tonumber(args[3])
  local held = call("GET", keys[1])
  if held then
    local until_ms, holder = held:match("^(%d+)\n(.*)$")
    local left = tonumber(until_ms) - now
    if left > 0 and left <= ttl and holder ~= who then return 0 end -- more than that: the clock was set back since
  end
  call("SET", keys[1], string.format("%.0f", now + ttl) .. "\n" .. who, "PX", ttl + 3600000)
  return 1
end
