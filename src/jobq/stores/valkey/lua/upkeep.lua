-- upkeep: what happens by itself as time passes: due jobs, expired leases, ttls, waits that time
-- out, retention. Each pass is bounded.
local STATE = J.STATE

-- Make delayed jobs that are due waiting, oldest first. RETURNS how many
function J.promote(cx, limit)
  local ids = call("ZRANGEBYSCORE", cx.prefix .. KEY.delayed, "-inf", "(" .. (cx.now + 1),
    "LIMIT", 0, limit)
  for i = 1, #ids do
    local job = J.load(cx, ids[i])
    if job and J.too_early(cx, job) then
      local score = J.delay_score(cx, J.due(cx, J.options(job)))
      call("ZADD", cx.prefix .. KEY.delayed, score, ids[i])
    elseif job then
      J.to_waiting(cx, job, "promoted", J.queue_end_when_due(cx, job))
    else
      call("ZREM", cx.prefix .. KEY.delayed, ids[i])
    end
  end
  return #ids
end

-- Where a job goes in its waiting list when nothing holds it back any more.
-- Copies core/rules/outcomes.py: queue_end_when_due.
function J.queue_end_when_due(cx, job)
  if job.started > 0 then
    return J.meta(cx).mode == "keyed" and "front" or "back"
  end
  return J.options(job).lifo and "first" or "back"
end

-- Expired leases: their jobs return to the front of their waiting list, or fail if they have
-- stalled more than max_stalls times. RETURNS how many
function J.repair(cx, limit)
  local ids = call("ZRANGEBYSCORE", cx.prefix .. KEY.leases, "-inf", cx.now, "LIMIT", 0, limit)
  local lost = false
  for i = 1, #ids do
    local job = J.load(cx, ids[i])
    if job and job.state == STATE.active and not job.broken then
      J.stalled(cx, job)
    else
      if job and job.state == STATE.active then J.fail_broken(cx, job) end
      call("ZREM", cx.prefix .. KEY.leases, ids[i])
      call("HDEL", cx.prefix .. KEY.runs, ids[i])
      lost = true -- the key that this job counted for is unknown
    end
  end
  if lost and J.meta(cx).mode == "keyed" then J.recount_keys(cx) end
  return #ids
end

-- Apply an expired lease to its job. Copies core/rules/outcomes.py: stall.
function J.stalled(cx, job)
  job.stalls = job.stalls + 1
  job.token = "" -- an outcome with the old token is stale
  local failure = J.stalled_failure(job, J.max_stalls(cx, job))
  if J.has(job.rflags, RUN_FLAG.cancel) then
    J.keep_failure(cx, job, failure)
    J.finish(cx, job, STATE.cancelled, J.why_cancelled(cx, job))
  elseif failure.exhausted then
    J.finish(cx, job, STATE.failed, nil, nil, failure)
  else
    J.keep_failure(cx, job, failure)
    J.to_waiting(cx, job, "stalled", "front", "stalled")
  end
end

-- Fail a job that has not started within its ttl.
function J.expire(cx, job)
  J.finish(cx, job, STATE.failed, nil, nil, J.expired_failure(J.options(job).ttl))
end

-- Waiting jobs whose ttl is over. RETURNS how many
function J.expire_due(cx, limit)
  local ids = call("ZRANGEBYSCORE", cx.prefix .. KEY.ttls, "-inf", cx.now, "LIMIT", 0, limit)
  for i = 1, #ids do
    call("ZREM", cx.prefix .. KEY.ttls, ids[i])
    local job = J.load(cx, ids[i])
    local ends = job and job.state == STATE.waiting and J.ttl_end(cx, job)
    if ends and ends <= cx.now then J.expire(cx, job) end
  end
  return #ids
end

-- Unblock jobs whose wait for children or a signal has timed out. RETURNS how many
function J.end_waits(cx, limit)
  local timeouts = cx.prefix .. KEY.block_timeouts
  local ids = call("ZRANGEBYSCORE", timeouts, "-inf", cx.now, "LIMIT", 0, limit)
  for i = 1, #ids do
    call("ZREM", timeouts, ids[i])
    local job = J.load(cx, ids[i])
    if job and job.state == STATE.blocked then
      local signal = call("HGET", cx.prefix .. KEY.extras .. job.id, EXTRA.signal)
      if signal then J.add_signal(cx, job, signal, "") end -- an empty value: it did not come
      J.unblock(cx, job, "timeout")
    end
  end
  return #ids
end

-- Remove ended jobs, all at once. (J.purge removes one.) Ids without a record leave the set as
-- well.
local function purge_from(cx, set, ids)
  if #ids == 0 then return 0 end
  local prefix, names, gone, by_state = cx.prefix, {}, {}, {}
  for i = 1, #ids do names[i] = prefix .. KEY.job .. ids[i] end
  local recs = J.mget(names)
  for i = 1, #ids do
    local rec, id = recs[i], ids[i]
    if rec and rec:byte(1) == ENDED.mark_byte then
      local state = rec:byte(ENDED.state_at) or STATE.failed
      by_state[state] = by_state[state] or {}
      table.insert(by_state[state], id)
      local rflags = rec:byte(ENDED.run_flags_at) or 0 -- none: the record cannot be read
      if J.has(rflags, RUN_FLAG.left_entry) then
        call("HSETNX", prefix .. KEY.left, id, J.LEFT_BEFORE)
      end
      gone[#gone + 1] = names[i]
      gone[#gone + 1] = prefix .. KEY.extras .. id
      gone[#gone + 1] = prefix .. KEY.log_lines .. id
      if J.has(rflags, RUN_FLAG.extras) then gone[#gone + 1] = prefix .. KEY.failed_runs .. id end
    end
  end
  for first = 1, #gone, J.CHUNK do
    call("UNLINK", unpack(gone, first, math.min(first + J.CHUNK - 1, #gone)))
  end
  for state, ended in pairs(by_state) do
    for _, name in ipairs({ KEY.ended, KEY.ended_given_id, KEY.ended_own_ttl }) do
      J.variadic("ZREM", prefix .. name .. state, ended)
    end
    J.variadic("ZREM", prefix .. KEY.own_ttl_ends, ended)
  end
  J.variadic("ZREM", set, ids)
  return #ids
end

-- Remove ended jobs whose retention has passed: by age, by a time of their own, and by count. Jobs
-- with a given id or a time of their own do not count. RETURNS how many
function J.sweep(cx, limit)
  local prefix, n, meta = cx.prefix, 0, J.meta(cx)
  for state = STATE.completed, STATE.cancelled do
    local keep = J.retention(cx, state)
    if keep then
      for _, name in ipairs({ KEY.ended, KEY.ended_given_id }) do
        local set = prefix .. name .. state
        n = n + purge_from(cx, set, call("ZRANGEBYSCORE", set, "-inf", cx.now - keep,
          "LIMIT", 0, math.max(limit - n, 0)))
      end
    end
    local count = meta.count ~= "" and tonumber(meta.count or J.DEFAULT.kept)
    if count and n < limit then
      local set = prefix .. KEY.ended .. state
      local over = call("ZCARD", set) - count
      if over > 0 then
        n = n + purge_from(cx, set, call("ZRANGE", set, 0, math.min(over, limit - n) - 1))
      end
    end
  end
  local set = prefix .. KEY.own_ttl_ends
  return n + purge_from(cx, set,
    call("ZRANGEBYSCORE", set, "-inf", cx.now, "LIMIT", 0, math.max(limit - n, 0)))
end

-- How many ended jobs of a state there are.
function J.ended_count(cx, state)
  local prefix = cx.prefix
  return call("ZCARD", prefix .. KEY.ended .. state)
    + call("ZCARD", prefix .. KEY.ended_given_id .. state)
    + call("ZCARD", prefix .. KEY.ended_own_ttl .. state)
end

-- Catch up with time before a claim. The counters say when there is nothing to do, which is nearly
-- always.
function J.prepare(cx, limit)
  local n = J.counters(cx)
  if n.timer > 0 and n.timer <= cx.now then
    J.promote(cx, limit)
    J.expire_due(cx, limit)
    J.end_waits(cx, limit)
    J.release_keys(cx)
    n.timer = J.soonest(cx, KEY.delayed, KEY.ttls, KEY.block_timeouts, KEY.keys_skipped)
  end
  if n.leases > 0 and n.leases <= cx.now then
    J.repair(cx, limit)
    n.leases = J.soonest(cx, KEY.leases)
  end
  J.deliver_local(cx)
end

local SLEEPER_SECONDS = 120 -- a worker that has not looked for work this long is gone

-- tick: one pass of upkeep.
-- KEYS prefix
-- ARGS now, limit
-- RETURNS {steps, jobs to wake workers for elsewhere, messages waiting, unread events dropped}
function J.tick(keys, args)
  local cx, limit = J.open(keys[1], args[1]), tonumber(args[2])
  local steps = 0
  local passes = { J.promote, J.repair, J.expire_due, J.end_waits, J.sweep, J.sweep_locks }
  for _, pass in ipairs(passes) do
    if steps < limit then steps = steps + pass(cx, limit - steps) end
  end
  J.tick_holds(cx)
  steps = steps + J.release_keys(cx)
  local counters = J.counters(cx)
  counters.timer = J.soonest(cx, KEY.delayed, KEY.ttls, KEY.block_timeouts, KEY.keys_skipped)
  counters.leases = J.soonest(cx, KEY.leases)
  local time = call("TIME")
  local gone = call("ZRANGEBYSCORE", cx.prefix .. KEY.sleepers, "-inf", time[1] - SLEEPER_SECONDS,
    "LIMIT", 0, 100)
  J.variadic("ZREM", cx.prefix .. KEY.sleepers, gone)
  J.variadic("HDEL", cx.prefix .. KEY.sleeper_slots, gone)
  local unread = J.log_trim(cx)
  J.close(cx)
  local messages = call("ZCARD", cx.prefix .. KEY.outbox)
  return { math.min(steps, limit), cx.to_wake or 0, messages, unread }
end
