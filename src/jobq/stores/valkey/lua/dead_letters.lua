-- dead_letters: copies of failed jobs in the dead-letter queue. Copies core/rules/ended.py.

-- The id of a copy whose first id belongs to the copy of another failure.
-- Copies core/rules/ended.py: second_letter_id.
local function second_letter_id(m)
  local text = m.origin .. "/" .. J.whole(m.life) .. "/" .. J.whole(m.number)
  local longest = J.DEFAULT.id_length
  if J.tail(text, longest) == text then return text end
  return redis.sha1hex(text) .. "/" .. J.tail(text, longest - 41)
end

-- Put the copy of a failed job under its second id. In a partitioned queue that id may belong to
-- another partition.
local function put_second_letter(cx, m)
  m.id, m.second = second_letter_id(m), 1
  local base = call("HGET", cx.prefix .. KEY.settings, SETTING.base)
  if base and base ~= cx.prefix then return J.post(cx, base, m) end
  return J.MAIL.letter(cx, m)
end

-- Put the copy of a failed job. Copies core/rules/ended.py: letter_key. The message may arrive
-- twice, so a copy stores the number of its failure. A message that was sent to a partitioned queue
-- as a whole is left to a caller that knows its partitions.
function J.MAIL.letter(cx, m)
  local partitions = J.meta(cx).partitions
  if partitions and partitions ~= "1" then return "later" end
  local mode = J.meta(cx).mode or (m.key and "keyed" or "plain")
  local key = mode == "keyed" and (m.key or m.from) or nil
  local nk = J.pstr(m.name) .. J.pmaybe(key)
  local opts = { origin = m.origin, letter = m.number }
  for _, name in ipairs(J.LETTER) do opts[name] = m[name] end
  local body = J.compose(0, FLAG.given_id, 0, 0, nk, mpack(opts), m.payload):sub(RECORD.body_at)
  J.fix_mode(cx, body)
  local answer = J.put_one(cx, 1, m.id, body)
  if not answer[5] then
    if not m.kept then return end
    local copy = J.load(cx, m.id)
    J.extra(cx, copy, EXTRA.failure, J.copied_failure(m.kept))
    return J.save_run(cx, copy)
  end
  -- The message has arrived before, or an earlier version of jobq has sent it.
  if m.second or not m.number then return end
  local readable, found = pcall(J.options, J.look(cx, m.id))
  local same = readable and found.origin == m.origin and found.letter == m.number
  if not same then put_second_letter(cx, m) end
end

-- Send a copy of a failed job to the dead-letter queue. The original stays failed. `number` is that
-- of the event that recorded the failure. Copies core/rules/ended.py: letter_id, origin.
function J.forward(cx, job, opts, number)
  local target, from = J.meta(cx).dead:match("^([^\n]*)\n(.*)$")
  if target == cx.prefix
    or target == call("HGET", cx.prefix .. KEY.settings, SETTING.base) then return end
  local name, key = J.name_key(job)
  local origin = from .. "/" .. job.id
  local m = {
    type = "letter", id = J.tail(origin .. "/" .. job.life, J.DEFAULT.id_length), name = name,
    key = key, from = from, origin = origin, payload = J.payload(job),
    kept = J.kept_failure(cx, job.id), life = job.life, number = number,
  }
  for _, option in ipairs(J.LETTER) do m[option] = opts[option] end
  J.post(cx, target, m)
end
