-- holds: an operator (or a job) keeps a queue or a key from starting jobs until a time. Copies
-- core/rules/limits.py.
-- KEY.keys_skipped has the keys that claims skip: those that are held, and those over their rate.
local TICKED = 100 -- holds of keys that one tick looks at, at each end of the list

-- Hold the queue (key nil) or a key. Of two holds the one that ends later stays.
-- RETURNS whether this changed anything
function J.put_on_hold(cx, key, ms)
  local ends = cx.now + ms
  if key then
    if call("ZADD", cx.prefix .. KEY.keys_held, "GT", "CH", ends, key) == 0 then return false end
    call("HSET", cx.prefix .. KEY.keys_held_for, key, ms)
    J.hold_key(cx, key, ends)
    return true
  end
  if tonumber(J.meta(cx).held or 0) >= ends then return false end
  call("HSET", cx.prefix .. KEY.settings, SETTING.held, J.whole(ends),
    SETTING.held_for, J.whole(ms))
  J.meta_changed(cx)
  return true
end

-- Lift the hold of the queue (key nil) or of a key, and wake workers. If a rate allows nothing yet,
-- the next claim makes claims skip the key again. RETURNS whether there was a hold
function J.lift_hold(cx, key)
  if key then
    local ends = tonumber(call("ZSCORE", cx.prefix .. KEY.keys_held, key) or 0)
    J.forget_holds(cx, key)
    if ends <= cx.now then return false end
    call("ZREM", cx.prefix .. KEY.keys_skipped, key)
    if call("ZSCORE", cx.prefix .. KEY.keys_waiting, key) then J.key_touched(cx, key) end
    J.keys_flush(cx)
    cx.woken = math.max(cx.woken, 1)
    return true
  end
  local held = tonumber(J.meta(cx).held or 0)
  if held == 0 then return false end
  call("HDEL", cx.prefix .. KEY.settings, SETTING.held, SETTING.held_for)
  J.meta_changed(cx)
  cx.woken = math.max(1, J.counters(cx).waiting)
  return held > cx.now
end

-- Forget the hold of a key, or of all keys (key nil): a change of limits lifts holds. The caller
-- takes care of KEY.keys_skipped and the settings.
function J.forget_holds(cx, key)
  if key then
    call("ZREM", cx.prefix .. KEY.keys_held, key)
    call("HDEL", cx.prefix .. KEY.keys_held_for, key)
  else
    call("DEL", cx.prefix .. KEY.keys_held, cx.prefix .. KEY.keys_held_for)
  end
end

-- Forget holds that are over. Shorten holds that are longer than they were asked for, because the
-- clock was set back.
function J.tick_holds(cx)
  local prefix, now, held = cx.prefix, cx.now, tonumber(J.meta(cx).held or 0)
  if held > 0 then
    local ms = tonumber(call("HGET", prefix .. KEY.settings, SETTING.held_for) or 0)
    if held <= now then
      call("HDEL", prefix .. KEY.settings, SETTING.held, SETTING.held_for)
      J.meta_changed(cx)
    elseif ms > 0 and held > now + ms then
      call("HSET", prefix .. KEY.settings, SETTING.held, J.whole(now + ms))
      J.meta_changed(cx)
    end
  end
  if call("EXISTS", prefix .. KEY.keys_held) == 0 then return end
  local over = call("ZRANGEBYSCORE", prefix .. KEY.keys_held, "-inf", now, "LIMIT", 0, TICKED)
  for _, key in ipairs(over) do J.forget_holds(cx, key) end
  local last = call("ZREVRANGE", prefix .. KEY.keys_held, 0, TICKED - 1, "WITHSCORES")
  for i = 1, #last, 2 do
    local key, ends = last[i], tonumber(last[i + 1])
    local latest = now + tonumber(call("HGET", prefix .. KEY.keys_held_for, key) or ends - now)
    if ends > latest then
      call("ZADD", prefix .. KEY.keys_held, latest, key)
      call("ZADD", prefix .. KEY.keys_skipped, latest, key)
    end
  end
end

-- hold: hold the queue or a key.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", key or "", ms, the event's reason
-- RETURNS {messages waiting}; or an error if the queue has no keys
function J.hold(keys, args)
  local now, home, actor, key, ms, reason = unpack(args)
  local cx = J.open(keys[1], now)
  if key ~= "" and J.meta(cx).mode == "plain" then return redis.error_reply("JOBQ NOKEYS") end
  if J.put_on_hold(cx, key ~= "" and key or nil, tonumber(ms))
    and (key ~= "" or cx.prefix == home) then
    J.log_operation(cx, home, "held", reason, actor)
  end
  J.close(cx)
  return { cx.outbox }
end

-- release_hold: lift the hold of the queue or of a key.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", key or "", the event's reason
-- RETURNS {1 if there was a hold, messages waiting, jobs to wake workers for elsewhere}
function J.release_hold(keys, args)
  local now, home, actor, key, reason = unpack(args)
  local cx = J.open(keys[1], now)
  local lifted = J.lift_hold(cx, key ~= "" and key or nil)
  if lifted and (key ~= "" or cx.prefix == home) then
    J.log_operation(cx, home, "released_hold", reason, actor)
  end
  J.close(cx)
  return { lifted and 1 or 0, cx.outbox, cx.to_wake or 0 }
end

-- When the queue's hold ends, by the clock; "" if the queue is not held.
function J.held_until(cx)
  local held = tonumber(J.meta(cx).held or 0)
  return held > cx.now and J.whole(held - cx.ahead) or ""
end

-- holds: what is held, those that end first.
-- KEYS prefix
-- ARGS now, limit
-- RETURNS {when the queue's hold ends or "", key, when its hold ends, …}
function J.holds(keys, args)
  local cx = J.open(keys[1], args[1], true)
  local flat = call("ZRANGEBYSCORE", cx.prefix .. KEY.keys_held, "(" .. J.whole(cx.now), "+inf",
    "WITHSCORES", "LIMIT", 0, args[2])
  if cx.ahead > 0 then -- the clock was set back, and the reply is by the clock
    for i = 2, #flat, 2 do flat[i] = J.whole(tonumber(flat[i]) - cx.ahead) end
  end
  table.insert(flat, 1, J.held_until(cx))
  return flat
end
