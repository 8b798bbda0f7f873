-- clock: the store's time when the clock (the server's or the caller's) was set back. Only then
-- does J.steady run. SETTING.behind is "<store's time>:<clock>" of the moment when a call found the
-- clock set back.
local max, floor = math.max, math.floor
local JITTER, FULL_SPEED = J.CLOCK.jitter_ms, J.CLOCK.full_speed_ms

-- When a job with this time (`at`, by the clock) or delay is due. A time in the past means now.
-- Copies core/rules/outcomes.py: due_ms.
function J.due(cx, opts)
  return max(cx.now, opts.at and opts.at + cx.ahead or cx.now + (opts.delay or 0))
end

-- Whether a job that seems due waits for a time of day that the clock has not reached, because it
-- was set back.
function J.too_early(cx, job)
  local at = cx.ahead > 0 and job.attempt == 0 and J.options(job).at
  return at and at > cx.now - cx.ahead
end

local function advanced(elapsed) return elapsed - floor(max(0, elapsed - FULL_SPEED) / 2) end

-- The time of a call whose clock is behind what an earlier call saw, or was so recently.
-- Copies core/rules/clock.py: steady.
-- `reading`: the call must not write.
function J.steady(cx, clock, seen, reading)
  local store, anchored = (J.meta(cx).behind or ""):match("^(%d+):(%d+)$")
  if store then
    local now = tonumber(store) + advanced(clock - tonumber(anchored))
    if now >= seen and now > clock then return now end
  end
  if clock >= seen then -- the clock has caught up
    if not reading then
      call("HDEL", cx.prefix .. KEY.settings, SETTING.behind)
      J.meta_changed(cx)
    end
    return clock
  end
  if seen - clock >= JITTER and not reading then
    local anchor = J.whole(seen) .. ":" .. J.whole(clock)
    call("HSET", cx.prefix .. KEY.settings, SETTING.behind, anchor)
    J.meta_changed(cx)
  end
  return seen
end
