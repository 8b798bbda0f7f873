-- keyed: keys of a keyed queue. A key is ready when jobs of it wait, fewer than its limit are active, and nothing holds it.
-- ks: keys with a line · r: ready keys by turn · a: active jobs per key (none: no field) · hd: held keys, until when · kl: limits of single keys
-- · kr:<key>: the state of its rate limit. A key with nothing waiting, active or limited leaves nothing behind.

local function of(cx, key)
  if not cx.keys then cx.keys, cx.key_order = {}, {} end
  local state = cx.keys[key]
  if not state then
    state = { freed = 0, pushed = false }
    cx.keys[key] = state
    cx.key_order[#cx.key_order + 1] = key
  end
  return state
end
function J.key_freed(cx, key)
  local state = of(cx, key)
  state.freed = state.freed + 1
end
function J.key_touched(cx, key) of(cx, key).pushed = true end

-- Limits of a key: {limit, rate} with what is set for it alone first. Overrides are "limit|rate", either may be empty.
function J.key_limits(cx, key)
  local meta = J.meta(cx)
  if cx.overrides == nil then cx.overrides = call("EXISTS", cx.prefix .. KEY.key_limits) == 1 end
  local limit, rate = meta.key_limit or J.DEFAULT.key_limit, meta.key_rate
  if cx.overrides then
    local own = call("HGET", cx.prefix .. KEY.key_limits, key)
    if own then
      local l, r = own:match("^([^|]*)|([^|]*)")
      limit = tonumber(l) or limit
      if r ~= "" then rate = r end
    end
  end
  return limit, rate
end

-- Write what happened to keys: their active jobs, and which of them are ready now. Runs before a claim and at the end.
function J.keys_flush(cx)
  if not cx.keys then return end
  local prefix, names = cx.prefix, cx.key_order
  local active = J.hmget(prefix .. KEY.keys_active, names)
  local lines = call("ZMSCORE", prefix .. KEY.keys_waiting, unpack(names, 1, math.min(#names, J.CHUNK)))
  local any_held = call("EXISTS", prefix .. KEY.keys_skipped) == 1
  local set, drop, ready, standing = {}, {}, {}, {}
  for i = 1, #names do
    local key = names[i]
    local state, n = cx.keys[key], tonumber(active[i] or 0)
    if state.freed > 0 then
      n = math.max(n - state.freed, 0)
      if n == 0 then drop[#drop + 1] = key else
        set[#set + 1] = key
        set[#set + 1] = n
      end
    end
    if state.pushed then
      standing[#standing + 1] = 0
      standing[#standing + 1] = key
    end
    if n < J.key_limits(cx, key) and not (any_held and call("ZSCORE", prefix .. KEY.keys_skipped, key))
      and (state.pushed or lines[i] or i > J.CHUNK) then
      ready[#ready + 1] = key
    end
  end
  J.variadic("HSET", prefix .. KEY.keys_active, set, 2)
  J.variadic("HDEL", prefix .. KEY.keys_active, drop)
  J.variadic("ZADD", prefix .. KEY.keys_waiting, standing, 2)
  cx.keys = nil
  J.take_turns(cx, ready)
end

-- Keys that are ready get their turn behind all others; those that have one keep it.
function J.take_turns(cx, keys, quietly)
  if #keys == 0 then return end
  local turn = J.take_numbers(cx, "turn", #keys)
  local list = {}
  for i = 1, #keys do
    list[2 * i - 1], list[2 * i] = turn + i, keys[i]
  end
  J.each_chunk(list, 2, function(first, last) call("ZADD", cx.prefix .. KEY.keys_ready, "NX", unpack(list, first, last)) end)
  if not quietly then cx.woken = math.max(cx.woken, #keys) end
end

-- Count the active jobs of each key again: the record of an active job was lost, and with it the name of the key whose place it took.
-- By the number of active jobs; it happens only when something outside of jobq has damaged records.
function J.recount_keys(cx)
  local prefix, counts = cx.prefix, {}
  local before, ids = call("HKEYS", prefix .. KEY.keys_active), call("ZRANGE", prefix .. KEY.leases, 0, -1)
  local names = {}
  for i = 1, #ids do names[i] = prefix .. KEY.job .. ids[i] end
  for i, rec in ipairs(J.mget(names)) do
    local key = rec and select(2, J.name_key(J.read(ids[i], rec)))
    if key then counts[key] = (counts[key] or 0) + 1 end
  end
  local flat = {}
  for key, n in pairs(counts) do flat[#flat + 1], flat[#flat + 2] = key, n end
  call("DEL", prefix .. KEY.keys_active)
  J.variadic("HSET", prefix .. KEY.keys_active, flat, 2)
  for i = 1, #before do of(cx, before[i]) end
end

function J.hold_key(cx, key, until_ms)
  call("ZADD", cx.prefix .. KEY.keys_skipped, "GT", until_ms, key)
  J.timer(cx, until_ms)
  call("ZREM", cx.prefix .. KEY.keys_ready, key)
end

-- Keys whose hold is over.
function J.release_keys(cx)
  local keys = call("ZRANGEBYSCORE", cx.prefix .. KEY.keys_skipped, "-inf", cx.now, "LIMIT", 0, 100)
  if #keys == 0 then return 0 end
  call("ZREM", cx.prefix .. KEY.keys_skipped, unpack(keys))
  for i = 1, #keys do
    of(cx, keys[i])
    J.forget_holds(cx, keys[i])
  end
  J.keys_flush(cx)
  return #keys
end
