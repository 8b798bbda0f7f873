-- schedules: jobs that are put at set times. The caller computes the next time of a schedule; here
-- it is compared and set, so each time fires once.

local function state_of(prefix, id)
  local packed = call("HGET", prefix .. KEY.schedule_states, id)
  return packed and munpack(packed)
end

local function keep(prefix, id, state)
  call("HSET", prefix .. KEY.schedule_states, id, mpack(state))
  if state.next and not state.paused then
    call("ZADD", prefix .. KEY.schedules_due, state.next, id)
  else
    call("ZREM", prefix .. KEY.schedules_due, id)
  end
end

-- Whether the index of ids is complete. Older releases do not write it.
local function indexed(prefix)
  return call("HLEN", prefix .. KEY.schedule_states) == call("ZCARD", prefix .. KEY.schedule_ids)
end

-- The first ids in order.
local function first_ids(prefix, limit)
  if limit <= 0 then return {} end
  if indexed(prefix) then return call("ZRANGE", prefix .. KEY.schedule_ids, 0, limit - 1) end
  local ids, first = call("HKEYS", prefix .. KEY.schedule_states), {}
  table.sort(ids)
  for i = 1, math.min(#ids, limit) do first[i] = ids[i] end
  return first
end

-- A schedule as Python reads it.
local function view(prefix, id, state)
  local spec = call("HGET", prefix .. KEY.schedule_specs, id)
  return {
    id, spec, state.next or "", state.fired, state.last or "", state.paused and 1 or 0,
    state.created,
  }
end

-- Log what was done to a schedule, and end the call.
local function changed(cx, home, how, id, actor)
  J.log_operation(cx, home, "schedule", how .. " " .. id, actor)
  J.close(cx)
end

-- schedule: store a schedule.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", id, spec, next time or "", rule packed {every, after,
--   limit, stop}
-- RETURNS {the schedule as stored (see view), messages waiting}
function J.schedule(keys, args)
  local now, home, actor, id, spec, next_time, rule = unpack(args)
  local cx = J.open(keys[1], now)
  local prefix = cx.prefix
  local state = state_of(prefix, id)
  if not state or call("HGET", prefix .. KEY.schedule_specs, id) ~= spec then
    local paused = state and state.paused -- a changed spec does not resume a paused schedule
    state = munpack(rule)
    state.paused = paused
    state.next, state.fired, state.created = tonumber(next_time), 0, cx.now
    call("HSET", prefix .. KEY.schedule_specs, id, spec)
    keep(prefix, id, state)
    call("ZADD", prefix .. KEY.schedule_ids, 0, id)
    if not indexed(prefix) then
      call("DEL", prefix .. KEY.schedule_ids)
      local ids = call("HKEYS", prefix .. KEY.schedule_states)
      for i = 1, #ids do call("ZADD", prefix .. KEY.schedule_ids, 0, ids[i]) end
    end
    changed(cx, home, "put", id, actor)
  end
  return { view(prefix, id, state), cx.outbox }
end

-- unschedule: remove a schedule.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", id
-- RETURNS {1 if it existed, messages waiting}
function J.unschedule(keys, args)
  local now, home, actor, id = unpack(args)
  local cx = J.open(keys[1], now)
  call("ZREM", cx.prefix .. KEY.schedules_due, id)
  call("ZREM", cx.prefix .. KEY.schedule_ids, id)
  call("HDEL", cx.prefix .. KEY.schedule_specs, id)
  local there = call("HDEL", cx.prefix .. KEY.schedule_states, id)
  if there == 1 then changed(cx, home, "dropped", id, actor) end
  return { there, cx.outbox }
end

-- pause_schedule: pause or resume a schedule.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", id, "1" to pause or "0" to resume
-- RETURNS {a letter, as alter does; messages waiting}
function J.pause_schedule(keys, args)
  local now, home, actor, id, paused = unpack(args)
  local cx = J.open(keys[1], now)
  local state = state_of(cx.prefix, id)
  if not state then return { "m", 0 } end
  if (paused == "1") == (state.paused == true) then return { "l", 0 } end
  state.paused = paused == "1" or nil
  keep(cx.prefix, id, state)
  changed(cx, home, paused == "1" and "paused" or "resumed", id, actor)
  return { "d", cx.outbox }
end

-- schedules: list schedules.
-- KEYS prefix
-- ARGS now, "1" for due ones only, limit
-- RETURNS schedules (see view)
function J.schedules(keys, args)
  local now, due, limit = unpack(args)
  local cx = J.open(keys[1], now, true)
  limit = tonumber(limit)
  local answers, ids = {}
  if due == "1" then -- times of day are those of the clock, also if it was set back
    ids = call("ZRANGEBYSCORE", cx.prefix .. KEY.schedules_due, "-inf", cx.now - cx.ahead,
      "LIMIT", 0, limit)
  else
    ids = first_ids(cx.prefix, limit)
  end
  for i = 1, #ids do
    local state = state_of(cx.prefix, ids[i])
    if state then answers[#answers + 1] = view(cx.prefix, ids[i], state) end
  end
  return answers
end

-- Why the job of a schedule cannot be put: an error, or nil. (A job without a key in a keyed queue
-- would be stored where no claim looks.)
local function misfit(cx, body)
  local opts = J.body_options(body)
  local keyed = J.has_key(body)
  return J.misfit(cx, keyed and 0 or 1, keyed and 1 or 0, opts.cost or 1)
end

-- fire: put the job of a schedule, if this time of it has not fired yet.
-- KEYS prefix
-- ARGS now, id, time, next time or "", the spec that the job was made from, prefix where the job
--   belongs, job id ("" to skip this time without the event `missed`), body ("" to skip), prefix of
--   shard 0
-- RETURNS {1 if it fired, messages waiting, jobs to wake workers for elsewhere}; or an error as put
--   does, and nothing is stored
function J.fire(keys, args)
  local now, id, at, next_time, spec, queue, job_id, body, home = unpack(args, 1, 9)
  local cx = J.open(keys[1], now)
  local state = state_of(cx.prefix, id)
  if not state or state.paused or state.next ~= tonumber(at)
    or call("HGET", cx.prefix .. KEY.schedule_specs, id) ~= spec then return { 0, 0, 0 } end
  local wrong = body ~= "" and misfit(cx, body)
  if wrong then return wrong end
  state.next = tonumber(next_time)
  if body ~= "" then
    state.fired, state.last = state.fired + 1, tonumber(at)
    J.post(cx, queue, {
      type = "put", id = job_id, body = body, schedule = id, base = cx.prefix, home = home,
    })
  elseif job_id ~= "" then
    J.log_operation(cx, home, "missed", job_id)
  end
  keep(cx.prefix, id, state)
  J.deliver_local(cx)
  J.close(cx)
  return { 1, cx.outbox, cx.to_wake or 0 }
end

-- Put the job of a schedule. If another job holds its unique lock, or the queue is full, the
-- schedule has fired but has no job whose end it could wait for.
function J.MAIL.put(cx, m)
  J.fix_mode(cx, m.body)
  local answer = J.put_if_room(cx, J.room(cx), 1, m.id, m.body)
  if answer[4] == -1 then J.log_operation(cx, m.home or cx.prefix, "missed", m.id) end
  if answer[2] ~= m.id or answer[4] == -1 then
    J.post(cx, m.base, { type = "rearm", schedule = m.schedule })
  end
end

-- The job of an after-complete schedule has ended: set the next time. Copies core/rules/cron.py:
-- after_end.
function J.MAIL.rearm(cx, m)
  local state = state_of(cx.prefix, m.schedule)
  if not state or not state.after or state.next then return end
  local following = cx.now - cx.ahead + state.every
  if (state.limit and state.fired >= state.limit)
    or (state.stop and following > state.stop) then return end
  state.next = following
  keep(cx.prefix, m.schedule, state)
end

function J.schedule_ended(cx, id)
  local base = call("HGET", cx.prefix .. KEY.settings, SETTING.base) or cx.prefix
  J.post(cx, base, { type = "rearm", schedule = id })
end
