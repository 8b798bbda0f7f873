-- uniform: put jobs that differ in id and payload only and can start at once. Most jobs are like
-- this. They arrive as two strings, each split by one call, and are logged as one event entry that
-- states once what they have in common.
local rep, remove = string.rep, table.remove
local MAX_JOBS = 500 -- per MSETNX: each job is two of its arguments

-- Put all of them at once. RETURNS false, and does nothing, if an id is taken
local function put_together(cx, head, ids, records)
  if call("MSETNX", unpack(records)) == 0 then return false end
  call("RPUSH", cx.prefix .. KEY.plain_back_0, unpack(ids))
  J.count_waiting(cx, #ids)
  J.add(cx, "accepted", #ids)
  J.log_accepted(cx, head:sub(BODY.short_nk_at), ids)
  return true
end

-- put_uniform: put jobs that differ in id and payload only.
-- KEYS prefix
-- ARGS now, number of jobs, head (what their bodies begin with, without options; see RECORD in
--   fields.lua), length of an id, ids, then per job: \0, #payload I4, payload
-- RETURNS as put
function J.put_uniform(keys, args)
  local now, count, head, width, all_ids, payloads = unpack(args)
  local cx = J.open(keys[1], now)
  local wrong = J.refusal(cx, 1, 0, 1)
  if wrong then return wrong end
  J.fix_mode(cx, head)
  local job, start, answers, id_at, at = cx.prefix .. KEY.job, cx.now6 .. head, {}, 1, 1
  local any_left = call("EXISTS", cx.prefix .. KEY.left) == 1
  count = tonumber(count)
  local room = J.room(cx)
  if room and room >= count then room = nil end -- all of them fit
  for first = 0, count - 1, MAX_JOBS do
    local n = math.min(MAX_JOBS, count - first)
    local ids = { sunpack(rep("c" .. width, n), all_ids, id_at) }
    -- Two values per job: one that its key replaces below, and its payload.
    local records = { sunpack(">" .. rep("c1I4c0", n), payloads, at) }
    id_at, at = remove(ids), remove(records)
    for i = 1, n do
      records[2 * i - 1], records[2 * i] = job .. ids[i], start .. records[2 * i]
    end
    if room or J.meta(cx).ttl or (any_left and J.any_left_entry(cx, ids))
      or not put_together(cx, head, ids, records) then
      for i = 1, n do
        local answer
        local body = records[2 * i]:sub(RECORD.body_at)
        answer, room = J.put_if_room(cx, room, first + i, ids[i], body)
        answers[#answers + 1] = J.alias(cx, ids[i], answer)
      end
    end
  end
  J.close(cx)
  return J.put_answer(cx, answers)
end
