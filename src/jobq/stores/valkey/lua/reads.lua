-- reads: reading jobs, counts and figures.
local STATE = J.STATE
local MAX_LOOKED_AT = 1000 -- records that one find looks at
local ALL_ERRORS = J.DEFAULT.errors -- all failed runs that are kept

-- Extras without the steps, which may be large.
local function without_steps(flat)
  local rest = {}
  for i = 1, #flat, 2 do
    if flat[i]:sub(1, 2) ~= EXTRA.step then
      rest[#rest + 1], rest[#rest + 2] = flat[i], flat[i + 1]
    end
  end
  return rest
end

-- A job as Python reads it: {id, state, record, run, extras flat or "", finished or "", reason,
-- result, last failed runs or ""}. `errors` is how many failed runs to include; the last one is
-- always needed, for the job's failure. Only a view with `errors` has the job's steps.
function J.view(cx, job, errors)
  local extras, failed = "", ""
  if J.has(job.rflags, RUN_FLAG.extras) then
    extras = call("HGETALL", cx.prefix .. KEY.extras .. job.id)
    if not errors then extras = without_steps(extras) end
    if job.failures + job.stalls + job.life > 0 then
      failed = call("LRANGE", cx.prefix .. KEY.failed_runs .. job.id, -(errors or 1), -1)
    end
  end
  local finished = job.finished and string.format("%.0f", job.finished) or ""
  return {
    job.id, job.state, job.rec, J.pack_run(job), extras, finished, job.reason or "",
    job.result or "", failed,
  }
end

-- get: jobs by id.
-- KEYS prefix
-- ARGS now, id, …
-- RETURNS a job (see J.view) or 0 per id
function J.get(keys, args)
  local cx, answers = J.open(keys[1], args[1], true), {}
  for i = 2, #args do
    local job = J.look(cx, args[i])
    answers[i - 1] = job and J.view(cx, job, ALL_ERRORS) or 0
  end
  return answers
end

-- logs: the log lines of a job.
-- KEYS prefix
-- ARGS now, id
-- RETURNS lines
function J.logs(keys, args)
  local now, id = unpack(args)
  local cx = J.open(keys[1], now, true)
  return J.look(cx, id) and call("LRANGE", cx.prefix .. KEY.log_lines .. id, 0, -1) or {}
end

-- The pages below end at the position `stop`, if it is given: one that `skip` has returned. They
-- return true as their third value when they have reached it. Only listings with the newest jobs
-- first have one.

-- How many of the ids in `found` (flat, with scores) come up to the position `stop`.
-- RETURNS the number, and whether the position was reached
local function up_to(key, found, stop)
  local score, member = stop:match("^([^\t]*)\t(.*)$")
  if not member then return 0, true end
  score = tonumber(score)
  local gone = not call("ZSCORE", key, member)
  for i = 1, #found, 2 do
    local id, of = found[i], tonumber(found[i + 1])
    if id == member and of == score then return (i + 1) / 2, true end
    if of < score or gone and of == score and id < member then return (i - 1) / 2, true end
  end
  return #found / 2, false
end

-- A page of a sorted set from after the position "score\tmember": highest scores first, or lowest
-- first if `oldest`.
-- RETURNS ids, and the position of the last one or nil at the end
local function page_of_set(key, position, n, oldest, stop)
  local z, last = oldest and "Z" or "ZREV", oldest and "+inf" or "-inf"
  local score, member = position:match("^([^\t]*)\t(.*)$")
  local found
  if not member then
    found = call(z .. "RANGE", key, 0, n - 1, "WITHSCORES")
  else
    local rank = call(z .. "RANK", key, member)
    if rank then
      found = call(z .. "RANGE", key, rank + 1, rank + n, "WITHSCORES")
    else -- the member has left the set: continue after where it was
      local same = call(z .. "RANGEBYSCORE", key, score, score)
      local skip = 0
      for i = 1, #same do
        if (same[i] > member) ~= oldest then skip = i end
      end
      found = call(z .. "RANGEBYSCORE", key, score, last, "WITHSCORES", "LIMIT", skip, n)
    end
  end
  local ids, count, ends = {}, #found / 2, false
  if stop then count, ends = up_to(key, found, stop) end
  for i = 1, count do ids[i] = found[2 * i - 1] end
  if ends or #ids < n then return ids, nil, ends end
  return ids, found[#found] .. "\t" .. ids[#ids]
end

-- A page of a waiting list from its end. The position is "priority\tpart\tplace". Places in a back
-- list count from when the list was new, so they stay right while entries are popped.
-- RETURNS entries, and the next position or nil at the end
local function page_of_list(cx, list, position, n, stop)
  local priority, part, place = position:match("^(%d+)\t(%a)\t(.*)$")
  priority, part = priority or "0", part or KEY.back
  local stop_priority, stop_part, stop_place = (stop or ""):match("^(%d+)\t(%a)\t(.*)$")
  local here = stop_priority == priority and stop_part == part
  if stop_priority and not here and (tonumber(priority) > tonumber(stop_priority)
    or priority == stop_priority and part == KEY.front) then return {}, nil, true end
  local entries, rest
  if part == KEY.back then
    local popped = priority == "0" and list:sub(-2) == KEY.plain_list and J.counters(cx).popped or 0
    local last = place and place ~= "" and tonumber(place) - 1 - popped
      or call("LLEN", list .. KEY.back .. priority) - 1
    -- Nothing of this part comes before the stop if its place is empty.
    local lowest = here and (stop_place == "" and last + 1 or tonumber(stop_place) - popped) or 0
    local first = math.max(last - n + 1, lowest, 0)
    entries = {}
    if last >= first then
      local found = call("LRANGE", list .. KEY.back .. priority, first, last)
      for i = #found, 1, -1 do entries[#entries + 1] = found[i] end
      if first > 0 then rest = priority .. "\tl\t" .. (first + popped) end
    end
    if here and first <= math.max(lowest, 0) then return entries, nil, true end
    if not rest then rest = priority .. "\tf\t" end
  else
    local ends
    entries, rest, ends = page_of_set(list .. KEY.front .. priority, place, n, false,
      here and stop_place or nil)
    if ends then return entries, nil, true end
    if rest then
      rest = priority .. "\tf\t" .. rest
    else
      local higher = call("ZRANGEBYSCORE", list .. KEY.priorities, "(" .. priority, "+inf",
        "LIMIT", 0, 1)[1]
      rest = higher and higher .. "\tl\t" or nil
    end
  end
  return entries, rest
end

-- Where a back list continues after the entry that was last read at a place. Other entries may have
-- been popped meanwhile, and that one too.
local function place_after(list, place, entry)
  if place < 0 then return 0 end
  if call("LINDEX", list, place) == entry then return place + 1 end
  local found = call("LPOS", list, entry, "MAXLEN", place + 1)
  return found and found + 1 or 0
end

-- A page of a waiting list from its front. The position is "priority\tpart\tplace", and in a back
-- list the place is followed by "\t" and the entry that was last read there.
-- RETURNS entries, and the next position or nil at the end
local function page_of_front(cx, list, position, n)
  local priority, part, place = position:match("^(%d+)\t(%a)\t(.*)$")
  priority = priority or call("ZREVRANGE", list .. KEY.priorities, 0, 0)[1] or "0"
  local entries, rest
  if (part or KEY.front) == KEY.front then
    entries, rest = page_of_set(list .. KEY.front .. priority, place or "", n, true)
    return entries, priority .. "\t" .. (rest and "f\t" .. rest or "l\t")
  end
  local popped = priority == "0" and list:sub(-2) == KEY.plain_list and J.counters(cx).popped or 0
  local last, entry = place:match("^(%d+)\t(.*)$")
  local back = list .. KEY.back .. priority
  local first = last and place_after(back, tonumber(last) - popped, entry) or 0
  entries = call("LRANGE", back, first, first + n - 1)
  if #entries == n then
    return entries, priority .. "\tl\t" .. (first + n - 1 + popped) .. "\t" .. entries[n]
  end
  local lower = call("ZREVRANGEBYSCORE", list .. KEY.priorities, "(" .. priority, "(0",
    "LIMIT", 0, 1)[1] or priority ~= "0" and "0"
  return entries, lower and lower .. "\tf\t" or nil
end

-- The same over the waiting lists of all keys. The position is "key\n" and the position in its
-- list.
local function page_of_keys(cx, position, n, oldest, stop)
  local keys_waiting = cx.prefix .. KEY.keys_waiting
  local stop_key, stop_inside = (stop or ""):match("^([^\n]*)\n(.*)$")
  local last = stop_key and "[" .. stop_key or "+"
  local key, inside = position:match("^([^\n]*)\n(.*)$")
  if not key then key = call("ZRANGEBYLEX", keys_waiting, "-", last, "LIMIT", 0, 1)[1] end
  if not key then return {}, nil, stop_key ~= nil end
  local list = cx.prefix .. KEY.key_list .. key .. ":"
  local page = oldest and page_of_front or page_of_list
  local entries, rest = page(cx, list, inside or "", n, key == stop_key and stop_inside or nil)
  if rest then return entries, key .. "\n" .. rest end
  local following = call("ZRANGEBYLEX", keys_waiting, "(" .. key, last, "LIMIT", 0, 1)[1]
  if following then return entries, following .. "\n" end
  return entries, nil, stop_key ~= nil
end

-- Where the jobs of a state are: sorted sets, or the waiting lists.
local WAITING = "line"
local SECTIONS = {
  [STATE.active] = { KEY.leases }, [STATE.delayed] = { KEY.delayed },
  [STATE.blocked] = { KEY.blocked }, [STATE.waiting] = { WAITING },
  [STATE.failed] = { KEY.failed, KEY.failed_given_id, KEY.failed_own_ttl },
  [STATE.completed] = { KEY.completed, KEY.completed_given_id, KEY.completed_own_ttl },
  [STATE.cancelled] = { KEY.cancelled, KEY.cancelled_given_id, KEY.cancelled_own_ttl },
}
-- The order in which a find without a state lists them.
local ALL = {
  STATE.active, STATE.waiting, STATE.delayed, STATE.blocked, STATE.failed, STATE.completed,
  STATE.cancelled,
}

local function sections_of(state)
  if state ~= "" then return SECTIONS[tonumber(state)] end
  local all = {}
  for _, s in ipairs(ALL) do
    for _, section in ipairs(SECTIONS[s]) do all[#all + 1] = section end
  end
  return all
end

local function page_of(cx, section, position, n, oldest, stop)
  if stop and position == stop then return {}, nil, true end
  if section ~= WAITING then return page_of_set(cx.prefix .. section, position, n, oldest, stop) end
  if J.meta(cx).mode == "keyed" then return page_of_keys(cx, position, n, oldest, stop) end
  local page = oldest and page_of_front or page_of_list
  return page(cx, cx.prefix .. KEY.plain_list, position, n, stop)
end

-- The job of an entry, if the entry is not stale.
local function current(cx, entry)
  local id, life, ticket = J.entry_parts(entry)
  local job = J.load(cx, id)
  if job and job.state == STATE.waiting and job.life == life and job.ticket == ticket then
    return job
  end
end

-- The section of a cursor, and the position in it.
local function place_of(cursor)
  local number, position = cursor:match("^(%d+)|(.*)$")
  return tonumber(number or 1), position or ""
end

-- find: a page of jobs.
-- KEYS prefix
-- ARGS now, state or "", task name packed or "", key or "", cursor ("section|position") or "",
--   limit, "1" for the oldest first, the cursor at which the listing ends or ""
-- RETURNS {cursor or "", job (see J.view), …}
function J.find(keys, args)
  local now, state, name, key, cursor, limit = unpack(args, 1, 6)
  local oldest = args[7] == "1"
  local cx, sections = J.open(keys[1], now, true), sections_of(state)
  limit = tonumber(limit)
  local number, position = place_of(cursor)
  local last, stop = #sections
  if args[8] ~= "" then last, stop = place_of(args[8]) end
  local answers, looked = { "" }, 0
  while number <= last and #answers <= limit and looked < MAX_LOOKED_AT do
    local section = sections[number]
    local n = math.min(limit + 1 - #answers, 100)
    local entries, rest = page_of(cx, section, position, n, oldest, number == last and stop or nil)
    for i = 1, #entries do
      local job
      if section == WAITING then
        job = current(cx, entries[i])
      else
        job = J.look(cx, (J.entry_parts(entries[i])))
      end
      if job and name ~= "" and job.nk:sub(1, #name) ~= name then job = nil end
      if job and key ~= "" and select(2, J.name_key(job)) ~= key then job = nil end
      if job then answers[#answers + 1] = J.view(cx, job) end
    end
    looked = looked + math.max(#entries, 1)
    if rest then position = rest else number, position = number + 1, "" end
  end
  if number <= last then answers[1] = number .. "|" .. position end
  return answers
end

-- skip: the cursor after so many entries, or after fewer if they are in many lists. Entries that
-- are stale count.
-- KEYS prefix
-- ARGS now, state or "", cursor ("section|position") or "", how many
-- RETURNS the cursor, or "" at the end of the listing
function J.skip(keys, args)
  local now, state, cursor, left = unpack(args)
  local cx, sections = J.open(keys[1], now, true), sections_of(state)
  local number, position = place_of(cursor)
  local pages = 0
  left = tonumber(left)
  while sections[number] and left > 0 and pages < MAX_LOOKED_AT do
    local entries, rest = page_of(cx, sections[number], position, math.min(left, 1000), false)
    left, pages = left - #entries, pages + 1
    if rest then position = rest else number, position = number + 1, "" end
  end
  return sections[number] and number .. "|" .. position or ""
end

local function counts(cx)
  local prefix = cx.prefix
  return {
    call("ZCARD", prefix .. KEY.delayed), call("ZCARD", prefix .. KEY.blocked),
    J.counters(cx).waiting, call("ZCARD", prefix .. KEY.leases), J.ended_count(cx, STATE.completed),
    J.ended_count(cx, STATE.failed), J.ended_count(cx, STATE.cancelled),
  }
end

-- count: how many jobs are in each state.
-- KEYS prefix
-- RETURNS seven numbers, in the order of the states' codes
function J.count(keys) return counts({ prefix = keys[1] }) end

-- How long the next job of the waiting list has been waiting, in ms; -1 if none is.
local function oldest(cx)
  local list = cx.prefix .. KEY.plain_list
  if J.meta(cx).mode == "keyed" then
    local key = call("ZRANGE", cx.prefix .. KEY.keys_ready, 0, 0)[1]
      or call("ZRANGE", cx.prefix .. KEY.keys_waiting, 0, 0)[1]
    if not key then return -1 end
    list = cx.prefix .. KEY.key_list .. key .. ":"
  end
  local priority = call("ZREVRANGE", list .. KEY.priorities, 0, 0)[1] or "0"
  local entries = call("ZRANGE", list .. KEY.front .. priority, 0, 9)
  for _, entry in ipairs(call("LRANGE", list .. KEY.back .. priority, 0, 99)) do
    entries[#entries + 1] = entry
  end
  for i = 1, #entries do
    local job = current(cx, entries[i])
    if job then return math.max(0, cx.now - job.due) end
  end
  return -1
end

-- stats: the state of a queue.
-- KEYS prefix
-- ARGS now
-- RETURNS {counts, paused, mode or "", oldest waiting ms or -1, next due ms or -1, when its hold
--   ends or ""}
function J.stats(keys, args)
  local cx = J.open(keys[1], args[1], true)
  local meta = J.meta(cx)
  local due = call("ZRANGE", cx.prefix .. KEY.delayed, 0, 0, "WITHSCORES")[2]
  return {
    counts(cx), meta.paused == "1" and 1 or 0, meta.mode or "", oldest(cx),
    due and math.max(0, math.floor(tonumber(due)) - cx.now) or -1, J.held_until(cx),
  }
end

-- metrics: the figures of past minutes and of the current one.
-- KEYS prefix
-- ARGS now, minutes
-- RETURNS {minute, its figures flat, …}
function J.metrics(keys, args)
  local cx, minutes = J.open(keys[1], args[1], true), math.min(tonumber(args[2]), 1440)
  local this, answers = cx.now - cx.now % 60000, {}
  for n = minutes - 1, 0, -1 do
    local minute = this - n * 60000
    local figures = minute == J.counters(cx).minute and J.this_minute(cx)
      or call("HGETALL", cx.prefix .. KEY.minute .. minute)
    if #figures > 0 then
      answers[#answers + 1] = string.format("%.0f", minute)
      answers[#answers + 1] = figures
    end
  end
  return answers
end
