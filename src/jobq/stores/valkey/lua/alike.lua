-- alike: jobs that differ in id and payload only, and simply wait: most of all there are. They come as two strings, each cut by
-- one call, and are told of by one event that says once what they have in common.
local rep, remove = string.rep, table.remove
local MOST = 500 -- jobs per command: each is two of its arguments

-- All of them at once. RETURNS whether it was done: not if an id is taken
local function put_together(cx, head, ids, records)
  if call("MSETNX", unpack(records)) == 0 then return false end
  call("RPUSH", cx.prefix .. KEY.plain_back_0, unpack(ids))
  J.wait(cx, #ids)
  J.add(cx, "accepted", #ids)
  J.tell_accepted(cx, head:sub(3), ids)
  return true
end

-- put_alike. KEYS 1 prefix
-- ARGS now, jobs, head (what their bodies begin with, and no options: see record), length of an id, ids, per job: \0, #payload I4, payload
-- RETURNS as put
function J.put_alike(keys, args)
  local now, count, head, width, all_ids, payloads = unpack(args)
  local cx = J.open(keys[1], now)
  local wrong = J.refusal(cx, 1, 0, 1)
  if wrong then return wrong end
  J.fix_mode(cx, head)
  local job, start, answers, id_at, at = cx.prefix .. KEY.job, cx.now6 .. head, {}, 1, 1
  local tombs = call("EXISTS", cx.prefix .. KEY.next_lives) == 1
  count = tonumber(count)
  local room = J.room(cx)
  if room and room >= count then room = nil end -- all of them fit
  for first = 0, count - 1, MOST do
    local n = math.min(MOST, count - first)
    local ids = { sunpack(rep("c" .. width, n), all_ids, id_at) }
    local records = { sunpack(">" .. rep("c1I4c0", n), payloads, at) } -- per job: what its key is put in the place of, and its payload
    id_at, at = remove(ids), remove(records)
    for i = 1, n do
      records[2 * i - 1], records[2 * i] = job .. ids[i], start .. records[2 * i]
    end
    if room or (tombs and J.any_tomb(cx, ids)) or not put_together(cx, head, ids, records) then
      for i = 1, n do
        local answer
        answer, room = J.put_if_room(cx, room, first + i, ids[i], records[2 * i]:sub(7))
        answers[#answers + 1] = J.alias(cx, ids[i], answer)
      end
    end
  end
  J.close(cx)
  return J.put_answer(cx, answers)
end
