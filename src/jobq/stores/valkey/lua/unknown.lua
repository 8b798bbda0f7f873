-- unknown: jobs that the worker that claimed them cannot run. Copies core/rules/deferral.py.
-- EXTRA.put_off is "times\tsince\tdue", as PutOff in core, and EXTRA.deferred is Deferred. Without
-- the first the job was never put off in this life; without the second its arguments are new since.

-- RETURNS times, since, due; 0, 0, 0 if the job was never put off
local function put_off(cx, job)
  local kept = J.has(job.rflags, RUN_FLAG.extras)
    and call("HGET", cx.prefix .. KEY.extras .. job.id, EXTRA.put_off)
  if not kept then return 0, 0, 0 end
  local times, since, due = kept:match("^(%d+)\t(%d+)\t(%d+)$")
  return tonumber(times), tonumber(since), tonumber(due)
end

local function keep(cx, job, times, since, due)
  local text = J.whole(times) .. "\t" .. J.whole(since) .. "\t" .. J.whole(due)
  J.extra(cx, job, EXTRA.put_off, text)
end

-- Copies core/rules/deferral.py: starts.
function J.starts(cx, job) return job.attempt == 0 and 0 or job.attempt - put_off(cx, job) end

-- When a waiting job expires; nil for never. Copies core/rules/outcomes.py: ttl_end.
function J.ttl_end(cx, job)
  local ttl = J.options(job).ttl
  if not ttl then return nil end
  if job.attempt == 0 then return job.due + ttl end
  local times, _, due = put_off(cx, job)
  if job.attempt > times then return nil end
  return (due > 0 and due or job.due) + ttl
end

-- The job got a new due time: its ttl counts from there.
function J.due_again(cx, job)
  local times, since = put_off(cx, job)
  if times > 0 then keep(cx, job, times, since, 0) end
end

-- The arguments of the job are new: forget that the former ones did not fit.
function J.new_arguments(cx, job)
  if J.has(job.rflags, RUN_FLAG.extras) then
    call("HDEL", cx.prefix .. KEY.extras .. job.id, EXTRA.deferred)
  end
end

-- Copies core/rules/deferral.py: PutOff.again, deferred and waits.
function J.defer(cx, job, o, text)
  local delay, reason, times, since, due = o.delay, o.reason or "unknown", put_off(cx, job)
  if times == 0 then due = job.due end
  if times == 0 or reason == "unfit" then since = cx.now end
  keep(cx, job, times + 1, since, due)
  local before = call("HGET", cx.prefix .. KEY.extras .. job.id, EXTRA.deferred)
  local unfit = before and tonumber(before:match("^%a+\t%d+\t(%d+)\t")) or 0
  if unfit == 0 and reason == "unfit" then unfit = cx.now end
  J.extra(cx, job, EXTRA.deferred,
    reason .. "\t" .. J.whole(job.attempt) .. "\t" .. J.whole(unfit) .. "\t" .. text)
  if job.attempt == times + 1 then job.started = 0 end
  if J.meta(cx).mode == "keyed" then
    local _, key = J.name_key(job)
    J.put_on_hold(cx, key, delay)
    J.to_waiting(cx, job, J.EFFECTS.defer.kind, "front", reason)
  else
    J.to_delayed(cx, job, J.EFFECTS.defer.kind, cx.now + delay, reason)
  end
end
