-- bytes: flags, MessagePack by hand, and numbers as bytes or text.
-- All files share the table J and these locals: call, mpack, munpack, spack, sunpack and null.
-- The build wraps each file in a block of its own, so other locals stay private to their file.
local char, format, floor = string.char, string.format, math.floor

function J.has(flags, bit) return floor(flags / bit) % 2 == 1 end
function J.with(flags, bit) return J.has(flags, bit) and flags or flags + bit end
function J.without(flags, bit) return J.has(flags, bit) and flags - bit or flags end

-- MessagePack by hand: the parts of an event are strings that are joined once.
function J.str_head(n)
  if n < 32 then return char(PACK.small_text + n) end
  if n < 256 then return PACK.text8 .. char(n) end
  if n < 65536 then return PACK.text16 .. spack(">I2", n) end
  return PACK.text32 .. spack(">I4", n)
end
function J.pstr(s) return J.str_head(#s) .. s end
function J.pint(n) return n < 128 and char(n) or mpack(n) end
function J.parray(n)
  if n < 16 then return char(PACK.small_array + n) end
  if n < 65536 then return PACK.array16 .. spack(">I2", n) end
  return PACK.array32 .. spack(">I4", n)
end
function J.pmaybe(s) return s and J.pstr(s) or PACK.none end

-- Tables of strings that exist already. The hot paths join them with other strings, which saves
-- making a new string per job.
J.STR = {} -- heads of texts up to 31 bytes long
for n = 0, 31 do J.STR[n] = char(PACK.small_text + n) end
J.BYTE, J.TWO = {}, {} -- numbers in one byte and in two
for n = 0, 255 do J.BYTE[n] = char(n) end
for n = 0, 1023 do J.TWO[n] = char(floor(n / 256), n % 256) end
function J.two(n) return J.TWO[n] or spack(">I2", n) end
function J.six(ms) return spack(">I6", ms) end

-- A whole number as text, for commands. The server prints a number with "%.17g" each time it is an
-- argument; text is used as it is.
J.TEXT = {}
for n = 0, 1023 do J.TEXT[n] = format("%d", n) end
function J.whole(n) return J.TEXT[n] or format("%.0f", n) end

-- Added to a place in the waiting list when it is packed: places may be negative.
J.ORDER = 2 ^ 47
