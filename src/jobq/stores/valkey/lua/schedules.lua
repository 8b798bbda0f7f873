-- schedules: jobs that come by the clock. sc: id → spec, as the caller packed it · ss: id → its state packed · sd: ids by their next time
-- When the next time is, callers work out; here it is compared and set, so that each time fires once.

local function state_of(P, id)
  local packed = call("HGET", P .. "ss", id)
  return packed and munpack(packed)
end

local function keep(P, id, state)
  call("HSET", P .. "ss", id, mpack(state))
  if state.next and not state.paused then call("ZADD", P .. "sd", state.next, id) else call("ZREM", P .. "sd", id) end
end

local function view(P, id, state)
  return { id, call("HGET", P .. "sc", id), state.next or "", state.fired, state.last or "", state.paused and 1 or 0, state.created }
end

-- schedule: store one. KEYS 1 prefix. ARGS now, id, spec, next or "", rule packed {every, after, limit, stop}. RETURNS it as stored
function J.schedule(keys, args)
  local now, id, spec, next_time, rule = unpack(args)
  local cx = J.open(keys[1], now)
  local P = cx.P
  local state = state_of(P, id)
  if not state or call("HGET", P .. "sc", id) ~= spec then
    local paused = state and state.paused -- what an operator has stopped, a changed spec does not set going
    state = munpack(rule)
    state.paused = paused
    state.next, state.fired, state.created = tonumber(next_time), 0, cx.now
    call("HSET", P .. "sc", id, spec)
    keep(P, id, state)
  end
  return view(P, id, state)
end

-- unschedule. KEYS 1 prefix. ARGS id. RETURNS 1 if it was there
function J.unschedule(keys, args)
  local P, id = keys[1], args[1]
  call("ZREM", P .. "sd", id)
  call("HDEL", P .. "sc", id)
  return call("HDEL", P .. "ss", id)
end

-- pause_schedule. KEYS 1 prefix. ARGS id, "1" or "0". RETURNS 1 if it is there
function J.pause_schedule(keys, args)
  local P, id, paused = keys[1], unpack(args)
  local state = state_of(P, id)
  if not state then return 0 end
  state.paused = paused == "1" or nil
  keep(P, id, state)
  return 1
end

-- schedules. KEYS 1 prefix. ARGS now, "1" for due ones only, limit. RETURNS schedules
function J.schedules(keys, args)
  local now, due, limit = unpack(args)
  local cx = J.open(keys[1], now)
  limit = tonumber(limit)
  local answers, ids = {}
  if due == "1" then
    ids = call("ZRANGEBYSCORE", cx.P .. "sd", "-inf", cx.now, "LIMIT", 0, limit)
  else
    ids = call("HKEYS", cx.P .. "ss")
    table.sort(ids)
  end
  for i = 1, math.min(#ids, limit) do answers[i] = view(cx.P, ids[i], state_of(cx.P, ids[i])) end
  return answers
end

-- Why the job of a schedule cannot be put (a keyed queue would keep one without a key where no claim looks), or nil.
local function misfit(cx, body)
  local _, nn, no, at = J.head(body, 1)
  local opts = no > 0 and munpack(body:sub(at + nn, at + nn + no - 1)) or {}
  local keyed = J.has_key(body)
  return J.misfit(cx, keyed and 0 or 1, keyed and 1 or 0, opts.cost or 1)
end

-- fire. KEYS 1 prefix. ARGS now, id, time, next or "", spec it was made from, where the job belongs (a prefix), job id, body ("" to skip)
-- RETURNS {1 if it fired, messages waiting, jobs to wake for elsewhere}; or an error as put does, and nothing was done
function J.fire(keys, args)
  local now, id, at, next_time, spec, queue, job_id, body = unpack(args, 1, 8)
  local cx = J.open(keys[1], now)
  local state = state_of(cx.P, id)
  if not state or state.paused or state.next ~= tonumber(at) or call("HGET", cx.P .. "sc", id) ~= spec then return { 0, 0, 0 } end
  local wrong = body ~= "" and misfit(cx, body)
  if wrong then return wrong end
  state.next = tonumber(next_time)
  if body ~= "" then
    state.fired, state.last = state.fired + 1, tonumber(at)
    J.post(cx, queue, { type = "put", id = job_id, body = body, schedule = id, base = cx.P })
  end
  keep(cx.P, id, state)
  J.deliver_local(cx)
  J.close(cx)
  return { 1, cx.outbox, cx.to_wake or 0 }
end

-- A job of a schedule. If another holds its unique lock, or the queue is full, it counts as fired, and there is no end of ours to wait for.
function J.MAIL.put(cx, m)
  J.fix_mode(cx, m.body)
  local answer = J.put_if_room(cx, J.room(cx), 1, m.id, m.body)
  if answer[2] ~= m.id or answer[4] == -1 then J.post(cx, m.base, { type = "rearm", schedule = m.schedule }) end
end

-- The job of an after-complete schedule has ended: it goes on from here.
function J.MAIL.rearm(cx, m)
  local state = state_of(cx.P, m.schedule)
  if not state or not state.after or state.next then return end
  local following = cx.now + state.every
  if (state.limit and state.fired >= state.limit) or (state.stop and following > state.stop) then return end
  state.next = following
  keep(cx.P, m.schedule, state)
end

function J.schedule_ended(cx, id)
  J.post(cx, call("HGET", cx.P .. "m", "base") or cx.P, { type = "rearm", schedule = id })
end
