-- presence: which workers are running, and which of them leads. Neither belongs to a queue. The
-- hash of workers has "<until>\n<request>\n<record>" by name: when the worker counts as gone, what
-- an operator has asked of it, and its record as JSON. A leadership is "<until>\n<worker>".

local function clock(now) return J.open("", now).now end

local function parts(value) return value:match("^(%d+)\n([^\n]*)\n(.*)$") end

-- RETURNS the incarnation of the worker that has this name now, and what an operator asked of it;
--   nothing if the name is free
local function holder(key, name, now)
  local known = call("HGET", key, name)
  if not known then return end
  local until_ms, request, record = parts(known)
  if tonumber(until_ms) > now then return cjson.decode(record).incarnation or "", request end
end

-- beat: announce a worker.
-- KEYS workers
-- ARGS now, name, ttl_ms, record, incarnation, 1 to take the name from another incarnation
-- RETURNS {what an operator asks of the worker or "", number of workers, 1 if another incarnation
--   has the name}
function J.beat(keys, args)
  local now, name, ttl, record = clock(args[1]), args[2], tonumber(args[3]), args[4]
  local incarnation, displace = args[5], args[6]
  local held, request = holder(keys[1], name, now)
  if held ~= incarnation then
    if held and displace ~= "1" then return { "", call("HLEN", keys[1]), 1 } end
    request = ""
  end
  local until_ms = string.format("%.0f", now + ttl)
  call("HSET", keys[1], name, until_ms .. "\n" .. request .. "\n" .. record)
  return { request, call("HLEN", keys[1]), 0 }
end

-- sign_off: remove a worker that stops.
-- KEYS workers
-- ARGS now, name, incarnation
-- RETURNS 0 if another incarnation has the name
function J.sign_off(keys, args)
  local now, name, incarnation = clock(args[1]), args[2], args[3]
  local held = holder(keys[1], name, now)
  if held and held ~= incarnation then return 0 end
  call("HDEL", keys[1], name)
  return 1
end

-- workers: the workers that are running.
-- KEYS workers
-- ARGS now
-- RETURNS their records
function J.workers(keys, args)
  local now, found = clock(args[1]), {}
  for name, value in pairs(J.pairs_of(call("HGETALL", keys[1]))) do
    local until_ms, _, record = parts(value)
    if tonumber(until_ms) > now then found[#found + 1] = record end
  end
  return found
end

-- ask: store what an operator asks of a worker. The worker's next beat returns it.
-- KEYS workers
-- ARGS now, name, request
-- RETURNS 1 if the worker is running
function J.ask(keys, args)
  local now, name, request = unpack(args)
  local known = call("HGET", keys[1], name)
  if not known then return 0 end
  local until_ms, _, record = parts(known)
  if tonumber(until_ms) <= clock(now) then return 0 end
  call("HSET", keys[1], name, until_ms .. "\n" .. request .. "\n" .. record)
  return 1
end

-- sweep_workers: remove workers that are gone, among the next ones of the hash.
-- KEYS workers
-- ARGS now, cursor ("0" begins again), about how many to look at
-- RETURNS the cursor for the next call
function J.sweep_workers(keys, args)
  local now, cursor, count = clock(args[1]), args[2], args[3]
  local found = call("HSCAN", keys[1], cursor, "COUNT", count)
  for name, value in pairs(J.pairs_of(found[2])) do
    if tonumber((parts(value))) <= now then call("HDEL", keys[1], name) end
  end
  return found[1]
end

-- lead: take or keep a leadership.
-- KEYS the leadership
-- ARGS now, worker, ttl_ms
-- RETURNS 1 if the worker leads
function J.lead(keys, args)
  local now, who, ttl = clock(args[1]), args[2], tonumber(args[3])
  local held = call("GET", keys[1])
  if held then
    local until_ms, leader = held:match("^(%d+)\n(.*)$")
    local left = tonumber(until_ms) - now
    -- More than ttl is left only if the clock was set back since.
    if left > 0 and left <= ttl and leader ~= who then return 0 end
  end
  call("SET", keys[1], string.format("%.0f", now + ttl) .. "\n" .. who, "PX", ttl + 3600000)
  return 1
end
