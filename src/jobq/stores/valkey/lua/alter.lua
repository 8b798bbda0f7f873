-- alter: what operators do to single jobs; and renewing leases, and notes.
local STATE = J.STATE
local PENDING = { [STATE.delayed] = true, [STATE.blocked] = true, [STATE.waiting] = true }
local LINES = J.DEFAULT.lines
local CHILD = "$jobq.child "

-- Waiting, delayed, blocked: at once. Active: asked; its worker is told. `job.actor` is who did it.
function J.cancel(cx, job, reason, cascade)
  if job.finished then return false end
  -- Only with what it does itself: ids used again may wait for each other in a circle.
  if cascade and not J.has(job.rflags, J.CANCEL) then J.cancel_children(cx, job) end
  if PENDING[job.state] then
    J.finish(cx, job, STATE.cancelled, reason)
    return true
  end
  if not J.has(job.rflags, J.CANCEL) then
    job.rflags = J.with(job.rflags, J.CANCEL)
    J.extra(cx, job, "why", reason)
    if job.actor then J.extra(cx, job, "who", job.actor) end
    J.save_run(cx, job)
    call("PUBLISH", cx.prefix:match("^[^{]*") .. KEY.cancel_channel .. job.worker, "cancel\n" .. cx.prefix .. "\n" .. job.id)
  end
  return true
end

-- Another queue of the tenant, by its name (see keys.py).
local function sibling(cx, name)
  return cx.prefix:match("^[^{]*{[^:]*:") .. name:gsub("[%%{}:%c]", function(c) return string.format("%%%02x", c:byte()) end) .. "}"
end

-- The jobs it waits for, and those it has added as its children (see core/waits.py).
function J.cancel_children(cx, job)
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
    local queue, id = field:match("^e:([^\n]*)\n(.*)$")
    if field:sub(1, 2) == "g:" and value:sub(1, #CHILD) == CHILD then
      local name, child = value:match("^[^\n]*\n([^\n]*)\n(.*)$")
      if name then queue, id = sibling(cx, name), child end
    end
    if queue then J.post(cx, queue, { type = "cancel", id = id, reason = "cancelled", actor = job.actor }) end
  end
end

function J.add_signal(cx, job, name, value)
  local n = call("HINCRBY", cx.prefix .. KEY.extras .. job.id, "signals", 1)
  J.extra(cx, job, "g:" .. n, name .. "\n" .. value)
  J.save_run(cx, job)
end

-- What a life has gathered: it does not go over into the next. Edges and their inputs do.
function J.forget_life(cx, job)
  local x, gone = cx.prefix .. KEY.extras .. job.id, { "failure", "progress", "saved", "why", "who", "signals", "signal", "put_off" }
  for _, field in ipairs(call("HKEYS", x)) do
    if field:sub(1, 2) == "g:" then gone[#gone + 1] = field end
  end
  J.variadic("HDEL", x, gone)
end

-- Whether a job is in a state for a command: core's table (core/commands.py: APPLIES).
local NAMES = {}
for name, code in pairs(STATE) do NAMES[code] = name end
local function applies(cx, kind, job)
  local rule = J.APPLIES[kind]
  return rule[NAMES[job.state]] and (not rule.unstarted or J.starts(cx, job) == 0)
end

local COMMANDS = {}
function COMMANDS.cancel(cx, job, c) return J.cancel(cx, job, c.reason, c.cascade) end

function COMMANDS.rerun(cx, job)
  if J.locked_out(cx, job) then return false end
  local opts, previous = J.options(job), job.state
  J.unshelve(cx, job)
  J.forget_life(cx, job)
  job.life, job.failures, job.stalls, job.started, job.token, job.worker = job.life + 1, 0, 0, 0, "", ""
  job.finished, job.due, job.run_due = nil, cx.now, cx.now
  J.renew(job)
  job.rflags = J.without(J.without(job.rflags, J.CANCEL), J.WANTED)
  job.state = STATE.waiting
  J.write(cx, job)
  J.save_run(cx, job)
  J.await_ttl(cx, job)
  J.stand(cx, job, opts.lifo and "first" or "back")
  J.event(cx, job, "rerun", previous)
  if opts.lock then J.lock(cx, job, opts) end
  return true
end

function COMMANDS.promote(cx, job, c)
  job.due, job.run_due = cx.now, cx.now
  J.to_waiting(cx, job, "promoted", J.place_when_due(cx, job), c.kind == "promote" and "promoted" or "rescheduled")
  return true
end

function COMMANDS.reprioritise(cx, job, c)
  J.renew(job, J.changed_options(job, { priority = c.priority }, c.priority == 0 and "priority"))
  J.write(cx, job)
  if job.state == STATE.waiting then
    J.to_waiting(cx, job, "changed", "back", "reprioritised")
  else
    J.event(cx, job, "changed", job.state, "reprioritised")
  end
  return true
end

function COMMANDS.reschedule(cx, job, c)
  local due = J.due(cx, c)
  J.due_again(cx, job)
  if due > cx.now then
    J.to_delayed(cx, job, "changed", due, "rescheduled")
  elseif job.state == STATE.delayed then
    return COMMANDS.promote(cx, job, c)
  end
  return true
end

function COMMANDS.update(cx, job, c, payload)
  J.renew(job, J.changed_options(job, { codec = c.codec }, c.codec == "json" and "codec"), payload)
  J.write(cx, job)
  J.event(cx, job, "changed", job.state, "updated")
  return true
end

function COMMANDS.remove(cx, job, c)
  if not job.finished then return J.cancel(cx, job, "removed", false) end
  J.unlock_removed(cx, job)
  J.purge(cx, job)
  cx.purged = cx.purged or {}
  local actor = c.actor or ""
  cx.purged[actor] = (cx.purged[actor] or 0) + 1
  return true
end

function COMMANDS.signal(cx, job, c, value)
  J.add_signal(cx, job, c.name, value)
  if job.state == STATE.blocked and call("HGET", cx.prefix .. KEY.extras .. job.id, "signal") == c.name then J.unblock(cx, job) end
  return true
end

-- alter. KEYS 1 prefix. ARGS now, prefix of shard 0, then per command: itself packed {kind, id, actor, …}, data.
-- RETURNS {a letter per command: d done, l late, m missing; messages waiting; jobs to wake for elsewhere}
function J.alter(keys, args)
  local cx, answers = J.open(keys[1], args[1]), {}
  for i = 3, #args, 2 do
    local c = munpack(args[i])
    local job = J.look(cx, c.id)
    local answer = not job and "m" or "l"
    if job and applies(cx, c.kind, job) then
      job.actor = c.actor
      if COMMANDS[c.kind](cx, job, c, args[i + 1]) then answer = "d" end
    end
    answers[#answers + 1] = answer
    J.deliver_local(cx)
  end
  for actor, n in pairs(cx.purged or {}) do J.done_to(cx, args[2], "purged", J.jobs_told(n), actor) end
  J.close(cx)
  return { table.concat(answers), cx.outbox, cx.to_wake or 0 }
end

-- The letter for a lease whose run and token these are: h held, l lost, c held and asked to stop.
local function lease_state(run, token)
  if not run then return "l" end
  local flags, n = run:byte(33, 34)
  if flags % 2 == 0 or run:sub(35, 34 + n) ~= token then return "l" end
  return J.has(flags, J.CANCEL) and "c" or "h"
end

-- extend. KEYS 1 prefix. ARGS now, lease_ms, then per lease: id, token. RETURNS a letter per lease (see lease_state)
function J.extend(keys, args)
  local cx, lease_ms = J.open(keys[1], args[1]), tonumber(args[2])
  local ids, answers, times = {}, {}, {}
  for i = 3, #args, 2 do ids[#ids + 1] = args[i] end
  local runs = J.hmget(cx.prefix .. KEY.runs, ids)
  for i = 1, #ids do
    answers[i] = lease_state(runs[i], args[2 + 2 * i])
    if answers[i] ~= "l" then
      times[#times + 1] = cx.now + lease_ms
      times[#times + 1] = ids[i]
    end
  end
  J.variadic("ZADD", cx.prefix .. KEY.leases, times, 2)
  local soonest = J.counters(cx).leases
  if #times > 0 and (soonest == 0 or cx.now + lease_ms < soonest) then
    J.lease_timer(cx, cx.now + lease_ms)
    J.save_counters(cx)
  end
  return table.concat(answers)
end

-- What a note sets in x:<id>. Its run then says that there is such a hash.
local function set_extras(prefix, id, run, fields)
  if #fields == 0 then return end
  call("HSET", prefix .. KEY.extras .. id, unpack(fields))
  local flags = run:byte(33)
  if not J.has(flags, J.EXTRA) then call("HSET", prefix .. KEY.runs, id, run:sub(1, 32) .. string.char(flags + J.EXTRA) .. run:sub(34)) end
end

-- note. KEYS 1 prefix
-- ARGS per note: id, token, progress and saved ("" for none, else "\1" and its bytes), number of lines, line, …
-- RETURNS a letter per lease (see lease_state)
function J.note(keys, args)
  local prefix, i, answers = keys[1], 1, {}
  while i <= #args do
    local id, token, progress, saved, n = unpack(args, i, i + 4)
    n = tonumber(n)
    local run, fields = call("HGET", prefix .. KEY.runs, id), {}
    local state = lease_state(run, token)
    if state ~= "l" then
      if progress ~= "" then fields[1], fields[2] = "progress", progress:sub(2) end
      if saved ~= "" then fields[#fields + 1], fields[#fields + 2] = "saved", saved:sub(2) end
      set_extras(prefix, id, run, fields)
      if n > 0 then
        call("RPUSH", prefix .. KEY.log_lines .. id, unpack(args, i + 5, i + 4 + n))
        call("LTRIM", prefix .. KEY.log_lines .. id, -LINES, -1)
      end
    end
    answers[#answers + 1] = state
    i = i + 5 + n
  end
  return table.concat(answers)
end
