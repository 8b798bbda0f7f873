-- restore: store failed jobs of another store.
local STATE = J.STATE

-- The parts of a text in which each part follows its length as I4.
local function parts(text)
  local found, at = {}, 1
  while at < #text do
    local n = sunpack(">I4", text, at)
    found[#found + 1] = text:sub(at + 4, at + 3 + n)
    at = at + 4 + n
  end
  return found
end

-- A time of the other store, whose clock may be ahead: nothing has happened after now.
local function past(cx, ms) return math.min(ms, cx.now) end

-- Store one job as accepted and failed. RETURNS false if its id is in use
local function restore_one(cx, id, body, was, failure, runs, steps)
  local old, life = J.in_the_way(cx, id)
  if old then return false end
  local job = J.read(id, cx.now6 .. body)
  local due = past(cx, was.due)
  job.life, job.created, job.first_due = life, past(cx, was.created), due
  job.ticket = J.first_ticket(cx, id)
  job.attempt, job.failures, job.stalls = was.attempt, was.failures, was.stalls_before
  J.renew(job)
  job.due, job.state = due, STATE.blocked
  J.event(cx, job, "accepted")
  job.stalls, job.started, job.worker = was.stalls, past(cx, was.started), was.worker
  J.variadic("RPUSH", cx.prefix .. KEY.failed_runs .. id, parts(runs))
  J.extra(cx, job, EXTRA.failure, failure)
  local recorded = parts(steps)
  for i = 1, #recorded, 2 do J.extra(cx, job, EXTRA.step .. recorded[i], recorded[i + 1]) end
  job.state, job.finished, job.reason, job.result = STATE.failed, cx.now, was.reason, ""
  J.write_end(cx, job)
  J.list_ended(cx, job)
  J.event(cx, job, "failed", STATE.blocked, was.reason, was.error, was.fingerprint)
  return true
end

-- restore: store failed jobs.
-- KEYS prefix
-- ARGS now, number of jobs, position of the first plain job, of the first keyed one, then per job:
--   id, body, packed {created, due, started, attempt, failures, stalls, stalls_before, worker,
--   reason, error, fingerprint or nothing}, EXTRA.failure, failed runs (FAILED_RUN), names and
--   records of steps in turn. Runs and steps are `parts`
-- RETURNS {a letter per job: d done, l the id is in use; 1 if the queue had no mode yet}
function J.restore(keys, args)
  local cx = J.open(keys[1], args[1])
  local wrong = J.refusal(cx, tonumber(args[3]), tonumber(args[4]), 1)
  if wrong then return wrong end
  J.fix_mode(cx, args[6])
  local letters = {}
  for k = 5, #args, 6 do
    local id, body, was, failure, runs, steps = unpack(args, k, k + 5)
    local done = restore_one(cx, id, body, munpack(was), failure, runs, steps)
    letters[#letters + 1] = done and "d" or "l"
  end
  J.close(cx)
  return { table.concat(letters), cx.begun or 0 }
end
