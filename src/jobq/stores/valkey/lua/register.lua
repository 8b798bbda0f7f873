-- register: the functions that callers see; each has the same name in J. While a library is loaded,
-- Lua offers almost nothing, so all other files run inside `build`, with the first call. Reads have
-- the flag no-writes and may run on replicas. Functions that end jobs or free memory have the flag
-- allow-oom and work when memory has run out. So do those that workers need for it.
local J = nil

local function register(name, flags)
  redis.register_function({
    function_name = VERSION .. "_" .. name,
    callback = function(keys, args)
      if not J then J = build() end
      return J[name](keys, args)
    end,
    flags = flags,
  })
end

register("put", {})
register("put_uniform", {})
register("restore", {})
register("stage", {})
register("stage_edges", {})
register("seal", {})
register("submit", {})
register("discard", {})
register("manifest", {})
register("deliver", {})
register("schedule", {})
register("unschedule", {})
register("pause_schedule", {})
register("fire", {})
register("declare", {})
register("limit", {})
register("watch", {})
register("hear_log", {})

register("settle", { "allow-oom" })
register("extend", { "allow-oom" })
register("note", { "allow-oom" })
register("alter", { "allow-oom" })
register("tick", { "allow-oom" })
register("clear", { "allow-oom" })
register("clean", { "allow-oom" })
register("obliterate", { "allow-oom" })
register("asleep", { "allow-oom" })
register("slots", { "allow-oom" })
register("wake_some", { "allow-oom" })
register("pause", { "allow-oom" })
register("hold", { "allow-oom" })
register("release_hold", { "allow-oom" })
register("release_lock", { "allow-oom" })
register("ack", { "allow-oom" })
register("beat", { "allow-oom" })
register("sign_off", { "allow-oom" })
register("ask", { "allow-oom" })
register("sweep_workers", { "allow-oom" })
register("lead", { "allow-oom" })

register("get", { "no-writes" })
register("logs", { "no-writes" })
register("find", { "no-writes" })
register("find_lock", { "no-writes" })
register("skip", { "no-writes" })
register("count", { "no-writes" })
register("stats", { "no-writes" })
register("metrics", { "no-writes" })
register("events", { "no-writes" })
register("describe", { "no-writes" })
register("holds", { "no-writes" })
register("schedules", { "no-writes" })
register("staged", { "no-writes" })
register("known", { "no-writes" })
register("workers", { "no-writes" })
redis.register_function({
  function_name = VERSION .. "_about", callback = function() return DIGEST end,
  flags = { "no-writes" },
})
