-- flow: jobs that wait for jobs, in this queue or another. Queues may live on different nodes, so they speak by messages:
-- each is idempotent, stays in the sender's outbox (o) until it was taken, and is taken at once when it stays at home.
--
-- x:<parent>  e:<queue>\n<id> → "<ordinal>:<data>" per child · i:<ordinal> → how that child ended · edges, open: counts
--             signal: the one it waits for · follows: it waits for a running unique job · tying: the flow that has more edges for it
--             g:<n> → "<name>\n<value>" signals received
-- x:<child>   P:<queue>\n<parent>\n<the id it is waited for as> → "<n>", in the order they came
-- al:<id>     the holder of the lock that kept a job of this id out
local STATE = J.STATE

-- A message to a queue. `m` is a flat map of text and numbers.
function J.post(cx, queue, m)
  if queue == cx.prefix then
    cx.mail = cx.mail or {}
    cx.mail[#cx.mail + 1] = m
  else
    call("ZADD", cx.prefix .. KEY.outbox, "NX", cx.now, queue .. "\n" .. mpack(m))
    cx.outbox = cx.outbox + 1
  end
end

-- Carry out what the call has posted to its own queue, which may post more.
function J.deliver_local(cx)
  while cx.mail do
    local mail = cx.mail
    cx.mail = nil
    for i = 1, #mail do J.MAIL[mail[i].type](cx, mail[i]) end
  end
end

-- Make a blocked job wait for others. edges: {{queue, id, data}, …}
function J.tie(cx, job, edges)
  local x, open = cx.prefix .. KEY.extras .. job.id, 0
  local ordinal = tonumber(call("HGET", x, "edges") or 0)
  for i = 1, #edges do
    local queue, id, data = unpack(edges[i], 1, 3)
    local field = "e:" .. queue .. "\n" .. id
    if call("HSETNX", x, field, ordinal .. ":" .. data) == 1 then
      ordinal, open = ordinal + 1, open + 1
      J.post(cx, queue, { type = "watch", child = id, queue = cx.prefix, parent = job.id, flow = cx.flow })
    end
  end
  call("HSET", x, "edges", ordinal)
  if open > 0 then call("HINCRBY", x, "open", open) end
  job.rflags = J.with(job.rflags, J.EXTRA)
  J.save_run(cx, job)
end

-- Nothing holds the job any more: it is due now, or its delay begins.
function J.unblock(cx, job, reason)
  call("HDEL", cx.prefix .. KEY.extras .. job.id, "signal")
  local opts, due = J.options(job), cx.now
  if job.attempt == 0 then due = J.due(cx, opts) end
  if due > cx.now then
    J.to_delayed(cx, job, "unblocked", due, reason)
  else
    J.to_waiting(cx, job, "unblocked", J.place_when_due(cx, job), reason)
  end
end

function J.unblock_if_free(cx, job)
  local open, follows, signal, tying = unpack(call("HMGET", cx.prefix .. KEY.extras .. job.id, "open", "follows", "signal", "tying"))
  if tonumber(open or 0) <= 0 and not follows and not signal and not tying then J.unblock(cx, job) end
end

-- A running job waits: for edges, or for a signal, until a timeout.
function J.block(cx, job, o, saved, edges)
  local x = cx.prefix .. KEY.extras .. job.id
  if saved then J.extra(cx, job, "saved", saved) end
  if o.signal then J.extra(cx, job, "signal", o.signal) else call("HDEL", x, "signal") end
  J.to_blocked(cx, job, "blocked", o.timeout and cx.now + o.timeout)
  if edges then J.tie(cx, job, edges) end
  if o.signal then
    if J.signals_of(cx, job, o.signal) > (o.seen or 0) then J.unblock(cx, job) end
  elseif not edges or tonumber(call("HGET", x, "open") or 0) <= 0 then
    J.unblock(cx, job)
  end
end

function J.signals_of(cx, job, name)
  local n = 0
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. job.id))) do
    if field:sub(1, 2) == "g:" and value:sub(1, #name + 1) == name .. "\n" then n = n + 1 end
  end
  return n
end

-- How a child ended, as its parents are told. `child` is the id they asked for, `id` its own.
local function ending(cx, child, as, parent)
  local m = {
    type = "ended", queue = cx.prefix, child = as, id = child.id, name = J.name_key(child), state = child.state,
    codec = J.options(child).codec or "json", parent = parent, attempt = child.attempt, at = child.finished,
  }
  if child.state == STATE.completed then
    m.result = child.result
  elseif child.state == STATE.failed then
    m.kept = J.kept_failure(cx, child.id)
  end
  return m
end

function J.tell_parents(cx, child)
  local parents = {}
  for field, value in pairs(J.pairs_of(call("HGETALL", cx.prefix .. KEY.extras .. child.id))) do
    if field:sub(1, 2) == "P:" then
      local queue, parent, as = field:match("^P:([^\n]*)\n([^\n]*)\n(.*)$")
      parents[#parents + 1] = { n = tonumber(value), as = as, queue = queue, parent = parent }
    end
  end
  table.sort(parents, function(a, b) return a.n < b.n end)
  for _, p in ipairs(parents) do J.post(cx, p.queue, ending(cx, child, p.as, p.parent)) end
end

-- i:<ordinal>: state B, #codec B, codec, then "" or "\1" .. result, or "\3" .. a failure in the form of er:<id>
-- RETURNS how many children are open still
local function keep_input(cx, x, ordinal, with_data, m, policy)
  local failure, rest = J.failure_for_parent(policy, m), ""
  if failure then
    rest = "\3" .. failure
  elseif with_data and m.state == STATE.completed then
    rest = m.result
  end
  local codec = m.codec or "json"
  call("HSET", x, "i:" .. ordinal, spack(">BB", m.state, #codec) .. codec .. rest)
  return call("HINCRBY", x, "open", -1)
end

J.MAIL = {}

-- The job of an id, or the one whose lock kept it out. One past its keeping that is still there ended as it says: it may have
-- ended while the flow that it belongs to was brought in.
-- RETURNS the job, or nil and whether it counts as completed: a throttle whose job's record is gone kept it out.
local function stands_for(cx, id)
  local job = J.load(cx, id)
  if job then return job end
  local holder = call("GET", cx.prefix .. KEY.alias .. id)
  if not holder then return nil, false end
  return J.load(cx, holder), true
end

-- Tell these ("<queue>\n<parent>") when the job of an id ends; at once if it has, or is gone.
function J.watched(cx, id, who)
  local child, done = stands_for(cx, id)
  if not child then
    for i = 1, #who do
      local queue, parent = who[i]:match("^([^\n]*)\n(.*)$")
      local state = done and STATE.completed or STATE.cancelled
      J.post(cx, queue, { type = "ended", queue = cx.prefix, child = id, id = id, parent = parent, state = state, result = "" })
    end
    return
  end
  local x, fields = cx.prefix .. KEY.extras .. child.id, {}
  local n = call("HLEN", x)
  for i = 1, #who do fields[2 * i - 1], fields[2 * i] = "P:" .. who[i] .. "\n" .. id, n + i - 1 end
  J.variadic("HSET", x, fields, 2)
  child.rflags = J.with(child.rflags, J.EXTRA)
  if not child.finished then
    child.rflags = J.with(child.rflags, J.WANTED)
    J.save_run(cx, child)
    return
  end
  J.write_end(cx, child) -- it has extras since
  for i = 1, #who do
    local queue, parent = who[i]:match("^([^\n]*)\n(.*)$")
    J.post(cx, queue, ending(cx, child, id, parent))
  end
end

-- A child of this queue: tell `parent` of `queue` when it ends.
function J.MAIL.watch(cx, m)
  local who = m.queue .. "\n" .. m.parent
  if m.flow and J.is_staged(cx, m.flow, m.child) then
    J.wait_for_member(cx, m.flow, m.child, who)
  else
    J.watched(cx, m.child, { who })
  end
end

-- A parent of this queue: a child of it has ended. While others are open, one that completed does not have the parent read:
-- its payload names all of them, and read for each of 10,000 it was most of what the flow cost.
function J.MAIL.ended(cx, m)
  local x, completed = cx.prefix .. KEY.extras .. m.parent, m.state == STATE.completed
  local edge = call("HGET", x, "e:" .. m.queue .. "\n" .. m.child)
  if not edge then return end
  local ordinal, data = edge:match("^(%d+):(%d)$")
  if call("HEXISTS", x, "i:" .. ordinal) == 1 then return end
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

function J.MAIL.cancel(cx, m)
  local job = J.look(cx, m.id)
  if not job then return end
  job.actor = m.actor
  J.cancel(cx, job, m.reason, true)
end

-- Something was done to the queue, and this is where its log tells of it. A message may come twice: it is remembered for a day.
function J.MAIL.tell(cx, m)
  if call("SET", cx.prefix .. KEY.reported .. m.nonce, "1", "NX", "PX", 86400000) then J.done_to(cx, cx.prefix, m.kind, m.reason, m.actor) end
end

-- The id of a copy whose first id belongs to the copy of another failure. Copies core/dead_letters.py (second_letter_id).
local function second_letter_id(m)
  local text = m.origin .. "/" .. J.whole(m.life) .. "/" .. J.whole(m.number)
  local longest = J.DEFAULT.id_length
  if J.tail(text, longest) == text then return text end
  return redis.sha1hex(text) .. "/" .. J.tail(text, longest - 41)
end

-- Put the copy of a failed job under its second id. In a partitioned queue that id may belong to another partition.
local function put_second_letter(cx, m)
  m.id, m.second = second_letter_id(m), 1
  local base = call("HGET", cx.prefix .. KEY.settings, "base")
  if base and base ~= cx.prefix then return J.post(cx, base, m) end
  return J.MAIL.letter(cx, m)
end

-- The copy of a failed job. Copies core/dead_letters.py (letter_key). A message may arrive twice, so a copy remembers the number of
-- its failure. A copy that was sent to a partitioned queue as a whole is left to a caller that knows its partitions.
function J.MAIL.letter(cx, m)
  local partitions = J.meta(cx).partitions
  if partitions and partitions ~= "1" then return "later" end
  local mode = J.meta(cx).mode or (m.key and "keyed" or "plain")
  local key = mode == "keyed" and (m.key or m.from) or nil
  local nk = J.pstr(m.name) .. J.pmaybe(key)
  local opts = mpack({ origin = m.origin, codec = m.codec, priority = m.priority, meta = m.meta, letter = m.number })
  local body = J.compose(0, J.GIVEN, 0, 0, nk, opts, m.payload):sub(7)
  J.fix_mode(cx, body)
  local answer = J.put_one(cx, 1, m.id, body)
  if not answer[5] then
    if not m.kept then return end
    local copy = J.load(cx, m.id)
    J.extra(cx, copy, "failure", J.copied_failure(m.kept))
    return J.save_run(cx, copy)
  end
  if m.second or not m.number then return end -- a message that arrives again, or one of an earlier version
  local readable, found = pcall(J.options, J.look(cx, m.id))
  local same = readable and found.origin == m.origin and found.letter == m.number
  if not same then put_second_letter(cx, m) end
end

-- Send a failed job to the dead-letter queue; the original stays failed. `number` is that of the event that recorded the
-- failure. Copies core/dead_letters.py (letter_id, origin).
function J.forward(cx, job, opts, number)
  local target, from = J.meta(cx).dead:match("^([^\n]*)\n(.*)$")
  if target == cx.prefix or target == call("HGET", cx.prefix .. KEY.settings, "base") then return end
  local name, key = J.name_key(job)
  local origin = from .. "/" .. job.id
  J.post(cx, target, {
    type = "letter", id = J.tail(origin .. "/" .. job.life, J.DEFAULT.id_length), name = name, key = key, from = from, origin = origin,
    codec = opts.codec, priority = opts.priority, meta = opts.meta, payload = J.payload(job), kept = J.kept_failure(cx, job.id),
    life = job.life, number = number,
  })
end

-- deliver: messages from other queues. KEYS 1 prefix. ARGS now, message, …
-- RETURNS {places taken "1,2", messages waiting here, jobs to wake for elsewhere}
function J.deliver(keys, args)
  local cx, taken = J.open(keys[1], args[1]), {}
  for i = 2, #args do
    local m = munpack(args[i])
    if J.MAIL[m.type](cx, m) ~= "later" then taken[#taken + 1] = i - 1 end
    J.deliver_local(cx)
  end
  J.close(cx)
  return { table.concat(taken, ","), call("ZCARD", cx.prefix .. KEY.outbox), cx.to_wake or 0 }
end
