-- queues: what is declared about a queue, its limits, and pausing it. KEY.settings stores it. The
-- limits in force are stored as text that claims and puts can use at once.
local IN_FORCE = {
  SETTING.limit, SETTING.rate, SETTING.key_limit, SETTING.key_rate, SETTING.max_waiting,
}

-- Store the limits in force. `texts` are those of IN_FORCE, "" for none. A change lifts holds; if a
-- rate still allows nothing, the next claim finds out. What the rate's window or bucket has counted
-- stays (core/rules/limits.py: loaded_rate).
local function put_in_force(cx, texts)
  for i, field in ipairs(IN_FORCE) do
    if texts[i] == "" then
      call("HDEL", cx.prefix .. KEY.settings, field)
    else
      call("HSET", cx.prefix .. KEY.settings, field, texts[i])
    end
  end
  call("HDEL", cx.prefix .. KEY.settings, SETTING.rate_until, SETTING.held, SETTING.held_for)
  J.forget_holds(cx)
  J.meta_changed(cx)
  J.settle_keys(cx)
  cx.woken = math.max(1, J.counters(cx).waiting)
end

-- Find out again which keys are ready, after the limits of all keys have changed. This is rare, and
-- its cost grows with the number of keys that have jobs.
function J.settle_keys(cx)
  if J.meta(cx).mode ~= "keyed" then return end
  local skipped = call("ZRANGE", cx.prefix .. KEY.keys_skipped, 0, -1)
  for _, key in ipairs(call("ZRANGE", cx.prefix .. KEY.keys_waiting, 0, -1)) do
    J.key_touched(cx, key)
  end
  if #skipped > 0 then -- a rate may have changed: claims find out again whether to skip them
    call("DEL", cx.prefix .. KEY.keys_skipped)
    for _, key in ipairs(skipped) do J.key_touched(cx, key) end
  end
  J.keys_flush(cx)
end

-- declare: store what code declares about a queue. A partitioned queue gets its mode here, the same
-- in all partitions: no job fixes it.
-- KEYS prefix
-- ARGS now, mode or "", limits as JSON or "", version, partitions or "", retention as
--   "completed|failed|cancelled|count" or "", dead letters "prefix\nqueue" or "", names of meta for
--   events ("\n" and one per line; "\n" for none) or "", the limits in force (see IN_FORCE),
--   max_stalls of tasks as JSON or "", defaults of jobs as "retries|ttl" or "", prefix of the
--   whole queue if this is a partition or "", the event's reason if the limits change, or "" if
--   another prefix logs it
-- RETURNS the settings, flat; or an error
function J.declare(keys, args)
  local now, mode, limits, version, partitions, retention, dead, event_meta = unpack(args, 1, 8)
  local limit, rate, key_limit, key_rate, max_waiting, stalls, defaults, base,
    reason = unpack(args, 9)
  local cx, settings = J.open(keys[1], now), keys[1] .. KEY.settings
  local stored = J.pairs_of(call("HGETALL", settings))
  if mode ~= "" and stored.mode and stored.mode ~= mode then
    return redis.error_reply("JOBQ DECLARE mode " .. stored.mode)
  end
  local stored_partitions = stored.partitions or stored.mode and "1"
  if partitions ~= "" and stored_partitions and stored_partitions ~= partitions then
    return redis.error_reply("JOBQ DECLARE partitions " .. stored_partitions)
  end
  local stored_version = tonumber(stored.version or 0)
  if limits ~= "" and tonumber(version) == stored_version and stored.declared ~= limits then
    local declared = stored.declared or "{}"
    return redis.error_reply("JOBQ DECLARE limits " .. stored_version .. " " .. declared)
  end
  local parts = partitions ~= "" and partitions or stored.partitions or "1"
  if mode == "" and not stored.mode and parts ~= "1" then mode = "plain" end
  if mode ~= "" then call("HSET", settings, SETTING.mode, mode) end
  if partitions ~= "" then call("HSET", settings, SETTING.partitions, partitions) end
  if retention ~= "" then
    local completed, failed, cancelled, count =
      retention:match("^([^|]*)|([^|]*)|([^|]*)|([^|]*)$")
    call("HSET", settings, SETTING.keep_completed, completed, SETTING.keep_failed, failed,
      SETTING.keep_cancelled, cancelled, SETTING.count, count)
  end
  if dead ~= "" then call("HSET", settings, SETTING.dead, dead) end
  if stalls ~= "" then J.declare_stalls(cx, stalls) end
  if event_meta == "\n" then
    call("HDEL", settings, SETTING.event_meta)
  elseif event_meta ~= "" then
    call("HSET", settings, SETTING.event_meta, event_meta)
  end
  if defaults ~= "" then
    local retries, ttl = defaults:match("^([^|]*)|([^|]*)$")
    call("HDEL", settings, SETTING.retries, SETTING.ttl)
    if retries ~= "" then call("HSET", settings, SETTING.retries, retries) end
    if ttl ~= "" then call("HSET", settings, SETTING.ttl, ttl) end
  end
  if base ~= "" then call("HSET", settings, SETTING.base, base, SETTING.parts, "1") end
  call("HSETNX", settings, SETTING.declared, "{}")
  J.meta_changed(cx)
  if limits ~= "" and tonumber(version) > stored_version then
    call("HSET", settings, SETTING.declared, limits, SETTING.version, version)
    call("HDEL", settings, SETTING.changed)
    put_in_force(cx, { limit, rate, key_limit, key_rate, max_waiting })
    if reason ~= "" then J.log_operation(cx, cx.prefix, "limits", reason) end
  end
  J.close(cx)
  return call("HGETALL", settings)
end

-- limit: change the limits of a queue or of a key at run time.
-- KEYS prefix
-- ARGS now, prefix of shard 0, the event's reason, actor or "", key or "", limits as JSON (""
--   restores the declared ones), then the limits in force, or "limit|rate" for a key
-- RETURNS jobs to wake workers for elsewhere
function J.limit(keys, args)
  local now, home, reason, actor, key, limits, limit, rate, key_limit, key_rate,
    max_waiting = unpack(args)
  local cx = J.open(keys[1], now)
  local key_limits, settings = cx.prefix .. KEY.key_limits, cx.prefix .. KEY.settings
  local before = key ~= "" and call("HGET", key_limits, "\n" .. key)
    or key == "" and call("HGET", settings, SETTING.changed) or ""
  if cx.prefix == home and before ~= limits then
    J.log_operation(cx, home, "limits", reason, actor)
  end
  if key ~= "" then
    local own = limit -- "limit|rate"
    if limits == "" then
      call("HDEL", key_limits, key, "\n" .. key)
    else
      call("HSET", key_limits, key, own, "\n" .. key, limits)
    end
    call("ZREM", cx.prefix .. KEY.keys_skipped, key)
    J.forget_holds(cx, key)
    if call("ZSCORE", cx.prefix .. KEY.keys_waiting, key) then J.key_touched(cx, key) end
    J.keys_flush(cx)
    cx.woken = 1
  else
    if limits == "" then
      call("HDEL", settings, SETTING.changed)
    else
      call("HSET", settings, SETTING.changed, limits)
    end
    put_in_force(cx, { limit, rate, key_limit, key_rate, max_waiting })
  end
  J.close(cx)
  return cx.to_wake or 0
end

-- describe: what is stored about a queue.
-- KEYS prefix
-- RETURNS {settings flat, limits of keys flat}
function J.describe(keys)
  return { call("HGETALL", keys[1] .. KEY.settings), call("HGETALL", keys[1] .. KEY.key_limits) }
end

-- pause: pause or resume a queue.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", "1" to pause or "0" to resume
-- RETURNS jobs to wake workers for elsewhere
function J.pause(keys, args)
  local now, home, actor, paused = unpack(args)
  local cx = J.open(keys[1], now)
  if cx.prefix == home and (J.meta(cx).paused or "0") ~= paused then
    J.log_operation(cx, home, paused == "1" and "paused" or "resumed", nil, actor)
  end
  call("HSET", cx.prefix .. KEY.settings, SETTING.paused, paused)
  J.meta_changed(cx)
  if paused == "0" then
    if J.lift_hold(cx) and cx.prefix == home then
      J.log_operation(cx, home, "released_hold", nil, actor)
    end
    cx.woken = math.max(1, J.counters(cx).waiting)
  end
  J.close(cx)
  return cx.to_wake or 0
end
