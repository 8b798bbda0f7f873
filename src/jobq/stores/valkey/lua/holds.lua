-- holds: nothing of the queue, or of one key, starts before a time. A copy of core/holds.py, which has the rule.
-- m held, held_for: when the queue's hold ends, and how long it was asked for · hx: held keys, until when · hl: for how long
-- hd (see keyed.lua) has the keys that no claim looks at before a time: because of a hold, or because their rate is used up.
local TICKED = 100 -- holds of keys that one tick looks at, at each end of the list

-- Hold the queue (key nil) or a key. RETURNS whether that changed anything: of two holds the later end stays.
function J.put_on_hold(cx, key, ms)
  local ends = cx.now + ms
  if key then
    if call("ZADD", cx.prefix .. KEY.keys_held, "GT", "CH", ends, key) == 0 then return false end
    call("HSET", cx.prefix .. KEY.keys_held_for, key, ms)
    J.hold_key(cx, key, ends)
    return true
  end
  if tonumber(J.meta(cx).held or 0) >= ends then return false end
  call("HSET", cx.prefix .. KEY.settings, "held", J.whole(ends), "held_for", J.whole(ms))
  J.meta_changed(cx)
  return true
end

-- Lift the hold of the queue (key nil) or of a key, and wake workers. A rate that allows nothing yet holds again with the next claim.
-- RETURNS whether there was one.
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
  call("HDEL", cx.prefix .. KEY.settings, "held", "held_for")
  J.meta_changed(cx)
  cx.woken = math.max(1, J.counters(cx).waiting)
  return held > cx.now
end

-- Limits were changed, which lifts what they held (the caller sees to hd and m): a key's hold, or those of all keys (key nil).
function J.forget_holds(cx, key)
  if key then
    call("ZREM", cx.prefix .. KEY.keys_held, key)
    call("HDEL", cx.prefix .. KEY.keys_held_for, key)
  else
    call("DEL", cx.prefix .. KEY.keys_held, cx.prefix .. KEY.keys_held_for)
  end
end

-- Forget holds that are over, and shorten those that a clock that was set back has made longer than they were asked for.
function J.tick_holds(cx)
  local prefix, now, held = cx.prefix, cx.now, tonumber(J.meta(cx).held or 0)
  if held > 0 then
    local ms = tonumber(call("HGET", prefix .. KEY.settings, "held_for") or 0)
    if held <= now then
      call("HDEL", prefix .. KEY.settings, "held", "held_for")
      J.meta_changed(cx)
    elseif ms > 0 and held > now + ms then
      call("HSET", prefix .. KEY.settings, "held", J.whole(now + ms))
      J.meta_changed(cx)
    end
  end
  if call("EXISTS", prefix .. KEY.keys_held) == 0 then return end
  for _, key in ipairs(call("ZRANGEBYSCORE", prefix .. KEY.keys_held, "-inf", now, "LIMIT", 0, TICKED)) do J.forget_holds(cx, key) end
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

-- hold. KEYS 1 prefix. ARGS now, prefix of shard 0, actor or "", key or "", ms, what the event says
-- RETURNS {messages waiting}; or an error if the queue has no keys
function J.hold(keys, args)
  local now, home, actor, key, ms, told = unpack(args)
  local cx = J.open(keys[1], now)
  if key ~= "" and J.meta(cx).mode == "plain" then return redis.error_reply("JOBQ NOKEYS") end
  if J.put_on_hold(cx, key ~= "" and key or nil, tonumber(ms)) and (key ~= "" or cx.prefix == home) then
    J.done_to(cx, home, "held", told, actor)
  end
  J.close(cx)
  return { cx.outbox }
end

-- release_hold. KEYS 1 prefix. ARGS now, prefix of shard 0, actor or "", key or "", what the event says
-- RETURNS {1 if there was a hold, messages waiting, jobs to wake for elsewhere}
function J.release_hold(keys, args)
  local now, home, actor, key, told = unpack(args)
  local cx = J.open(keys[1], now)
  local lifted = J.lift_hold(cx, key ~= "" and key or nil)
  if lifted and (key ~= "" or cx.prefix == home) then J.done_to(cx, home, "released_hold", told, actor) end
  J.close(cx)
  return { lifted and 1 or 0, cx.outbox, cx.to_wake or 0 }
end

-- When, by the clock, the queue's hold ends; "": it is not held.
function J.held_until(cx)
  local held = tonumber(J.meta(cx).held or 0)
  return held > cx.now and J.whole(held - cx.ahead) or ""
end

-- holds. KEYS 1 prefix. ARGS now, limit. RETURNS {when the queue's hold ends or "", key, when its hold ends, …}, those that end first
function J.holds(keys, args)
  local cx = J.open(keys[1], args[1], true)
  local flat = call("ZRANGEBYSCORE", cx.prefix .. KEY.keys_held, "(" .. J.whole(cx.now), "+inf", "WITHSCORES", "LIMIT", 0, args[2])
  if cx.ahead > 0 then -- told by the clock, which was set back
    for i = 2, #flat, 2 do flat[i] = J.whole(tonumber(flat[i]) - cx.ahead) end
  end
  table.insert(flat, 1, J.held_until(cx))
  return flat
end
