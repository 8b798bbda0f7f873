-- log: the queue's event log (a stream, an entry per call and worker) and the figures of its minutes.
local concat, char = table.concat, string.char
local pstr, pint, parray, pmaybe = J.pstr, J.pint, J.parray, J.pmaybe
local NIL, TIME = J.NIL, "\207\0\0" -- six bytes of milliseconds follow
local HEAD = "\220\0\17" -- an item is an array of 17: core/event_log.py names them
local WITH_ACTOR, WITH_META = "\220\0\18", "\220\0\19" -- or of 18, or of 19
local ENTRY, ACCEPTED = "\150\2", "\153\2" -- arrays of 6 and 9, format 2

-- Every start of a server and every failover builds the library again, so this is another one then: a server that has lost its last
-- writes gives their numbers to other events, and this keeps the ids of those apart. Eight characters, part of every entry.
local function incarnation()
  local time, info = call("TIME"), redis.pcall("INFO", "server") -- refused to users without the right
  return redis.sha1hex(time[1] .. "." .. time[2] .. (type(info) == "string" and info:match("run_id:(%x+)") or "")):sub(1, 8)
end
J.INCARNATION = incarnation()

local SOFT, HARD = J.DEFAULT.log_events, J.DEFAULT.log_cap
local ROUNDS = 64 -- of up to 16 entries that one call drops at most

-- The items of one worker (or of none) in this call. Another worker's begin a new entry: what happens to a job stays in order.
function J.items(cx, worker)
  local last = cx.logs[#cx.logs]
  if not last or last.worker ~= worker then
    last = { worker = worker, items = {} }
    cx.logs[#cx.logs + 1] = last
  end
  return last.items
end

local names_of = {} -- by the text they are stored as

-- The names of meta that events of the queue tell; nil: none.
function J.event_meta(cx)
  local text = J.meta(cx).event_meta
  if not text then return nil end
  local names = names_of[text]
  if not names then
    names = {}
    for name in text:gmatch("[^\n]+") do names[#names + 1] = name end
    names_of[text] = names
  end
  return names
end

-- What events tell of the meta of a job with these options (packed), as MessagePack; nil: nothing. Copies core/meta.py: event_meta.
function J.told_meta(names, raw)
  local ok, opts = pcall(munpack, raw)
  local meta = ok and type(opts) == "table" and opts.meta
  if type(meta) ~= "table" then return nil end
  local told = {}
  for i = 1, #names do told[names[i]] = meta[names[i]] end
  return next(told) and mpack(told) or nil
end

-- One transition of a loaded job, told with what the job now says. `previous` is a state's code or nil.
-- `job.actor` is who gave the command under way, if one did.
function J.event(cx, job, kind, previous, reason, err, fingerprint, worker)
  local items, names = J.items(cx, worker), J.event_meta(cx)
  local meta = names and J.told_meta(names, job.raw)
  local head, tail = HEAD, ""
  if meta then
    head, tail = WITH_META, pmaybe(job.actor) .. meta
  elseif job.actor then
    head, tail = WITH_ACTOR, pstr(job.actor)
  end
  items[#items + 1] = head .. char(J.KIND[kind]) .. pstr(job.id) .. pint(job.life) .. job.nk .. pint(job.attempt)
    .. pint(job.failures) .. pint(job.stalls) .. char(job.state) .. (previous and char(previous) or NIL) .. pmaybe(reason)
    .. pmaybe(err) .. pmaybe(fingerprint) .. TIME .. J.six(job.created) .. TIME .. J.six(job.due)
    .. (job.started > 0 and TIME .. J.six(job.started) or NIL) .. (job.finished and TIME .. J.six(job.finished) or NIL)
    .. tail
  J.add(cx, kind, 1)
  if previous == J.STATE.active and job.started > 0 then J.add(cx, "run_ms", cx.now - job.started) end
end

-- How many jobs were cleared or purged: core/event_log.py jobs_reason. `state` is "" or the name of a state and a space.
function J.jobs_told(n, state) return J.whole(n) .. " " .. (state or "") .. (n == 1 and "job" or "jobs") end

-- Something was done to the queue as a whole. It is told in shard 0 of the log, which is at the prefix `home`: here, or elsewhere by
-- a message. `reason` and `actor` are text, nil or "".
function J.done_to(cx, home, kind, reason, actor)
  if reason == "" then reason = nil end
  if actor == "" then actor = nil end
  if home ~= cx.prefix then
    local nonce = call("HINCRBY", cx.prefix .. KEY.settings, "told", 1) .. "." .. J.INCARNATION .. cx.prefix
    return J.post(cx, home, { type = "tell", kind = kind, reason = reason, actor = actor, nonce = nonce })
  end
  local items = J.items(cx)
  items[#items + 1] = (actor and WITH_ACTOR or HEAD) .. char(J.KIND[kind]) .. "\160\0\160" .. NIL .. "\0\0\0" .. NIL .. NIL
    .. pmaybe(reason) .. NIL .. NIL .. TIME .. cx.now6 .. NIL .. NIL .. NIL .. (actor and pstr(actor) or "")
end

-- Jobs that were accepted and wait: an entry of its own, shorter than their events would be (see core/event_log.py).
function J.tell_accepted(cx, nk, ids)
  local n, id = #ids, J.str_head(#ids[1])
  local data = NIL .. pstr("accepted") .. nk .. parray(n) .. id .. concat(ids, id)
  cx.logs[#cx.logs + 1] = { worker = false, items = {}, n = n, data = data } -- no worker's: nobody adds to it
end

-- Drop old entries: what all readers have acknowledged beyond the soft bound, anything beyond the hard one.
-- What is gone leaves a note (how many, up to where), so that whoever comes from before it is told of a gap.
-- RETURNS the number of events dropped that a reader had not acknowledged.
function J.log_trim(cx)
  local stream, n = cx.prefix .. KEY.log, J.counters(cx)
  local kept, bounds = n.logged, call("HMGET", cx.prefix .. KEY.settings, "soft", "hard")
  local soft, hard = tonumber(bounds[1] or SOFT), tonumber(bounds[2] or HARD)
  if kept <= soft then return 0 end
  local oldest = J.oldest_ack(cx)
  local dropped, unread, per_entry = 0, 0, kept / math.max(call("XLEN", stream), 1)
  local last, data
  for _ = 1, ROUNDS do
    if kept - dropped <= soft then break end
    -- Entries are read whole to learn how many events they hold, and those of a bulk are large: no more of them than it takes.
    local wanted = math.ceil((kept - dropped - soft) / per_entry) + 1
    local first = call("XRANGE", stream, "-", "+", "COUNT", J.whole(math.max(2, math.min(wanted, 16))))
    if #first <= 1 then break end
    local gone = {}
    for i = 1, math.min(#first, 16) do
      local id, events = first[i][1], tonumber(first[i][2][2])
      local pending = oldest and J.after(id, oldest)
      if kept - dropped <= soft or (pending and kept - dropped <= hard) then break end
      if pending then unread = unread + events end
      dropped, last, data = dropped + events, id, first[i][2][4]
      gone[#gone + 1] = id
    end
    if #gone == 0 then break end
    call("XDEL", stream, unpack(gone))
  end
  if last then
    call("HINCRBY", cx.prefix .. KEY.settings, "gone", dropped)
    -- The gap has the id of an event of the last entry, and the incarnation is part of it. An entry of format 1 has none.
    call("HSET", cx.prefix .. KEY.settings, "gone_to", last, "gone_in", data:byte(2) == 2 and data:sub(13, 20) or "")
    n.logged = n.logged - dropped
    J.meta_changed(cx)
  end
  return unread
end

-- Whether position a comes after position b.
function J.after(a, b)
  local a1, a2 = a:match("^(%d+)-?(%d*)")
  local b1, b2 = b:match("^(%d+)-?(%d*)")
  a1, a2, b1, b2 = tonumber(a1), tonumber(a2) or 0, tonumber(b1), tonumber(b2) or 0
  return a1 > b1 or (a1 == b1 and a2 > b2)
end

-- Where the slowest registered reader stands; nil: there is none.
function J.oldest_ack(cx)
  local readers, oldest = call("HVALS", cx.prefix .. KEY.readers), nil
  for i = 1, #readers do
    if not oldest or J.after(oldest, readers[i]) then oldest = readers[i] end
  end
  return oldest
end

-- A new log gets a name that no log ever had: event ids are made of it. The number of events ever dropped travels with the counters
-- from here on (a log of jobq 0.1 has a name, and not yet that).
local function begin_log(cx)
  local time = call("TIME")
  call("HSETNX", cx.prefix .. KEY.settings, "tag", string.format("%x%05x", time[1], time[2]))
  call("HSETNX", cx.prefix .. KEY.settings, "gone", "0")
  J.meta_changed(cx)
end

-- The number of the last event that was recorded in the queue, by this call or before.
function J.last_number(cx)
  local number = J.counters(cx).logged + tonumber(J.meta(cx).gone or 0)
  for i = 1, #cx.logs do number = number + (cx.logs[i].n or #cx.logs[i].items) end
  return number
end

-- Append what happened: an entry per worker, each holding its whole batch. The number of its first event stands at bytes 6 to 11, the
-- incarnation at 13 to 20.
function J.log_flush(cx)
  local stream, logs, total = cx.prefix .. KEY.log, cx.logs, 0
  for i = 1, #logs do total = total + (logs[i].n or #logs[i].items) end
  if total == 0 then return end
  if not J.meta(cx).gone then begin_log(cx) end
  local before = J.take_numbers(cx, "logged", total)
  -- Events are numbered from 1, dropped ones included.
  local number, rest = before + tonumber(J.meta(cx).gone) + 1, "\168" .. J.INCARNATION .. TIME .. cx.now6
  for i = 1, #logs do
    local log, items = logs[i], logs[i].items
    local n = log.n or #items
    if n > 0 then
      local head = (log.data and ACCEPTED or ENTRY) .. TIME .. J.six(number) .. rest
      call("XADD", stream, "*", "n", J.whole(n), "d", head .. (log.data or pmaybe(log.worker) .. parray(n) .. concat(items)))
      number = number + n
    end
  end
  cx.logs = {}
  -- Crossing a multiple of 1,024 pays for the trim: bounded work, and nobody has to tick for it.
  if (before + total) % 1024 < total then J.log_trim(cx) end
  local meta = J.meta(cx)
  if meta.listened and tonumber(meta.listened) > cx.now then call("PUBLISH", cx.prefix .. KEY.log_channel, "") end
end
