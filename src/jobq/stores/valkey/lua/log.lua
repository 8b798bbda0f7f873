-- log: the queue's event log, a stream with one entry per call and worker.
local concat, char = table.concat, string.char
local pstr, pint, parray, pmaybe = J.pstr, J.pint, J.parray, J.pmaybe

-- The incarnation of the store: eight characters that are part of every entry. Each start of a
-- server and each failover builds the library again, and so gives a new incarnation. A server that
-- has lost its last writes gives their numbers to other events; the incarnation keeps the event ids
-- different.
local function incarnation()
  local time = call("TIME")
  local info = redis.pcall("INFO", "server") -- refused to users without the right to call it
  local run_id = type(info) == "string" and info:match("run_id:(%x+)") or ""
  return redis.sha1hex(time[1] .. "." .. time[2] .. run_id):sub(1, 8)
end
J.INCARNATION = incarnation()

local SOFT, HARD = J.DEFAULT.log_events, J.DEFAULT.log_cap
local MAX_ROUNDS = 64 -- of up to 16 entries that one call drops

-- The events of one worker (or of none) in this call. Those of another worker begin a new entry, so
-- what happens to one job stays in order.
function J.items(cx, worker)
  local last = cx.logs[#cx.logs]
  if not last or last.worker ~= worker then
    last = { worker = worker, items = {} }
    cx.logs[#cx.logs + 1] = last
  end
  return last.items
end

local names_of = {} -- SETTING.event_meta → list of names

-- The names of meta that events of the queue carry; nil for none.
function J.event_meta_names(cx)
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

-- The meta that the events of a job with these packed options carry, as MessagePack; nil for none.
-- Copies core/values/meta.py: event_meta.
function J.event_meta(names, raw)
  local ok, opts = pcall(munpack, raw)
  local meta = ok and type(opts) == "table" and opts.meta
  if type(meta) ~= "table" then return nil end
  local chosen = {}
  for i = 1, #names do chosen[names[i]] = meta[names[i]] end
  return next(chosen) and mpack(chosen) or nil
end

-- The head of an event with these fields behind the first 17, and these fields: actor, meta and
-- what later versions added, packed or nil. Copies core/records/event_log.py: with_later.
local function with_later(...)
  local n = select("#", ...)
  while n > 0 and not select(n, ...) do n = n - 1 end
  if n == 0 then return EVENT.item, "" end
  local fields = { ... }
  for i = 1, n do fields[i] = fields[i] or PACK.none end
  return EVENT.longer_item .. char(EVENT.fields + n), concat(fields, "", 1, n)
end

-- Log one transition of a loaded job, as the job is now. `previous` is the code of a state, or nil.
-- `job.actor` is who gave the command that caused it, if one did.
function J.event(cx, job, kind, previous, reason, err, fingerprint, worker)
  local items, names = J.items(cx, worker), J.event_meta_names(cx)
  local meta = names and J.event_meta(names, job.raw)
  local head, tail = with_later(job.actor and pstr(job.actor), meta)
  items[#items + 1] = head .. char(J.KIND[kind]) .. pstr(job.id) .. pint(job.life) .. job.nk
    .. pint(job.attempt) .. pint(job.failures) .. pint(job.stalls) .. char(job.state)
    .. (previous and char(previous) or PACK.none) .. pmaybe(reason) .. pmaybe(err)
    .. pmaybe(fingerprint) .. PACK.time .. J.six(job.created) .. PACK.time .. J.six(job.due)
    .. (job.started > 0 and PACK.time .. J.six(job.started) or PACK.none)
    .. (job.finished and PACK.time .. J.six(job.finished) or PACK.none) .. tail
  J.add(cx, kind, 1)
  if previous == J.STATE.active and job.started > 0 then
    J.add(cx, "run_ms", cx.now - job.started)
  end
end

-- How many jobs an operation removed, as the event says it. Copies core/records/event_log.py:
-- jobs_reason. `state` is nil, or the name of a state and a space.
function J.jobs_reason(n, state)
  return J.whole(n) .. " " .. (state or "") .. (n == 1 and "job" or "jobs")
end

-- Log an operation on the queue as a whole. It belongs in shard 0 of the log, which is at the
-- prefix `home`. In another partition, this posts a message to it. `reason` and `actor` are text,
-- nil or "".
function J.log_operation(cx, home, kind, reason, actor)
  if reason == "" then reason = nil end
  if actor == "" then actor = nil end
  if home ~= cx.prefix then
    local n = call("HINCRBY", cx.prefix .. KEY.settings, SETTING.told, 1)
    local nonce = n .. "." .. J.INCARNATION .. cx.prefix
    return J.post(cx, home, {
      type = "tell", kind = kind, reason = reason, actor = actor, nonce = nonce,
    })
  end
  local items, head, tail = J.items(cx), with_later(actor and pstr(actor))
  items[#items + 1] = head .. char(J.KIND[kind])
    .. PACK.no_text .. EVENT.life_0 .. PACK.no_text .. PACK.none .. EVENT.no_counts
    .. PACK.none .. PACK.none .. pmaybe(reason) .. PACK.none .. PACK.none .. PACK.time .. cx.now6
    .. PACK.none .. PACK.none .. PACK.none .. tail
end

-- Log jobs that were accepted and are waiting. They get an entry of their own, which is shorter
-- than one event each (see core/records/event_log.py).
function J.log_accepted(cx, nk, ids)
  local n, id = #ids, J.str_head(#ids[1])
  local data = PACK.none .. pstr("accepted") .. nk .. parray(n) .. id .. concat(ids, id)
  -- `worker` false is no worker's entry, so nothing is added to it.
  cx.logs[#cx.logs + 1] = { worker = false, items = {}, n = n, data = data }
end

-- Drop old entries: beyond the soft bound what all readers have acknowledged, beyond the hard bound
-- anything. Settings record how many events were dropped and up to where, so a reader that comes
-- from before that position learns of the gap.
-- RETURNS the number of events dropped that a reader had not acknowledged
function J.log_trim(cx)
  local stream, n = cx.prefix .. KEY.log, J.counters(cx)
  local kept = n.logged
  local bounds = call("HMGET", cx.prefix .. KEY.settings, SETTING.soft, SETTING.hard)
  local soft, hard = tonumber(bounds[1] or SOFT), tonumber(bounds[2] or HARD)
  if kept <= soft then return 0 end
  local oldest = J.oldest_ack(cx)
  local dropped, unread, per_entry = 0, 0, kept / math.max(call("XLEN", stream), 1)
  local last, data
  for _ = 1, MAX_ROUNDS do
    if kept - dropped <= soft then break end
    -- An entry is read whole to learn how many events it holds, and entries of bulk calls are
    -- large. So this reads no more of them than it needs.
    local wanted = math.ceil((kept - dropped - soft) / per_entry) + 1
    local count = J.whole(math.max(2, math.min(wanted, 16)))
    local first = call("XRANGE", stream, "-", "+", "COUNT", count)
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
    call("HINCRBY", cx.prefix .. KEY.settings, SETTING.gone, dropped)
    -- The gap gets the id of an event of the last entry, of which the incarnation is a part. An
    -- entry of format 1 has no incarnation.
    call("HSET", cx.prefix .. KEY.settings, SETTING.gone_to, last, SETTING.gone_in,
      data:byte(EVENT.format_at) == EVENT.format
        and data:sub(EVENT.incarnation_at, EVENT.incarnation_end) or "")
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

-- The position of the slowest registered reader; nil if there is no reader.
function J.oldest_ack(cx)
  local readers, oldest = call("HVALS", cx.prefix .. KEY.readers), nil
  for i = 1, #readers do
    if not oldest or J.after(oldest, readers[i]) then oldest = readers[i] end
  end
  return oldest
end

-- Give a new log a name that no log ever had: event ids contain it. From here on the number of
-- dropped events is stored with the counters. (A log of jobq 0.1 has a name, but not that number.)
local function begin_log(cx)
  local time = call("TIME")
  local tag = string.format("%x%05x", time[1], time[2])
  call("HSETNX", cx.prefix .. KEY.settings, SETTING.tag, tag)
  call("HSETNX", cx.prefix .. KEY.settings, SETTING.gone, "0")
  J.meta_changed(cx)
end

-- The number of the last event of the queue, including the events of this call.
function J.last_number(cx)
  local number = J.counters(cx).logged + tonumber(J.meta(cx).gone or 0)
  for i = 1, #cx.logs do number = number + (cx.logs[i].n or #cx.logs[i].items) end
  return number
end

-- Append the events of the call: one entry per worker, with its whole batch.
function J.log_flush(cx)
  local stream, logs, total = cx.prefix .. KEY.log, cx.logs, 0
  for i = 1, #logs do total = total + (logs[i].n or #logs[i].items) end
  if total == 0 then return end
  if not J.meta(cx).gone then begin_log(cx) end
  local before = J.take_numbers(cx, "logged", total)
  -- Events are numbered from 1, including those that were dropped.
  local number = before + tonumber(J.meta(cx).gone) + 1
  local rest = PACK.text_8 .. J.INCARNATION .. PACK.time .. cx.now6
  for i = 1, #logs do
    local log, items = logs[i], logs[i].items
    local n = log.n or #items
    if n > 0 then
      local head = (log.data and EVENT.accepted_entry or EVENT.entry) .. PACK.time .. J.six(number)
        .. rest
      call("XADD", stream, "*", "n", J.whole(n), "d",
        head .. (log.data or pmaybe(log.worker) .. parray(n) .. concat(items)))
      number = number + n
    end
  end
  cx.logs = {}
  -- A call that crosses a multiple of 1,024 trims the log: bounded work that needs no tick.
  if (before + total) % 1024 < total then J.log_trim(cx) end
  local meta = J.meta(cx)
  if meta.listened and tonumber(meta.listened) > cx.now then
    call("PUBLISH", cx.prefix .. KEY.log_channel, "")
  end
end
