-- waiting: the waiting lists. A plain queue has one (KEY.plain_list), a keyed queue has one per key
-- (KEY.key_list). A waiting list has two parts per priority. KEY.back is a list, first in, first
-- out. KEY.front is a sorted set that is claimed before it: jobs that came back, by the place they
-- had, and lifo jobs. KEY.priorities holds the priorities above 0 that have entries.
--
-- An entry is the job's id, with its life and ticket unless both are 0. A job that leaves the
-- waiting list leaves its entry there, because removing it would scan the list. The ticket shows
-- that such an entry is stale when it is popped: no two entries of an id have the same, whatever
-- becomes of the job. (The life does so for entries of older versions.) KEY.left counts the stale
-- entries of an id, and has a ticket that none of them has. While there are any, a new job of the
-- id takes that ticket, even if the record of the job that left them is gone.
local MAX_TICKET = 65535
-- Older versions stored a number here, and RUN_FLAG.left_entry: some entries, with low tickets.
J.LEFT_BEFORE = "1.32768"

-- RETURNS how many entries the jobs of an id have left, and a ticket that none of them has
local function left(cx, id)
  local found = call("HGET", cx.prefix .. KEY.left, id)
  if not found then return 0, 0 end
  local n, ticket = (found:find(".", 1, true) and found or J.LEFT_BEFORE):match("^(%d+)%.(%d+)$")
  return tonumber(n), tonumber(ticket)
end

-- The ticket of a new job.
function J.first_ticket(cx, id) return (select(2, left(cx, id))) end

-- A job leaves the waiting list, and its entry becomes stale. The caller saves the run, which holds
-- the job's ticket.
function J.leave_entry(cx, job)
  local n, ticket = left(cx, job.id)
  job.ticket = math.max(job.ticket, ticket) % MAX_TICKET + 1
  call("HSET", cx.prefix .. KEY.left, job.id, J.whole(n + 1) .. "." .. J.whole(job.ticket))
end

-- A stale entry of an id was popped.
function J.entry_gone(cx, id)
  local n, ticket = left(cx, id)
  if n > 1 then
    call("HSET", cx.prefix .. KEY.left, id, J.whole(n - 1) .. "." .. J.whole(ticket))
  elseif n == 1 then
    call("HDEL", cx.prefix .. KEY.left, id)
  end
end

-- The waiting list of a job. RETURNS its key, and the job's key in a keyed queue
function J.list_of(cx, job)
  if J.meta(cx).mode == "keyed" then
    local _, key = J.name_key(job)
    if key then return cx.prefix .. KEY.key_list .. key .. ":", key end
  end
  return cx.prefix .. KEY.plain_list, nil
end

-- The counters say whether any waiting list of the queue has more than entries of priority 0.
local function note_priority(cx, list, priority)
  if priority > 0 then
    J.take_numbers(cx, "priorities", call("ZADD", list .. KEY.priorities, priority, priority))
  end
end

-- Add entries behind those of the same priority.
function J.push_back(cx, list, priority, entries)
  J.variadic("RPUSH", list .. KEY.back .. priority, entries)
  note_priority(cx, list, priority)
end

-- Add an entry in front, at the place `order` among the entries there.
function J.push_front(cx, list, priority, entry, order)
  J.take_numbers(cx, "fronts", call("ZADD", list .. KEY.front .. priority, order, entry))
  note_priority(cx, list, priority)
end

local NO_PLACES = {}

-- Take up to n entries. Entries in front end the batch: a claim may have to put one back (a last
-- chance) and would then have to put back those behind it as well.
-- RETURNS entries, and the places of those that were in front
function J.pop(cx, list, n)
  local entries, orders, got = {}, NO_PLACES, 0
  local c = J.counters(cx)
  while got < n do
    local top = c.priorities > 0 and call("ZREVRANGE", list .. KEY.priorities, 0, 0)[1] or nil
    local priority = top or "0"
    if c.fronts > 0 then
      local front = call("ZPOPMIN", list .. KEY.front .. priority, n - got)
      if orders == NO_PLACES then orders = {} end
      for i = 1, #front, 2 do
        got = got + 1
        entries[got], orders[got] = front[i], tonumber(front[i + 1])
      end
      c.fronts = c.fronts - #front / 2
      if #front > 0 then return entries, orders end
    end
    if got < n then
      local back = call("LPOP", list .. KEY.back .. priority, J.whole(n - got))
      if back then
        if not top then c.popped = c.popped + #back end
        if got == 0 then
          entries, got = back, #back
        else
          for i = 1, #back do entries[got + i] = back[i] end
          got = got + #back
        end
      end
    end
    if got < n then
      if not top then break end
      local gone = call("ZREM", list .. KEY.priorities, top)
      c.priorities = c.priorities - gone
    end
  end
  return entries, orders
end

-- Which of these keys still have a waiting list (stale entries count). Usually one command finds
-- out.
-- RETURNS true or false per key
function J.keys_with_entries(cx, keys)
  local c, lists, standing = J.counters(cx), {}, {}
  for i = 1, #keys do lists[i] = cx.prefix .. KEY.key_list .. keys[i] .. KEY.key_back_0 end
  local all = #lists > 0 and #lists <= J.CHUNK and call("EXISTS", unpack(lists)) == #lists
  for i = 1, #keys do
    standing[i] = all or call("EXISTS", lists[i]) == 1
    if not standing[i] and (c.fronts > 0 or c.priorities > 0) then
      local list = cx.prefix .. KEY.key_list .. keys[i] .. ":"
      standing[i] = call("EXISTS", list .. KEY.front_0, list .. KEY.priorities) > 0
    end
  end
  return standing
end

-- A place in front of all others, for lifo jobs. The next one is in front of it.
function J.place_in_front(cx) return J.take_numbers(cx, "lifo", -1) - 1 end

-- Add a job to its waiting list: "back", "front" (at the place it had) or "first" (in front of
-- all).
function J.enqueue(cx, job, where)
  local list, key = J.list_of(cx, job)
  local priority = J.options(job).priority or 0
  if where == "first" then job.order, where = J.place_in_front(cx), "front" end
  if where == "front" then
    J.push_front(cx, list, priority, J.entry(job), job.order)
  else
    J.push_back(cx, list, priority, { J.entry(job) })
  end
  J.count_waiting(cx, 1)
  if key then J.key_touched(cx, key) end
end
