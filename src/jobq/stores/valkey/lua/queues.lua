-- queues: what is declared about a queue and done to it as a whole. m holds it; limits in force are kept ready for claims.
local STATE = J.STATE
local IN_FORCE = { "limit", "rate", "key_limit", "key_rate", "max_waiting" }

-- Put the limits in force where claims and puts look. `texts` are those of IN_FORCE, "" for none. A change lifts what was held; a rate
-- that still allows nothing holds again. What its window or bucket has counted stays (core/limits.py: loaded).
local function put_in_force(cx, texts)
  for i, field in ipairs(IN_FORCE) do
    if texts[i] == "" then call("HDEL", cx.prefix .. KEY.settings, field) else call("HSET", cx.prefix .. KEY.settings, field, texts[i]) end
  end
  call("HDEL", cx.prefix .. KEY.settings, "rate_until", "held", "held_for")
  J.forget_holds(cx)
  J.meta_changed(cx)
  J.settle_keys(cx)
  cx.woken = math.max(1, J.counters(cx).waiting)
end

-- A new limit for all keys: rare, and by the number of keys that have jobs.
function J.settle_keys(cx)
  if J.meta(cx).mode ~= "keyed" then return end
  local held = call("ZRANGE", cx.prefix .. KEY.keys_skipped, 0, -1)
  for _, key in ipairs(call("ZRANGE", cx.prefix .. KEY.keys_waiting, 0, -1)) do J.key_touched(cx, key) end
  if #held > 0 then -- a rate may have changed: they find out anew whether they must wait
    call("DEL", cx.prefix .. KEY.keys_skipped)
    for _, key in ipairs(held) do J.key_touched(cx, key) end
  end
  J.keys_flush(cx)
end

-- declare. KEYS 1 prefix. ARGS now, mode, limits as text or "", version, partitions or "", retention as text "c|f|x|n" or "",
-- dead letters "prefix\nqueue" or "", names of meta for events ("\n" and a line each; "\n": none) or "",
-- the limits in force (see IN_FORCE), max_stalls of tasks as JSON or "",
-- base prefix if this is a partition or "", what the event says if the limits change, or "" where another prefix tells it
-- RETURNS what is stored, flat; or an error. A partitioned queue has its mode from the start, the same in all partitions: no job fixes it.
function J.declare(keys, args)
  local now, mode, limits, version, partitions, retention, dead, event_meta = unpack(args, 1, 8)
  local limit, rate, key_limit, key_rate, max_waiting, stalls, base, told = unpack(args, 9)
  local cx, m = J.open(keys[1], now), keys[1] .. KEY.settings
  local stored = J.pairs_of(call("HGETALL", m))
  if mode ~= "" and stored.mode and stored.mode ~= mode then return redis.error_reply("JOBQ DECLARE mode " .. stored.mode) end
  if partitions ~= "" and (stored.partitions or stored.mode and "1" or partitions) ~= partitions then
    return redis.error_reply("JOBQ DECLARE partitions " .. (stored.partitions or "1"))
  end
  local stored_version = tonumber(stored.version or 0)
  if limits ~= "" and tonumber(version) == stored_version and stored.declared ~= limits then
    return redis.error_reply("JOBQ DECLARE limits " .. stored_version .. " " .. (stored.declared or "{}"))
  end
  local parts = partitions ~= "" and partitions or stored.partitions or "1"
  if mode == "" and not stored.mode and parts ~= "1" then mode = "plain" end
  if mode ~= "" then call("HSET", m, "mode", mode) end
  if partitions ~= "" then call("HSET", m, "partitions", partitions) end
  if retention ~= "" then
    local completed, failed, cancelled, count = retention:match("^([^|]*)|([^|]*)|([^|]*)|([^|]*)$")
    call("HSET", m, "keep4", completed, "keep5", failed, "keep6", cancelled, "count", count)
  end
  if dead ~= "" then call("HSET", m, "dead", dead) end
  if stalls ~= "" then J.declare_stalls(cx, stalls) end
  if event_meta == "\n" then call("HDEL", m, "event_meta") elseif event_meta ~= "" then call("HSET", m, "event_meta", event_meta) end
  if base ~= "" then call("HSET", m, "base", base, "parts", "1") end
  call("HSETNX", m, "declared", "{}")
  J.meta_changed(cx)
  if limits ~= "" and tonumber(version) > stored_version then
    call("HSET", m, "declared", limits, "version", version)
    call("HDEL", m, "changed")
    put_in_force(cx, { limit, rate, key_limit, key_rate, max_waiting })
    if told ~= "" then J.done_to(cx, cx.prefix, "limits", told) end
  end
  J.close(cx)
  return call("HGETALL", m)
end

-- limit: change limits at run time. KEYS 1 prefix. ARGS now, prefix of shard 0, what the event says, actor or "", key or "",
-- limits as text ("" goes back), those in force, or "limit|rate" for a key
function J.limit(keys, args)
  local now, home, told, actor, key, limits, limit, rate, key_limit, key_rate, max_waiting = unpack(args)
  local cx = J.open(keys[1], now)
  local before = key ~= "" and call("HGET", cx.prefix .. KEY.key_limits, "\n" .. key) or key == "" and call("HGET", cx.prefix .. KEY.settings, "changed") or ""
  if cx.prefix == home and before ~= limits then J.done_to(cx, home, "limits", told, actor) end
  if key ~= "" then
    local own = limit -- "limit|rate"
    if limits == "" then call("HDEL", cx.prefix .. KEY.key_limits, key, "\n" .. key) else call("HSET", cx.prefix .. KEY.key_limits, key, own, "\n" .. key, limits) end
    call("ZREM", cx.prefix .. KEY.keys_skipped, key)
    J.forget_holds(cx, key)
    if call("ZSCORE", cx.prefix .. KEY.keys_waiting, key) then J.key_touched(cx, key) end
    J.keys_flush(cx)
    cx.woken = 1
  else
    if limits == "" then call("HDEL", cx.prefix .. KEY.settings, "changed") else call("HSET", cx.prefix .. KEY.settings, "changed", limits) end
    put_in_force(cx, { limit, rate, key_limit, key_rate, max_waiting })
  end
  J.close(cx)
  return cx.to_wake or 0
end

-- describe. KEYS 1 prefix. RETURNS {what is stored flat, limits of keys flat}
function J.describe(keys) return { call("HGETALL", keys[1] .. KEY.settings), call("HGETALL", keys[1] .. KEY.key_limits) } end

-- pause. KEYS 1 prefix. ARGS now, prefix of shard 0, actor or "", "1" or "0". RETURNS jobs to wake for elsewhere
function J.pause(keys, args)
  local now, home, actor, paused = unpack(args)
  local cx = J.open(keys[1], now)
  if cx.prefix == home and (J.meta(cx).paused or "0") ~= paused then
    J.done_to(cx, home, paused == "1" and "paused" or "resumed", nil, actor)
  end
  call("HSET", cx.prefix .. KEY.settings, "paused", paused)
  J.meta_changed(cx)
  if paused == "0" then
    if J.lift_hold(cx) and cx.prefix == home then J.done_to(cx, home, "released_hold", nil, actor) end
    cx.woken = math.max(1, J.counters(cx).waiting)
  end
  J.close(cx)
  return cx.to_wake or 0
end

local WADE = 1000 -- entries left behind that one call wades through at most

-- Take entries off the lines of the queue. RETURNS entries; none: the lines are empty.
local function pop_any(cx, n)
  if J.meta(cx).mode ~= "keyed" then return J.pop(cx, cx.prefix .. KEY.plain_list, n) end
  while true do
    local key = call("ZRANGE", cx.prefix .. KEY.keys_waiting, 0, 0)[1]
    if not key then return {} end
    local entries = J.pop(cx, cx.prefix .. KEY.key_list .. key .. ":", n)
    if #entries > 0 then return entries end
    call("ZREM", cx.prefix .. KEY.keys_waiting, key)
    call("ZREM", cx.prefix .. KEY.keys_ready, key)
  end
end

-- RETURNS how many were dropped, and whether there may be more: entries left behind take time as well.
local function drop_waiting(cx, limit, drop)
  local n, seen = 0, 0
  while n < limit do
    if seen >= limit + WADE then return n, true end
    local entries = pop_any(cx, limit - n)
    if #entries == 0 then return n, false end
    seen = seen + #entries
    for i = 1, #entries do
      local id, life, ticket = J.entry_parts(entries[i])
      local job = J.load(cx, id)
      if job and job.state == STATE.waiting and job.life == life and job.ticket == ticket then
        drop(job)
        n = n + 1
      elseif not job then
        call("HDEL", cx.prefix .. KEY.next_lives, id)
      end
    end
  end
  return n, true
end

local function drop_listed(cx, list, limit, drop)
  local ids = call("ZRANGE", cx.prefix .. list, 0, limit - 1)
  local n = 0
  for i = 1, #ids do
    local job = J.load(cx, ids[i])
    if job and (job.finished or call("ZSCORE", cx.prefix .. list, ids[i])) then
      drop(job)
      n = n + 1
    end
    call("ZREM", cx.prefix .. list, ids[i])
  end
  return n
end

-- clear. KEYS 1 prefix. ARGS now, prefix of shard 0, actor or "", "1" with delayed ones, limit
-- RETURNS {how many, messages waiting, 1 if there may be more}
function J.clear(keys, args)
  local now, home, actor, with_delayed, limit = unpack(args)
  local cx = J.open(keys[1], now)
  limit = tonumber(limit)
  local function drop(job)
    if job.finished then return end
    job.actor = actor ~= "" and actor or nil
    J.finish(cx, job, STATE.cancelled, "removed")
  end
  local n, more = drop_waiting(cx, limit, drop)
  if with_delayed == "1" and not more then
    for _, list in ipairs({ KEY.delayed, KEY.blocked }) do
      if n < limit then n = n + drop_listed(cx, list, limit - n, drop) end
    end
  end
  J.deliver_local(cx)
  if n > 0 then J.done_to(cx, home, "cleared", J.jobs_told(n), actor) end
  J.close(cx)
  return { n, cx.outbox, more and 1 or 0 }
end

-- clean. KEYS 1 prefix. ARGS now, prefix of shard 0, actor or "", state, older_than_ms, limit. RETURNS {how many, messages waiting}
function J.clean(keys, args)
  local now, home, actor, state, older, limit = unpack(args)
  local cx, n = J.open(keys[1], now), 0
  older, limit = tonumber(older), tonumber(limit)
  for _, list in ipairs({ KEY.ended, KEY.ended_given_id, KEY.ended_own_ttl }) do
    local ids = n < limit and call("ZRANGEBYSCORE", cx.prefix .. list .. state, "-inf", cx.now - older, "LIMIT", 0, limit - n) or {}
    for i = 1, #ids do
      local job = J.load(cx, ids[i])
      if job then
        J.unlock_removed(cx, job)
        J.purge(cx, job)
      end
    end
    n = n + #ids
  end
  if n > 0 then
    J.done_to(cx, home, "purged", J.jobs_told(n, J.ENDINGS[tonumber(state)] .. " "), actor)
    J.close(cx)
  end
  return { n, cx.outbox }
end

local LISTS = {
  KEY.leases, KEY.delayed, KEY.blocked, KEY.completed, KEY.completed_given_id, KEY.completed_own_ttl,
  KEY.failed, KEY.failed_given_id, KEY.failed_own_ttl, KEY.cancelled, KEY.cancelled_given_id,
  KEY.cancelled_own_ttl,
}
local REST = {
  KEY.runs, KEY.ttls, KEY.block_timeouts, KEY.plain_back_0, KEY.plain_front_0, KEY.plain_priorities,
  KEY.keys_ready, KEY.keys_active, KEY.keys_waiting, KEY.keys_skipped, KEY.key_limits,
  KEY.own_ttl_ends, KEY.locks, KEY.lock_ends, KEY.sleepers, KEY.sleeper_slots, KEY.deputies,
  KEY.schedule_specs, KEY.schedule_states, KEY.schedules_due, KEY.next_lives, KEY.flows,
  KEY.flow_places, KEY.keys_held, KEY.keys_held_for,
}
local KEPT = { tag = true, gone = true, gone_to = true, gone_in = true, told = true }

-- obliterate. KEYS 1 prefix. ARGS now, prefix of shard 0 or "" where another prefix tells it, actor or "", "1" by force, limit
-- RETURNS {1 if nothing is left, messages waiting}; or an error
function J.obliterate(keys, args)
  local now, home, actor, force, limit = unpack(args)
  local cx = J.open(keys[1], now)
  limit = tonumber(limit)
  local active = call("ZCARD", cx.prefix .. KEY.leases)
  if active > 0 and force ~= "1" then return redis.error_reply("JOBQ ACTIVE " .. active) end
  local function drop(job)
    if not job.finished then
      job.token = ""
      job.actor = actor ~= "" and actor or nil
      J.finish(cx, job, STATE.cancelled, "removed")
    end
    J.purge(cx, job)
  end
  for _, flow in ipairs(call("ZRANGE", cx.prefix .. KEY.flows, 0, -1)) do J.discard_flow(cx, flow) end
  local n, more = drop_waiting(cx, limit, drop)
  for _, list in ipairs(LISTS) do
    if n < limit then n = n + drop_listed(cx, list, limit - n, drop) end
  end
  J.deliver_local(cx)
  J.close(cx)
  if more or n >= limit then return { 0, cx.outbox } end
  for _, name in ipairs(REST) do call("UNLINK", cx.prefix .. name) end
  local known = 0
  for field in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.settings))) do
    if not KEPT[field] then known = known + call("HDEL", cx.prefix .. KEY.settings, field) end
  end
  for _, name in ipairs({ "waiting", "popped", "timer", "leases", "fronts", "priorities" }) do J.counters(cx)[name] = 0 end
  J.meta_changed(cx)
  if home ~= "" and known > 0 then
    J.done_to(cx, home, "obliterated", nil, actor)
    J.log_flush(cx)
    J.save_counters(cx, true)
  end
  return { 1, cx.outbox }
end
