-- record: how a job is kept, and how it is loaded for anything but the three hot paths (put, claim, complete).
--
-- j:<id>  the record: created I6, flags B, #nk B, [#nk I2, #options I2 if flags has MORE], [due I6, life I3 if it has LATER],
--         nk, options, payload. All but created and LATER's part is the producer's, verbatim. nk: name and key as
--         MessagePack, ready for events; options: a MessagePack map of what is not at its default. A short head saves more
--         than it seems: with one, a job with a payload of 100 bytes stays under the allocator's next step.
--         Without LATER the job was due when created, in its life 0.
--         Ended jobs have their end before it: \255, state B, finished I6, #run I2, run, #reason B, reason, #result I4, result
--         ("" for none, else "\1" and its bytes). No record begins with \255 otherwise, and the record itself is not copied.
-- h id →  the run, of jobs that have started or are otherwise more than their record says:
--         attempt I4, failures I3, stalls I3, started I6, due I6, order I6 I2, ticket I2, flags B, #token B, token, worker
--         `order` is its place in line while it may come back to it; `ticket` tells its entry in line from those left behind.
-- x:<id>  a hash of what few jobs have: failure, saved, progress, edges, inputs, signals, listeners. A lease comes with all of it.
--         failure: attempt I4, time I6, then as MessagePack; "": it is the last of er:<id>
-- er:<id> the last failed runs, a list, oldest first. Each: attempt I4, time I6, #worker I2, worker, then as MessagePack
-- A state is not stored: ended jobs have a tail, active ones a lease, delayed and blocked ones stand in d and b, the rest waits.
local floor = math.floor
local RUN = ">I4I3I3I6I6I6I2I2BB"
local NO_OPTIONS = {}
local DEFAULT_MS = {
  [J.STATE.completed] = J.DEFAULT.completed_ms, [J.STATE.failed] = J.DEFAULT.failed_ms, [J.STATE.cancelled] = J.DEFAULT.cancelled_ms,
}
local STATE, ORDER, MORE, LATER = J.STATE, J.ORDER, J.MORE, J.LATER

function J.pack_run(job)
  local batch = floor(job.order / 65536)
  return spack(RUN, job.attempt, job.failures, job.stalls, job.started, job.run_due, batch + ORDER, job.order - batch * 65536, job.ticket,
    job.rflags, #job.token) .. job.token .. job.worker
end

local function read_run(job, run)
  local attempt, failures, stalls, started, due, batch, place, ticket, flags, n = sunpack(RUN, run)
  job.attempt, job.failures, job.stalls, job.started, job.run_due = attempt, failures, stalls, started, due
  job.order, job.ticket, job.rflags = (batch - ORDER) * 65536 + place, ticket, flags
  job.token, job.worker = run:sub(35, 34 + n), run:sub(35 + n)
end

local function no_run(job)
  job.attempt, job.failures, job.stalls, job.started, job.run_due = 0, 0, 0, 0, 0
  job.order, job.ticket, job.rflags, job.token, job.worker = 0, 0, 0, "", ""
end

-- A record, put together.
function J.compose(created, flags, due, life, nk, options, payload)
  local more, later = "", ""
  local nn = #nk
  if options ~= "" or nn > 255 then flags, more, nn = flags + MORE, spack(">I2I2", nn, #options), 0 end
  if due > 0 or life > 0 then flags, later = flags + LATER, spack(">I6I3", due, life) end
  return spack(">I6BB", created, flags, nn) .. more .. later .. nk .. options .. payload
end

-- The head of a record (at 7) or of what a producer made (at 1). RETURNS flags, lengths of nk and options, place of nk, due, life
function J.head(data, at)
  local flags, nn = data:byte(at, at + 1)
  local no, due, life = 0, 0, 0
  at = at + 2
  if floor(flags / MORE) % 2 == 1 then
    nn, no = sunpack(">I2I2", data, at)
    at = at + 4
  end
  if flags >= LATER then
    due, life = sunpack(">I6I3", data, at)
    at = at + 9
  end
  return flags % MORE, nn, no, at, due, life
end

-- How an ended job ended. RETURNS the record itself.
local function read_end(job, rec)
  local state, finished, n = sunpack(">BI6I2", rec, 2)
  local at = 11 + n
  local reason_n = rec:byte(at)
  local result_n = sunpack(">I4", rec, at + 1 + reason_n)
  local result_at = at + 5 + reason_n
  job.state, job.finished = state, finished
  job.reason = rec:sub(at + 1, at + reason_n)
  job.result = rec:sub(result_at, result_at + result_n - 1)
  read_run(job, rec:sub(11, at - 1))
  job.rflags = J.without(J.without(job.rflags, J.ACTIVE), J.CANCEL) -- a run that completed was kept as it was
  return rec:sub(result_at + result_n)
end

local known_nk, known_n, KNOWN = {}, 0, 10000

-- Whether this is a name, and a key or nil, as MessagePack. Of names met before, one look in a table tells.
function J.good_nk(nk)
  if known_nk[nk] then return true end
  local ok, name, key = pcall(munpack, nk)
  if not ok or type(name) ~= "string" or key ~= nil and type(key) ~= "string" or #J.pstr(name) + #J.pmaybe(key) ~= #nk then return false end
  if known_n >= KNOWN then known_nk, known_n = {}, 0 end
  known_nk[nk], known_n = true, known_n + 1
  return true
end

local function read_job(id, rec, run)
  local job = { id = id }
  local run_due
  if rec:byte(1) == 255 then
    rec = read_end(job, rec)
    run_due = job.run_due
  elseif run then
    read_run(job, run)
    if J.has(job.rflags, J.ACTIVE) then job.state = STATE.active end
    run_due = job.run_due
  else
    no_run(job)
    run_due = 0
  end
  local created = sunpack(">I6", rec)
  local flags, nn, no, at, due, life = J.head(rec, 7)
  job.rec, job.created, job.first_due, job.life, job.flags = rec, created, due, life, flags
  job.due = run_due > 0 and run_due or due > 0 and due or created
  job.nk, job.raw, job.payload_at = rec:sub(at, at + nn - 1), rec:sub(at + nn, at + nn + no - 1), at + nn + no
  job.opts = job.raw == "" and NO_OPTIONS or munpack(job.raw)
  if type(job.opts) ~= "table" or not J.good_nk(job.nk) then error("no name, or no options") end
  return job
end

-- What stands for a record that cannot be read: a job without a name, whose payload is what was found. One that had ended is past
-- its keeping; any other is failed when its turn comes, and keeps no other job from its own.
local function broken_job(id, rec, run)
  local job = { id = id, broken = true, flags = 0, life = 0, created = 0, due = 0, first_due = 0, nk = J.pstr("?") .. J.NIL, raw = "", opts = NO_OPTIONS }
  if not run or not pcall(read_run, job, run) then no_run(job) end
  if rec:byte(1) == 255 then
    job.state, job.finished, job.reason, job.result = STATE.failed, 0, "", ""
  elseif J.has(job.rflags, J.ACTIVE) then
    job.state = STATE.active
  end
  job.rec = J.compose(0, 0, 0, 0, job.nk, "", rec)
  job.payload_at = #job.rec - #rec + 1
  return job
end

-- A job from its record and run. Its state is known only if it is active or ended (see J.load).
function J.read(id, rec, run)
  local ok, job = pcall(read_job, id, rec, run)
  return ok and job or broken_job(id, rec, run)
end

-- A job whose record cannot be read ends here (copies core/verdicts.py: unreadable).
function J.fail_broken(cx, job)
  job.created, job.due, job.run_due = cx.now, cx.now, cx.now
  J.renew(job)
  J.finish(cx, job, STATE.failed, nil, nil, { reason = "error", type = "Unreadable", message = J.WORDS.unreadable, fingerprint = "unreadable" })
end

function J.payload(job) return job.rec:sub(job.payload_at) end

-- Make a loaded job's record anew, as of what has changed: life, due, options (packed), payload. It has not ended.
function J.renew(job, options, payload)
  job.raw = options or job.raw
  payload = payload or J.payload(job)
  job.rec = J.compose(job.created, job.flags, job.first_due, job.life, job.nk, job.raw, payload)
  job.payload_at = #job.rec - #payload + 1
end

-- The job as it stands, or nil.
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

-- The same, for a job whose record has not passed its retention.
function J.look(cx, id)
  local job = J.load(cx, id)
  if job and job.finished and J.past_keeping(cx, job) then return nil end
  return job
end

function J.options(job)
  if not job.opts then job.opts = job.raw == "" and NO_OPTIONS or munpack(job.raw) end
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

function J.save_run(cx, job) call("HSET", cx.prefix .. KEY.runs, job.id, J.pack_run(job)) end

function J.write(cx, job) call("SET", cx.prefix .. KEY.job .. job.id, job.rec) end

-- The same with its end, of which the run becomes a part.
function J.write_end(cx, job)
  local run, reason = J.pack_run(job), job.reason:sub(1, 255)
  call("SET", cx.prefix .. KEY.job .. job.id, "\255" .. spack(">BI6I2", job.state, job.finished, #run) .. run .. string.char(#reason) .. reason
    .. spack(">I4", #job.result) .. job.result .. job.rec)
end

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
  call("HSET", cx.prefix .. KEY.extras .. job.id, ...)
  job.rflags = J.with(job.rflags, J.EXTRA)
end


-- Other options: a change of some of the old ones. RETURNS them packed.
function J.changed_options(job, changes, unset)
  local opts = {}
  for k, v in pairs(J.options(job)) do opts[k] = v end
  for k, v in pairs(changes) do opts[k] = v end
  if unset then opts[unset] = nil end
  job.opts = opts
  return next(opts) and mpack(opts) or ""
end

function J.retention(cx, state) -- ms, or nil for ever
  local keep = J.meta(cx)["keep" .. state]
  if keep == "" then return nil end
  if not keep then return DEFAULT_MS[state] end
  return tonumber(keep)
end

-- How long a record is kept at least for a caller that waits for the job, if retention would remove it sooner; else nil.
function J.grace(cx, state)
  local keep, watched = J.retention(cx, state), J.DEFAULT.watched_ms
  return keep and keep < watched and watched or nil
end

-- How long a record is kept if not as long as its queue's retention says, or nil. Copies core/retention.py: kept_ms.
function J.own_ttl(cx, job)
  local opts = J.options(job)
  if opts.result_ttl and job.state ~= STATE.cancelled then return opts.result_ttl end
  return (opts.chan or J.has(job.rflags, J.WATCHED)) and J.grace(cx, job.state) or nil
end

function J.past_keeping(cx, job)
  local ttl = J.own_ttl(cx, job) or J.retention(cx, job.state)
  return ttl ~= nil and job.finished + ttl <= cx.now
end
