-- put: accept jobs. Jobs without locks and edges are stored together: one MSETNX, which also finds
-- duplicates, and one RPUSH.
local byte = string.byte
local STR, BYTE, STATE = J.STR, J.BYTE, J.STATE
local MAX_ARGS = 1000 -- ids and bodies per MSETNX
local ALIAS_MS = 86400000 -- how long the holder of a lock represents a job that the lock kept out

-- Why jobs cannot be put: an error, or nil. `plain` and `keyed` are the positions of the first job
-- of that kind (0 for none).
function J.refusal(cx, plain, keyed, cost)
  local partitions = J.meta(cx).partitions
  if partitions and partitions ~= "1" then
    return redis.error_reply("JOBQ PARTED " .. partitions)
  end
  return J.misfit(cx, plain, keyed, cost)
end

-- The same without the check for partitions, for a queue whose jobs may be elsewhere.
function J.misfit(cx, plain, keyed, cost)
  local meta = J.meta(cx)
  local mode = meta.mode
    or (keyed > 0 and (plain == 0 or keyed < plain) and "keyed" or "plain")
  local wrong = mode == "keyed" and plain or mode == "plain" and keyed
  if wrong > 0 then return redis.error_reply("JOBQ MODE " .. mode .. " " .. wrong) end
  local capacity = math.min(J.capacity(meta.rate) or math.huge,
    J.capacity(meta.key_rate) or math.huge)
  if cost > capacity then return redis.error_reply("JOBQ COST " .. capacity) end
end

-- Whether the job of a producer's body has a key.
function J.has_key(body)
  local _, nn, _, at = J.head(body, 1)
  return body:byte(at + nn - 1) ~= PACK.none_byte
end

-- The first job fixes the queue's mode: keyed if it has a key.
function J.fix_mode(cx, body)
  local meta = J.meta(cx)
  if meta.mode then return end
  local mode = J.has_key(body) and "keyed" or "plain"
  call("HSET", cx.prefix .. KEY.settings, SETTING.mode, mode)
  J.meta_changed(cx)
  cx.begun = 1
end

-- A producer's body with the default ttl of its queue. Copies core/records/queues.py:
-- with_defaults.
function J.with_defaults(cx, body)
  local ttl = J.meta(cx).ttl
  if not ttl then return body end
  local flags, nn, no, at = J.head(body, 1)
  local opts = no > 0 and munpack(body:sub(at + nn, at + nn + no - 1)) or {}
  if opts.ttl or opts.origin then return body end
  opts.ttl = tonumber(ttl)
  flags = J.with(J.with(flags, FLAG.at_put), FLAG.at_start)
  local record = J.compose(0, flags, 0, 0, body:sub(at, at + nn - 1), mpack(opts),
    body:sub(at + nn + no))
  return record:sub(RECORD.body_at)
end

-- A batch: its records and events, and where its jobs go.
local function new_batch(cx)
  return {
    n = 0, records = {}, ids = {}, items = J.items(cx), first = #J.items(cx), delayed = {},
    ttls = {}, lists = {}, front = {},
  }
end

-- A job with a priority, a time or a ttl. RETURNS its record, its state's code and its due time,
-- packed
local function with_options(cx, b, id, flags, body, nn, no)
  local opts = munpack(body:sub(BODY.long_nk_at + nn, BODY.long_head_end + nn + no))
  local due = J.due(cx, opts)
  local due6 = J.six(due)
  if due > cx.now then
    b.delayed[#b.delayed + 1] = { due, id }
    local record = cx.now6 .. BYTE[flags + FLAG.later] .. body:sub(2, BODY.long_head_end) .. due6
      .. "\0\0\0" .. body:sub(BODY.long_nk_at)
    return record, EVENT.delayed, due6
  end
  if opts.ttl then b.ttls[#b.ttls + 1] = { due + opts.ttl, id } end
  local priority = opts.priority or 0
  if opts.lifo then
    b.front[#b.front + 1] = { priority, id }
  else
    b.lists[priority] = b.lists[priority] or {}
    table.insert(b.lists[priority], id)
  end
  return cx.now6 .. body, EVENT.waiting, due6
end

-- Add the jobs of a batch, whose records are stored, to waiting lists, ttls and delayed jobs.
local function enqueue_all(cx, b)
  local list = cx.prefix .. KEY.plain_list
  if b.keyed then
    for i = 1, b.n do
      call("RPUSH", cx.prefix .. KEY.key_list .. b.keys[i] .. KEY.key_back_0, b.ids[i])
      J.key_touched(cx, b.keys[i])
    end
  else
    J.variadic("RPUSH", list .. KEY.back_0, b.ids)
  end
  for priority, ids in pairs(b.lists) do J.push_back(cx, list, priority, ids) end
  for _, job in ipairs(b.front) do
    J.push_front(cx, list, job[1], job[2], J.place_in_front(cx))
  end
  for _, ttl in ipairs(b.ttls) do
    call("ZADD", cx.prefix .. KEY.ttls, ttl[1], ttl[2])
    J.timer(cx, ttl[1])
  end
  for _, job in ipairs(b.delayed) do
    call("ZADD", cx.prefix .. KEY.delayed, J.delay_score(cx, job[1]), job[2])
    J.timer(cx, job[1])
  end
  if b.delayed[1] then J.due_later(cx, b.delayed[1][1]) end
  J.count_waiting(cx, b.n + b.others - #b.delayed)
  J.add(cx, "accepted", b.n + b.others)
end

-- Whether a job of one of these ids has left an entry in a waiting list.
function J.any_left_entry(cx, ids)
  for _, left in ipairs(J.hmget(cx.prefix .. KEY.left, ids)) do
    if left then return true end
  end
  return false
end

local function ids_of(args, first, last)
  local ids = {}
  for k = first, last, 2 do ids[#ids + 1] = args[k] end
  return ids
end

-- Store a whole batch of jobs without locks and edges. RETURNS answers for those that are not
-- simply waiting; or nil, and nothing is stored, if an id is taken
local function put_together(cx, args, first, last)
  local prefix, now6, b, answers = cx.prefix, cx.now6, new_batch(cx), {}
  local with_meta, head, middle, rest = EVENT.accepted_with_meta, EVENT.accepted,
    PACK.none .. PACK.none .. PACK.none .. PACK.none .. PACK.time .. now6 .. PACK.time,
    PACK.none .. PACK.none
  local records, items, count, names = b.records, b.items, 0, J.event_meta_names(cx)
  b.keyed, b.keys, b.others = J.meta(cx).mode == "keyed", {}, 0
  for k = first, last, 2 do
    local id, body = args[k], J.with_defaults(cx, args[k + 1])
    local flags, nn = byte(body, 1, 2)
    local at, no = BODY.short_nk_at, 0
    if flags >= FLAG.more then
      nn, no = sunpack(RECORD.lengths, body, BODY.lengths_at)
      at = BODY.long_nk_at
    end
    count = count + 1
    local nk, record, state, due6 = body:sub(at, at + nn - 1), now6 .. body, EVENT.waiting, now6
    if flags % (2 * FLAG.at_put) >= FLAG.at_put then
      if b.keyed then
        for i = b.first + 1, #items do items[i] = nil end
        return nil
      end
      record, state, due6 = with_options(cx, b, id, flags, body, nn, no)
      b.others = b.others + 1
      if state == EVENT.delayed then
        answers[#answers + 1] = { (k - 5) / 2, id, 0, STATE.delayed }
      end
    else
      b.n = b.n + 1
      b.ids[b.n] = id
      if b.keyed then b.keys[b.n] = select(2, munpack(nk)) end
    end
    records[2 * count - 1], records[2 * count] = prefix .. KEY.job .. id, record
    local meta = names and no > 0 and J.event_meta(names, body:sub(at + nn, at + nn + no - 1))
    items[b.first + count] = (meta and with_meta or head) .. (STR[#id] or J.str_head(#id)) .. id
      .. EVENT.life_0 .. nk .. EVENT.no_counts .. state .. middle .. due6
      .. (meta and rest .. PACK.none .. meta or rest)
  end
  if call("MSETNX", unpack(records)) == 0 then
    for i = b.first + 1, #items do items[i] = nil end
    return nil
  end
  enqueue_all(cx, b)
  return answers
end

-- RETURNS the job under an id if it makes a new one a duplicate; or nil, and the life of the new
--   job: 0 if there is no record of the id. Copies core/rules/ended.py: next_life
function J.in_the_way(cx, id)
  local old = J.load(cx, id)
  if not old then return nil, 0 end
  local expired = old.finished and J.past_keeping(cx, old)
  if not expired and old.state ~= STATE.cancelled then return old end
  J.purge(cx, old)
  return nil, expired and 0 or old.life + 1
end

-- Store a new job in its first state. `blocked`: it waits for others.
function J.create(cx, id, body, life, blocked)
  local job = J.read(id, cx.now6 .. body)
  local opts = J.options(job)
  local due = J.due(cx, opts)
  job.life, job.ticket = life, J.first_ticket(cx, id)
  if due > cx.now and not blocked then job.due, job.first_due = due, due end
  if job.ticket > 0 then -- only the run has it, so the record must not look like that of a new job
    job.first_due = job.due
    J.save_run(cx, job)
  end
  J.renew(job)
  J.write(cx, job)
  if blocked then
    job.state = STATE.blocked
    call("ZADD", cx.prefix .. KEY.blocked, cx.now, id)
  elseif due > cx.now then
    job.state = STATE.delayed
    call("ZADD", cx.prefix .. KEY.delayed, J.delay_score(cx, due), id)
    J.timer(cx, due)
    J.due_later(cx, due)
  else
    job.state = STATE.waiting
    J.await_ttl(cx, job)
    J.enqueue(cx, job, opts.lifo and "first" or "back")
  end
  J.event(cx, job, "accepted")
  return job
end

-- RETURNS the answer for a duplicate, with the job that was found (see J.view)
local function duplicate(cx, place, job, opts)
  if opts.chan and not job.finished then
    J.extra(cx, job, EXTRA.listener .. opts.chan, "1")
    job.rflags = J.with(job.rflags, RUN_FLAG.watched)
    J.save_run(cx, job)
  end
  return { place, job.id, job.life, job.state, J.view(cx, job) }
end

-- Put one job of any kind. RETURNS an answer: {position, id, life, state}, and with a fifth
-- element, the job that was found, for a duplicate
function J.put_one(cx, place, id, body, edges)
  body = J.with_defaults(cx, body)
  local _, nn, no, at = J.head(body, 1)
  local opts = no > 0 and munpack(body:sub(at + nn, at + nn + no - 1)) or {}
  local old, life = J.in_the_way(cx, id)
  if old then return duplicate(cx, place, old, opts) end
  local follows = false
  if opts.lock then
    local found
    found, follows = J.resolve_lock(cx, opts, body)
    if type(found) == "string" then return { place, found, 0, STATE.completed, {} } end
    if found then return duplicate(cx, place, found, opts) end
  end
  local job = J.create(cx, id, body, life, follows or edges ~= nil)
  if follows then
    J.follow(cx, job, opts)
    J.extra(cx, job, EXTRA.follows, "1")
    J.save_run(cx, job)
  elseif opts.lock then
    J.lock(cx, job, opts)
  end
  if edges then
    cx.ties = cx.ties or {}
    cx.ties[#cx.ties + 1] = { id, edges }
  end
  return { place, id, life, job.state }
end

-- The same, with `room` places left (nil if all jobs fit). RETURNS an answer, and the places left
function J.put_if_room(cx, room, place, id, body, edges)
  if room and room <= 0 and J.adds(cx, id, J.body_options(body)) then
    return J.full(cx, place, id), room
  end
  local answer = J.put_one(cx, place, id, body, edges)
  if room and not answer[5] then room = room - 1 end
  return answer, room
end

-- If a lock kept a job out, its holder represents it, also for jobs elsewhere that will wait for
-- it.
function J.alias(cx, id, answer)
  if answer[2] ~= id then
    call("SET", cx.prefix .. KEY.alias .. id, answer[2], "PX", ALIAS_MS)
  end
  return answer
end

-- Jobs that were blocked when they were put may not be any more: correct their answers.
function J.look_again(cx, answers)
  for _, answer in ipairs(answers) do
    if answer[4] == STATE.blocked and not answer[5] then
      answer[4] = J.load(cx, answer[2]).state
    end
  end
end

-- Tie the edges of a call. Its jobs are all stored by then, in whatever order they came.
function J.tie_all(cx)
  for _, tie in ipairs(cx.ties or {}) do
    local job = J.load(cx, tie[1])
    if job and job.state == STATE.blocked then J.tie(cx, job, tie[2]) end
  end
  cx.ties = nil
end

function J.put_answer(cx, answers)
  local due_in = cx.due_at and math.max(cx.due_at - cx.now, 0) or -1
  return { cx.to_wake or 0, cx.outbox, due_in, answers, cx.begun or 0 }
end

-- None of the jobs fits. Only the queue's mode may have been fixed.
function J.all_full(cx, args, first, last)
  local answers = {}
  for k = first, last, 2 do answers[#answers + 1] = J.full(cx, (k - 5) / 2, args[k]) end
  J.close(cx)
  return J.put_answer(cx, answers)
end

-- put: accept jobs of any kind.
-- KEYS prefix
-- ARGS now, number of jobs, position of the first plain job, of the first keyed one, highest cost,
--   "1" if any has a lock, edges or the id of another ("2" if some wait for others of the call: if
--   not all fit, none is stored), then per job: id, body; then per job with edges: position, edges
--   packed
-- RETURNS {jobs to wake workers for elsewhere, messages waiting, ms until a job elsewhere is due or
--   -1, answers of those that are not simply new and waiting, 1 if the queue had no mode yet}
function J.put(keys, args)
  local now, count, plain, keyed, cost, look = unpack(args, 1, 6)
  local cx = J.open(keys[1], now)
  count = tonumber(count)
  local wrong = J.refusal(cx, tonumber(plain), tonumber(keyed), tonumber(cost))
  if wrong then return wrong end
  local first, last = 7, 6 + 2 * count
  J.fix_mode(cx, args[first + 1])
  local answers = {}
  local any_left = call("EXISTS", cx.prefix .. KEY.left) == 1
  local edges = {}
  for k = last + 1, #args, 2 do edges[tonumber(args[k])] = munpack(args[k + 1]) end
  local room = J.room(cx)
  if room and room >= count then room = nil end -- all of them fit
  if room and look == "2" then
    if J.needed(cx, args, first, last, 2) > math.max(room, 0) then
      return J.all_full(cx, args, first, last)
    end
    room = nil
  end
  for k = first, last, MAX_ARGS do
    local stop = math.min(k + MAX_ARGS - 1, last)
    local slow = room or look ~= "0"
      or (any_left and J.any_left_entry(cx, ids_of(args, k, stop)))
    local together = not slow and put_together(cx, args, k, stop)
    if together then
      for _, answer in ipairs(together) do answers[#answers + 1] = answer end
    else
      for j = k, stop, 2 do
        local place = (j - 5) / 2
        local answer
        answer, room = J.put_if_room(cx, room, place, args[j], args[j + 1], edges[place])
        answers[#answers + 1] = J.alias(cx, args[j], answer)
      end
    end
  end
  J.tie_all(cx)
  J.close(cx)
  J.look_again(cx, answers)
  return J.put_answer(cx, answers)
end
