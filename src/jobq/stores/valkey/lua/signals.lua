-- signals: who is told, and by what. Sleeping workers by a marker in a list of their own, which they pop blocking;
-- listeners by a message on a channel.
-- z: workers asleep, by since when · zs: their free slots · wake:<worker>: its marker · zd: deputies were told a moment ago
local TOLD_WHOLE = 8192 -- bytes of record and result
-- ms after which deputies look: the first soon enough that nobody minds, the second in case the first is not there either.
local DEPUTIES = { 250, 1000 }

-- The worker found nothing (or not enough): wake it when there is more.
function J.fall_asleep(cx, worker, slots)
  local time = call("TIME")
  call("ZADD", cx.prefix .. KEY.sleepers, time[1], worker)
  call("HSET", cx.prefix .. KEY.sleeper_slots, worker, slots)
end

-- The worker is here. A marker it has not popped yet is for work that it is about to find.
function J.wake_up(cx, worker)
  if call("ZREM", cx.prefix .. KEY.sleepers, worker) == 1 then call("HDEL", cx.prefix .. KEY.sleeper_slots, worker) else call("DEL", cx.prefix .. KEY.wake .. worker) end
end

-- The worker sleeps no longer than these ms.
local function shorten(cx, worker, ms)
  call("RPUSH", cx.prefix .. KEY.wake .. worker, "d" .. ms)
  call("PEXPIRE", cx.prefix .. KEY.wake .. worker, 60000)
end

-- A sleeper sleeps no longer than these ms.
local function tell_due(cx, ms)
  local worker = call("ZREVRANGE", cx.prefix .. KEY.sleepers, 0, 0)[1]
  if worker then shorten(cx, worker, ms) end
end

-- A worker that is woken may be frozen or dead, and never come. So two others look a little later. What they look at is the
-- whole queue, so one round serves all who are woken until its first deputy looks.
local function tell_deputies(cx)
  if not call("SET", cx.prefix .. KEY.deputies, "1", "NX", "PX", DEPUTIES[1]) then return end
  for i, worker in ipairs(call("ZREVRANGE", cx.prefix .. KEY.sleepers, 0, #DEPUTIES - 1)) do shorten(cx, worker, DEPUTIES[i]) end
end

-- Work for n: wake workers with about n free slots between them, those who fell asleep last first (they are surely there).
-- In a partitioned queue the sleepers are kept elsewhere: the caller is told how many to wake.
local function wake(cx, n)
  local woken = false
  while n > 0 do
    local worker = call("ZPOPMAX", cx.prefix .. KEY.sleepers)[1]
    if not worker then return end
    woken = true
    local slots = tonumber(call("HGET", cx.prefix .. KEY.sleeper_slots, worker) or 1)
    call("HDEL", cx.prefix .. KEY.sleeper_slots, worker)
    local marker = cx.prefix .. KEY.wake .. worker
    call("RPUSH", marker, "1")
    call("PEXPIRE", marker, 60000)
    n = n - math.max(slots, 1)
  end
  if woken then tell_deputies(cx) end
end

-- The same at the end of a call. One of those who are woken may be the one who knew when something is due, and may be busy then:
-- another is told.
function J.wake(cx, n)
  local due = J.counters(cx).timer
  if J.meta(cx).parts then
    cx.to_wake = (cx.to_wake or 0) + n
    if due > 0 then cx.due_at = math.min(cx.due_at or due, due) end
    return
  end
  wake(cx, n)
  if due > 0 then tell_due(cx, math.max(due - cx.now, 0)) end
end

-- A job is due at `due` and no sooner one is: one sleeper sleeps no longer than that. It is told, not woken.
function J.due_later(cx, due)
  local first = call("ZRANGE", cx.prefix .. KEY.delayed, 0, 0, "WITHSCORES")[2]
  if not first or math.floor(tonumber(first)) < due then return end
  if J.meta(cx).parts then
    cx.due_at = due
    return
  end
  tell_due(cx, due - cx.now)
end

local function note_end(cx, chan, id)
  cx.ended = cx.ended or {}
  cx.ended[#cx.ended + 1] = { chan, id }
end

-- Remember to tell listeners of a job's end: its producer's channel, and those that asked since.
function J.tell_end(cx, job, chan)
  if chan then note_end(cx, chan, job.id) end
  if J.has(job.rflags, J.WATCHED) then
    for field in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
      if field:sub(1, 2) == "w:" then note_end(cx, field:sub(3), job.id) end
    end
  end
end

-- A job that completed is told whole to the one who waits for it, unless it is large or has extras: that saves asking for it.
function J.tell_completed(cx, chan, id, rec, run, result, has_extras)
  if has_extras or #rec + #result > TOLD_WHOLE then
    note_end(cx, chan, id)
  else
    local prefix = cx.prefix
    cx.whole = cx.whole or {}
    cx.whole[#cx.whole + 1] = chan
    cx.whole[#cx.whole + 1] = "\255" .. spack(">I6I2I2I4I2I4", cx.now, #prefix, #id, #rec, #run, #result) .. prefix .. id .. rec .. run .. result
  end
end

function J.tell_flush(cx)
  local ended, whole = cx.ended, cx.whole
  if whole then
    for i = 1, #whole, 2 do call("PUBLISH", whole[i], whole[i + 1]) end
    cx.whole = nil
  end
  if not ended then return end
  local tag, by_channel = cx.prefix, {}
  for i = 1, #ended do
    local chan, id = ended[i][1], ended[i][2]
    by_channel[chan] = by_channel[chan] or { "ended", tag }
    table.insert(by_channel[chan], id)
  end
  for chan, parts in pairs(by_channel) do call("PUBLISH", chan, table.concat(parts, "\n")) end
  cx.ended = nil
end

-- watch: tell a channel when these jobs end. KEYS 1 prefix. ARGS channel, id, … RETURNS nothing
function J.watch(keys, args)
  local cx, channel = J.open(keys[1], ""), args[1]
  for i = 2, #args do
    local job = J.load(cx, args[i])
    if job and not job.finished then
      J.extra(cx, job, "w:" .. channel, "1")
      job.rflags = J.with(job.rflags, J.WATCHED)
      J.save_run(cx, job)
    end
  end
  return 0
end

-- hear_log: somebody listens to the log, for a while. KEYS 1 prefix. ARGS now, ms. RETURNS nothing
function J.hear_log(keys, args)
  local now, ms = unpack(args)
  local cx = J.open(keys[1], now)
  call("HSET", cx.prefix .. KEY.settings, "listened", cx.now + tonumber(ms))
  J.meta_changed(cx)
  return 0
end

-- wake_some: for partitioned queues, wake workers for n jobs, or tell one that a job is due. KEYS 1 prefix of the whole queue.
-- ARGS n, ms until it is due or -1. RETURNS nothing
function J.wake_some(keys, args)
  local cx, n, due_in = { prefix = keys[1] }, unpack(args)
  wake(cx, tonumber(n))
  if tonumber(due_in) >= 0 then tell_due(cx, due_in) end
  return 0
end

-- slots: a sleeper has this many free slots. KEYS 1 prefix. ARGS worker, slots. RETURNS nothing
function J.slots(keys, args)
  local prefix, worker, slots = keys[1], unpack(args)
  if call("ZSCORE", prefix .. KEY.sleepers, worker) then call("HSET", prefix .. KEY.sleeper_slots, worker, slots) end
  return 0
end

-- asleep: the worker found nothing in any partition, or (slots 0) looks for nothing any more. KEYS 1 prefix of the whole queue. ARGS worker, slots
function J.asleep(keys, args)
  local cx, worker, slots = { prefix = keys[1] }, unpack(args)
  slots = tonumber(slots)
  if slots > 0 then
    J.fall_asleep(cx, worker, slots)
  elseif call("ZREM", cx.prefix .. KEY.sleepers, worker) == 1 then
    call("HDEL", cx.prefix .. KEY.sleeper_slots, worker)
  else -- perhaps it was woken: let another see what for
    call("DEL", cx.prefix .. KEY.wake .. worker)
    wake(cx, 1)
  end
  return 0
end
