-- base: what every other file of the library stands on: names, codes, packing, and the context of one call.
-- All files share the table J, and the server's functions as call, mpack, munpack, spack, sunpack and null: each is wrapped in a block of its own.
--
-- A context `cx` is opened by a function with its first key and argument, gathers what the call does, and is closed
-- once: the event log, the counters, the minute's figures and the wake-ups are then written, so that they cannot
-- disagree with the jobs.
local char, format, floor = string.char, string.format, math.floor

-- What a record's producer asked for, so that the hot paths need not look into its options.
J.GIVEN, J.AT_PUT, J.AT_START, J.AT_END = 1, 2, 4, 8
J.MORE, J.LATER = 16, 64 -- which form the record has: see record.lua
-- What a run carries: it is leased, asked to stop, has extras, is waited for by jobs, is listened for, left an entry in line, is
-- the job's last chance.
J.ACTIVE, J.CANCEL, J.EXTRA, J.WANTED, J.WATCHED, J.LEFT, J.LAST = 1, 2, 4, 8, 16, 32, 64
J.NIL = "\192"
local CHUNK = 1000 -- of variadic commands: Lua's stack holds 8,000 values at most
J.CHUNK = CHUNK
J.ORDER = 2 ^ 47 -- added to places in line when packed: they may be negative

function J.has(flags, bit) return floor(flags / bit) % 2 == 1 end
function J.with(flags, bit) return J.has(flags, bit) and flags or flags + bit end
function J.without(flags, bit) return J.has(flags, bit) and flags - bit or flags end

-- MessagePack by hand: the pieces of an event are strings that are joined once.
function J.str_head(n)
  if n < 32 then return char(160 + n) end
  if n < 256 then return "\217" .. char(n) end
  if n < 65536 then return "\218" .. spack(">I2", n) end
  return "\219" .. spack(">I4", n)
end
function J.pstr(s) return J.str_head(#s) .. s end
function J.pint(n) return n < 128 and char(n) or mpack(n) end
function J.parray(n)
  if n < 16 then return char(144 + n) end
  if n < 65536 then return "\220" .. spack(">I2", n) end
  return "\221" .. spack(">I4", n)
end
-- The head of a string up to 31 long, for the hot paths: joined with the rest, it costs no string of its own.
J.STR = {}
for n = 0, 31 do J.STR[n] = char(160 + n) end
-- Numbers of one byte and of two, as strings that are there already.
J.BYTE, J.TWO = {}, {}
for n = 0, 255 do J.BYTE[n] = char(n) end
for n = 0, 1023 do J.TWO[n] = char(floor(n / 256), n % 256) end
function J.two(n) return J.TWO[n] or spack(">I2", n) end
function J.pmaybe(s) return s and J.pstr(s) or "\192" end
-- A whole number as text, ready for commands: given as a number it is printed with "%.17g", each time it is given.
J.TEXT = {}
for n = 0, 1023 do J.TEXT[n] = format("%d", n) end
function J.whole(n) return J.TEXT[n] or format("%.0f", n) end
function J.six(ms) return spack(">I6", ms) end

-- Variadic commands over a flat list of any length.
function J.each_chunk(list, step, fn)
  local size = CHUNK - CHUNK % step
  for first = 1, #list, size do
    fn(first, math.min(first + size - 1, #list))
  end
end
function J.variadic(command, key, list, step)
  local n = #list
  if n == 0 then return end
  if n <= CHUNK then return call(command, key, unpack(list)) end
  J.each_chunk(list, step or 1, function(first, last) call(command, key, unpack(list, first, last)) end)
end
function J.mget(keys)
  local n, all = #keys, {}
  if n == 0 then return all end
  if n <= CHUNK then return call("MGET", unpack(keys)) end
  J.each_chunk(keys, 1, function(first, last)
    local part = call("MGET", unpack(keys, first, last))
    for i = 1, #part do all[first + i - 1] = part[i] end
  end)
  return all
end
function J.hmget(key, fields)
  local n, all = #fields, {}
  if n == 0 then return all end
  if n <= CHUNK then return call("HMGET", key, unpack(fields)) end
  J.each_chunk(fields, 1, function(first, last)
    local part = call("HMGET", key, unpack(fields, first, last))
    for i = 1, #part do all[first + i - 1] = part[i] end
  end)
  return all
end
function J.mset(pairs_)
  if #pairs_ <= CHUNK then return call("MSET", unpack(pairs_)) end
  J.each_chunk(pairs_, 2, function(first, last) call("MSET", unpack(pairs_, first, last)) end)
end
function J.pairs_of(flat)
  local map = {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end

local THREE = {}
for n = 0, 999 do THREE[n] = format("%03d", n) end

-- A time as text. Seconds are printed once: many calls come within one.
local second, second_text
function J.stamp(ms)
  local s = floor(ms / 1000)
  if s ~= second then second, second_text = s, format("%.0f", s) end
  return second_text .. THREE[ms - 1000 * s]
end

local function tell_time(cx, now)
  cx.now, cx.now_text, cx.now6, cx.minute = now, format("%.0f", now), spack(">I6", now), now - now % 60000
end

-- Open the context of one call. `now` is the caller's clock in ms, or "" for the server's. `reading`: the call may not write.
-- The time of a queue never goes back: when its clock does, cx.ahead is how far it is behind (see clock.lua).
function J.open(prefix, now, reading)
  local text = now
  if now == "" or now == nil then
    local time = call("TIME")
    local ms = floor(time[2] / 1000)
    now, text = time[1] * 1000 + ms, time[1] .. THREE[ms]
  else
    now = tonumber(now)
  end
  local cx = {
    P = prefix, prefix = prefix, now = now, now_text = text, now6 = spack(">I6", now), logs = {}, woken = 0, minute = now - now % 60000, outbox = 0, ahead = 0,
  }
  if prefix ~= "" then
    local seen = J.counters(cx).seen
    if now < seen or J.meta(cx).behind then
      if now < seen then tell_time(cx, seen) end
      tell_time(cx, J.steady(cx, now, seen, reading))
      cx.ahead = cx.now - now
    end
  end
  return cx
end

local META = {
  "mode", "paused", "limit", "rate", "key_limit", "key_rate", "held", "listened", "dead", "keep4", "keep5", "keep6", "count",
  "parts", "partitions", "gone", "max_waiting", "event_meta", "behind",
}
local known, known_n, KNOWN = {}, 0, 1000 -- texts taken apart before

-- What is stored about the queue and concerns jobs. It travels with the counters, so that a call need not ask for it; the same
-- text is the same table, which nobody changes.
function J.meta(cx)
  local meta = cx.meta
  if not meta then
    local text = J.counters(cx).meta
    meta = known[text]
    if not meta then
      meta = text == "" and {} or munpack(text)
      meta.limit, meta.key_limit = tonumber(meta.limit), tonumber(meta.key_limit)
      if meta.max_waiting then
        local share, whole = meta.max_waiting:match("^(%d+)/(%d+)$")
        meta.max_waiting, meta.max_whole = tonumber(share), tonumber(whole)
      end
      if known_n >= KNOWN then known, known_n = {}, 0 end
      known[text], known_n = meta, known_n + 1
    end
    cx.meta = meta
  end
  return meta
end

-- Something of it has changed in m: note it where calls look. Whoever writes a field of META calls this.
function J.meta_changed(cx)
  local values, set = call("HMGET", cx.prefix .. KEY.settings, unpack(META)), {}
  for i = 1, #META do
    if values[i] then set[META[i]] = values[i] end
  end
  J.counters(cx).meta = next(set) and mpack(set) or ""
  cx.meta = nil
  J.save_counters(cx)
end

-- Write what the call did.
function J.close(cx)
  J.deliver_local(cx)
  J.keys_flush(cx)
  J.log_flush(cx)
  if cx.woken > 0 then J.wake(cx, cx.woken) end
  J.tell_flush(cx)
  J.save_counters(cx, true)
end
