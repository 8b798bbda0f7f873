-- commands: variadic commands over lists of any length, sent in chunks.

-- Arguments per command. Lua's stack holds 8,000 values at most.
local CHUNK = 1000
J.CHUNK = CHUNK

-- Call fn(first, last) for each chunk of a flat list. `step` values belong together and stay
-- together.
function J.each_chunk(list, step, fn)
  local size = CHUNK - CHUNK % step
  for first = 1, #list, size do
    fn(first, math.min(first + size - 1, #list))
  end
end

-- A command with a key and a list of arguments; nothing for an empty list.
function J.variadic(command, key, list, step)
  local n = #list
  if n == 0 then return end
  if n <= CHUNK then return call(command, key, unpack(list)) end
  J.each_chunk(list, step or 1, function(first, last)
    call(command, key, unpack(list, first, last))
  end)
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

-- A table from a flat reply: field, value, …
function J.pairs_of(flat)
  local map = {}
  for i = 1, #flat, 2 do map[flat[i]] = flat[i + 1] end
  return map
end
