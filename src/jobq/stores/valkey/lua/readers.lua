-- readers: reading the event log, and how far its readers have come.

-- events: entries of the log.
-- KEYS prefix
-- ARGS after ("" for the end of the log, "0" for its beginning), number of entries
-- RETURNS {name of the log, position, and if entries were dropped after `after`: how many events
--   ever, up to where, in which incarnation; then {position, entry, …}}
function J.events(keys, args)
  local prefix, after, entries = keys[1], unpack(args)
  local tag, gone, gone_to, gone_in = unpack(call("HMGET", prefix .. KEY.settings, SETTING.tag,
    SETTING.gone, SETTING.gone_to, SETTING.gone_in))
  local flat, position = {}, after
  if after == "" then
    local last = call("XREVRANGE", prefix .. KEY.log, "+", "-", "COUNT", 1)[1]
    return { tag or "", last and last[1] or "0", "", "", "", {} }
  end
  local from = after == "0" and "-" or "(" .. after
  for _, entry in ipairs(call("XRANGE", prefix .. KEY.log, from, "+", "COUNT", entries)) do
    flat[#flat + 1] = entry[1]
    flat[#flat + 1] = entry[2][4]
    position = entry[1]
  end
  if gone_to and J.after(gone_to, after) then
    return { tag or "", position, gone, gone_to, gone_in or "", flat }
  end
  return { tag or "", position, "", "", "", flat }
end

-- ack: register a reader, or move it on. A reader never moves back.
-- KEYS prefix
-- ARGS reader, position or "" to ask for it
-- RETURNS the reader's position, or ""
function J.ack(keys, args)
  local prefix, reader, position = keys[1], args[1], args[2]
  local current = call("HGET", prefix .. KEY.readers, reader)
  if position ~= "" and (not current or J.after(position, current)) then
    call("HSET", prefix .. KEY.readers, reader, position)
    current = position
  end
  return current or ""
end
