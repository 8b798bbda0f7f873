-- counters: what a queue counts, in one string (n) that a call reads once and writes once: a field at a time, the counting
-- cost a third of an exchange.
-- waiting: jobs in line · order, lifo, turn: the last places given · popped: entries taken off the head of the plain line
-- · logged: events in the log · sweeps: completions, for when to sweep · timer, leases: no delayed job, ttl, wait or hold, and
-- no lease ends before (0: there is none) · fronts, priorities: entries in front of lines, priorities above 0 in them
-- · seen: the time of the last call; its minute's figures follow, and move to mm:<minute> when it is over · behind them, `meta`: see J.meta
local FIGURES = { "accepted", "started", "completed", "failed", "cancelled", "retried", "stalled", "wait_ms", "run_ms" }
local FORMAT = ">" .. ("d"):rep(21)
local NONE = spack(FORMAT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
local KEPT = 90000000 -- ms that a minute is kept: a day and an hour
local IS_FIGURE = {}
for _, name in ipairs(FIGURES) do IS_FIGURE[name] = true end

-- Counters as the last call left them, by prefix: what is stored still reads the same, nearly always, and need not be taken apart.
-- A call takes them out, and puts them back only when it has written them: one that breaks off leaves nothing wrong behind.
local left, left_n, LEFT = {}, 0, 1000

local function leave(cx, n, text)
  if not left[cx.prefix] then
    if left_n >= LEFT then left, left_n = {}, 0 end
    left_n = left_n + 1
  end
  n.text, left[cx.prefix] = text, n
end

function J.counters(cx)
  local n = cx.n
  if not n then
    local stored = call("GET", cx.prefix .. KEY.counters) or NONE
    n = left[cx.prefix]
    if n and n.text == stored then
      n.text, cx.n = false, n
      return n
    end
    local waiting, order, lifo, turn, popped, logged, sweeps, timer, leases, fronts, priorities, seen, accepted, started, completed,
      failed, cancelled, retried, stalled, wait_ms, run_ms, after = sunpack(FORMAT, stored)
    -- By name and all at once: a table that grows is made anew five times.
    n = {
      waiting = waiting, order = order, lifo = lifo, turn = turn, popped = popped, logged = logged, sweeps = sweeps, timer = timer,
      leases = leases, fronts = fronts, priorities = priorities, seen = seen, minute = seen - seen % 60000, accepted = accepted, started = started,
      completed = completed, failed = failed, cancelled = cancelled, retried = retried, stalled = stalled, wait_ms = wait_ms,
      run_ms = run_ms, meta = stored:sub(after), text = false,
    }
    cx.n = n
  end
  return n
end

-- `last`: the call does nothing to them after this.
function J.save_counters(cx, last)
  local n = cx.n
  if not n then return end
  if n.minute ~= cx.minute then J.figures(cx) end
  n.seen = cx.now
  local text = spack(FORMAT, n.waiting, n.order, n.lifo, n.turn, n.popped, n.logged, n.sweeps, n.timer, n.leases, n.fronts,
    n.priorities, n.seen, n.accepted, n.started, n.completed, n.failed, n.cancelled, n.retried, n.stalled, n.wait_ms, n.run_ms) .. n.meta
  call("SET", cx.prefix .. KEY.counters, text)
  if last then
    leave(cx, n, text)
    cx.n = nil
  end
end

-- The next `count` numbers of a counter. RETURNS the one before the first of them.
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
    call("PEXPIRE", key, KEPT)
  end
  n.minute = cx.minute
end

-- The counters, with the figures of the minute that it is.
function J.figures(cx)
  local n = J.counters(cx)
  if n.minute ~= cx.minute then end_minute(cx, n) end
  return n
end

-- Count towards the minute's figures; what is no figure is not counted.
function J.add(cx, figure, count)
  if not IS_FIGURE[figure] then return end
  local n = J.figures(cx)
  n[figure] = n[figure] + count
end

-- The figures of the minute under way, flat.
function J.this_minute(cx)
  local n, flat = J.counters(cx), {}
  for _, name in ipairs(FIGURES) do
    flat[#flat + 1] = name
    flat[#flat + 1] = n[name]
  end
  return flat
end

-- n jobs of the queue more (or fewer) are waiting; more of them wake sleepers when the call ends.
function J.wait(cx, n)
  local c = J.counters(cx)
  c.waiting = c.waiting + n
  if n > 0 then cx.woken = cx.woken + n end
end

-- Something ends by itself at a time.
function J.timer(cx, ms)
  local n = J.counters(cx)
  if n.timer == 0 or ms < n.timer then n.timer = ms end
end
function J.lease_timer(cx, ms)
  local n = J.counters(cx)
  if n.leases == 0 or ms < n.leases then n.leases = ms end
end

-- The soonest time in some sorted sets; 0: none.
function J.soonest(cx, ...)
  local soonest = 0
  for _, set in ipairs({ ... }) do
    local first = call("ZRANGE", cx.prefix .. set, 0, 0, "WITHSCORES")[2]
    first = first and math.floor(tonumber(first))
    if first and (soonest == 0 or first < soonest) then soonest = first end
  end
  return soonest
end
