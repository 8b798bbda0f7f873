-- settle: end runs, then claim more: the one exchange of a working worker.
local sub, byte, find, floor = string.sub, string.byte, string.find, math.floor
local pint, STR = J.pint, J.STR
local STATE, NIL, TIME = J.STATE, J.NIL, "\207\0\0"
local AT_END, MORE, NONE = J.AT_END, J.MORE, "\0\0\0\0\0\0"
local two, FOUR, BYTE7 = J.two, {}, {}
for n = 0, 255 do FOUR[n] = "\0\0\0" .. J.BYTE[n] end
for n = 0, 127 do BYTE7[n] = J.BYTE[n] end -- as MessagePack has them
local REMEMBERED = 3600000 -- ms that a worker's last exchange is remembered

-- Lists that a batch of completions gathers, each written with one command.
local function gather()
  return { n = 0, ran = 0, records = {}, done = {}, shelf = {}, given = {}, timed = {}, times = {}, seen = {} }
end

-- A job whose end nobody has a stake in but its listener: not waited for, not locking, not scheduled. RETURNS whether it was one.
local function complete_plain(cx, b, id, name, rec, run, token, result)
  local rflags, tn = byte(run, 33, 34)
  if rflags % 2 == 0 or floor(rflags / 8) % 4 > 0 or tn ~= #token or find(run, token, 35, true) ~= 35 or b.seen[id] then return false end
  local flags, nn = byte(rec, 7, 8)
  local nk_at, created6, life, due6, ttl = 9, sub(rec, 1, 6), 0, sub(run, 17, 22), nil
  if flags >= MORE then
    local no, due, _
    _, nn, no, nk_at, due, life = J.head(rec, 7)
    if due6 == NONE and due > 0 then due6 = J.six(due) end
    if flags % (2 * AT_END) >= AT_END then
      local opts = munpack(sub(rec, nk_at + nn, nk_at + nn + no - 1))
      if opts.lock or opts.schedule then return false end
      ttl = opts.result_ttl
      if opts.chan then cx.ended[#cx.ended + 1] = { opts.chan, id } end
    end
  end
  if due6 == NONE then due6 = created6 end
  local n, now, nk = b.n + 1, cx.now, sub(rec, nk_at, nk_at + nn - 1)
  b.n, b.seen[id], b.done[n] = n, true, id
  b.records[2 * n - 1], b.records[2 * n] = name, b.ended .. two(#run) .. run .. "\0" .. (FOUR[#result] or spack(">I4", #result)) .. result .. rec
  local list = ttl and b.timed or flags % 2 == 1 and b.given or b.shelf
  list[#list + 1] = now
  list[#list + 1] = id
  if ttl then
    b.times[#b.times + 1] = now + ttl
    b.times[#b.times + 1] = id
  end
  if b.keyed then
    local _, key = munpack(nk)
    J.key_freed(cx, key)
  end
  local attempt, failures, stalls, started = sunpack(">I4I3I3I6", run)
  b.ran = b.ran + now - started
  b.items[#b.items + 1] = "\220\0\17\4" .. (STR[#id] or J.str_head(#id)) .. id .. (BYTE7[life] or pint(life)) .. nk
    .. (BYTE7[attempt] or pint(attempt)) .. (BYTE7[failures] or pint(failures)) .. (BYTE7[stalls] or pint(stalls)) .. b.middle .. created6
    .. TIME .. due6 .. TIME .. sub(run, 11, 16) .. b.last
  return true
end

-- Completions; those that concern nobody else are written together. The places of stale ones are added to `stale`.
local function complete(cx, args, first, count, worker, stale)
  local P, now6, ids, names = cx.P, cx.now6, {}, {}
  for i = 1, count do
    local id = args[first + 3 * (i - 1)]
    ids[i], names[i] = id, P .. "j:" .. id
  end
  local runs, recs, b = J.hmget(P .. "h", ids), J.mget(names), gather()
  b.items, b.keyed = J.items(cx, worker), J.meta(cx).mode == "keyed"
  b.ended, b.middle, b.last = "\255\4" .. now6, "\4\3" .. NIL .. NIL .. NIL .. TIME, TIME .. now6
  for i = 1, count do
    local at = first + 3 * (i - 1)
    local id, token, result = ids[i], args[at + 1], args[at + 2]
    if not (runs[i] and recs[i] and complete_plain(cx, b, id, names[i], recs[i], runs[i], token, result)) then
      local job = not b.seen[id] and J.load(cx, id)
      if job and job.state == STATE.active and job.token == token then
        J.finish(cx, job, STATE.completed, nil, result)
      else
        stale[#stale + 1] = i
      end
    end
  end
  if b.n == 0 then return end
  J.mset(b.records)
  J.variadic("ZREM", P .. "q", b.done)
  J.variadic("HDEL", P .. "h", b.done)
  J.variadic("ZADD", P .. "e4", b.shelf, 2)
  J.variadic("ZADD", P .. "k4", b.given, 2)
  J.variadic("ZADD", P .. "y4", b.timed, 2)
  J.variadic("ZADD", P .. "y", b.times, 2)
  J.add(cx, "completed", b.n)
  J.add(cx, "run_ms", b.ran)
  cx.freed = true
end

function J.why_cancelled(cx, job) return call("HGET", cx.P .. "x:" .. job.id, "why") or "cancelled" end

local function again(cx, job, kind, delay, ...)
  if delay > 0 then
    J.to_delayed(cx, job, kind, cx.now + delay, ...)
  else
    J.to_waiting(cx, job, kind, J.place_when_due(cx, job), ...)
  end
end

-- Each takes a leased job on: (cx, job, outcome, data), data being the failure, what was saved, or edges.
local ENDINGS = {
  retry = function(cx, job, o, data)
    local failure = { blob = data, error = o.error, fingerprint = o.fingerprint, reason = o.reason }
    local reason, err, fingerprint = J.keep_failure(cx, job, failure)
    again(cx, job, "retried", o.delay, reason, err, fingerprint)
  end,
  fail = function(cx, job, o, data)
    J.finish(cx, job, STATE.failed, nil, nil, { blob = data, error = o.error, fingerprint = o.fingerprint, reason = o.reason })
  end,
  snooze = function(cx, job, o, data)
    if o.saved then J.extra(cx, job, "saved", data) elseif J.has(job.rflags, J.EXTRA) then call("HDEL", cx.P .. "x:" .. job.id, "saved") end
    again(cx, job, "snoozed", o.delay)
  end,
  release = function(cx, job) J.to_waiting(cx, job, "released", "front") end,
  hold = function(cx, job, o)
    local _, key = J.name_key(job)
    if key then
      J.hold_key(cx, key, cx.now + o.delay)
    else
      local held = math.max(tonumber(J.meta(cx).held or 0), cx.now + o.delay)
      call("HSET", cx.P .. "m", "held", held)
      J.meta(cx).held = held
    end
    J.to_waiting(cx, job, "limited", "front")
  end,
  block = function(cx, job, o, data, edges) J.block(cx, job, o, o.saved and data or nil, edges) end,
}

local function settle_one(cx, o, data, edges)
  local job = J.load(cx, o.id)
  if not job or job.state ~= STATE.active or job.token ~= o.token then return false end
  if o.kind == "retry" or o.kind == "fail" then job.failures = job.failures + 1 end
  if J.has(job.rflags, J.CANCEL) then
    local failed = o.kind == "retry" or o.kind == "fail"
    if failed then J.keep_failure(cx, job, { blob = data, reason = o.reason }) end
    J.finish(cx, job, STATE.cancelled, J.why_cancelled(cx, job))
  else
    ENDINGS[o.kind](cx, job, o, data, edges)
  end
  return true
end

-- The answer to an exchange that was carried out before: its stale ones, and the leases it granted that still hold.
local function repeated(cx, memory)
  local stale, granted = memory:match("^[^\n]*\n([^\n]*)\n(.*)$")
  local reply, n = {}, 0
  local stem, rest = granted:match("^([^\n]*)\n(.*)$")
  for id in (rest or ""):gmatch("[^\n]+") do
    local job = J.load(cx, id)
    if job and job.state == STATE.active and job.token:sub(1, #stem) == stem then
      local at = 4 * n
      n = n + 1
      reply[at + 1], reply[at + 2], reply[at + 3] = id, job.rec, J.pack_run(job)
      reply[at + 4] = J.has(job.rflags, J.EXTRA) and call("HGETALL", cx.P .. "x:" .. id) or ""
      cx.expires = call("ZSCORE", cx.P .. "q", id)
    end
  end
  return stale, reply, n
end

-- settle. KEYS 1 prefix
-- ARGS now, worker, call, lane, limit (-1: claim nothing), lease_ms, completions, outcomes of other kinds, "1" if it may sleep,
--      "1" if it may be asleep,
--      then per completion: id, token, result ("" for none, else "\1" and its bytes);
--      then per other outcome: itself packed {kind, id, token, delay, …}, data, edges packed
-- RETURNS {stale places "1,2", next due in ms or -1, messages waiting, jobs to wake for elsewhere, lease expiry,
--      leases flat: id, record, run, extras}
function J.settle(keys, args)
  local now, worker, name, lane, limit, lease_ms, completions, others, sleepy, asleep = unpack(args, 1, 10)
  local cx = J.open(keys[1], now)
  limit, lease_ms, completions, others = tonumber(limit), tonumber(lease_ms), tonumber(completions), tonumber(others)
  -- The second look of a worker about to sleep ("<call>+", partitioned queues) does not make it forget the first.
  local memory_key = cx.P .. "c:" .. worker .. (lane == "0" and "" or "\n" .. lane) .. (name:sub(-1) == "+" and "+" or "")
  local memory = call("GET", memory_key)
  if memory and memory:sub(1, #name + 1) == name .. "\n" then
    local stale, reply = repeated(cx, memory)
    return { stale, 0, 0, 0, cx.expires or "0", reply }
  end
  if asleep == "1" then J.wake_up(cx, worker) end
  local stale = {}
  if completions > 0 then complete(cx, args, 11, completions, worker, stale) end
  for i = 1, others do
    local at = 11 + 3 * completions + 3 * (i - 1)
    local edges = args[at + 2]
    if not settle_one(cx, munpack(args[at]), args[at + 1], edges ~= "" and munpack(edges) or nil) then
      stale[#stale + 1] = completions + i
    end
  end
  J.deliver_local(cx)
  local stale_text, due, reply, granted = table.concat(stale, ","), -1, {}, "\n"
  local expires = 0
  if limit >= 0 then
    J.prepare(cx, 500)
    local tk = J.claim(cx, limit, worker, lease_ms)
    reply, expires = tk.reply, tk.expires
    if tk.n < limit then due = J.next_due(cx) end
    if tk.n > 0 then
      local ids = {}
      for i = 1, tk.n do ids[i] = tk.reply[4 * i - 3] end
      granted = tk.stem .. "\n" .. table.concat(ids, "\n")
    end
    if tk.n < limit and sleepy == "1" then J.fall_asleep(cx, worker, limit - tk.n) end
    cx.woken = math.min(cx.woken, J.counters(cx).waiting)
  end
  if cx.freed and J.meta(cx).limit then cx.woken = math.max(cx.woken, 1) end
  if completions + others > 0 or #reply > 0 then
    call("SET", memory_key, name .. "\n" .. stale_text .. "\n" .. granted, "PX", REMEMBERED)
  end
  -- What retention lets go, goes a little at a time with those that come.
  if completions > 0 and (J.take_numbers(cx, "sweeps", completions) + completions) % 128 < completions then
    J.sweep(cx, 2 * math.max(completions, 128))
  end
  J.close(cx)
  return { stale_text, due, cx.outbox, cx.to_wake or 0, string.format("%.0f", expires), reply }
end
