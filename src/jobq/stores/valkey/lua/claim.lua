-- claim: the next jobs of the waiting lists become active. Commands are variadic over the whole
-- batch, so per job there is only Lua.
local sub, byte, find, floor = string.sub, string.byte, string.find, math.floor
local STATE, ORDER, STR, BYTE, TEXT = J.STATE, J.ORDER, J.STR, J.BYTE, J.TEXT
local two, good_nk = J.two, J.good_nk
local MAX_STALE = 1000 -- stale entries that one claim skips
local FEW = 4 -- up to so many entries, reading their runs is cheaper than checking for any
local NO_RUNS = {}
-- The server keeps up to 128 short members of a sorted set one after another, and searches all of
-- them for each member that comes or goes. A member longer than 64 bytes makes it build an index,
-- which stays until the set is empty. MANY is the number of leases from which on that is worth two
-- commands.
local MANY, LONG = 16, ("-"):rep(65)
-- Makes runs longer than 64 bytes, for the same reason: the server searches a hash of short values.
local DOTS = ("."):rep(16)

-- The claim: what it may take, and what it has taken.
local function begin(cx, worker, lease_ms)
  return {
    worker = worker, expires = J.stamp(cx.now + lease_ms),
    stem = J.counters(cx).order .. "." .. cx.now_text .. DOTS, n = 0, ids = {}, runs = {},
    lease_times = {}, fresh = {}, others = {}, items = J.items(cx, worker), waited = 0,
    fresh_run = RUN.first_counts .. cx.now6 .. RUN.no_time,
    started = PACK.time .. cx.now6 .. PACK.none,
  }
end

-- Add a lease with its run and extras to a reply. `n` leases were granted before it.
function J.add_lease(cx, leases, n, id, rec, run, has_extras)
  local at = #leases
  leases[at + 1], leases[at + 2], leases[at + 3], leases[at + 4] = n, id, rec, run
  leases[at + 5] = has_extras and call("HGETALL", cx.prefix .. KEY.extras .. id) or ""
end

local function grant(claim, id, run)
  local n = claim.n + 1
  claim.n, claim.ids[n] = n, id
  claim.runs[2 * n - 1], claim.runs[2 * n] = id, run
  claim.lease_times[2 * n - 1], claim.lease_times[2 * n] = claim.expires, id
end

-- Whether the rates let the job start now. If its key's rate does not, claims skip the key for a
-- while. If the queue's does not, the claim is over. The key's rate comes first: a key that must
-- wait does not use up the queue's rate. `probe`: only ask, use up nothing.
local function affordable(cx, claim, job, key_rate, probe)
  local cost = J.options(job).cost or 1
  local wait = key_rate and J.rate_wait(key_rate, cost, cx.now) or 0
  if wait > 0 then
    local _, key = J.name_key(job)
    J.hold_key(cx, key, cx.now + wait)
    return false
  end
  wait = claim.rate and J.rate_wait(claim.rate, cost, cx.now) or 0
  if wait > 0 then
    claim.over = true
    call("HSET", cx.prefix .. KEY.settings, SETTING.rate_until, cx.now + wait)
    return false
  end
  if probe then return true end
  if key_rate then J.rate_take(key_rate, cost, cx.now) end
  if claim.rate then J.rate_take(claim.rate, cost, cx.now) end
  return true
end

-- Start a job that has options to look at, or that comes back.
-- RETURNS "started", "denied", or nil for a stale entry
local function start_one(cx, claim, entry, id, rec, run, order, key_rate)
  local job = J.read(id, rec, run)
  local _, life, ticket = J.entry_parts(entry)
  if job.broken and not job.finished and job.state ~= STATE.active then
    job.state = STATE.waiting
    J.fail_broken(cx, job)
    return nil
  end
  if job.finished or job.state == STATE.active or job.life ~= life or job.ticket ~= ticket then
    return nil
  end
  job.state, job.order = STATE.waiting, order
  local opts = J.options(job)
  local ends = opts.ttl and J.ttl_end(cx, job)
  if ends and ends <= cx.now then
    J.expire(cx, job)
    return nil
  end
  local last = job.stalls > 0 and J.is_last_chance(cx, job)
  local left = last and (claim.n > 0 or claim.company) -- for a claim that is alone
  local denied = claim.over
    or (claim.rate or key_rate) and not affordable(cx, claim, job, key_rate, left)
  if left and not denied then
    claim.over, claim.cut, claim.left, denied = true, true, claim.n == 0, true
  end
  if denied then
    local list = J.list_of(cx, job)
    J.push_front(cx, list, opts.priority or 0, entry, order)
    return "denied"
  end
  if last then claim.over, claim.cut, claim.last = true, true, true end
  claim.waited = claim.waited + cx.now - job.due
  job.state, job.attempt, job.started = STATE.active, job.attempt + 1, cx.now
  job.worker = claim.worker
  local rflags = last and J.with(job.rflags, RUN_FLAG.last_chance)
    or J.without(job.rflags, RUN_FLAG.last_chance)
  job.rflags = J.with(rflags, RUN_FLAG.active)
  job.token = claim.stem .. claim.n
  J.event(cx, job, "started", STATE.waiting, nil, nil, nil, claim.worker)
  J.add(cx, "started", -1) -- J.claim counts the whole batch
  local started = J.pack_run(job)
  J.add_lease(cx, claim.others, claim.n, id, rec, started, J.has(job.rflags, RUN_FLAG.extras))
  grant(claim, id, started)
  return "started"
end

-- Make the jobs of these entries active. RETURNS a table, true at the positions of those that
-- started
local function activate(cx, claim, entries, orders, key_rates)
  local prefix, n, now = cx.prefix, #entries, cx.now
  local ids, names = {}, {}
  local jobs = prefix .. KEY.job
  for i = 1, n do
    local id = entries[i]
    if find(id, "\t", 1, true) then id = J.entry_parts(id) end
    ids[i], names[i] = id, jobs .. id
  end
  local recs = J.mget(names)
  -- Active jobs have runs, and few others. If no others do, the jobs of these entries have none,
  -- unless an entry is stale.
  local runs = n > FEW
    and call("HLEN", prefix .. KEY.runs) == call("ZCARD", prefix .. KEY.leases) and NO_RUNS
    or J.hmget(prefix .. KEY.runs, ids)
  -- A place in the order: the number of this batch, and the place in it.
  local batch = J.take_numbers(cx, "order", 1)
  local batch6 = spack(">I6", batch + ORDER)
  local items, fresh_run, stem, worker, started = claim.items, claim.fresh_run, claim.stem,
    claim.worker, claim.started
  local taken, closely, meta_names = {}, claim.rate or key_rates, J.event_meta_names(cx)
  local fresh = claim.fresh
  local before = EVENT.first_start .. PACK.none .. PACK.none .. PACK.none .. PACK.time
  for i = 1, n do
    local rec, run, id = recs[i], runs[i], ids[i]
    local order = orders[i]
    if not rec then
      J.entry_gone(cx, id)
    elseif claim.over then
      local job = J.read(id, rec, run)
      if job.broken then start_one(cx, claim, entries[i], id, rec, run) end
      if job.broken or job.finished then
        J.entry_gone(cx, id)
      else
        J.push_front(cx, (J.list_of(cx, job)), J.options(job).priority or 0, entries[i],
          order or batch * 65536 + i)
      end
    else
      local created, flags, nn, nk, meta = 0, FLAG.later, 0, nil, nil
      if #rec > RECORD.longest_head then created, flags, nn = sunpack(RECORD.head, rec) end
      -- The job was never started, was due when created, is in its first life, has not ended, and
      -- has no options to look at.
      if not run and not order and not closely and flags < FLAG.later
        and flags % (2 * FLAG.at_start) < FLAG.at_start and entries[i] == id
        and byte(rec) < ENDED.mark_byte then
        local nk_at, no = RECORD.short_nk_at, 0
        if flags >= FLAG.more then
          nn, no = sunpack(RECORD.lengths, rec, RECORD.lengths_at)
          nk_at = RECORD.long_nk_at
        end
        nk, meta = sub(rec, nk_at, nk_at + nn - 1), meta_names and no > 0
          and J.event_meta(meta_names, sub(rec, nk_at + nn, nk_at + nn + no - 1))
      end
      if nk and good_nk(nk) then
        local token = stem .. (TEXT[claim.n] or claim.n)
        local created6 = sub(rec, 1, RECORD.created_end)
        items[#items + 1] = (meta and EVENT.started_with_meta or EVENT.started)
          .. (STR[#id] or J.str_head(#id)) .. id .. EVENT.life_0 .. nk .. before .. created6
          .. PACK.time .. created6 .. (meta and started .. PACK.none .. meta or started)
        claim.waited = claim.waited + now - created
        fresh[#fresh + 1], fresh[#fresh + 2] = id, rec
        grant(claim, id, fresh_run .. batch6 .. two(i) .. RUN.fresh_flags .. BYTE[#token] .. token
          .. worker)
        taken[i] = true
      else
        if runs == NO_RUNS then -- this may be the stale entry of an active job
          runs = J.hmget(prefix .. KEY.runs, ids)
          run = runs[i]
        end
        local rate, place = key_rates and key_rates[i], order or batch * 65536 + i
        local what = start_one(cx, claim, entries[i], id, rec, run, place, rate)
        taken[i] = what == "started"
        if not what then J.entry_gone(cx, id) end
      end
    end
  end
  return taken
end

local function claim_plain(cx, claim, want)
  local list = cx.prefix .. KEY.plain_list
  local stale = 0
  while claim.n < want and not claim.over and stale < MAX_STALE do
    local entries, orders = J.pop(cx, list, want - claim.n)
    if #entries == 0 then
      claim.emptied = true
      break
    end
    local before = claim.n
    activate(cx, claim, entries, orders)
    stale = stale + #entries - (claim.n - before)
  end
  claim.gave_up = stale >= MAX_STALE
end

-- Write what a round has changed for its keys: active jobs, rates, next turns. `turns` are the
-- turns they had, if the claim ended within the round. Keys that were not reached keep theirs:
-- otherwise a job on its last chance might never be the first.
local function end_round(cx, keys, active, limits, rates, started, turns)
  local prefix, set, again, gone, kept = cx.prefix, {}, {}, {}, {}
  local has_entries = J.keys_with_entries(cx, keys)
  for i = 1, #keys do
    local n = active[i]
    if started[i] then
      n = n + 1
      set[#set + 1] = keys[i]
      set[#set + 1] = n
    end
    if rates[i] and rates[i].dirty then J.keep_key_rate(cx, keys[i], rates[i]) end
    if not has_entries[i] then
      gone[#gone + 1] = keys[i]
    elseif n < limits[i]
      and not (cx.skipping and call("ZSCORE", prefix .. KEY.keys_skipped, keys[i])) then
      if turns and not started[i] then
        kept[#kept + 1] = turns[i]
        kept[#kept + 1] = keys[i]
      else
        again[#again + 1] = keys[i]
      end
    end
  end
  J.variadic("HSET", prefix .. KEY.keys_active, set, 2)
  J.variadic("ZREM", prefix .. KEY.keys_waiting, gone)
  J.variadic("ZADD", prefix .. KEY.keys_ready, kept, 2)
  J.take_turns(cx, again, true)
end

-- Round robin: in each round every ready key starts one job, until there is no room or no ready
-- key.
local function claim_keyed(cx, claim, want)
  local prefix, stale = cx.prefix, 0
  while claim.n < want and not claim.over and stale < MAX_STALE do
    local ready = call("ZPOPMIN", prefix .. KEY.keys_ready, want - claim.n)
    if #ready == 0 then
      claim.emptied = call("EXISTS", prefix .. KEY.keys_waiting) == 0
      break
    end
    local keys, turns, limits, rates, entries, orders, owner = {}, {}, {}, {}, {}, {}, {}
    for i = 1, #ready, 2 do
      keys[#keys + 1], turns[#turns + 1] = ready[i], ready[i + 1]
    end
    local active = J.hmget(prefix .. KEY.keys_active, keys)
    local entry_rates, any_rate = {}, false
    for i = 1, #keys do
      active[i] = tonumber(active[i] or 0)
      local limit, text = J.key_limits(cx, keys[i])
      limits[i] = limit
      if active[i] < limit then
        local rate = text and J.rate(text, call("GET", prefix .. KEY.key_rate .. keys[i]), cx.now)
        rates[i] = rate
        if rate and J.rate_wait(rate, 0, cx.now) > 0 then
          cx.skipping = true
          J.hold_key(cx, keys[i], cx.now + J.rate_wait(rate, 0, cx.now))
        else
          local popped, places = J.pop(cx, prefix .. KEY.key_list .. keys[i] .. ":", 1)
          if popped[1] then
            local at = #entries + 1
            entries[at], orders[at], owner[at] = popped[1], places[1], i
            entry_rates[at] = rate or nil
            any_rate = any_rate or rate
          end
        end
      end
    end
    local started, before = {}, claim.n
    if any_rate then cx.skipping = true end
    local taken = activate(cx, claim, entries, orders, any_rate and entry_rates or nil)
    for at, yes in pairs(taken) do
      if yes then started[owner[at]] = true end
    end
    end_round(cx, keys, active, limits, rates, started, claim.over and turns or nil)
    stale = stale + #keys - (claim.n - before)
  end
  claim.gave_up = stale >= MAX_STALE
end

-- How many jobs the queue's own settings allow to start.
local function allowed_by_queue(cx, claim, want)
  local meta = J.meta(cx)
  if meta.paused == "1" then return 0 end
  if meta.held and tonumber(meta.held) > cx.now then return 0 end
  if meta.limit then want = math.min(want, meta.limit - call("ZCARD", cx.prefix .. KEY.leases)) end
  if meta.rate and want > 0 then
    local state = call("HGET", cx.prefix .. KEY.settings, SETTING.rate_state)
    claim.rate = J.rate(meta.rate, state, cx.now)
    if claim.rate and claim.rate.kind == "w" then
      want = math.min(want, claim.rate.a - claim.rate.used)
      if want <= 0 then
        call("HSET", cx.prefix .. KEY.settings, SETTING.rate_until,
          cx.now + J.rate_wait(claim.rate, 1, cx.now))
      end
    end
  end
  return want
end

local function add_leases(cx, claim)
  local leases, many = cx.prefix .. KEY.leases, claim.n > MANY
  if many then call("ZADD", leases, "+inf", LONG) end
  J.variadic("ZADD", leases, claim.lease_times, 2)
  if many then call("ZREM", leases, LONG) end
end

-- Take up to `want` jobs, or one that is on its last chance. `company`: the caller runs other jobs
-- or has leases of other queues, so it gets no job on its last chance.
-- RETURNS the claim. Its `left` is true if such a job is next and could start now
function J.claim(cx, want, worker, lease_ms, company)
  local claim = begin(cx, worker, lease_ms)
  claim.company = company
  J.keys_flush(cx)
  local allowed = allowed_by_queue(cx, claim, want)
  if allowed > 0 then
    if J.meta(cx).mode == "keyed" then
      claim_keyed(cx, claim, allowed)
    else
      claim_plain(cx, claim, allowed)
    end
  end
  -- No waiting list has an entry left, so the claimed jobs are all that were waiting. The counter
  -- may say otherwise if records have vanished.
  if claim.emptied and not claim.over then J.counters(cx).waiting = claim.n end
  if claim.n > 0 then
    J.variadic("HSET", cx.prefix .. KEY.runs, claim.runs, 2)
    add_leases(cx, claim)
    J.lease_timer(cx, cx.now + lease_ms)
    J.count_waiting(cx, -claim.n)
    local figures = J.figures(cx)
    figures.started = figures.started + claim.n
    figures.wait_ms = figures.wait_ms + claim.waited
  end
  local rate = claim.rate
  if rate and rate.dirty then
    call("HSET", cx.prefix .. KEY.settings, SETTING.rate_state, J.rate_state(rate))
    local wait = rate.kind == "w" and J.counters(cx).waiting > 0
      and J.rate_wait(rate, 1, cx.now) or 0
    if wait > 0 then -- workers with free slots learn when the window is over
      call("HSET", cx.prefix .. KEY.settings, SETTING.rate_until, cx.now + wait)
    end
  end
  return claim
end

-- In how many ms something of the queue may become claimable by itself; -1 for never.
function J.next_due(cx)
  local prefix, soonest, meta = cx.prefix, nil, J.meta(cx)
  local function at(ms)
    ms = ms and tonumber(ms)
    if ms and (not soonest or ms < soonest) then soonest = ms end
  end
  local first = J.soonest(cx, KEY.delayed, KEY.leases, KEY.block_timeouts,
    meta.mode == "keyed" and KEY.keys_skipped or nil)
  if first > 0 then at(first) end
  if meta.held and tonumber(meta.held) > cx.now then at(meta.held) end
  if meta.rate then
    local rate_until = tonumber(call("HGET", prefix .. KEY.settings, SETTING.rate_until) or 0)
    if rate_until > cx.now then at(rate_until) end
  end
  if not soonest then return -1 end
  return math.max(0, floor(soonest) - cx.now)
end
