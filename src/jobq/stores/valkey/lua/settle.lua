-- settle: end runs, then claim more: the one exchange of a working worker.
local sub, byte, floor = string.sub, string.byte, math.floor
local pint, STR = J.pint, J.STR
local STATE, NIL, TIME = J.STATE, J.NIL, "\207\0\0"
local AT_END, MORE, NONE = J.AT_END, J.MORE, "\0\0\0\0\0\0"
local two, FOUR = J.two, {}
for n = 0, 255 do FOUR[n] = "\0\0\0" .. J.BYTE[n] end
local SHORTEST, good_nk = 12, J.good_nk -- see claim.lua
local REMEMBERED = "3600000" -- ms that a worker's last exchange is remembered
local NEVER = {}
local NOTHING = { n = 0, ids = {}, stem = "", expires = "0", fresh = {}, others = {} } -- claimed

-- attempt I4, failures I3, stalls I3, as runs have them and as events do. Nearly all runs are the first.
local FIRST = "\0\0\0\1\0\0\0\0\0\0"
local function counts_of(packed)
  if packed == FIRST then return "\1\0\0" end
  local attempt, failures, stalls = sunpack(">I4I3I3", packed)
  return pint(attempt) .. pint(failures) .. pint(stalls)
end

-- `told`: the names of meta that events tell, or nil.
-- What a longer record says that matters at its end. RETURNS place and length of nk, life, first due time packed or nil, ttl or nil,
-- channel or nil, what events tell of its meta or nil; nothing if its end concerns others: a lock, a schedule.
local function look_closely(rec, flags, told)
  local _, nn, no, nk_at, due, life = J.head(rec, 7)
  local ttl, chan
  if flags % (2 * AT_END) >= AT_END then
    local opts = munpack(sub(rec, nk_at + nn, nk_at + nn + no - 1))
    if opts.lock or opts.schedule then return nil end
    ttl, chan = opts.result_ttl, opts.chan
  end
  local meta = told and no > 0 and J.told_meta(told, sub(rec, nk_at + nn, nk_at + nn + no - 1)) or nil
  return nk_at, nn, life, due > 0 and J.six(due) or nil, ttl, chan, meta
end

-- The slow way, for a job that others have a stake in, or whose lease is not what the caller thinks. RETURNS whether it was completed.
local function complete_one(cx, id, token, result)
  local job = J.load(cx, id)
  if not job or job.state ~= STATE.active or job.token ~= token then return false end
  J.finish(cx, job, STATE.completed, nil, result)
  return true
end

-- Completions. Jobs that are not waited for, hold no lock and belong to no schedule are written together: per job there is only Lua, in
-- locals, because this is half of what a job costs. The places of stale ones are added to `stale`.
local function complete(cx, args, first, count, worker, stale)
  local P, now, now_text, ids, names = cx.P, cx.now, cx.now_text, {}, {}
  local jobs, at = P .. "j:", first
  for i = 1, count do
    local id = args[at]
    ids[i], names[i], at = id, jobs .. id, at + 3
  end
  local runs, recs, items, keyed = J.hmget(P .. "h", ids), J.mget(names), J.items(cx, worker), J.meta(cx).mode == "keyed"
  local records, done, seen, shelf, given, timed, times = {}, {}, count > 1 and {} or NEVER, {}, nil, nil, nil
  local n, ran, logged, before6, before, told = 0, 0, #items, nil, nil, J.event_meta(cx)
  local ended, middle, last = "\255\4" .. cx.now6, "\4\3" .. NIL .. NIL .. NIL .. TIME, TIME .. cx.now6
  at = first - 3
  for i = 1, count do
    at = at + 3
    local id, token, result, run, rec = ids[i], args[at + 1], args[at + 2], runs[i], recs[i]
    local nk_at, nn, life, due6, ttl, chan, meta
    if run and rec and #rec > SHORTEST and not seen[id] then
      local rflags, tn = byte(run, 33, 34)
      if rflags % 2 == 1 and floor(rflags / 8) % 4 == 0 and tn == #token and sub(run, 35, 34 + tn) == token then
        local flags, short = byte(rec, 7, 8)
        local ok = true
        if flags < MORE then nk_at, nn, life = 9, short, 0 else ok, nk_at, nn, life, due6, ttl, chan, meta = pcall(look_closely, rec, flags, told) end
        if not ok or nk_at and not good_nk(sub(rec, nk_at, nk_at + nn - 1)) then nk_at = nil end -- it cannot be read: look at it closely
        if nk_at then
          local created6, started6, run_due6, nk = sub(rec, 1, 6), sub(run, 11, 16), sub(run, 17, 22), sub(rec, nk_at, nk_at + nn - 1)
          if run_due6 ~= NONE then due6 = run_due6 end
          if chan and not ttl then ttl = J.grace(cx, STATE.completed) end
          if started6 ~= before6 then before6, before = started6, sunpack(">I6", started6) end
          n, ran = n + 1, ran + now - before
          if seen ~= NEVER then seen[id] = true end
          done[n], records[2 * n - 1] = id, names[i]
          records[2 * n] = ended .. two(#run) .. run .. "\0" .. (FOUR[#result] or spack(">I4", #result)) .. result .. rec
          items[logged + n] = (meta and "\220\0\19\4" or "\220\0\17\4") .. (STR[#id] or J.str_head(#id)) .. id .. (life == 0 and "\0" or pint(life)) .. nk
            .. counts_of(sub(run, 1, 10)) .. middle .. created6 .. TIME .. (due6 or created6) .. TIME .. started6 .. (meta and last .. NIL .. meta or last)
          local list = shelf
          if ttl then
            timed, times = timed or {}, times or {}
            times[#times + 1], times[#times + 2], list = now + ttl, id, timed
          elseif flags % 2 == 1 then
            given = given or {}
            list = given
          end
          local m = #list
          list[m + 1], list[m + 2] = now_text, id
          if chan then J.tell_completed(cx, chan, id, rec, run, result, J.has(rflags, J.EXTRA)) end
          if keyed then J.key_freed(cx, (select(2, munpack(nk)))) end
        end
      end
    end
    if not nk_at then
      if seen[id] or not complete_one(cx, id, token, result) then stale[#stale + 1] = i end
      logged = #items - n -- its event may stand among these
    end
  end
  if n == 0 then return end
  J.mset(records)
  J.variadic("ZREM", P .. "q", done)
  J.variadic("HDEL", P .. "h", done)
  J.variadic("ZADD", P .. "e4", shelf, 2)
  if given then J.variadic("ZADD", P .. "k4", given, 2) end
  if timed then
    J.variadic("ZADD", P .. "y4", timed, 2)
    J.variadic("ZADD", P .. "y", times, 2)
  end
  local figures = J.figures(cx)
  figures.completed, figures.run_ms = figures.completed + n, figures.run_ms + ran
  cx.freed = true
end

-- Why a running job was asked to stop. Who asked is noted in the job, for the event of its end.
function J.why_cancelled(cx, job)
  local why, who = unpack(call("HMGET", cx.P .. "x:" .. job.id, "why", "who"))
  job.actor = who or nil
  return why or "cancelled"
end

-- The failure of a run, as a worker told it.
local function run_failure(o, data)
  return { run = true, blob = data, error = o.error, fingerprint = o.fingerprint, reason = o.reason }
end

-- What an outcome does beside moving the job: (cx, job, outcome, data), data being what was saved.
local BESIDE = {
  snooze = function(cx, job, o, data)
    if o.saved then J.extra(cx, job, "saved", data) elseif J.has(job.rflags, J.EXTRA) then call("HDEL", cx.P .. "x:" .. job.id, "saved") end
  end,
  hold = function(cx, job, o)
    local _, key = J.name_key(job)
    J.put_on_hold(cx, key, o.delay)
  end,
}

-- Any outcome but completion. What each does to a job is core's table (core/outcomes.py: EFFECTS); that a job which was asked to stop is
-- cancelled instead is copied from `effect` there.
local function settle_one(cx, o, data, edges)
  local job = J.load(cx, o.id)
  if not job or job.state ~= STATE.active or job.token ~= o.token then return false end
  local effect, failure = J.EFFECTS[o.kind], nil
  if effect.failed then
    job.failures = job.failures + 1
    failure = run_failure(o, data)
  end
  if J.has(job.rflags, J.CANCEL) then
    J.finish(cx, job, STATE.cancelled, J.why_cancelled(cx, job), nil, failure)
  elseif effect.state == STATE.failed then
    J.finish(cx, job, STATE.failed, nil, nil, failure)
  elseif effect.state == STATE.blocked then
    J.block(cx, job, o, o.saved and data or nil, edges)
  else
    local reason, err, fingerprint
    if failure then reason, err, fingerprint = J.keep_failure(cx, job, failure) end
    if BESIDE[o.kind] then BESIDE[o.kind](cx, job, o, data) end
    if o.kind == "defer" then
      J.defer(cx, job, o.delay)
    elseif effect.returns then
      J.to_waiting(cx, job, effect.kind, "front")
    elseif o.delay > 0 then
      J.to_delayed(cx, job, effect.kind, cx.now + o.delay, reason, err, fingerprint)
    else
      J.to_waiting(cx, job, effect.kind, J.place_when_due(cx, job), reason, err, fingerprint)
    end
  end
  return true
end

-- The answer to an exchange that was carried out before: its stale ones, and the leases it granted that still hold.
local function repeated(cx, memory)
  local stale, granted = memory:match("^[^\n]*\n([^\n]*)\n(.*)$")
  local leases, n, expires = {}, 0, "0"
  local stem, rest = granted:match("^([^\n]*)\n(.*)$")
  for id in (rest or ""):gmatch("[^\n]+") do
    local job = J.load(cx, id)
    if job and job.state == STATE.active and job.token:sub(1, #stem) == stem then
      J.told_whole(cx, leases, n, job.id, job.rec, J.pack_run(job), J.has(job.rflags, J.EXTRA))
      n = n + 1
      expires = call("ZSCORE", cx.P .. "q", id)
    end
  end
  return { stale, -2, 0, 0, 0, expires, "", {}, leases }
end

-- settle. KEYS 1 prefix
-- ARGS now, worker, call, packed: lane, limit (-1: claim nothing), lease_ms, completions, outcomes of other kinds, 1 if it may sleep,
--      1 if it may be asleep, 1 if the caller is not alone (see J.claim);
--      then per completion: id, token, result ("" for none, else "\1" and its bytes);
--      then per other outcome: itself packed {kind, id, token, delay, …}, data, edges packed
-- RETURNS {stale places "1,2", next due in ms or -1 (-2: it was made before), messages waiting, jobs to wake for elsewhere,
--      1 if a job on its last chance is next and was left (see J.claim), lease expiry, what tokens begin with (their places
--      follow), first runs of jobs flat: id, record; other leases flat: place, id, record, run, extras}
function J.settle(keys, args)
  local now, worker, name, numbers = unpack(args, 1, 4)
  local lane, limit, lease_ms, completions, others, sleepy, asleep, company = sunpack(">dddddddd", numbers)
  local cx = J.open(keys[1], now)
  -- The second look of a worker about to sleep ("<call>+", partitioned queues) does not make it forget the first.
  local memory_key = cx.P .. "c:" .. worker .. (lane == 0 and "" or "\n" .. lane) .. (name:sub(-1) == "+" and "+" or "")
  local memory = call("GET", memory_key)
  if memory and memory:sub(1, #name + 1) == name .. "\n" then return repeated(cx, memory) end
  if asleep == 1 then J.wake_up(cx, worker) end
  local stale = {}
  if completions > 0 then complete(cx, args, 5, completions, worker, stale) end
  for i = 1, others do
    local at = 5 + 3 * completions + 3 * (i - 1)
    local edges = args[at + 2]
    if not settle_one(cx, munpack(args[at]), args[at + 1], edges ~= "" and munpack(edges) or nil) then
      stale[#stale + 1] = completions + i
    end
  end
  J.deliver_local(cx)
  local stale_text, due, tk = table.concat(stale, ","), -1, NOTHING
  if limit >= 0 then
    J.prepare(cx, 500)
    tk = J.claim(cx, limit, worker, lease_ms, company == 1)
    if tk.n < limit then due = tk.waded and 0 or J.next_due(cx) end -- it gave up: there may be more behind
    if tk.n < limit and sleepy == 1 and not tk.cut then J.fall_asleep(cx, worker, limit - tk.n) end
    local waiting = J.counters(cx).waiting
    -- A worker that takes or leaves a last chance claims nothing more for now: others should.
    cx.woken = (tk.last or tk.left) and waiting or math.min(cx.woken, waiting)
  end
  if cx.freed and J.meta(cx).limit then cx.woken = math.max(cx.woken, 1) end
  if completions + others + tk.n > 0 then
    call("SET", memory_key, name .. "\n" .. stale_text .. "\n" .. tk.stem .. "\n" .. table.concat(tk.ids, "\n"), "PX", REMEMBERED)
  end
  -- What retention lets go, goes a little at a time with those that come.
  if completions > 0 and (J.take_numbers(cx, "sweeps", completions) + completions) % 128 < completions then
    J.sweep(cx, 2 * math.max(completions, 128))
  end
  J.close(cx)
  return { stale_text, due, cx.outbox, cx.to_wake or 0, tk.left and 1 or 0, tk.expires, tk.stem, tk.fresh, tk.others }
end
