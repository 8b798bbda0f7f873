-- record: how a job is stored, and how it is loaded on all but the three hot paths (put, claim,
-- complete). fields.lua has the layout of records and runs.
--
-- A job's state is not stored. An ended job has its end in front of its record, an active job has
-- RUN_FLAG.active, delayed and blocked jobs are in KEY.delayed and KEY.blocked. The rest is
-- waiting.
local floor = math.floor
local NO_OPTIONS = {}
local STATE, ORDER = J.STATE, J.ORDER
local DEFAULT_MS = {
  [STATE.completed] = J.DEFAULT.completed_ms, [STATE.failed] = J.DEFAULT.failed_ms,
  [STATE.cancelled] = J.DEFAULT.cancelled_ms,
}

function J.pack_run(job)
  local batch = floor(job.order / 65536)
  return spack(RUN.format, job.attempt, job.failures, job.stalls, job.started, job.run_due,
    batch + ORDER, job.order - batch * 65536, job.ticket, job.rflags, #job.token)
    .. job.token .. job.worker
end

local function read_run(job, run)
  local attempt, failures, stalls, started, due, batch, place, ticket, flags,
    n = sunpack(RUN.format, run)
  job.attempt, job.failures, job.stalls = attempt, failures, stalls
  job.started, job.run_due = started, due
  job.order, job.ticket, job.rflags = (batch - ORDER) * 65536 + place, ticket, flags
  job.token, job.worker = run:sub(RUN.token_at, RUN.token_length_at + n), run:sub(RUN.token_at + n)
end

local function no_run(job)
  job.attempt, job.failures, job.stalls, job.started, job.run_due = 0, 0, 0, 0, 0
  job.order, job.ticket, job.rflags, job.token, job.worker = 0, 0, 0, "", ""
end

-- Build a record.
function J.compose(created, flags, due, life, nk, options, payload)
  local more, later = "", ""
  local nn = #nk
  if options ~= "" or nn > 255 then
    flags, more, nn = flags + FLAG.more, spack(RECORD.lengths, nn, #options), 0
  end
  if due > 0 or life > 0 then flags, later = flags + FLAG.later, spack(RECORD.later, due, life) end
  return spack(RECORD.head, created, flags, nn) .. more .. later .. nk .. options .. payload
end

-- Read the head of a record (at RECORD.body_at) or of a producer's body (at 1).
-- RETURNS flags, #nk, #options, position of nk, due, life
function J.head(data, at)
  local flags, nn = data:byte(at, at + 1)
  local no, due, life = 0, 0, 0
  at = at + 2
  if floor(flags / FLAG.more) % 2 == 1 then
    nn, no = sunpack(RECORD.lengths, data, at)
    at = at + 4
  end
  if flags >= FLAG.later then
    due, life = sunpack(RECORD.later, data, at)
    at = at + 9
  end
  return flags % FLAG.more, nn, no, at, due, life
end

-- Read how an ended job ended. RETURNS the record behind it
local function read_end(job, rec)
  local state, finished, n = sunpack(ENDED.head, rec, ENDED.head_at)
  local at = ENDED.run_at + n
  local reason_n = rec:byte(at)
  local result_n = sunpack(ENDED.result_length, rec, at + 1 + reason_n)
  local result_at = at + 5 + reason_n
  job.state, job.finished = state, finished
  job.reason = rec:sub(at + 1, at + reason_n)
  job.result = rec:sub(result_at, result_at + result_n - 1)
  read_run(job, rec:sub(ENDED.run_at, at - 1))
  -- The run of a completed job is stored as it was, with these flags.
  job.rflags = J.without(J.without(job.rflags, RUN_FLAG.active), RUN_FLAG.cancel)
  return rec:sub(result_at + result_n)
end

local known_nk, known_n, MAX_KNOWN = {}, 0, 10000

-- Whether this is a name, and a key or nil, as MessagePack. Known ones take one table lookup.
function J.good_nk(nk)
  if known_nk[nk] then return true end
  local ok, name, key = pcall(munpack, nk)
  if not ok or type(name) ~= "string" or key ~= nil and type(key) ~= "string"
    or #J.pstr(name) + #J.pmaybe(key) ~= #nk then return false end
  if known_n >= MAX_KNOWN then known_nk, known_n = {}, 0 end
  known_nk[nk], known_n = true, known_n + 1
  return true
end

local function read_job(id, rec, run)
  local job = { id = id }
  local run_due
  if rec:byte(1) == ENDED.mark_byte then
    rec = read_end(job, rec)
    run_due = job.run_due
  elseif run then
    read_run(job, run)
    if J.has(job.rflags, RUN_FLAG.active) then job.state = STATE.active end
    run_due = job.run_due
  else
    no_run(job)
    run_due = 0
  end
  local created = sunpack(RECORD.created, rec)
  local flags, nn, no, at, due, life = J.head(rec, RECORD.body_at)
  job.rec, job.created, job.first_due, job.life, job.flags = rec, created, due, life, flags
  job.due = run_due > 0 and run_due or due > 0 and due or created
  job.nk, job.raw = rec:sub(at, at + nn - 1), rec:sub(at + nn, at + nn + no - 1)
  job.payload_at = at + nn + no
  job.opts = job.raw == "" and NO_OPTIONS or munpack(job.raw)
  if type(job.opts) ~= "table" or not J.good_nk(job.nk) then error("no name, or no options") end
  return job
end

-- The job for a record that cannot be read: its name is "?", its payload is what was stored. If it
-- had ended, its retention has passed. Otherwise it fails when its turn comes. Other jobs are not
-- affected.
local function broken_job(id, rec, run)
  local job = {
    id = id, broken = true, flags = 0, life = 0, created = 0, due = 0, first_due = 0,
    nk = J.pstr("?") .. PACK.none, raw = "", opts = NO_OPTIONS,
  }
  if not run or not pcall(read_run, job, run) then no_run(job) end
  if rec:byte(1) == ENDED.mark_byte then
    job.state, job.finished, job.reason, job.result = STATE.failed, 0, "", ""
  elseif J.has(job.rflags, RUN_FLAG.active) then
    job.state = STATE.active
  end
  job.rec = J.compose(0, 0, 0, 0, job.nk, "", rec)
  job.payload_at = #job.rec - #rec + 1
  return job
end

-- A job from its record and run. Its state is set only if it is active or has ended (see J.load).
function J.read(id, rec, run)
  local ok, job = pcall(read_job, id, rec, run)
  return ok and job or broken_job(id, rec, run)
end

-- Fail a job whose record cannot be read. Copies core/rules/outcomes.py: unreadable_failure.
function J.fail_broken(cx, job)
  job.created, job.due, job.run_due = cx.now, cx.now, cx.now
  J.renew(job)
  J.finish(cx, job, STATE.failed, nil, nil, {
    reason = "error", type = "Unreadable", message = J.WORDS.unreadable, fingerprint = "unreadable",
  })
end

function J.payload(job) return job.rec:sub(job.payload_at) end

-- Build the record of a loaded, unfinished job again after its life, due time, options (packed) or
-- payload have changed.
function J.renew(job, options, payload)
  job.raw = options or job.raw
  payload = payload or J.payload(job)
  job.rec = J.compose(job.created, job.flags, job.first_due, job.life, job.nk, job.raw, payload)
  job.payload_at = #job.rec - #payload + 1
end

-- The job with this id and its state, or nil.
function J.load(cx, id)
  local rec = call("GET", cx.prefix .. KEY.job .. id)
  if not rec then return nil end
  local job = J.read(id, rec, call("HGET", cx.prefix .. KEY.runs, id))
  if not job.state then
    if call("ZSCORE", cx.prefix .. KEY.delayed, id) then
      job.state = STATE.delayed
    elseif call("ZSCORE", cx.prefix .. KEY.blocked, id) then
      job.state = STATE.blocked
    else
      job.state = STATE.waiting
    end
  end
  return job
end

-- The same, or nil if the job has ended and its retention has passed.
function J.look(cx, id)
  local job = J.load(cx, id)
  if job and job.finished and J.past_keeping(cx, job) then return nil end
  return job
end

function J.options(job)
  if not job.opts then job.opts = job.raw == "" and NO_OPTIONS or munpack(job.raw) end
  return job.opts
end

-- The name of the job's task, and the job's key or nil.
function J.name_key(job)
  if not job.name then
    local name, key = munpack(job.nk)
    job.name, job.key = name, key
  end
  return job.name, job.key
end

function J.save_run(cx, job) call("HSET", cx.prefix .. KEY.runs, job.id, J.pack_run(job)) end

function J.write(cx, job) call("SET", cx.prefix .. KEY.job .. job.id, job.rec) end

-- Write the record of an ended job, with its end and its run in front.
function J.write_end(cx, job)
  local run, reason = J.pack_run(job), job.reason:sub(1, 255)
  call("SET", cx.prefix .. KEY.job .. job.id,
    ENDED.mark .. spack(ENDED.head, job.state, job.finished, #run) .. run
      .. string.char(#reason) .. reason .. spack(ENDED.result_length, #job.result) .. job.result
      .. job.rec)
end

-- The job's entry in the waiting list: its id, with life and ticket unless both are 0.
function J.entry(job)
  if job.life == 0 and job.ticket == 0 then return job.id end
  return job.id .. "\t" .. job.life .. "." .. job.ticket
end

-- RETURNS id, life and ticket of an entry
function J.entry_parts(entry)
  local at = entry:find("\t", 1, true)
  if not at then return entry, 0, 0 end
  local life, ticket = entry:match("^(%d+)%.(%d+)$", at + 1)
  return entry:sub(1, at - 1), tonumber(life), tonumber(ticket)
end

-- Set extras of a job: field, value, … The caller saves the run, whose flag this sets.
function J.extra(cx, job, ...)
  call("HSET", cx.prefix .. KEY.extras .. job.id, ...)
  job.rflags = J.with(job.rflags, RUN_FLAG.extras)
end

-- Change some options of a job. RETURNS all options, packed
function J.changed_options(job, changes, unset)
  local opts = {}
  for k, v in pairs(J.options(job)) do opts[k] = v end
  for k, v in pairs(changes) do opts[k] = v end
  if unset then opts[unset] = nil end
  job.opts = opts
  return next(opts) and mpack(opts) or ""
end

-- How long the queue keeps ended jobs of a state, in ms; nil for ever.
function J.retention(cx, state)
  local keep = J.meta(cx)[SETTING.keep .. state]
  if keep == "" then return nil end
  if not keep then return DEFAULT_MS[state] end
  return tonumber(keep)
end

-- A caller that waits for a job needs its record for a moment. RETURNS how long to keep it, in ms,
-- if the queue's retention is shorter; else nil
function J.grace(cx, state)
  local keep, watched = J.retention(cx, state), J.DEFAULT.watched_ms
  return keep and keep < watched and watched or nil
end

-- How long this record is kept if the queue's retention does not apply to it, in ms; else nil.
-- Copies core/rules/ended.py: kept_ms.
function J.own_ttl(cx, job)
  local opts = J.options(job)
  if opts.result_ttl and job.state ~= STATE.cancelled then return opts.result_ttl end
  return (opts.chan or J.has(job.rflags, RUN_FLAG.watched)) and J.grace(cx, job.state) or nil
end

-- Whether the retention of an ended job has passed.
function J.past_keeping(cx, job)
  local ttl = J.own_ttl(cx, job) or J.retention(cx, job.state)
  return ttl ~= nil and job.finished + ttl <= cx.now
end
