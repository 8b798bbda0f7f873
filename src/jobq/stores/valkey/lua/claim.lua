-- claim: the head of the line becomes active. Per job there is only Lua: the commands are variadic over the batch.
local sub, byte, find, floor = string.sub, string.byte, string.find, math.floor
local STR = J.STR
local STATE, NIL, TIME, ORDER = J.STATE, J.NIL, "\207\0\0", J.ORDER
local AT_START, MORE, LATER = J.AT_START, J.MORE, J.LATER
local BYTE, TEXT, two = J.BYTE, J.TEXT, J.two
local WADE = 1000 -- entries left behind that one claim wades through at most
local FEW, NO_RUNS = 4, {}
local SHORTEST, good_nk = 12, J.good_nk -- bytes of the longest head that is looked at; a record has a name and a payload behind it
local FIRST = "\0\0\0\1\0\0\0\0\0\0" -- attempt I4, failures I3, stalls I3
local MANY, LONG, DOTS = 16, ("-"):rep(65), ("."):rep(16)

-- The claim under way: what it may take, and what it has taken.
local function begin(cx, worker, lease_ms)
  -- With the dots a run is longer than 64 bytes: shorter ones the server would keep, and search, one after another.
  return {
    worker = worker, expires = J.stamp(cx.now + lease_ms), stem = J.counters(cx).order .. "." .. cx.now_text .. DOTS, n = 0,
    ids = {}, runs = {}, lease_times = {}, fresh = {}, others = {}, items = J.items(cx, worker), waited = 0,
    fresh_run = FIRST .. cx.now6 .. "\0\0\0\0\0\0", started = TIME .. cx.now6 .. NIL,
  }
end

-- Add a lease to those told with all there is to say. `n` leases were granted before it.
function J.told_whole(cx, leases, n, id, rec, run, has_extras)
  local at = #leases
  leases[at + 1], leases[at + 2], leases[at + 3], leases[at + 4] = n, id, rec, run
  leases[at + 5] = has_extras and call("HGETALL", cx.P .. "x:" .. id) or ""
end

local function grant(tk, id, run)
  local n = tk.n + 1
  tk.n, tk.ids[n] = n, id
  tk.runs[2 * n - 1], tk.runs[2 * n] = id, run
  tk.lease_times[2 * n - 1], tk.lease_times[2 * n] = tk.expires, id
end

-- Whether limits on starts let the job start now; if not, its key is held, or the claim is over. The key is asked first: one that
-- must wait does not use up the claim for others. `probe`: only ask, pay nothing.
local function affordable(cx, tk, job, key_rate, probe)
  local cost = J.options(job).cost or 1
  local wait = key_rate and J.rate_wait(key_rate, cost, cx.now) or 0
  if wait > 0 then
    local _, key = J.name_key(job)
    J.hold_key(cx, key, cx.now + wait)
    return false
  end
  wait = tk.rate and J.rate_wait(tk.rate, cost, cx.now) or 0
  if wait > 0 then
    tk.over = true
    call("HSET", cx.P .. "m", "rate_until", cx.now + wait)
    return false
  end
  if probe then return true end
  if key_rate then J.rate_take(key_rate, cost, cx.now) end
  if tk.rate then J.rate_take(tk.rate, cost, cx.now) end
  return true
end

-- A job with options to heed, or one that comes back. RETURNS "started", "denied", or nil for an entry left behind.
local function start_one(cx, tk, entry, id, rec, run, order, key_rate)
  local job = J.read(id, rec, run)
  local _, life, ticket = J.entry_parts(entry)
  if job.broken and not job.finished and job.state ~= STATE.active then
    job.state = STATE.waiting
    J.fail_broken(cx, job)
    return nil
  end
  if job.finished or job.state == STATE.active or job.life ~= life or job.ticket ~= ticket then return nil end
  job.state, job.order = STATE.waiting, order
  local opts = J.options(job)
  local ends = opts.ttl and J.ttl_end(cx, job)
  if ends and ends <= cx.now then
    J.expire(cx, job)
    return nil
  end
  local last = job.stalls > 0 and J.is_last_chance(cx, job)
  local left = last and (tk.n > 0 or tk.company) -- for a claim that is alone
  local denied = tk.over or (tk.rate or key_rate) and not affordable(cx, tk, job, key_rate, left)
  if left and not denied then
    tk.over, tk.cut, tk.left, denied = true, true, tk.n == 0, true
  end
  if denied then
    local line = J.line_of(cx, job)
    J.push_front(cx, line, opts.priority or 0, entry, order)
    return "denied"
  end
  if last then tk.over, tk.cut, tk.last = true, true, true end
  tk.waited = tk.waited + cx.now - job.due
  job.state, job.attempt, job.started, job.worker = STATE.active, job.attempt + 1, cx.now, tk.worker
  job.rflags = J.with(last and J.with(job.rflags, J.LAST) or J.without(job.rflags, J.LAST), J.ACTIVE)
  job.token = tk.stem .. tk.n
  J.event(cx, job, "started", STATE.waiting, nil, nil, nil, tk.worker)
  J.add(cx, "started", -1) -- counted with the batch
  local started = J.pack_run(job)
  J.told_whole(cx, tk.others, tk.n, id, rec, started, J.has(job.rflags, J.EXTRA))
  grant(tk, id, started)
  return "started"
end

-- Make the jobs of these entries active. RETURNS the places of those that were started.
local function activate(cx, tk, entries, orders, key_rates)
  local P, n, now = cx.P, #entries, cx.now
  local ids, names = {}, {}
  local jobs = P .. "j:"
  for i = 1, n do
    local id = entries[i]
    if find(id, "\t", 1, true) then id = J.entry_parts(id) end
    ids[i], names[i] = id, jobs .. id
  end
  local recs = J.mget(names)
  -- Runs there are of active jobs, and of few others: if of none, nobody need ask for jobs that have never left their place.
  local runs = n > FEW and call("HLEN", P .. "h") == call("ZCARD", P .. "q") and NO_RUNS or J.hmget(P .. "h", ids)
  -- Places: this batch, and the place in it.
  local batch = J.take_numbers(cx, "order", 1)
  local batch6 = spack(">I6", batch + ORDER)
  local items, fresh_run, stem, worker, started = tk.items, tk.fresh_run, tk.stem, tk.worker, tk.started
  local taken, closely, told = {}, tk.rate or key_rates, J.event_meta(cx)
  local fresh = tk.fresh
  local before = "\1\0\0\3\2" .. NIL .. NIL .. NIL .. TIME
  for i = 1, n do
    local rec, run, id = recs[i], runs[i], ids[i]
    local order = orders[i]
    if not rec then
      call("HDEL", P .. "tb", id)
    elseif tk.over then
      local job = J.read(id, rec, run)
      if job.broken then
        start_one(cx, tk, entries[i], id, rec, run)
      elseif not job.finished then J.push_front(cx, (J.line_of(cx, job)), J.options(job).priority or 0, entries[i], order or batch * 65536 + i) end
    else
      local created, flags, nn, nk, meta = 0, LATER, 0, nil, nil
      if #rec > SHORTEST then created, flags, nn = sunpack(">I6BB", rec) end
      -- Never started, due when created, alive in its first life, and nothing to heed.
      if not run and not order and not closely and flags < LATER and flags % (2 * AT_START) < AT_START and entries[i] == id and byte(rec) < 255 then
        local nk_at, no = 9, 0
        if flags >= MORE then
          nn, no = sunpack(">I2I2", rec, 9)
          nk_at = 13
        end
        nk, meta = sub(rec, nk_at, nk_at + nn - 1), told and no > 0 and J.told_meta(told, sub(rec, nk_at + nn, nk_at + nn + no - 1))
      end
      if nk and good_nk(nk) then
        local token, created6 = stem .. (TEXT[tk.n] or tk.n), sub(rec, 1, 6)
        items[#items + 1] = (meta and "\220\0\19\3" or "\220\0\17\3") .. (STR[#id] or J.str_head(#id)) .. id .. "\0" .. nk .. before
          .. created6 .. TIME .. created6 .. (meta and started .. NIL .. meta or started)
        tk.waited = tk.waited + now - created
        fresh[#fresh + 1], fresh[#fresh + 2] = id, rec
        grant(tk, id, fresh_run .. batch6 .. two(i) .. "\0\0\1" .. BYTE[#token] .. token .. worker)
        taken[i] = true
      else
        if runs == NO_RUNS then -- it may be an entry left behind by a job that is active
          runs = J.hmget(P .. "h", ids)
          run = runs[i]
        end
        local rate = key_rates and key_rates[i]
        taken[i] = start_one(cx, tk, entries[i], id, rec, run, order or batch * 65536 + i, rate) == "started"
      end
    end
  end
  return taken
end

local function claim_plain(cx, tk, want)
  local line = cx.P .. "w:"
  local waded = 0
  while tk.n < want and not tk.over and waded < WADE do
    local entries, orders = J.pop(cx, line, want - tk.n)
    if #entries == 0 then
      tk.emptied = true
      break
    end
    local before = tk.n
    activate(cx, tk, entries, orders)
    waded = waded + #entries - (tk.n - before)
  end
  tk.waded = waded >= WADE
end

-- Give back what a round of keys has changed: their active jobs, their rates, their next turns. `turns`: those they had, if the claim
-- ended within the round: keys that came too late for it keep them, or a last chance might wait for ever to be the first.
local function end_round(cx, keys, active, limits, rates, started, turns)
  local P, set, again, gone, kept = cx.P, {}, {}, {}, {}
  local standing = J.standing(cx, keys)
  for i = 1, #keys do
    local n = active[i]
    if started[i] then
      n = n + 1
      set[#set + 1] = keys[i]
      set[#set + 1] = n
    end
    if rates[i] and rates[i].dirty then J.keep_key_rate(cx, keys[i], rates[i]) end
    if not standing[i] then
      gone[#gone + 1] = keys[i]
    elseif n < limits[i] and not (cx.holding and call("ZSCORE", P .. "hd", keys[i])) then
      if turns and not started[i] then
        kept[#kept + 1] = turns[i]
        kept[#kept + 1] = keys[i]
      else
        again[#again + 1] = keys[i]
      end
    end
  end
  J.variadic("HSET", P .. "a", set, 2)
  J.variadic("ZREM", P .. "ks", gone)
  J.variadic("ZADD", P .. "r", kept, 2)
  J.take_turns(cx, again, true)
end

-- Round robin: in each round every ready key starts one job, until there is no room or nothing is ready.
local function claim_keyed(cx, tk, want)
  local P, waded = cx.P, 0
  while tk.n < want and not tk.over and waded < WADE do
    local ready = call("ZPOPMIN", P .. "r", want - tk.n)
    if #ready == 0 then
      tk.emptied = call("EXISTS", P .. "ks") == 0
      break
    end
    local keys, turns, limits, rates, entries, orders, owner = {}, {}, {}, {}, {}, {}, {}
    for i = 1, #ready, 2 do
      keys[#keys + 1], turns[#turns + 1] = ready[i], ready[i + 1]
    end
    local active = J.hmget(P .. "a", keys)
    local entry_rates, any_rate = {}, false
    for i = 1, #keys do
      active[i] = tonumber(active[i] or 0)
      local limit, text = J.key_limits(cx, keys[i])
      limits[i] = limit
      if active[i] < limit then
        local rate = text and J.rate(text, call("GET", P .. "kr:" .. keys[i]), cx.now)
        rates[i] = rate
        if rate and J.rate_wait(rate, 0, cx.now) > 0 then
          cx.holding = true
          J.hold_key(cx, keys[i], cx.now + J.rate_wait(rate, 0, cx.now))
        else
          local popped, places = J.pop(cx, P .. "k:" .. keys[i] .. ":", 1)
          if popped[1] then
            local at = #entries + 1
            entries[at], orders[at], owner[at] = popped[1], places[1], i
            entry_rates[at] = rate or nil
            any_rate = any_rate or rate
          end
        end
      end
    end
    local started, before = {}, tk.n
    if any_rate then cx.holding = true end
    for at, yes in pairs(activate(cx, tk, entries, orders, any_rate and entry_rates or nil)) do
      if yes then started[owner[at]] = true end
    end
    end_round(cx, keys, active, limits, rates, started, tk.over and turns or nil)
    waded = waded + #keys - (tk.n - before)
  end
  tk.waded = waded >= WADE
end

-- How many may start as far as the queue as a whole is concerned.
local function room(cx, tk, want)
  local meta = J.meta(cx)
  if meta.paused == "1" then return 0 end
  if meta.held and tonumber(meta.held) > cx.now then return 0 end
  if meta.limit then want = math.min(want, meta.limit - call("ZCARD", cx.P .. "q")) end
  if meta.rate and want > 0 then
    tk.rate = J.rate(meta.rate, call("HGET", cx.P .. "m", "rate_state"), cx.now)
    if tk.rate and tk.rate.kind == "w" then
      want = math.min(want, tk.rate.a - tk.rate.used)
      if want <= 0 then call("HSET", cx.P .. "m", "rate_until", cx.now + J.rate_wait(tk.rate, 1, cx.now)) end
    end
  end
  return want
end

-- The server keeps up to 128 short members one after another and searches them all, for each that comes and goes. A long member
-- makes it build an index, which stays until the set is empty.
local function note_leases(cx, tk)
  local q, many = cx.P .. "q", tk.n > MANY
  if many then call("ZADD", q, "+inf", LONG) end
  J.variadic("ZADD", q, tk.lease_times, 2)
  if many then call("ZREM", q, LONG) end
end

-- Take up to `want` jobs, or one that is on its last chance. `company`: the caller runs other jobs or has leases of other
-- queues already, so it gets no job on its last chance. RETURNS the claim; its `left` is true if such a job is next and
-- could start now.
function J.claim(cx, want, worker, lease_ms, company)
  local tk = begin(cx, worker, lease_ms)
  tk.company = company
  J.keys_flush(cx)
  local allowed = room(cx, tk, want)
  if allowed > 0 then
    if J.meta(cx).mode == "keyed" then claim_keyed(cx, tk, allowed) else claim_plain(cx, tk, allowed) end
  end
  -- No line has an entry left: whatever the counter says, the jobs that were claimed are all that waited (records may have vanished).
  if tk.emptied and not tk.over then J.counters(cx).waiting = tk.n end
  if tk.n > 0 then
    J.variadic("HSET", cx.P .. "h", tk.runs, 2)
    note_leases(cx, tk)
    J.lease_timer(cx, cx.now + lease_ms)
    J.wait(cx, -tk.n)
    local figures = J.figures(cx)
    figures.started, figures.wait_ms = figures.started + tk.n, figures.wait_ms + tk.waited
  end
  if tk.rate and tk.rate.dirty then
    call("HSET", cx.P .. "m", "rate_state", J.rate_state(tk.rate))
    local wait = tk.rate.kind == "w" and J.counters(cx).waiting > 0 and J.rate_wait(tk.rate, 1, cx.now) or 0
    if wait > 0 then call("HSET", cx.P .. "m", "rate_until", cx.now + wait) end -- workers with free slots learn when the window is over
  end
  return tk
end

-- From now until something of the queue may become claimable by itself; -1: nothing will.
function J.next_due(cx)
  local P, soonest, meta = cx.P, nil, J.meta(cx)
  local function at(ms)
    ms = ms and tonumber(ms)
    if ms and (not soonest or ms < soonest) then soonest = ms end
  end
  local first = J.soonest(cx, "d", "q", "bt", meta.mode == "keyed" and "hd" or nil)
  if first > 0 then at(first) end
  if meta.held and tonumber(meta.held) > cx.now then at(meta.held) end
  if meta.rate then
    local rate_until = tonumber(call("HGET", P .. "m", "rate_until") or 0)
    if rate_until > cx.now then at(rate_until) end
  end
  if not soonest then return -1 end
  return math.max(0, floor(soonest) - cx.now)
end
