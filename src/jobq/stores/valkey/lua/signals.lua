-- signals: waking sleeping workers and notifying listeners. A worker sleeps in a blocking pop on a
-- list of its own (KEY.wake), and a marker in that list wakes it. Listeners get a message on a
-- channel.
local MAX_PUBLISHED = 8192 -- bytes of record and result; callers read larger jobs themselves
local MARKER_MS = "60000" -- how long a marker waits for its worker
-- Deputies look at the queue after this many ms: the first so soon that it hardly delays a job, the
-- second in case the first is gone as well.
local DEPUTIES = { 250, 1000 }

-- Count the worker as asleep: it found nothing, or not enough, and wants to be woken.
function J.fall_asleep(cx, worker, slots)
  local time = call("TIME")
  call("ZADD", cx.prefix .. KEY.sleepers, time[1], worker)
  call("HSET", cx.prefix .. KEY.sleeper_slots, worker, slots)
end

-- The worker is awake. A marker it has not popped is for work that it is about to find.
function J.wake_up(cx, worker)
  if call("ZREM", cx.prefix .. KEY.sleepers, worker) == 1 then
    call("HDEL", cx.prefix .. KEY.sleeper_slots, worker)
  else
    call("DEL", cx.prefix .. KEY.wake .. worker)
  end
end

-- Make a worker look at the queue in `ms` at the latest.
local function shorten(cx, worker, ms)
  call("RPUSH", cx.prefix .. KEY.wake .. worker, "d" .. ms)
  call("PEXPIRE", cx.prefix .. KEY.wake .. worker, MARKER_MS)
end

-- Make one sleeping worker look at the queue in `ms` at the latest.
local function notify_due(cx, ms)
  local worker = call("ZREVRANGE", cx.prefix .. KEY.sleepers, 0, 0)[1]
  if worker then shorten(cx, worker, ms) end
end

-- A worker that is woken may be frozen or dead and never come. So two others look at the queue a
-- little later. They look at the whole queue, so one round serves all wake-ups until its first
-- deputy looks.
local function notify_deputies(cx)
  if not call("SET", cx.prefix .. KEY.deputies, "1", "NX", "PX", DEPUTIES[1]) then return end
  for i, worker in ipairs(call("ZREVRANGE", cx.prefix .. KEY.sleepers, 0, #DEPUTIES - 1)) do
    shorten(cx, worker, DEPUTIES[i])
  end
end

-- Wake workers with about n free slots in total. Those that fell asleep last come first: they are
-- the most likely to be alive.
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
    call("PEXPIRE", marker, MARKER_MS)
    n = n - math.max(slots, 1)
  end
  if woken then notify_deputies(cx) end
end

-- Wake workers for n jobs when a call ends. One of them may be the worker that knew when the next
-- job is due, and be busy then, so another one is notified of that. The sleepers of a partitioned
-- queue are kept at the prefix of the whole queue: the caller learns from cx.to_wake how many to
-- wake there.
function J.wake(cx, n)
  local due = J.counters(cx).timer
  if J.meta(cx).parts then
    cx.to_wake = (cx.to_wake or 0) + n
    if due > 0 then cx.due_at = math.min(cx.due_at or due, due) end
    return
  end
  wake(cx, n)
  if due > 0 then notify_due(cx, math.max(due - cx.now, 0)) end
end

-- A job is due at `due`. If no other is due sooner, one sleeping worker looks at the queue then.
function J.due_later(cx, due)
  local first = call("ZRANGE", cx.prefix .. KEY.delayed, 0, 0, "WITHSCORES")[2]
  if not first or math.floor(tonumber(first)) < due then return end
  if J.meta(cx).parts then
    cx.due_at = due
    return
  end
  notify_due(cx, due - cx.now)
end

local function note_end(cx, chan, id)
  cx.ended = cx.ended or {}
  cx.ended[#cx.ended + 1] = { chan, id }
end

-- Publish the end of a job when the call ends: to its producer's channel, and to those that were
-- added since.
function J.publish_end(cx, job, chan)
  if chan then note_end(cx, chan, job.id) end
  if J.has(job.rflags, RUN_FLAG.watched) then
    for field in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
      if field:sub(1, 2) == EXTRA.listener then note_end(cx, field:sub(3), job.id) end
    end
  end
end

-- Publish a completed job with its record and result, so the caller that waits for it does not have
-- to read it. A job that is large or has extras is published by its id only.
function J.publish_completed(cx, chan, id, rec, run, result, has_extras)
  if has_extras or #rec + #result > MAX_PUBLISHED then
    note_end(cx, chan, id)
  else
    local prefix = cx.prefix
    cx.whole = cx.whole or {}
    cx.whole[#cx.whole + 1] = chan
    cx.whole[#cx.whole + 1] = PUBLISHED.mark
      .. spack(PUBLISHED.head, cx.now, #prefix, #id, #rec, #run, #result)
      .. prefix .. id .. rec .. run .. result
  end
end

function J.publish_flush(cx)
  local ended, whole = cx.ended, cx.whole
  if whole then
    for i = 1, #whole, 2 do call("PUBLISH", whole[i], whole[i + 1]) end
    cx.whole = nil
  end
  if not ended then return end
  local by_channel = {}
  for i = 1, #ended do
    local chan, id = ended[i][1], ended[i][2]
    by_channel[chan] = by_channel[chan] or { "ended", cx.prefix }
    table.insert(by_channel[chan], id)
  end
  for chan, parts in pairs(by_channel) do call("PUBLISH", chan, table.concat(parts, "\n")) end
  cx.ended = nil
end

-- watch: publish the ends of these jobs to a channel.
-- KEYS prefix
-- ARGS channel, id, …
-- RETURNS nothing
function J.watch(keys, args)
  local cx, channel = J.open(keys[1], ""), args[1]
  for i = 2, #args do
    local job = J.load(cx, args[i])
    if job and not job.finished then
      J.extra(cx, job, EXTRA.listener .. channel, "1")
      job.rflags = J.with(job.rflags, RUN_FLAG.watched)
      J.save_run(cx, job)
    end
  end
  return 0
end

-- hear_log: publish for some time that the event log has grown.
-- KEYS prefix
-- ARGS now, ms
-- RETURNS nothing
function J.hear_log(keys, args)
  local now, ms = unpack(args)
  local cx = J.open(keys[1], now)
  call("HSET", cx.prefix .. KEY.settings, SETTING.listened, cx.now + tonumber(ms))
  J.meta_changed(cx)
  return 0
end

-- wake_some: wake workers of a partitioned queue for n jobs, or notify one that a job is due.
-- KEYS prefix of the whole queue
-- ARGS n, ms until the job is due or -1
-- RETURNS nothing
function J.wake_some(keys, args)
  local cx, n, due_in = { prefix = keys[1] }, unpack(args)
  wake(cx, tonumber(n))
  if tonumber(due_in) >= 0 then notify_due(cx, due_in) end
  return 0
end

-- slots: set how many free slots a sleeping worker has.
-- KEYS prefix
-- ARGS worker, slots
-- RETURNS nothing
function J.slots(keys, args)
  local prefix, worker, slots = keys[1], unpack(args)
  if call("ZSCORE", prefix .. KEY.sleepers, worker) then
    call("HSET", prefix .. KEY.sleeper_slots, worker, slots)
  end
  return 0
end

-- asleep: the worker found nothing in any partition; or, with 0 slots, it stops looking for work.
-- KEYS prefix of the whole queue
-- ARGS worker, slots
-- RETURNS nothing
function J.asleep(keys, args)
  local cx, worker, slots = { prefix = keys[1] }, unpack(args)
  slots = tonumber(slots)
  if slots > 0 then
    J.fall_asleep(cx, worker, slots)
  elseif call("ZREM", cx.prefix .. KEY.sleepers, worker) == 1 then
    call("HDEL", cx.prefix .. KEY.sleeper_slots, worker)
  else -- it may have been woken for a job: wake another worker for it
    call("DEL", cx.prefix .. KEY.wake .. worker)
    wake(cx, 1)
  end
  return 0
end
