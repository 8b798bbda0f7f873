-- alter: commands on single jobs.
local STATE = J.STATE
local PENDING = { [STATE.delayed] = true, [STATE.blocked] = true, [STATE.waiting] = true }
local CHILD = "$jobq.child " -- the signal that names a child a job has added (core/rules/waits.py)

-- Cancel a job. A waiting, delayed or blocked job is cancelled at once; an active one is asked to
-- stop, and its worker is notified. `job.actor` is who did it. RETURNS false if the job has ended
function J.cancel(cx, job, reason, cascade)
  if job.finished then return false end
  -- Cascade only once: jobs whose ids were used again may wait for each other in a circle.
  if cascade and not J.has(job.rflags, RUN_FLAG.cancel) then J.cancel_children(cx, job) end
  if PENDING[job.state] then
    J.finish(cx, job, STATE.cancelled, reason)
    return true
  end
  if not J.has(job.rflags, RUN_FLAG.cancel) then
    job.rflags = J.with(job.rflags, RUN_FLAG.cancel)
    J.extra(cx, job, EXTRA.why, reason)
    if job.actor then J.extra(cx, job, EXTRA.who, job.actor) end
    J.save_run(cx, job)
    call("PUBLISH", cx.prefix:match("^[^{]*") .. KEY.cancel_channel .. job.worker,
      "cancel\n" .. cx.prefix .. "\n" .. job.id)
  end
  return true
end

-- The prefix of another queue of the tenant. Copies stores/valkey/keys.py: escape.
local function sibling(cx, name)
  return cx.prefix:match("^[^{]*{[^:]*:")
    .. name:gsub("[%%{}:%c]", function(c) return string.format("%%%02x", c:byte()) end) .. "}"
end

-- Cancel the jobs that this job waits for, and those it has added as its children.
function J.cancel_children(cx, job)
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
    local queue, id = field:match(EXTRA.edge_pattern)
    if field:sub(1, 2) == EXTRA.received and value:sub(1, #CHILD) == CHILD then
      local name, child = value:match("^[^\n]*\n([^\n]*)\n(.*)$")
      if name then queue, id = sibling(cx, name), child end
    end
    if queue then
      J.post(cx, queue, { type = "cancel", id = id, reason = "cancelled", actor = job.actor })
    end
  end
end

function J.add_signal(cx, job, name, value)
  local n = call("HINCRBY", cx.prefix .. KEY.extras .. job.id, EXTRA.signals, 1)
  J.extra(cx, job, EXTRA.received .. n, name .. "\n" .. value)
  J.save_run(cx, job)
end

-- Remove the extras that belong to one life of a job. Edges and their inputs stay for the next
-- life.
function J.forget_life(cx, job)
  local x, gone = cx.prefix .. KEY.extras .. job.id, {
    EXTRA.failure, EXTRA.progress, EXTRA.saved, EXTRA.saved_place, EXTRA.why, EXTRA.who,
    EXTRA.signals, EXTRA.signal, EXTRA.put_off, EXTRA.deferred,
  }
  for _, field in ipairs(call("HKEYS", x)) do
    local kind = field:sub(1, 2)
    if kind == EXTRA.received or kind == EXTRA.step then gone[#gone + 1] = field end
  end
  J.variadic("HDEL", x, gone)
end

-- Whether a command applies to a job in its state and life. Copies core/records/commands.py:
-- applies.
local STATE_NAMES = {}
for name, code in pairs(STATE) do STATE_NAMES[code] = name end
local function applies(cx, c, job)
  local rule = J.APPLIES[c.kind]
  return rule[STATE_NAMES[job.state]] and (not rule.unstarted or J.starts(cx, job) == 0)
    and (not c.life or c.life == job.life)
end

-- COMMANDS.<kind>(cx, job, command, data). RETURNS whether it was carried out
local COMMANDS = {}
function COMMANDS.cancel(cx, job, c) return J.cancel(cx, job, c.reason, c.cascade) end

-- Start an ended job over, in the state that it will have.
local function begin_life(cx, job, state)
  local opts, previous = J.options(job), job.state
  job.life, job.failures, job.stalls = job.life + 1, 0, 0
  job.started, job.token, job.worker = 0, "", ""
  job.finished, job.due, job.run_due = nil, cx.now, cx.now
  J.renew(job)
  job.rflags = J.without(J.without(job.rflags, RUN_FLAG.cancel), RUN_FLAG.awaited)
  job.state = state
  J.write(cx, job)
  J.save_run(cx, job)
  if state == STATE.blocked then
    call("ZADD", cx.prefix .. KEY.blocked, cx.now, job.id)
  else
    J.await_ttl(cx, job)
    J.enqueue(cx, job, opts.lifo and "first" or "back")
  end
  J.event(cx, job, "rerun", previous)
  if opts.lock then J.lock(cx, job, opts) end
end

function COMMANDS.rerun(cx, job)
  if J.locked_out(cx, job) then return false end
  J.unlist_ended(cx, job)
  J.forget_life(cx, job)
  begin_life(cx, job, STATE.waiting)
  return true
end

-- Run a member of a flow again (core/records/commands.py: Revive).
function COMMANDS.revive(cx, job)
  if J.locked_out(cx, job) then return false end
  J.unlist_ended(cx, job)
  call("HDEL", cx.prefix .. KEY.extras .. job.id, EXTRA.failure, EXTRA.progress, EXTRA.why,
    EXTRA.who, EXTRA.signal, EXTRA.put_off, EXTRA.deferred, EXTRA.follows)
  local waits = J.tie_again(cx, job)
  begin_life(cx, job, waits and STATE.blocked or STATE.waiting)
  return true
end

function COMMANDS.promote(cx, job, c)
  job.due, job.run_due = cx.now, cx.now
  J.to_waiting(cx, job, "promoted", J.queue_end_when_due(cx, job),
    c.kind == "promote" and "promoted" or "rescheduled")
  return true
end

function COMMANDS.reprioritise(cx, job, c)
  local unset = c.priority == 0 and "priority"
  J.renew(job, J.changed_options(job, { priority = c.priority }, unset))
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
  local unset = c.codec == "json" and "codec"
  J.renew(job, J.changed_options(job, { codec = c.codec }, unset), payload)
  J.write(cx, job)
  J.new_arguments(cx, job)
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
  local received = call("HGET", cx.prefix .. KEY.extras .. job.id, EXTRA.signals)
  local most = c.name:sub(1, #CHILD) == CHILD and J.DEFAULT.children or J.DEFAULT.signals
  if tonumber(received or 0) >= most then return false end
  J.add_signal(cx, job, c.name, value)
  if job.state == STATE.blocked
    and call("HGET", cx.prefix .. KEY.extras .. job.id, EXTRA.signal) == c.name then
    J.unblock(cx, job)
  end
  return true
end

-- alter: carry out commands on single jobs.
-- KEYS prefix
-- ARGS now, prefix of shard 0, then per command: itself packed {kind, id, actor, life, …},
--   data
-- RETURNS {a letter per command: d done, l late, m missing; messages waiting; jobs to wake workers
--   for elsewhere}
function J.alter(keys, args)
  local cx, answers = J.open(keys[1], args[1]), {}
  for i = 3, #args, 2 do
    local c = munpack(args[i])
    local job = J.look(cx, c.id)
    local answer = not job and "m" or "l"
    if job and applies(cx, c, job) then
      job.actor = c.actor
      if COMMANDS[c.kind](cx, job, c, args[i + 1]) then answer = "d" end
    end
    answers[#answers + 1] = answer
    J.deliver_local(cx)
  end
  for actor, n in pairs(cx.purged or {}) do
    J.log_operation(cx, args[2], "purged", J.jobs_reason(n), actor)
  end
  J.close(cx)
  return { table.concat(answers), cx.outbox, cx.to_wake or 0 }
end
