-- move: a loaded job from one state to another, on record. Everything but the three hot paths goes through here.
local STATE, STEP = J.STATE, 1 / 4096
local ERRORS = J.DEFAULT.errors -- failed runs kept per job

-- Take a job from where it stands. The worker that held it is answered, for the event.
local function leave(cx, job)
  local prefix, state = cx.prefix, job.state
  if state == STATE.active then
    call("ZREM", prefix .. KEY.leases, job.id)
    job.rflags = J.without(job.rflags, J.ACTIVE)
    local _, key = J.name_key(job)
    if key then J.key_freed(cx, key) else cx.freed = true end
    return job.worker
  elseif state == STATE.delayed then
    call("ZREM", prefix .. KEY.delayed, job.id)
  elseif state == STATE.blocked then
    call("ZREM", prefix .. KEY.blocked, job.id)
    call("ZREM", prefix .. KEY.block_timeouts, job.id)
  else
    J.wait(cx, -1)
    job.ticket = (job.ticket + 1) % 65536 -- its entry stays in line, worth nothing
    job.rflags = J.with(job.rflags, J.LEFT)
  end
end

-- The same for one that goes on elsewhere. If it waited, its record says from now on that more is to be known of it: by its first entry
-- alone, which stays in line, a claim would start it a second time.
local function leave_unended(cx, job)
  if job.state == STATE.waiting and job.first_due == 0 and job.life == 0 then
    job.first_due = job.created
    J.renew(job)
    J.write(cx, job)
  end
  return leave(cx, job)
end

-- A waiting job that has not started expires when its ttl is over.
function J.await_ttl(cx, job)
  local ends = J.ttl_end(cx, job)
  if not ends then return end
  call("ZADD", cx.prefix .. KEY.ttls, ends, job.id)
  J.timer(cx, ends)
end

-- Stand in line: where = "back", "front" or "first" (see J.stand).
function J.to_waiting(cx, job, kind, where, reason, err, fingerprint)
  if job.broken then return J.fail_broken(cx, job) end
  local previous, worker = job.state, leave_unended(cx, job)
  if previous ~= STATE.delayed and previous ~= STATE.waiting then job.due, job.run_due = cx.now, cx.now end
  job.state = STATE.waiting
  J.await_ttl(cx, job)
  J.save_run(cx, job)
  J.stand(cx, job, where)
  J.event(cx, job, kind, previous, reason, err, fingerprint, worker)
end

-- Delayed jobs of one millisecond keep the order they came in: the fraction of the score counts them, 4,096 of them.
function J.delay_score(cx, due)
  cx.delays = cx.delays or {}
  local last = cx.delays[due]
  if not last then
    local top = call("ZREVRANGEBYSCORE", cx.prefix .. KEY.delayed, "(" .. (due + 1), due, "WITHSCORES", "LIMIT", 0, 1)
    last = top[2] and tonumber(top[2]) or due - STEP
  end
  if last + STEP < due + 1 then last = last + STEP end
  cx.delays[due] = last
  return string.format("%.17g", last)
end

-- Due later.
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

-- Waits for others; `until_ms` (or nil) ends that.
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

-- Where the record of an ended job is listed: e<state> may be trimmed by count, k<state> not (the caller gave the id),
-- y<state> has a time of its own, which y knows.
function J.shelve(cx, job)
  local ttl = J.own_ttl(cx, job)
  if ttl then
    call("ZADD", cx.prefix .. KEY.ended_own_ttl .. job.state, job.finished, job.id)
    call("ZADD", cx.prefix .. KEY.own_ttl_ends, job.finished + ttl, job.id)
  else
    call("ZADD", cx.prefix .. (J.has(job.flags, J.GIVEN) and KEY.ended_given_id or KEY.ended) .. job.state, job.finished, job.id)
  end
end

function J.unshelve(cx, job)
  local prefix, id, state = cx.prefix, job.id, job.state
  call("ZREM", prefix .. KEY.ended .. state, id)
  call("ZREM", prefix .. KEY.ended_given_id .. state, id)
  if call("ZREM", prefix .. KEY.ended_own_ttl .. state, id) == 1 then call("ZREM", prefix .. KEY.own_ttl_ends, id) end
end

-- The end of a job. `reason` defaults to that of the failure. `result` is "" or "\1" .. bytes. `failure` is one made here (see verdicts.lua),
-- or {blob =, error =, fingerprint =, reason =} from a worker; `run`: a run failed, and is kept among the job's errors.
function J.finish(cx, job, state, reason, result, failure)
  local previous = job.state
  local worker = leave(cx, job)
  local why, err, fingerprint
  if failure then why, err, fingerprint = J.keep_failure(cx, job, failure) end
  reason = reason or why
  job.state, job.finished, job.reason, job.result = state, cx.now, reason or "", result or ""
  J.write_end(cx, job)
  call("HDEL", cx.prefix .. KEY.runs, job.id)
  J.shelve(cx, job)
  J.event(cx, job, J.ENDINGS[state], previous, reason, err, fingerprint, worker)
  J.after_end(cx, job, failure)
end
J.ENDINGS = { [4] = "completed", [5] = "failed", [6] = "cancelled" }

-- Keep a failure with its attempt and time. RETURNS reason, error, fingerprint for the event.
-- That of a run goes to the job's last failed runs, which no claim reads: x:<id> travels with leases, and a traceback is long.
function J.keep_failure(cx, job, failure)
  local blob, err = failure.blob, failure.error
  if not blob then
    blob, err = J.pack_failure(failure), J.cut(failure.type .. ": " .. failure.message, J.DEFAULT.error_length)
  end
  local head = spack(">I4I6", job.attempt, cx.now)
  if failure.run then
    local errors = cx.prefix .. KEY.failed_runs .. job.id
    call("RPUSH", errors, head .. spack(">I2", #job.worker) .. job.worker .. blob)
    if job.attempt > ERRORS then call("LTRIM", errors, -ERRORS, -1) end
    J.extra(cx, job, "failure", "")
  else
    J.extra(cx, job, "failure", head .. blob)
  end
  return failure.reason, err, failure.fingerprint
end

-- The failure of a job, in the form of er:<id> (see record.lua); nil if it has none.
function J.kept_failure(cx, id)
  local kept = call("HGET", cx.prefix .. KEY.extras .. id, "failure")
  if kept == "" then return call("LINDEX", cx.prefix .. KEY.failed_runs .. id, -1) end
  return kept and kept:sub(1, 10) .. "\0\0" .. kept:sub(11) or nil
end

-- Who has a stake in the end of a job: its lock, its schedule, jobs that wait for it, listeners, the dead letters.
function J.after_end(cx, job, failure)
  local opts = J.options(job)
  if job.state == STATE.failed and J.meta(cx).dead then J.forward(cx, job, opts, J.last_number(cx)) end
  if opts.lock then J.unlock(cx, job, opts) end
  if J.has(job.rflags, J.WANTED) then J.tell_parents(cx, job) end
  if opts.chan or J.has(job.rflags, J.WATCHED) then J.tell_end(cx, job, opts.chan) end
  if opts.schedule then J.schedule_ended(cx, opts.schedule) end
end

-- Forget an ended job. Entries it may have left in line must not fit the id's next life: that life is remembered.
function J.purge(cx, job)
  J.unshelve(cx, job)
  if J.has(job.rflags, J.LEFT) then call("HSET", cx.prefix .. KEY.next_lives, job.id, job.life + 1) end
  call("UNLINK", cx.prefix .. KEY.job .. job.id, cx.prefix .. KEY.extras .. job.id, cx.prefix .. KEY.log_lines .. job.id, cx.prefix .. KEY.failed_runs .. job.id)
end
