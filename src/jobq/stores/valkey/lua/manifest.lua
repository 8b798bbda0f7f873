-- manifest: the one place of a flow, which belongs to no queue.
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
