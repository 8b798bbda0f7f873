-- bounds: how many jobs may wait (max_waiting). A copy of core/bounds.py, which has the rule: what counts, and who is never refused.
-- m max_waiting: "<this partition's share>/<of the whole queue>" · m reserved: places that flows in the making have taken
-- · fr: flow → how many of those are its own
local STATE = J.STATE

-- Places left for new jobs; nil: any number. Below 0 where more came back than there was room for.
function J.room(cx)
  local most = J.meta(cx).max_waiting
  if not most then return nil end
  local reserved = tonumber(call("HGET", cx.prefix .. KEY.settings, "reserved") or 0)
  return most - J.counters(cx).waiting - call("ZCARD", cx.prefix .. KEY.delayed) - call("ZCARD", cx.prefix .. KEY.blocked) - reserved
end

-- The options in what a producer made of a job.
function J.body_options(body)
  local _, nn, no, at = J.head(body, 1)
  return no > 0 and munpack(body:sub(at + nn, at + nn + no - 1)) or {}
end

-- Whether this would be a new job that may be refused: not a duplicate, and not the follow-up of a keep_last job.
function J.adds(cx, id, opts)
  local old = J.load(cx, id)
  if old and not (old.finished and (old.state == STATE.cancelled or J.past_keeping(cx, old))) then return false end
  return not opts.lock or J.is_free_for(cx, opts)
end

-- How many places jobs take of which none is stored yet. args: id and body at every `step` from `first` to `last`; `skip(id)`: not that one.
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

function J.reserve(cx, flow, n)
  if n == 0 then return end
  call("HINCRBY", cx.prefix .. KEY.settings, "reserved", n)
  call("HINCRBY", cx.prefix .. KEY.flow_places, flow, n)
end

-- Up to n places of a flow (nil: all of them) are free again: its members go in now, or never will.
function J.give_back(cx, flow, n)
  local has = tonumber(call("HGET", cx.prefix .. KEY.flow_places, flow) or 0)
  n = math.min(n or has, has)
  if n <= 0 then return end
  call("HINCRBY", cx.prefix .. KEY.settings, "reserved", -n)
  if n == has then call("HDEL", cx.prefix .. KEY.flow_places, flow) else call("HINCRBY", cx.prefix .. KEY.flow_places, flow, -n) end
end
