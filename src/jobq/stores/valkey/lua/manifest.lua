-- manifest: the one place that decides whether a flow is submitted. It belongs to no queue.
-- How long a manifest is kept, in ms: of a flow that is never finished, and of one that is stored.
local UNFINISHED_MS, SETTLED_MS = 2 * 86400000, 600000

-- manifest: decide once whether a flow is submitted, and collect the queues that have members of
-- it.
-- KEYS manifest, a hash
-- ARGS verb, queue, … The verbs: begin (the flow is new to the caller) · stage (more members) ·
--   submit (decide that it is submitted) · sweep (decide that it never will be) · settled (all its
--   members are stored; remembered for callers that ask again) · forget (as if it had never
--   existed, unless it is submitted) · look. For stage and submit, a flow that is forgotten counts
--   as swept
-- RETURNS {"open", "done" or "swept", queue, …}
function J.manifest(keys, args)
  local key, verb = keys[1], args[1]
  local state = call("HGET", key, "state")
  if not state and (verb == "stage" or verb == "submit") then return { "swept" } end
  state = state or "open"
  if verb == "forget" and state == "done" then return { state } end
  if verb == "settled" or verb == "forget" or verb == "begin" and state == "swept" then
    call("DEL", key)
    state = verb == "settled" and "done" or "open"
  end
  if verb == "forget" then return { state } end
  if verb == "submit" and state == "open" then state = "done" end
  if verb == "sweep" and state == "open" then state = "swept" end
  if verb == "sweep" and state == "done" then verb = "look" end
  if verb ~= "look" then
    for i = 2, #args do call("HSET", key, args[i], "1") end
    call("HSET", key, "state", state)
    call("PEXPIRE", key, verb == "settled" and SETTLED_MS or UNFINISHED_MS)
  end
  local answer = { state }
  for _, field in ipairs(call("HKEYS", key)) do
    if field ~= "state" then answer[#answer + 1] = field end
  end
  return answer
end
