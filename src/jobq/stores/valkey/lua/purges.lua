-- purges: removing many jobs of a queue at once, or the queue with everything in it.
local STATE = J.STATE
local MAX_STALE = 1000 -- stale entries of waiting lists that one call skips

-- Take entries from the waiting lists of the queue. RETURNS entries; none if the lists are empty
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

-- Call drop(job) for up to `limit` waiting jobs. Stale entries take time as well, so it may stop
-- before.
-- RETURNS how many, and whether there may be more
local function drop_waiting(cx, limit, drop)
  local n, seen = 0, 0
  while n < limit do
    if seen >= limit + MAX_STALE then return n, true end
    local entries = pop_any(cx, limit - n)
    if #entries == 0 then return n, false end
    seen = seen + #entries
    for i = 1, #entries do
      local id, life, ticket = J.entry_parts(entries[i])
      local job = J.load(cx, id)
      if job and job.state == STATE.waiting and job.life == life and job.ticket == ticket then
        drop(job)
        n = n + 1
      end
      J.entry_gone(cx, id)
    end
  end
  return n, true
end

-- Call drop(job) for up to `limit` jobs of a sorted set. RETURNS how many
local function drop_listed(cx, set, limit, drop)
  local ids = call("ZRANGE", cx.prefix .. set, 0, limit - 1)
  local n = 0
  for i = 1, #ids do
    local job = J.load(cx, ids[i])
    if job and (job.finished or call("ZSCORE", cx.prefix .. set, ids[i])) then
      drop(job)
      n = n + 1
    end
    call("ZREM", cx.prefix .. set, ids[i])
  end
  return n
end

-- clear: cancel waiting jobs.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", "1" to include delayed and blocked jobs, limit
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
    for _, set in ipairs({ KEY.delayed, KEY.blocked }) do
      if n < limit then n = n + drop_listed(cx, set, limit - n, drop) end
    end
  end
  J.deliver_local(cx)
  if n > 0 then J.log_operation(cx, home, "cleared", J.jobs_reason(n), actor) end
  J.close(cx)
  return { n, cx.outbox, more and 1 or 0 }
end

-- clean: remove ended jobs of a state.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", state, older_than_ms, limit
-- RETURNS {how many, messages waiting}
function J.clean(keys, args)
  local now, home, actor, state, older, limit = unpack(args)
  local cx, n = J.open(keys[1], now), 0
  older, limit = tonumber(older), tonumber(limit)
  for _, name in ipairs({ KEY.ended, KEY.ended_given_id, KEY.ended_own_ttl }) do
    local ids = n < limit and call("ZRANGEBYSCORE", cx.prefix .. name .. state, "-inf",
      cx.now - older, "LIMIT", 0, limit - n) or {}
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
    local reason = J.jobs_reason(n, J.ENDINGS[tonumber(state)] .. " ")
    J.log_operation(cx, home, "purged", reason, actor)
    J.close(cx)
  end
  return { n, cx.outbox }
end

-- Sorted sets of jobs, which are removed one by one.
local JOB_SETS = {
  KEY.leases, KEY.delayed, KEY.blocked,
  KEY.completed, KEY.completed_given_id, KEY.completed_own_ttl,
  KEY.failed, KEY.failed_given_id, KEY.failed_own_ttl,
  KEY.cancelled, KEY.cancelled_given_id, KEY.cancelled_own_ttl,
}
-- Keys that are removed when no job is left.
local OTHER_KEYS = {
  KEY.runs, KEY.ttls, KEY.block_timeouts, KEY.plain_back_0, KEY.plain_front_0, KEY.plain_priorities,
  KEY.keys_ready, KEY.keys_active, KEY.keys_waiting, KEY.keys_skipped, KEY.key_limits,
  KEY.own_ttl_ends, KEY.locks, KEY.lock_ends, KEY.sleepers, KEY.sleeper_slots, KEY.deputies,
  KEY.schedule_specs, KEY.schedule_states, KEY.schedules_due, KEY.schedule_ids,
  KEY.left, KEY.flows, KEY.flow_places, KEY.keys_held, KEY.keys_held_for,
}
-- Settings that stay, because the event log stays and its ids must not repeat.
local KEPT_SETTINGS = { tag = true, gone = true, gone_to = true, gone_in = true, told = true }

-- obliterate: remove everything in a queue but its event log.
-- KEYS prefix
-- ARGS now, prefix of shard 0 or "" if another prefix logs it, actor or "", "1" to remove active
--   jobs as well, limit
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
  for _, flow in ipairs(call("ZRANGE", cx.prefix .. KEY.flows, 0, -1)) do
    J.discard_flow(cx, flow)
  end
  local n, more = drop_waiting(cx, limit, drop)
  for _, set in ipairs(JOB_SETS) do
    if n < limit then n = n + drop_listed(cx, set, limit - n, drop) end
  end
  J.deliver_local(cx)
  J.close(cx)
  if more or n >= limit then return { 0, cx.outbox } end
  for _, name in ipairs(OTHER_KEYS) do call("UNLINK", cx.prefix .. name) end
  local known = 0
  for field in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.settings))) do
    if not KEPT_SETTINGS[field] then
      known = known + call("HDEL", cx.prefix .. KEY.settings, field)
    end
  end
  for _, name in ipairs({ "waiting", "popped", "timer", "leases", "fronts", "priorities" }) do
    J.counters(cx)[name] = 0
  end
  J.meta_changed(cx)
  if home ~= "" and known > 0 then
    J.log_operation(cx, home, "obliterated", nil, actor)
    J.log_flush(cx)
    J.save_counters(cx, true)
  end
  return { 1, cx.outbox }
end
