-- world: what belongs to no queue: workers and offices. KEYS 1 is the one key of each.

local function clock(now) return J.open("", now).now end

local function parts(value) return value:match("^(%d+)\n([^\n]*)\n(.*)$") end

-- beat. KEYS 1 workers. ARGS now, name, ttl_ms, record. RETURNS {a wish or "", how many workers are known}
function J.beat(keys, args)
  local now, name, ttl, record = clock(args[1]), args[2], tonumber(args[3]), args[4]
  local known = call("HGET", keys[1], name)
  local wish = ""
  if known then
    local until_ms, wished = parts(known)
    if tonumber(until_ms) > now then wish = wished end
  end
  call("HSET", keys[1], name, string.format("%.0f", now + ttl) .. "\n\n" .. record)
  return { wish, call("HLEN", keys[1]) }
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
    if tonumber(until_ms) > now and holder ~= who then return 0 end
  end
  call("SET", keys[1], string.format("%.0f", now + ttl) .. "\n" .. who, "PX", ttl + 3600000)
  return 1
end

local UNFINISHED, SETTLED = 2 * 86400000, 600000 -- ms a manifest stays: of a flow that nobody finishes, and of one that is in

-- manifest: whether a flow is submitted, decided once, and the queues it has members in. KEYS 1 manifest, a hash
-- ARGS verb, queue, … begin: it is new to the caller · stage: more members · submit: decide that it is · sweep: decide that it never will be
-- · settled: all its members are in, which is remembered for whoever asks again · forget: as if it had never been · look
-- RETURNS {"open", "done" or "swept", queue, …}
function J.manifest(keys, args)
  local key, verb = keys[1], args[1]
  local state = call("HGET", key, "state") or "open"
  if verb == "settled" or verb == "forget" or verb == "begin" and state == "swept" then
    call("DEL", key)
    state = verb == "settled" and "done" or "open"
  end
  if verb == "forget" then return { state } end
  if verb == "submit" and state == "open" then state = "done" end
  if verb == "sweep" and state == "open" then state = "swept" end
  if verb ~= "look" then
    for i = 2, #args do call("HSET", key, args[i], "1") end
    call("HSET", key, "state", state)
    call("PEXPIRE", key, verb == "settled" and SETTLED or UNFINISHED)
  end
  local answer = { state }
  for _, field in ipairs(call("HKEYS", key)) do
    if field ~= "state" then answer[#answer + 1] = field end
  end
  return answer
end
