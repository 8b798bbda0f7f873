-- counters: what a queue counts, packed in one string (KEY.counters) that a call reads once and
-- writes once. One field at a time, counting cost a third of an exchange.
--
-- waiting: waiting jobs · order, lifo, turn: the last places given out · popped: entries taken from
-- the back list of the plain waiting list · logged: events in the log · sweeps: completions, for
-- when to sweep · timer: no delay, ttl, wait or hold ends before · leases: no lease expires before
-- (0 for none) · fronts, priorities: entries in front of waiting lists, priorities above 0 in them
-- · seen: the time of the last call. The figures of that call's minute follow; they move to
-- KEY.minute when the minute is over. The settings that calls need come last (see J.meta).
local FIGURES = {
  "accepted", "started", "completed", "failed", "cancelled", "retried", "stalled", "wait_ms",
  "run_ms",
}
local FORMAT = ">" .. ("d"):rep(21)
local NONE = spack(FORMAT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
local KEEP_MS = 90000000 -- how long the figures of a minute are kept: a day and an hour
local IS_FIGURE = {}
for _, name in ipairs(FIGURES) do IS_FIGURE[name] = true end

-- The counters that the last call wrote, by prefix. They are nearly always what is stored, so the
-- next call does not unpack them. A call takes them out and puts them back after it has written
-- them: a call that breaks off leaves nothing wrong behind.
local cached, cached_n, MAX_CACHED = {}, 0, 1000

local function cache(cx, n, text)
  if not cached[cx.prefix] then
    if cached_n >= MAX_CACHED then cached, cached_n = {}, 0 end
    cached_n = cached_n + 1
  end
  n.text, cached[cx.prefix] = text, n
end

function J.counters(cx)
  local n = cx.n
  if not n then
    local stored = call("GET", cx.prefix .. KEY.counters) or NONE
    n = cached[cx.prefix]
    if n and n.text == stored then
      n.text, cx.n = false, n
      return n
    end
    local waiting, order, lifo, turn, popped, logged, sweeps, timer, leases, fronts, priorities,
      seen, accepted, started, completed, failed, cancelled, retried, stalled, wait_ms, run_ms,
      after = sunpack(FORMAT, stored)
    -- All fields in one constructor: a table that grows field by field is reallocated five times.
    n = {
      waiting = waiting, order = order, lifo = lifo, turn = turn, popped = popped, logged = logged,
      sweeps = sweeps, timer = timer, leases = leases, fronts = fronts, priorities = priorities,
      seen = seen, minute = seen - seen % 60000, accepted = accepted, started = started,
      completed = completed, failed = failed, cancelled = cancelled, retried = retried,
      stalled = stalled, wait_ms = wait_ms, run_ms = run_ms, meta = stored:sub(after), text = false,
    }
    cx.n = n
  end
  return n
end

-- Write the counters. `last`: the call does not change them after this.
function J.save_counters(cx, last)
  local n = cx.n
  if not n then return end
  if n.minute ~= cx.minute then J.figures(cx) end
  n.seen = cx.now
  local text = spack(FORMAT, n.waiting, n.order, n.lifo, n.turn, n.popped, n.logged, n.sweeps,
    n.timer, n.leases, n.fronts, n.priorities, n.seen, n.accepted, n.started, n.completed, n.failed,
    n.cancelled, n.retried, n.stalled, n.wait_ms, n.run_ms) .. n.meta
  call("SET", cx.prefix .. KEY.counters, text)
  if last then
    cache(cx, n, text)
    cx.n = nil
  end
end

-- The next `count` numbers of a counter. RETURNS the number before the first of them.
function J.take_numbers(cx, name, count)
  local n = J.counters(cx)
  n[name] = n[name] + count
  return n[name] - count
end

local function end_minute(cx, n)
  local flat, any = {}, false
  for _, name in ipairs(FIGURES) do
    flat[#flat + 1] = name
    flat[#flat + 1] = n[name]
    any = any or n[name] ~= 0
    n[name] = 0
  end
  if any then
    local key = cx.prefix .. KEY.minute .. n.minute
    call("HSET", key, unpack(flat))
    call("PEXPIRE", key, KEEP_MS)
  end
  n.minute = cx.minute
end

-- The counters, with the figures of the current minute.
function J.figures(cx)
  local n = J.counters(cx)
  if n.minute ~= cx.minute then end_minute(cx, n) end
  return n
end

-- Count towards the current minute's figures. Names that are not figures are ignored.
function J.add(cx, figure, count)
  if not IS_FIGURE[figure] then return end
  local n = J.figures(cx)
  n[figure] = n[figure] + count
end

-- The figures of the current minute, flat.
function J.this_minute(cx)
  local n, flat = J.counters(cx), {}
  for _, name in ipairs(FIGURES) do
    flat[#flat + 1] = name
    flat[#flat + 1] = n[name]
  end
  return flat
end

-- Count n more waiting jobs (or fewer). More of them wake sleeping workers when the call ends.
function J.count_waiting(cx, n)
  local c = J.counters(cx)
  c.waiting = c.waiting + n
  if n > 0 then cx.woken = cx.woken + n end
end

-- Note that something ends by itself at a time: a delay, ttl, wait or hold; or a lease.
function J.timer(cx, ms)
  local n = J.counters(cx)
  if n.timer == 0 or ms < n.timer then n.timer = ms end
end
function J.lease_timer(cx, ms)
  local n = J.counters(cx)
  if n.leases == 0 or ms < n.leases then n.leases = ms end
end

-- The lowest score in these sorted sets, rounded down; 0 if they are empty.
function J.soonest(cx, ...)
  local soonest = 0
  for _, set in ipairs({ ... }) do
    local first = call("ZRANGE", cx.prefix .. set, 0, 0, "WITHSCORES")[2]
    first = first and math.floor(tonumber(first))
    if first and (soonest == 0 or first < soonest) then soonest = first end
  end
  return soonest
end
