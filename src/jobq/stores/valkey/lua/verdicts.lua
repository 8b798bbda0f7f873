-- verdicts: failures that the store gives a job by itself. Copies core/verdicts.py (stalled, expired, fails_parent, failure_for_parent,
-- parent_failure); the words are core's (J.WORDS). tests/rules holds both together.
-- A failure is {reason =, type =, message =, fingerprint =, traceback =} here. From a worker it comes packed, as `blob`.
local STATE, WORDS, byte = J.STATE, J.WORDS, string.byte

-- The first n characters of a text, which is UTF-8.
function J.cut(text, n)
  if #text <= n then return text end
  local at, count = 1, 0
  while at <= #text and count < n do
    local b = byte(text, at)
    at, count = at + (b < 192 and 1 or b < 224 and 2 or b < 240 and 3 or 4), count + 1
  end
  return text:sub(1, at - 1)
end

-- The last n characters.
function J.tail(text, n)
  local at, count = #text + 1, 0
  while at > 1 and count < n do
    at = at - 1
    while at > 1 and byte(text, at) >= 128 and byte(text, at) < 192 do at = at - 1 end
    count = count + 1
  end
  return text:sub(at)
end

-- A template filled in. string.format would end a text at its first zero byte.
local function fill(template, ...)
  local args, n = { ... }, 0
  return (template:gsub("%%(%a)", function(kind)
    n = n + 1
    return kind == "s" and args[n] or string.format("%" .. kind, args[n])
  end))
end

-- As core/failures.py: bounded.
local function bounded(text)
  local most = J.DEFAULT.message_length
  if J.cut(text, most) == text then return text end
  return J.cut(text, most - 1) .. "\226\128\166"
end

-- Of a run whose lease expired. `exhausted`: it was one too many, the job fails.
function J.stalled_failure(job, max_stalls)
  return {
    run = true, reason = "stalled", type = "LeaseLost", fingerprint = "stalled", exhausted = job.stalls > max_stalls,
    message = fill(WORDS.stalled, job.attempt, job.stalls, max_stalls),
  }
end

function J.expired_failure(ttl_ms)
  return { reason = "expired", type = "Expired", message = fill(WORDS.expired, ttl_ms / 1000), fingerprint = "expired" }
end

-- How a child ended comes as a message (see flow.lua): id, name, state, and `kept`, its failure in the form of er:<id>.

function J.fails_parent(policy, state) return policy == "fail" and state ~= STATE.completed end

local function not_done(m)
  local message = m.name and fill(WORDS.child_cancelled, m.id, m.name) or fill(WORDS.child_gone, m.id)
  return { reason = "child", type = "JobCancelled", message = message, fingerprint = "cancelled" }
end

-- A failure made here, as workers pack theirs.
function J.pack_failure(f)
  return mpack({ f.reason, f.type, f.message, f.traceback or null, 0, 0, f.fingerprint or null, f.worker or null, f.exhausted or false })
end

-- A failure in the form of er:<id>, taken apart. RETURNS attempt, time, worker, the packed rest
local function parts(kept)
  local attempt, at, n = sunpack(">I4I6I2", kept)
  return attempt, at, kept:sub(13, 12 + n), kept:sub(13 + n)
end

local function unpacked(blob)
  local reason, kind, message, traceback, _, _, fingerprint, _, exhausted = unpack(munpack(blob), 1, 9)
  return { reason = reason, type = kind, message = message, traceback = traceback, fingerprint = fingerprint, exhausted = exhausted }
end

-- A failure in the form of er:<id>, for the `failure` of another job's x:<id>: with the worker packed along.
function J.copied_failure(kept)
  local attempt, at, worker, blob = parts(kept)
  local failure = unpacked(blob)
  failure.worker = worker ~= "" and worker or nil
  return spack(">I4I6", attempt, at) .. J.pack_failure(failure)
end

-- What a parent is given in place of a result: nothing, or by policy `continue` the child's own failure, in the form of er:<id>.
function J.failure_for_parent(policy, m)
  if policy ~= "continue" or m.state == STATE.completed then return nil end
  return m.kept or spack(">I4I6I2", m.attempt or 0, m.at or 0, 0) .. J.pack_failure(not_done(m))
end

-- Why a parent fails with its child.
function J.parent_failure(m)
  if not m.kept then return not_done(m) end
  local _, _, _, blob = parts(m.kept)
  local failure = unpacked(blob)
  if failure.reason ~= "child" then failure.message = bounded(fill(WORDS.child_failed, m.id, m.name, failure.message)) end
  failure.reason, failure.exhausted = "child", false
  return failure
end
