-- verdicts: failures that the store gives a job by itself. Copies core/rules/outcomes.py
-- (stall_failure, ttl_failure, fails_parent, failure_for_parent, parent_failure). The messages are
-- core's (J.WORDS). tests/rules compares both. A failure here is a table {reason =, type =,
-- message =, fingerprint =, traceback =}. A worker sends a failure packed, as `blob`.
local STATE, WORDS, byte = J.STATE, J.WORDS, string.byte

-- The first n characters of a UTF-8 text.
function J.cut(text, n)
  if #text <= n then return text end
  local at, count = 1, 0
  while at <= #text and count < n do
    local b = byte(text, at)
    at, count = at + (b < 192 and 1 or b < 224 and 2 or b < 240 and 3 or 4), count + 1
  end
  return text:sub(1, at - 1)
end

-- The last n characters of a UTF-8 text.
function J.tail(text, n)
  local at, count = #text + 1, 0
  while at > 1 and count < n do
    at = at - 1
    while at > 1 and byte(text, at) >= 128 and byte(text, at) < 192 do at = at - 1 end
    count = count + 1
  end
  return text:sub(at)
end

-- Fill in a template. string.format would end a text at its first zero byte.
local function fill(template, ...)
  local args, n = { ... }, 0
  return (template:gsub("%%(%a)", function(kind)
    n = n + 1
    return kind == "s" and args[n] or string.format("%" .. kind, args[n])
  end))
end

-- Copies core/records/failures.py: bounded.
local function bounded(text)
  local most = J.DEFAULT.message_length
  if J.cut(text, most) == text then return text end
  return J.cut(text, most - 1) .. "\226\128\166"
end

-- The failure of a run whose lease expired. `exhausted`: it stalled once too often and the job
-- fails.
function J.stalled_failure(job, max_stalls)
  return {
    run = true, reason = "stalled", type = "LeaseLost", fingerprint = "stalled",
    exhausted = job.stalls > max_stalls,
    message = fill(WORDS.stalled, job.attempt, job.stalls, max_stalls),
  }
end

function J.expired_failure(ttl_ms)
  return {
    reason = "expired", type = "Expired", message = fill(WORDS.expired, ttl_ms / 1000),
    fingerprint = "expired",
  }
end

-- How a child ended arrives as a message `m` (see flow.lua): id, name, state, and `kept`, its
-- failure as a failed run (FAILED_RUN in fields.lua).

function J.fails_parent(policy, state) return policy == "fail" and state ~= STATE.completed end

local function not_done(m)
  local message = m.name and fill(WORDS.child_cancelled, m.id, m.name)
    or fill(WORDS.child_gone, m.id)
  return { reason = "child", type = "JobCancelled", message = message, fingerprint = "cancelled" }
end

-- Pack a failure that was made here as workers pack theirs.
function J.pack_failure(f)
  return mpack({
    f.reason, f.type, f.message, f.traceback or null, 0, 0, f.fingerprint or null, f.worker or null,
    f.exhausted or false,
  })
end

-- RETURNS attempt, time, worker and packed failure of a failed run
local function parts(kept)
  local attempt, at, n = sunpack(FAILED_RUN.format, kept)
  local worker = kept:sub(FAILED_RUN.worker_at, FAILED_RUN.worker_before + n)
  return attempt, at, worker, kept:sub(FAILED_RUN.worker_at + n)
end

local function unpacked(blob)
  local reason, kind, message, traceback, _, _, fingerprint, _,
    exhausted = unpack(munpack(blob), 1, 9)
  return {
    reason = reason, type = kind, message = message, traceback = traceback,
    fingerprint = fingerprint, exhausted = exhausted,
  }
end

-- A failed run of one job as EXTRA.failure of another job, with the worker packed along.
function J.copied_failure(kept)
  local attempt, at, worker, blob = parts(kept)
  local failure = unpacked(blob)
  failure.worker = worker ~= "" and worker or nil
  return spack(FAILED_RUN.short, attempt, at) .. J.pack_failure(failure)
end

-- What a parent gets instead of a result: with the policy `continue` the child's failure, as a
-- failed run; otherwise nil.
function J.failure_for_parent(policy, m)
  if policy ~= "continue" or m.state == STATE.completed then return nil end
  return m.kept
    or spack(FAILED_RUN.format, m.attempt or 0, m.at or 0, 0) .. J.pack_failure(not_done(m))
end

-- The failure of a parent whose child has not completed.
function J.parent_failure(m)
  if not m.kept then return not_done(m) end
  local _, _, _, blob = parts(m.kept)
  local failure = unpacked(blob)
  if failure.reason ~= "child" then
    failure.message = bounded(fill(WORDS.child_failed, m.id, m.name, failure.message))
  end
  failure.reason, failure.exhausted = "child", false
  return failure
end
