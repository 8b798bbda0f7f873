-- staging: members of a flow that is not submitted yet. They are stored apart, where no call on
-- jobs finds them. The flow's manifest (manifest.lua) decides in one place whether a flow is
-- submitted. Each queue then brings in its members in steps of bounded size. Any caller may take a
-- step. Members with edges come first, because they cannot start. When all jobs that wait are
-- stored, the others follow.
local STATE = J.STATE
local STEP = 500 -- members and edges per step: the server does nothing else meanwhile
-- How long a queue remembers that a flow is sealed, in ms: as long as its manifest is kept
-- (manifest.lua).
local SEALED_MS, SUBMITTED_MS = 2 * 86400000, 600000

-- Whether an id is a member of the flow that has not been brought in yet.
function J.is_staged(cx, flow, id)
  return call("SISMEMBER", cx.prefix .. KEY.flow_members .. flow, id) == 1
end

-- A job waits for a member that has not been brought in yet. It is notified when the member is.
function J.wait_for_member(cx, flow, id, who)
  call("SADD", cx.prefix .. KEY.flow_awaited .. flow, id)
  call("SADD", cx.prefix .. KEY.flow_awaited .. flow .. "\n" .. id, who)
end

-- Reserve places for the new members of a call. RETURNS an error if they do not all fit
local function take_places(cx, flow, args)
  local function is_staged(id) return J.is_staged(cx, flow, id) end
  local room, n = J.room(cx), 0
  if room and room < (#args - 5) / 4 then
    n = J.needed(cx, args, 6, #args, 4, is_staged)
    if n > math.max(room, 0) then
      return redis.error_reply("JOBQ FULL " .. J.meta(cx).max_whole)
    end
  else
    for i = 6, #args, 4 do n = n + (is_staged(args[i]) and 0 or 1) end
  end
  J.reserve(cx, flow, n)
end

-- stage: store members of a flow out of sight. If the flow is sealed here, nothing is stored: a
-- caller that repeats the calls of another one may come after members have become jobs.
-- KEYS prefix
-- ARGS now, flow, position of the first plain member, of the first keyed one, highest cost, then
--   per member: id, body, edges packed or "" (at most STEP), 1 if stage_edges brings more edges
-- RETURNS 1 if the flow is sealed and some of these are not staged, else 0; or an error as put does
function J.stage(keys, args)
  local now, flow, plain, keyed, cost = unpack(args, 1, 5)
  local cx = J.open(keys[1], now)
  if call("EXISTS", cx.prefix .. KEY.flow_sealed .. flow) == 1 then
    for i = 6, #args, 4 do
      if not J.is_staged(cx, flow, args[i]) then return 1 end
    end
    return 0
  end
  local wrong = J.refusal(cx, tonumber(plain), tonumber(keyed), tonumber(cost))
  wrong = wrong or take_places(cx, flow, args)
  if wrong then return wrong end
  call("ZADD", cx.prefix .. KEY.flows, "NX", cx.now, flow)
  for i = 6, #args, 4 do
    local id, body, edges, more = unpack(args, i, i + 3)
    if call("SADD", cx.prefix .. KEY.flow_members .. flow, id) == 1 then
      if edges == "" then
        call("RPUSH", cx.prefix .. KEY.flow_free .. flow, mpack({ id, body }))
      else
        local piece = { id, body, munpack(edges), tonumber(more) }
        call("RPUSH", cx.prefix .. KEY.flow_tied .. flow, mpack(piece))
      end
    end
  end
  return 0
end

-- stage_edges: more edges of a member that is staged. A repeated call adds the same piece again,
-- which changes nothing when it is brought in.
-- KEYS prefix
-- ARGS flow, id, edges packed (at most STEP), 1 if more follow
-- RETURNS 1 if the member is staged here
function J.stage_edges(keys, args)
  local cx, flow, id = { prefix = keys[1] }, args[1], args[2]
  if not J.is_staged(cx, flow, id) then return 0 end
  local piece = { id, "", munpack(args[3]), tonumber(args[4]) }
  call("RPUSH", keys[1] .. KEY.flow_tied .. flow, mpack(piece))
  return 1
end

-- seal: check again that the members of a flow fit this queue, just before the flow is submitted. A
-- queue without a mode may have got one since. From here on they fit: the queue has a mode, and no
-- members of the flow can be added.
-- KEYS prefix
-- ARGS now, flow, how many members the caller has staged here, plain, keyed, cost (as stage)
-- RETURNS 1 if the queue had no mode, "gone" if members are missing, or an error as put does
function J.seal(keys, args)
  local now, flow, members, plain, keyed, cost = unpack(args)
  local cx = J.open(keys[1], now)
  local wrong = J.refusal(cx, tonumber(plain), tonumber(keyed), tonumber(cost))
  if wrong then return wrong end
  if call("SCARD", cx.prefix .. KEY.flow_members .. flow) < tonumber(members) then return "gone" end
  call("SET", cx.prefix .. KEY.flow_sealed .. flow, "1", "PX", SEALED_MS)
  if not J.meta(cx).mode then
    local mode = keyed == "0" and "plain" or "keyed"
    call("HSET", cx.prefix .. KEY.settings, SETTING.mode, mode)
    J.meta_changed(cx)
    return 1
  end
  return 0
end

-- Notify the jobs that waited for this member before it was brought in.
local function notify_waiting(cx, flow, id)
  local name = cx.prefix .. KEY.flow_awaited .. flow .. "\n" .. id
  local who = call("SMEMBERS", name)
  if #who == 0 then return end
  call("UNLINK", name)
  call("SREM", cx.prefix .. KEY.flow_awaited .. flow, id)
  J.watch_child(cx, id, who)
end

-- Bring in one member. RETURNS its answer, as put does
local function bring_in(cx, flow, id, body, edges)
  J.fix_mode(cx, body)
  local answer = J.alias(cx, id, J.put_one(cx, 1, id, body, edges))
  -- Members without edges leave the set together, at the end of the step.
  if edges then call("SREM", cx.prefix .. KEY.flow_members .. flow, id) end
  notify_waiting(cx, flow, id)
  return answer
end

-- Bring in a piece of a member with edges. EXTRA.tying blocks the job until its last piece: the
-- jobs it waits for may all have ended before. A job that already exists under the id keeps its own
-- edges and gets none. RETURNS an answer for the first piece
local function bring_in_piece(cx, flow, id, body, edges, more)
  local x, answer = cx.prefix .. KEY.extras .. id, nil
  if body ~= "" then
    answer = bring_in(cx, flow, id, body, edges)
    local is_new = answer[2] == id and not answer[5]
    if is_new and more == 1 then call("HSET", x, EXTRA.tying, flow) end
    J.tie_all(cx)
    J.deliver_local(cx)
    return answer
  end
  if call("HGET", x, EXTRA.tying) ~= flow then return end
  local job = J.load(cx, id)
  if job and (job.state == STATE.blocked or job.finished) then
    J.tie(cx, job, edges)
    J.deliver_local(cx)
  end
  if more == 0 then
    call("HDEL", x, EXTRA.tying)
    job = J.load(cx, id)
    if job and job.state == STATE.blocked then J.unblock_if_free(cx, job) end
  end
end

local function forget(cx, flow)
  J.give_back(cx, flow)
  call("UNLINK", cx.prefix .. KEY.flow_members .. flow, cx.prefix .. KEY.flow_tied .. flow,
    cx.prefix .. KEY.flow_free .. flow, cx.prefix .. KEY.flow_awaited .. flow)
  call("ZREM", cx.prefix .. KEY.flows, flow)
end

-- submit: one step of bringing in the members of a submitted flow. A flow that is not staged here
-- (any more) has none.
-- KEYS prefix
-- ARGS now, flow, "tied" for members with edges or "free" for the others
-- RETURNS as put, then the ids that the answers are for, and 1 if there are more
function J.submit(keys, args)
  local now, flow, which = unpack(args)
  local cx = J.open(keys[1], now)
  cx.flow = flow
  local answers, ids, room, new = {}, {}, STEP, 0
  local list = cx.prefix .. (which == "tied" and KEY.flow_tied or KEY.flow_free) .. flow
  while room > 0 do
    local some = call("LPOP", list, which == "tied" and 1 or room)
    if not some or #some == 0 then break end
    for _, packed in ipairs(some) do
      local id, body, edges, more = unpack(munpack(packed), 1, 4)
      local answer
      if edges then
        answer = bring_in_piece(cx, flow, id, body, edges, more)
      else
        answer = bring_in(cx, flow, id, body)
      end
      if answer then
        answers[#answers + 1], ids[#ids + 1] = answer, id
        if not answer[5] then new = new + 1 end
      end
      room = room - 1 - (edges and #edges or 0)
    end
  end
  J.give_back(cx, flow, new)
  if which == "free" then J.variadic("SREM", cx.prefix .. KEY.flow_members .. flow, ids) end
  local left = call("LLEN", list)
  if left == 0 and which == "free"
    and call("LLEN", cx.prefix .. KEY.flow_tied .. flow) == 0 then
    forget(cx, flow)
    call("PEXPIRE", cx.prefix .. KEY.flow_sealed .. flow, SUBMITTED_MS)
  end
  J.close(cx)
  J.look_again(cx, answers)
  local due_in = cx.due_at and cx.due_at - cx.now or -1
  return { cx.to_wake or 0, cx.outbox, due_in, answers, ids, left > 0 and 1 or 0 }
end

-- Remove the members of a flow from this queue. Jobs that waited for them learn that they are gone.
function J.discard_flow(cx, flow)
  local waited = call("SMEMBERS", cx.prefix .. KEY.flow_awaited .. flow)
  forget(cx, flow)
  call("UNLINK", cx.prefix .. KEY.flow_sealed .. flow)
  for i = 1, #waited do notify_waiting(cx, flow, waited[i]) end
end

-- discard: remove the members of a flow that is refused or was never submitted.
-- KEYS prefix
-- ARGS now, flow
-- RETURNS {messages waiting, jobs to wake workers for elsewhere}
function J.discard(keys, args)
  local cx = J.open(keys[1], args[1])
  J.discard_flow(cx, args[2])
  J.close(cx)
  return { cx.outbox, cx.to_wake or 0 }
end

-- staged: flows that were begun before a time.
-- KEYS prefix
-- ARGS before, limit
-- RETURNS {flow, when it was begun, …}
function J.staged(keys, args)
  return call("ZRANGEBYSCORE", keys[1] .. KEY.flows, "-inf", args[1], "WITHSCORES", "LIMIT", 0,
    args[2])
end

-- known: which of these ids have a record.
-- KEYS prefix
-- ARGS now, id, …
-- RETURNS 1 or 0 per id
function J.known(keys, args)
  local cx, answers = J.open(keys[1], args[1], true), {}
  for i = 2, #args do answers[i - 1] = J.look(cx, args[i]) and 1 or 0 end
  return answers
end
