-- keyed: the keys of a keyed queue. A key is ready when it has waiting jobs, fewer active jobs than
-- its limit, and nothing makes claims skip it. A key with nothing waiting, active or limited stores
-- nothing.

-- What the call has done to a key.
local function changes_of(cx, key)
  if not cx.keys then cx.keys, cx.key_order = {}, {} end
  local state = cx.keys[key]
  if not state then
    state = { freed = 0, pushed = false }
    cx.keys[key] = state
    cx.key_order[#cx.key_order + 1] = key
  end
  return state
end

-- An active job of the key has ended or left.
function J.key_freed(cx, key)
  local state = changes_of(cx, key)
  state.freed = state.freed + 1
end

-- The key has a new entry in its waiting list, or may have become ready.
function J.key_touched(cx, key) changes_of(cx, key).pushed = true end

-- RETURNS limit and rate of a key. The key's own limit and rate take precedence over the queue's;
--   they are stored as "limit|rate", and either may be empty
function J.key_limits(cx, key)
  local meta = J.meta(cx)
  if cx.overrides == nil then
    cx.overrides = call("EXISTS", cx.prefix .. KEY.key_limits) == 1
  end
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

-- Write what the call did to keys: their active jobs, and which of them are ready now. Runs before
-- a claim and when the call ends.
function J.keys_flush(cx)
  if not cx.keys then return end
  local prefix, names = cx.prefix, cx.key_order
  local active = J.hmget(prefix .. KEY.keys_active, names)
  local lists = call("ZMSCORE", prefix .. KEY.keys_waiting,
    unpack(names, 1, math.min(#names, J.CHUNK)))
  local any_skipped = call("EXISTS", prefix .. KEY.keys_skipped) == 1
  local set, drop, ready, waiting = {}, {}, {}, {}
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
      waiting[#waiting + 1] = 0
      waiting[#waiting + 1] = key
    end
    if n < J.key_limits(cx, key)
      and not (any_skipped and call("ZSCORE", prefix .. KEY.keys_skipped, key))
      and (state.pushed or lists[i] or i > J.CHUNK) then
      ready[#ready + 1] = key
    end
  end
  J.variadic("HSET", prefix .. KEY.keys_active, set, 2)
  J.variadic("HDEL", prefix .. KEY.keys_active, drop)
  J.variadic("ZADD", prefix .. KEY.keys_waiting, waiting, 2)
  cx.keys = nil
  J.take_turns(cx, ready)
end

-- Give ready keys a turn behind all others. Keys that have a turn keep it.
-- `quietly`: wake no workers for them.
function J.take_turns(cx, keys, quietly)
  if #keys == 0 then return end
  local turn = J.take_numbers(cx, "turn", #keys)
  local list = {}
  for i = 1, #keys do
    list[2 * i - 1], list[2 * i] = turn + i, keys[i]
  end
  J.each_chunk(list, 2, function(first, last)
    call("ZADD", cx.prefix .. KEY.keys_ready, "NX", unpack(list, first, last))
  end)
  if not quietly then cx.woken = math.max(cx.woken, #keys) end
end

-- Count the active jobs of each key again. The record of an active job was lost, and with it the
-- key that the job counted for. This reads all active jobs; it happens only after something else
-- than jobq has damaged records.
function J.recount_keys(cx)
  local prefix, counts = cx.prefix, {}
  local before = call("HKEYS", prefix .. KEY.keys_active)
  local ids = call("ZRANGE", prefix .. KEY.leases, 0, -1)
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
  for i = 1, #before do changes_of(cx, before[i]) end
end

-- Make claims skip a key until a time.
function J.hold_key(cx, key, until_ms)
  call("ZADD", cx.prefix .. KEY.keys_skipped, "GT", until_ms, key)
  J.timer(cx, until_ms)
  call("ZREM", cx.prefix .. KEY.keys_ready, key)
end

-- Stop skipping keys whose time has come. RETURNS how many
function J.release_keys(cx)
  local keys = call("ZRANGEBYSCORE", cx.prefix .. KEY.keys_skipped, "-inf", cx.now, "LIMIT", 0, 100)
  if #keys == 0 then return 0 end
  call("ZREM", cx.prefix .. KEY.keys_skipped, unpack(keys))
  for i = 1, #keys do
    changes_of(cx, keys[i])
    J.forget_holds(cx, keys[i])
  end
  J.keys_flush(cx)
  return #keys
end
