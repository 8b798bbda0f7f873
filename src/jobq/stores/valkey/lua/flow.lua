-- flow: jobs that wait for other jobs, in this queue or another. Queues may be on different nodes,
-- so they exchange messages. A message is idempotent. It stays in the sender's outbox (KEY.outbox)
-- until the receiver has taken it; a message to the same queue is taken at once. EXTRA in
-- fields.lua has the fields that parents and children use.
local STATE = J.STATE

-- Post a message to a queue. `m` is a flat map of text and numbers.
function J.post(cx, queue, m)
  if queue == cx.prefix then
    cx.mail = cx.mail or {}
    cx.mail[#cx.mail + 1] = m
  else
    call("ZADD", cx.prefix .. KEY.outbox, "NX", cx.now, queue .. "\n" .. mpack(m))
    cx.outbox = cx.outbox + 1
  end
end

-- Carry out the messages that the call has posted to its own queue; they may post more.
function J.deliver_local(cx)
  while cx.mail do
    local mail = cx.mail
    cx.mail = nil
    for i = 1, #mail do J.MAIL[mail[i].type](cx, mail[i]) end
  end
end

-- Make a blocked job wait for others. `edges` is {{queue, id, data}, …}. A job that has ended
-- meanwhile gets the edges too: it waits for those jobs if it is revived.
function J.tie(cx, job, edges)
  local x, open = cx.prefix .. KEY.extras .. job.id, 0
  local ordinal = tonumber(call("HGET", x, EXTRA.edges) or 0)
  for i = 1, #edges do
    local queue, id, data = unpack(edges[i], 1, 3)
    local field = EXTRA.edge .. queue .. "\n" .. id
    if call("HSETNX", x, field, ordinal .. ":" .. data) == 1 then
      ordinal, open = ordinal + 1, open + 1
      J.post(cx, queue, {
        type = "watch", child = id, queue = cx.prefix, parent = job.id, flow = cx.flow,
      })
    end
  end
  call("HSET", x, EXTRA.edges, ordinal)
  if open > 0 then call("HINCRBY", x, EXTRA.open, open) end
  if cx.flow then call("HSET", x, EXTRA.flow, cx.flow) end
  job.rflags = J.with(job.rflags, RUN_FLAG.extras)
  if job.finished then J.write_end(cx, job) else J.save_run(cx, job) end
end

-- Make a revived job wait again for the children that have not completed. Its flow may still be
-- bringing in some of them.
-- RETURNS whether there are any, or may be more
function J.tie_again(cx, job)
  local x, open = cx.prefix .. KEY.extras .. job.id, 0
  local extras = J.pairs_of(call("HGETALL", x))
  for field, value in pairs(extras) do
    local queue, id = field:match(EXTRA.edge_pattern)
    if queue then
      local input = EXTRA.input .. value:match("^%d+")
      local ended = extras[input]
      if not ended or ended:byte() ~= STATE.completed then
        call("HDEL", x, input)
        open = open + 1
        J.post(cx, queue, {
          type = "watch", child = id, queue = cx.prefix, parent = job.id,
          flow = extras[EXTRA.flow],
        })
      end
    end
  end
  if open > 0 or extras[EXTRA.open] then call("HSET", x, EXTRA.open, open) end
  return open > 0 or extras[EXTRA.tying] ~= nil
end

-- Unblock a job: it is due now, or its delay begins.
function J.unblock(cx, job, reason)
  call("HDEL", cx.prefix .. KEY.extras .. job.id, EXTRA.signal)
  local opts, due = J.options(job), cx.now
  if job.attempt == 0 then due = J.due(cx, opts) end
  if due > cx.now then
    J.to_delayed(cx, job, "unblocked", due, reason)
  else
    J.to_waiting(cx, job, "unblocked", J.queue_end_when_due(cx, job), reason)
  end
end

-- Unblock a job if nothing blocks it any more.
function J.unblock_if_free(cx, job)
  local open, follows, signal, tying = unpack(call("HMGET", cx.prefix .. KEY.extras .. job.id,
    EXTRA.open, EXTRA.follows, EXTRA.signal, EXTRA.tying))
  if tonumber(open or 0) <= 0 and not follows and not signal and not tying then
    J.unblock(cx, job)
  end
end

-- Block a running job: it waits for edges or for a signal, until a timeout.
function J.block(cx, job, o, saved, edges)
  local x = cx.prefix .. KEY.extras .. job.id
  if saved then J.extra(cx, job, EXTRA.saved, saved) end
  if o.signal then J.extra(cx, job, EXTRA.signal, o.signal) else call("HDEL", x, EXTRA.signal) end
  J.to_blocked(cx, job, "blocked", o.timeout and cx.now + o.timeout)
  if edges then J.tie(cx, job, edges) end
  if o.signal then
    if J.signals_of(cx, job, o.signal) > (o.seen or 0) then J.unblock(cx, job) end
  elseif not edges or tonumber(call("HGET", x, EXTRA.open) or 0) <= 0 then
    J.unblock(cx, job)
  end
end

-- How many signals of a name a job has received.
function J.signals_of(cx, job, name)
  local n = 0
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
    if field:sub(1, 2) == EXTRA.received and value:sub(1, #name + 1) == name .. "\n" then
      n = n + 1
    end
  end
  return n
end

-- The message to a parent that a child has ended. `as` is the id that the parent waits for.
local function ending(cx, child, as, parent)
  local m = {
    type = "ended", queue = cx.prefix, child = as, id = child.id, name = J.name_key(child),
    state = child.state, codec = J.options(child).codec or "json", parent = parent,
    attempt = child.attempt, at = child.finished,
  }
  if child.state == STATE.completed then
    m.result = child.result
  elseif child.state == STATE.failed then
    m.kept = J.kept_failure(cx, child.id)
  end
  return m
end

-- Post the end of a job to the jobs that wait for it, in the order in which they came.
function J.notify_parents(cx, child)
  local parents = {}
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. child.id))) do
    if field:sub(1, 2) == EXTRA.parent then
      local queue, parent, as = field:match(EXTRA.parent_pattern)
      parents[#parents + 1] = { n = tonumber(value), as = as, queue = queue, parent = parent }
    end
  end
  table.sort(parents, function(a, b) return a.n < b.n end)
  for _, p in ipairs(parents) do J.post(cx, p.queue, ending(cx, child, p.as, p.parent)) end
end

-- Store how a child ended (INPUT in fields.lua). RETURNS how many children have not ended
local function keep_input(cx, x, ordinal, with_data, m, policy)
  local failure, rest = J.failure_for_parent(policy, m), ""
  if failure then
    rest = INPUT.failed_run .. failure
  elseif with_data and m.state == STATE.completed then
    rest = m.result
  end
  local codec = m.codec or "json"
  call("HSET", x, EXTRA.input .. ordinal, spack(INPUT.head, m.state, #codec) .. codec .. rest)
  return call("HINCRBY", x, EXTRA.open, -1)
end

-- What each type of message does: MAIL.<type>(cx, m). "later" leaves the message in the outbox.
J.MAIL = {}

-- The job with an id, or the job whose lock kept that id out. A job whose retention has passed
-- counts if its record is still there: it may have ended while its flow was being submitted.
-- RETURNS the job; or nil, and whether the id counts as completed (a throttle kept it out, and the
-- record of the throttle's job is gone)
local function stands_for(cx, id)
  local job = J.load(cx, id)
  if job then return job end
  local holder = call("GET", cx.prefix .. KEY.alias .. id)
  if not holder then return nil, false end
  return J.load(cx, holder), true
end

-- Post to these parents ("<queue>\n<parent>") when the job with an id ends; at once if it has ended
-- or is gone.
function J.watch_child(cx, id, who)
  local child, done = stands_for(cx, id)
  if not child then
    for i = 1, #who do
      local queue, parent = who[i]:match("^([^\n]*)\n(.*)$")
      local state = done and STATE.completed or STATE.cancelled
      J.post(cx, queue, {
        type = "ended", queue = cx.prefix, child = id, id = id, parent = parent, state = state,
        result = "",
      })
    end
    return
  end
  local x, fields = cx.prefix .. KEY.extras .. child.id, {}
  local n = call("HLEN", x)
  for i = 1, #who do
    fields[2 * i - 1], fields[2 * i] = EXTRA.parent .. who[i] .. "\n" .. id, n + i - 1
  end
  J.variadic("HSET", x, fields, 2)
  child.rflags = J.with(child.rflags, RUN_FLAG.extras)
  if not child.finished then
    child.rflags = J.with(child.rflags, RUN_FLAG.awaited)
    J.save_run(cx, child)
    return
  end
  J.write_end(cx, child) -- it has extras now
  for i = 1, #who do
    local queue, parent = who[i]:match("^([^\n]*)\n(.*)$")
    J.post(cx, queue, ending(cx, child, id, parent))
  end
end

-- To a child's queue: the job `parent` of `queue` waits for `child`.
function J.MAIL.watch(cx, m)
  local who = m.queue .. "\n" .. m.parent
  if m.flow and J.is_staged(cx, m.flow, m.child) then
    J.wait_for_member(cx, m.flow, m.child, who)
  else
    J.watch_child(cx, m.child, { who })
  end
end

-- To a parent's queue: a child of it has ended. If the child completed and others have not ended,
-- the parent is not loaded: its payload names all children, and loading it for each of 10,000 was
-- most of what such a flow cost.
function J.MAIL.ended(cx, m)
  local x, completed = cx.prefix .. KEY.extras .. m.parent, m.state == STATE.completed
  local edge = call("HGET", x, EXTRA.edge .. m.queue .. "\n" .. m.child)
  if not edge then return end
  local ordinal, data = edge:match("^(%d+):(%d)$")
  if call("HEXISTS", x, EXTRA.input .. ordinal) == 1 then return end
  local job = not completed and J.load(cx, m.parent)
  local policy = job and J.options(job).policy or "fail"
  local open = keep_input(cx, x, ordinal, data == "1", m, policy)
  if completed and open > 0 then return end
  job = job or J.load(cx, m.parent)
  if not job or job.state ~= STATE.blocked then return end
  if J.fails_parent(policy, m.state) then
    J.finish(cx, job, STATE.failed, nil, nil, J.parent_failure(m))
  else
    J.unblock_if_free(cx, job)
  end
end

-- Cancel a job, with those it waits for.
function J.MAIL.cancel(cx, m)
  local job = J.look(cx, m.id)
  if not job then return end
  job.actor = m.actor
  J.cancel(cx, job, m.reason, true)
end

-- Another partition reports an operation on the queue; it is logged here. The message may come
-- twice, so it is remembered for a day.
function J.MAIL.tell(cx, m)
  if call("SET", cx.prefix .. KEY.reported .. m.nonce, "1", "NX", "PX", 86400000) then
    J.log_operation(cx, cx.prefix, m.kind, m.reason, m.actor)
  end
end

-- deliver: take messages from other queues.
-- KEYS prefix
-- ARGS now, message, …
-- RETURNS {positions of those taken, as "1,2"; messages waiting here; jobs to wake workers for
--   elsewhere}
function J.deliver(keys, args)
  local cx, taken = J.open(keys[1], args[1]), {}
  for i = 2, #args do
    local m = munpack(args[i])
    if J.MAIL[m.type](cx, m) ~= "later" then taken[#taken + 1] = i - 1 end
    J.deliver_local(cx)
  end
  J.close(cx)
  local messages = call("ZCARD", cx.prefix .. KEY.outbox)
  return { table.concat(taken, ","), messages, cx.to_wake or 0 }
end
