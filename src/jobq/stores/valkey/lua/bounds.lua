-- bounds: how many jobs may wait (max_waiting). Copies core/rules/limits.py, which says what
-- counts and what is never refused. KEY.flow_places has the places that staged flows have reserved;
-- SETTING.reserved is their sum.
local STATE = J.STATE

-- How many new jobs fit; nil for any number. It is below 0 if more jobs came back than there was
-- room for.
function J.room(cx)
  local most = J.meta(cx).max_waiting
  if not most then return nil end
  local reserved = tonumber(call("HGET", cx.prefix .. KEY.settings, SETTING.reserved) or 0)
  return most - J.counters(cx).waiting - call("ZCARD", cx.prefix .. KEY.delayed)
    - call("ZCARD", cx.prefix .. KEY.blocked) - reserved
end

-- The options in a producer's body.
function J.body_options(body)
  local _, nn, no, at = J.head(body, 1)
  return no > 0 and munpack(body:sub(at + nn, at + nn + no - 1)) or {}
end

-- Whether this would be a new job that may be refused: neither a duplicate nor the follow-up of a
-- keep_last job.
function J.adds(cx, id, opts)
  local old = J.load(cx, id)
  if old and not (old.finished and (old.state == STATE.cancelled or J.past_keeping(cx, old))) then
    return false
  end
  return not opts.lock or J.is_free_for(cx, opts)
end

-- How many places these jobs need, of which none is stored yet. `args` has id and body at every
-- `step` from `first` to `last`. Jobs for which skip(id) is true need none.
function J.needed(cx, args, first, last, step, skip)
  local n, seen = 0, {}
  for k = first, last, step do
    local id, opts = args[k], J.body_options(args[k + 1])
    local name = opts.lock and "\n" .. opts.lock or id
    if not seen[name] and not (skip and skip(id)) and J.adds(cx, id, opts) then n = n + 1 end
    seen[name] = true
  end
  return n
end

-- The answer for a job that does not fit.
function J.full(cx, place, id) return { place, id, 0, -1, J.meta(cx).max_whole } end

-- Reserve n places for a flow.
function J.reserve(cx, flow, n)
  if n == 0 then return end
  call("HINCRBY", cx.prefix .. KEY.settings, SETTING.reserved, n)
  call("HINCRBY", cx.prefix .. KEY.flow_places, flow, n)
end

-- Release up to n places of a flow (all of them if n is nil): its members are stored now, or never
-- will be.
function J.give_back(cx, flow, n)
  local has = tonumber(call("HGET", cx.prefix .. KEY.flow_places, flow) or 0)
  n = math.min(n or has, has)
  if n <= 0 then return end
  call("HINCRBY", cx.prefix .. KEY.settings, SETTING.reserved, -n)
  if n == has then
    call("HDEL", cx.prefix .. KEY.flow_places, flow)
  else
    call("HINCRBY", cx.prefix .. KEY.flow_places, flow, -n)
  end
end
