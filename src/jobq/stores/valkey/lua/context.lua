-- context: the context of one call. A function opens it with its first key and argument. The
-- context collects what the call does. J.close writes the event log, the counters, the minute's
-- figures and the wake-ups together, so they always agree with the jobs.
local format, floor = string.format, math.floor

local THREE = {}
for n = 0, 999 do THREE[n] = format("%03d", n) end

-- A time as text. Many calls happen within one second, so its text is kept.
local second, second_text
function J.stamp(ms)
  local s = floor(ms / 1000)
  if s ~= second then second, second_text = s, format("%.0f", s) end
  return second_text .. THREE[ms - 1000 * s]
end

local function set_time(cx, now)
  cx.now, cx.now_text, cx.now6 = now, format("%.0f", now), spack(">I6", now)
  cx.minute = now - now % 60000
end

-- Open the context of one call. `now` is the caller's clock in ms, or "" for the server's clock.
-- `reading`: the call must not write. The time of a queue never goes back: if the clock was set
-- back, cx.ahead is how far the clock is behind the queue's time (see clock.lua).
function J.open(prefix, now, reading)
  local text = now
  if now == "" or now == nil then
    local time = call("TIME")
    local ms = floor(time[2] / 1000)
    now, text = time[1] * 1000 + ms, time[1] .. THREE[ms]
  else
    now = tonumber(now)
  end
  local cx = {
    prefix = prefix, now = now, now_text = text, now6 = spack(">I6", now), logs = {},
    woken = 0, minute = now - now % 60000, outbox = 0, ahead = 0,
  }
  if prefix ~= "" then
    local seen = J.counters(cx).seen
    if now < seen or J.meta(cx).behind then
      if now < seen then set_time(cx, seen) end
      set_time(cx, J.steady(cx, now, seen, reading))
      cx.ahead = cx.now - now
    end
  end
  return cx
end

-- The settings that calls on jobs need.
local META = {
  SETTING.mode, SETTING.paused, SETTING.limit, SETTING.rate, SETTING.key_limit, SETTING.key_rate,
  SETTING.held, SETTING.listened, SETTING.dead, SETTING.keep_completed, SETTING.keep_failed,
  SETTING.keep_cancelled, SETTING.count, SETTING.parts, SETTING.partitions, SETTING.gone,
  SETTING.max_waiting, SETTING.event_meta, SETTING.behind, SETTING.retries, SETTING.ttl,
}
local known, known_n, MAX_KNOWN = {}, 0, 1000 -- packed settings → table, over all queues

-- The settings of the queue that concern jobs. They are stored with the counters, so a call does
-- not have to ask for them. Equal texts share one table: do not change it.
function J.meta(cx)
  local meta = cx.meta
  if not meta then
    local text = J.counters(cx).meta
    meta = known[text]
    if not meta then
      meta = text == "" and {} or munpack(text)
      meta.limit, meta.key_limit = tonumber(meta.limit), tonumber(meta.key_limit)
      if meta.max_waiting then
        local share, whole = meta.max_waiting:match("^(%d+)/(%d+)$")
        meta.max_waiting, meta.max_whole = tonumber(share), tonumber(whole)
      end
      if known_n >= MAX_KNOWN then known, known_n = {}, 0 end
      known[text], known_n = meta, known_n + 1
    end
    cx.meta = meta
  end
  return meta
end

-- Copy the settings to the counters. Every function that writes a setting of META calls this.
function J.meta_changed(cx)
  local values, set = call("HMGET", cx.prefix .. KEY.settings, unpack(META)), {}
  for i = 1, #META do
    if values[i] then set[META[i]] = values[i] end
  end
  J.counters(cx).meta = next(set) and mpack(set) or ""
  cx.meta = nil
  J.save_counters(cx)
end

-- Write what the call did.
function J.close(cx)
  J.deliver_local(cx)
  J.keys_flush(cx)
  J.log_flush(cx)
  if cx.woken > 0 then J.wake(cx, cx.woken) end
  J.publish_flush(cx)
  J.save_counters(cx, true)
end
