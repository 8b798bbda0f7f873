-- unknown: jobs whose task is unknown to the worker that claimed them. Copies core/unknown.py.
-- EXTRA.put_off is "times\tsince\tdue", as PutOff in core. Without the field the job was never put
-- off in this life.

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

-- Copies core/unknown.py: starts.
function J.starts(cx, job) return job.attempt == 0 and 0 or job.attempt - put_off(cx, job) end

-- When a waiting job expires; nil for never. Copies core/outcomes.py: ttl_end.
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

-- Copies core/unknown.py: PutOff.again and waits.
function J.defer(cx, job, delay)
  local times, since, due = put_off(cx, job)
  if times == 0 then since, due = cx.now, job.due end
  keep(cx, job, times + 1, since, due)
  if job.attempt == times + 1 then job.started = 0 end
  if J.meta(cx).mode == "keyed" then
    local _, key = J.name_key(job)
    J.put_on_hold(cx, key, delay)
    J.to_waiting(cx, job, J.EFFECTS.defer.kind, "front", "unknown")
  else
    J.to_delayed(cx, job, J.EFFECTS.defer.kind, cx.now + delay, "unknown")
  end
end
