-- stalls: how often a job may stall, and when it is on its last chance. Copies
-- core/rules/outcomes.py. Runs only for jobs that have stalled.
-- SETTING.max_stalls is what workers declared for their tasks, as JSON by task name. A task at the
-- default has no entry.
local DEFAULT = J.DEFAULT.max_stalls

-- What workers declared, by task name. A call reads it once.
local function declared(cx)
  if not cx.max_stalls then
    local text = call("HGET", cx.prefix .. KEY.settings, SETTING.max_stalls)
    cx.max_stalls = text and cjson.decode(text) or {}
  end
  return cx.max_stalls
end

-- Copies core/rules/outcomes.py: max_stalls.
function J.max_stalls(cx, job)
  local own = J.options(job).max_stalls
  if own then return own end
  local name = J.name_key(job)
  return declared(cx)[name] or DEFAULT
end

-- Copies core/rules/outcomes.py: is_last_chance.
function J.is_last_chance(cx, job)
  if job.stalls < 1 then return false end
  local allowed = J.max_stalls(cx, job)
  return allowed >= 1 and job.stalls >= allowed
end

-- Copies core/rules/outcomes.py: merged_stalls. `text` is what a worker declares, as JSON.
function J.declare_stalls(cx, text)
  local all = declared(cx)
  for name, n in pairs(cjson.decode(text)) do
    if n == DEFAULT then all[name] = nil else all[name] = n end
  end
  if next(all) then
    call("HSET", cx.prefix .. KEY.settings, SETTING.max_stalls, cjson.encode(all))
  else
    call("HDEL", cx.prefix .. KEY.settings, SETTING.max_stalls)
  end
end
