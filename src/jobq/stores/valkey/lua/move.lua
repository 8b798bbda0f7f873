-- move: move a loaded job from one state to another and log it. All but the three hot paths (put,
-- claim, complete) use these functions.
local STATE, STEP = J.STATE, 1 / 4096
local ERRORS = J.DEFAULT.errors -- failed runs kept per job

-- Take a job out of its state. RETURNS the worker that held it, for the event
local function leave(cx, job)
  local prefix, state = cx.prefix, job.state
  if state == STATE.active then
    call("ZREM", prefix .. KEY.leases, job.id)
    job.rflags = J.without(job.rflags, RUN_FLAG.active)
    local _, key = J.name_key(job)
    if key then J.key_freed(cx, key) else cx.freed = true end
    return job.worker
  elseif state == STATE.delayed then
    call("ZREM", prefix .. KEY.delayed, job.id)
  elseif state == STATE.blocked then
    call("ZREM", prefix .. KEY.blocked, job.id)
    call("ZREM", prefix .. KEY.block_timeouts, job.id)
  else
    J.count_waiting(cx, -1)
    J.leave_entry(cx, job)
  end
end

-- The same for a job that has not ended. If it was waiting, its record gets FLAG.later: a claim
-- that finds only the job's stale first entry would otherwise start it a second time.
local function leave_unended(cx, job)
  if job.state == STATE.waiting and job.first_due == 0 and job.life == 0 then
    job.first_due = job.created
    J.renew(job)
    J.write(cx, job)
  end
  return leave(cx, job)
end

-- Note when a waiting job that has not started expires.
function J.await_ttl(cx, job)
  local ends = J.ttl_end(cx, job)
  if not ends then return end
  call("ZADD", cx.prefix .. KEY.ttls, ends, job.id)
  J.timer(cx, ends)
end

-- Make a job waiting. `where` is "back", "front" or "first" (see J.enqueue).
function J.to_waiting(cx, job, kind, where, reason, err, fingerprint)
  if job.broken then return J.fail_broken(cx, job) end
  local previous, worker = job.state, leave_unended(cx, job)
  if previous ~= STATE.delayed and previous ~= STATE.waiting then
    job.due, job.run_due = cx.now, cx.now
  end
  job.state = STATE.waiting
  J.await_ttl(cx, job)
  J.save_run(cx, job)
  J.enqueue(cx, job, where)
  J.event(cx, job, kind, previous, reason, err, fingerprint, worker)
end

-- The score of a job in KEY.delayed. Jobs that are due in the same millisecond keep their order:
-- the fraction of the score counts up to 4,096 of them.
function J.delay_score(cx, due)
  cx.delays = cx.delays or {}
  local last = cx.delays[due]
  if not last then
    local top = call("ZREVRANGEBYSCORE", cx.prefix .. KEY.delayed, "(" .. (due + 1), due,
      "WITHSCORES", "LIMIT", 0, 1)
    last = top[2] and tonumber(top[2]) or due - STEP
  end
  if last + STEP < due + 1 then last = last + STEP end
  cx.delays[due] = last
  return string.format("%.17g", last)
end

-- Make a job delayed.
function J.to_delayed(cx, job, kind, due, reason, err, fingerprint)
  if job.broken then return J.fail_broken(cx, job) end
  local previous, worker = job.state, leave_unended(cx, job)
  job.state, job.due, job.run_due = STATE.delayed, due, due
  J.save_run(cx, job)
  call("ZADD", cx.prefix .. KEY.delayed, J.delay_score(cx, due), job.id)
  J.timer(cx, due)
  J.event(cx, job, kind, previous, reason, err, fingerprint, worker)
  J.due_later(cx, due)
end

-- Make a job blocked. `until_ms` (or nil) is when its wait times out.
function J.to_blocked(cx, job, kind, until_ms)
  local previous, worker = job.state, leave(cx, job)
  job.state = STATE.blocked
  J.save_run(cx, job)
  call("ZADD", cx.prefix .. KEY.blocked, cx.now, job.id)
  if until_ms then
    call("ZADD", cx.prefix .. KEY.block_timeouts, until_ms, job.id)
    J.timer(cx, until_ms)
  end
  J.event(cx, job, kind, previous, nil, nil, nil, worker)
end

-- Add an ended job to one of the three sets of its state (see KEY.ended in keys.lua).
function J.list_ended(cx, job)
  local ttl = J.own_ttl(cx, job)
  if ttl then
    call("ZADD", cx.prefix .. KEY.ended_own_ttl .. job.state, job.finished, job.id)
    call("ZADD", cx.prefix .. KEY.own_ttl_ends, job.finished + ttl, job.id)
  else
    local set = J.has(job.flags, FLAG.given_id) and KEY.ended_given_id or KEY.ended
    call("ZADD", cx.prefix .. set .. job.state, job.finished, job.id)
  end
end

function J.unlist_ended(cx, job)
  local prefix, id, state = cx.prefix, job.id, job.state
  call("ZREM", prefix .. KEY.ended .. state, id)
  call("ZREM", prefix .. KEY.ended_given_id .. state, id)
  if call("ZREM", prefix .. KEY.ended_own_ttl .. state, id) == 1 then
    call("ZREM", prefix .. KEY.own_ttl_ends, id)
  end
end

-- End a job. `reason` defaults to the reason of the failure. `result` is nil, "" or "\1" and its
-- bytes. `failure` is one that was made here (see verdicts.lua), or {blob =, error =, fingerprint
-- =, reason =} from a worker. With `failure.run` a run failed, and the failure is kept among the
-- job's failed runs.
function J.finish(cx, job, state, reason, result, failure)
  local previous = job.state
  local worker = leave(cx, job)
  local why, err, fingerprint
  if failure then why, err, fingerprint = J.keep_failure(cx, job, failure) end
  reason = reason or why
  job.state, job.finished, job.reason, job.result = state, cx.now, reason or "", result or ""
  J.write_end(cx, job)
  call("HDEL", cx.prefix .. KEY.runs, job.id)
  J.list_ended(cx, job)
  J.event(cx, job, J.ENDINGS[state], previous, reason, err, fingerprint, worker)
  J.after_end(cx, job, failure)
end
J.ENDINGS = {
  [STATE.completed] = "completed", [STATE.failed] = "failed", [STATE.cancelled] = "cancelled",
}

-- Store a failure with its attempt and time. The failure of a run goes to KEY.failed_runs, which no
-- claim reads: extras come with every lease, and tracebacks are long.
-- RETURNS reason, error and fingerprint for the event
function J.keep_failure(cx, job, failure)
  local blob, err = failure.blob, failure.error
  if not blob then
    blob = J.pack_failure(failure)
    err = J.cut(failure.type .. ": " .. failure.message, J.DEFAULT.error_length)
  end
  local head = spack(FAILED_RUN.short, job.attempt, cx.now)
  if failure.run then
    local errors = cx.prefix .. KEY.failed_runs .. job.id
    call("RPUSH", errors,
      head .. spack(FAILED_RUN.worker_length, #job.worker) .. job.worker .. blob)
    if job.attempt > ERRORS then call("LTRIM", errors, -ERRORS, -1) end
    J.extra(cx, job, EXTRA.failure, "")
  else
    J.extra(cx, job, EXTRA.failure, head .. blob)
  end
  return failure.reason, err, failure.fingerprint
end

-- The failure of a job as a failed run (FAILED_RUN in fields.lua); nil if it has none.
function J.kept_failure(cx, id)
  local kept = call("HGET", cx.prefix .. KEY.extras .. id, EXTRA.failure)
  if kept == "" then return call("LINDEX", cx.prefix .. KEY.failed_runs .. id, -1) end
  return kept and kept:sub(1, FAILED_RUN.short_end) .. FAILED_RUN.no_worker
    .. kept:sub(FAILED_RUN.short_failure_at) or nil
end

-- What depends on the end of a job: its lock, jobs that wait for it, listeners, its schedule and
-- the dead-letter queue.
function J.after_end(cx, job, failure)
  local opts = J.options(job)
  if job.state == STATE.failed and J.meta(cx).dead then
    J.forward(cx, job, opts, J.last_number(cx))
  end
  if opts.lock then J.unlock(cx, job, opts) end
  if J.has(job.rflags, RUN_FLAG.awaited) then J.notify_parents(cx, job) end
  if opts.chan or J.has(job.rflags, RUN_FLAG.watched) then J.publish_end(cx, job, opts.chan) end
  if opts.schedule then J.schedule_ended(cx, opts.schedule) end
end

-- Remove an ended job.
function J.purge(cx, job)
  J.unlist_ended(cx, job)
  if J.has(job.rflags, RUN_FLAG.left_entry) then
    call("HSETNX", cx.prefix .. KEY.left, job.id, J.LEFT_BEFORE)
  end
  call("UNLINK", cx.prefix .. KEY.job .. job.id, cx.prefix .. KEY.extras .. job.id,
    cx.prefix .. KEY.log_lines .. job.id, cx.prefix .. KEY.failed_runs .. job.id)
end
