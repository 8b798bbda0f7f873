-- record: how a job is kept, and how it is loaded for anything but the three hot paths (put, claim, complete).
--
-- j:<id>  the record: created I6, due I6 (0: as created), life I3 | flags B, #nk I2, #options I2, #payload I4, nk, options, payload
--         The first part is the store's, the second the producer's, verbatim. nk: name and key as MessagePack, ready for
--         events; options: a MessagePack map of what is not at its default.
--         Ended jobs: + state B, finished I6, #run I2, run, #reason B, reason, and a result if there is one: "\1" .. result
-- h id →  the run, of jobs that have started or are otherwise more than their record says:
--         attempt I4, failures I3, stalls I3, started I6, due I6, order I6, ticket I2, flags B, #token B, token, worker
--         `order` is its place in line while it may come back to it; `ticket` tells its entry in line from those left behind.
-- x:<id>  a hash of what few jobs have: failure, saved, progress, edges, inputs, signals, listeners.
-- A state is not stored: ended jobs have a tail, active ones a lease, delayed and blocked ones stand in d and b, the rest waits.
local floor = math.floor
local RUN = ">I4I3I3I6I6I6I2BB"
local NO_OPTIONS = {}
local STATE, ORDER = J.STATE, J.ORDER

J.HEAD = 24 -- bytes before nk
J.RUN_HEAD = 32 -- bytes before the token

function J.pack_run(job)
  return spack(RUN, job.attempt, job.failures, job.stalls, job.started, job.run_due, job.order + ORDER, job.ticket, job.rflags, #job.token)
    .. job.token .. job.worker
end

local function read_run(job, run)
  local attempt, failures, stalls, started, due, order, ticket, flags, n = sunpack(RUN, run)
  job.attempt, job.failures, job.stalls, job.started, job.run_due = attempt, failures, stalls, started, due
  job.order, job.ticket, job.rflags = order - ORDER, ticket, flags
  job.token, job.worker = run:sub(33, 32 + n), run:sub(33 + n)
  if due > 0 then job.due = due end
end

local function no_run(job)
  job.attempt, job.failures, job.stalls, job.started, job.run_due = 0, 0, 0, 0, 0
  job.order, job.ticket, job.rflags, job.token, job.worker = 0, 0, 0, "", ""
end

-- A job from its record and run. Its state is known only if it is active or ended (see J.load).
function J.read(id, rec, run)
  local created, due, life, flags, nn, no, np = sunpack(">I6I6I3BI2I2I4", rec)
  local stop = 24 + nn + no + np
  local job = {
    id = id, rec = rec, created = created, due = due > 0 and due or created, life = life, flags = flags,
    nk = rec:sub(25, 24 + nn), stop = stop, options_at = 25 + nn, options_n = no, payload_n = np,
  }
  if #rec > stop then
    local state, finished, n = sunpack(">BI6I2", rec, stop + 1)
    local at = stop + 10 + n
    local reason_n = rec:byte(at)
    job.state, job.finished = state, finished
    job.reason = rec:sub(at + 1, at + reason_n)
    job.result = rec:sub(at + 1 + reason_n)
    if n > 0 then read_run(job, rec:sub(stop + 10, at - 1)) else no_run(job) end
  elseif run then
    read_run(job, run)
    if J.has(job.rflags, J.ACTIVE) then job.state = STATE.active end
  else
    no_run(job)
  end
  return job
end

-- The job as it stands, or nil.
function J.load(cx, id)
  local rec = call("GET", cx.P .. "j:" .. id)
  if not rec then return nil end
  local job = J.read(id, rec, call("HGET", cx.P .. "h", id))
  if not job.state then
    if call("ZSCORE", cx.P .. "d", id) then
      job.state = STATE.delayed
    elseif call("ZSCORE", cx.P .. "b", id) then
      job.state = STATE.blocked
    else
      job.state = STATE.waiting
    end
  end
  return job
end

-- The same, for a job whose record has not passed its retention.
function J.look(cx, id)
  local job = J.load(cx, id)
  if job and job.finished and J.past_keeping(cx, job) then return nil end
  return job
end

function J.options(job)
  if not job.opts then
    local n = job.options_n
    job.opts = n == 0 and NO_OPTIONS or munpack(job.rec:sub(job.options_at, job.options_at + n - 1))
  end
  return job.opts
end

-- Its name, and its key or nil.
function J.name_key(job)
  if not job.name then
    local name, key = munpack(job.nk)
    job.name, job.key = name, key
  end
  return job.name, job.key
end

function J.save_run(cx, job) call("HSET", cx.P .. "h", job.id, J.pack_run(job)) end

-- Its record without what the end of a life added, as of life `life`.
function J.bare(job, life)
  return J.six(job.created) .. job.rec:sub(7, 12) .. spack(">I3", life) .. job.rec:sub(16, job.stop)
end

function J.write(cx, job) call("SET", cx.P .. "j:" .. job.id, job.rec) end

-- Its entry in line.
function J.entry(job)
  if job.life == 0 and job.ticket == 0 then return job.id end
  return job.id .. "\t" .. job.life .. "." .. job.ticket
end

-- An entry taken apart: id, life, ticket.
function J.entry_parts(entry)
  local at = entry:find("\t", 1, true)
  if not at then return entry, 0, 0 end
  local life, ticket = entry:match("^(%d+)%.(%d+)$", at + 1)
  return entry:sub(1, at - 1), tonumber(life), tonumber(ticket)
end

function J.extra(cx, job, ...)
  call("HSET", cx.P .. "x:" .. job.id, ...)
  job.rflags = J.with(job.rflags, J.EXTRA)
end


-- New options: they replace the old ones inside the record.
function J.rewrite_options(job, opts)
  local data = next(opts) and mpack(opts) or ""
  local rec = job.rec
  local nn = job.options_at - 25
  job.rec = rec:sub(1, 18) .. spack(">I2", #data) .. rec:sub(21, 24 + nn) .. data .. rec:sub(job.options_at + job.options_n)
  job.stop = job.stop + #data - job.options_n
  job.options_n, job.opts = #data, opts
end

function J.retention(cx, state) -- ms, or nil for ever
  local keep = J.meta(cx)["keep" .. state]
  if keep == "" then return nil end
  if not keep then return state == STATE.failed and 2592000000 or 86400000 end
  return tonumber(keep)
end

-- A result_ttl of its own; the record of a cancelled job has no result to keep.
function J.own_ttl(job)
  return job.state ~= STATE.cancelled and J.options(job).result_ttl or nil
end

function J.past_keeping(cx, job)
  local ttl = J.own_ttl(job) or J.retention(cx, job.state)
  return ttl ~= nil and job.finished + ttl <= cx.now
end
