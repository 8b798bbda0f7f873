-- staging: members of a flow that is not submitted yet. fl:<flow>: id → member packed, kept out of sight · fz: flows by their beginning
-- Whether a flow is submitted is decided in one place (its manifest, see stores/valkey/flows.py); each queue then brings in its part.

-- Whether an id is a member of a flow in the making.
function J.is_staged(cx, id)
  local flows = call("ZRANGE", cx.P .. "fz", 0, 999)
  for i = 1, #flows do
    if call("HEXISTS", cx.P .. "fl:" .. flows[i], id) == 1 then return true end
  end
  return false
end

-- stage. KEYS 1 prefix. ARGS now, flow, place of the first plain member, of the first keyed one, highest cost,
--        then per member: id, body, edges packed or "". RETURNS nothing, or an error as put does
function J.stage(keys, args)
  local now, flow, plain, keyed, cost = unpack(args, 1, 5)
  local cx = J.open(keys[1], now)
  local wrong = J.refusal(cx, tonumber(plain), tonumber(keyed), tonumber(cost))
  if wrong then return wrong end
  call("ZADD", cx.P .. "fz", "NX", cx.now, flow)
  for i = 6, #args, 3 do
    local n = call("HLEN", cx.P .. "fl:" .. flow)
    call("HSETNX", cx.P .. "fl:" .. flow, args[i], mpack({ n, args[i + 1], args[i + 2] }))
  end
  return 0
end

-- seal: before a flow is submitted, whether its part of this queue fits still (a queue without a mode may have got one since).
-- From then on it does: the queue has a mode. KEYS 1 prefix. ARGS now, plain, keyed, cost (as stage). RETURNS nothing, or an error as put does
function J.seal(keys, args)
  local now, plain, keyed, cost = unpack(args)
  local cx = J.open(keys[1], now)
  local wrong = J.refusal(cx, tonumber(plain), tonumber(keyed), tonumber(cost))
  if wrong then return wrong end
  if not J.meta(cx).mode then call("HSET", cx.P .. "m", "mode", keyed == "0" and "plain" or "keyed") end
  return 0
end

-- submit: bring in this queue's part of a flow. KEYS 1 prefix. ARGS now, flow
-- RETURNS as put, and the ids the answers are for. A flow that is not (or no longer) staged here answers none.
function J.submit(keys, args)
  local cx, flow = J.open(keys[1], args[1]), args[2]
  local staged = call("HGETALL", cx.P .. "fl:" .. flow)
  local members = {}
  for i = 1, #staged, 2 do
    local place, body, edges = unpack(munpack(staged[i + 1]), 1, 3)
    members[#members + 1] = { place = place, id = staged[i], body = body, edges = edges ~= "" and munpack(edges) or nil }
  end
  table.sort(members, function(a, b) return a.place < b.place end)
  call("UNLINK", cx.P .. "fl:" .. flow)
  call("ZREM", cx.P .. "fz", flow)
  if #members > 0 then J.fix_mode(cx, members[1].body) end
  local answers = {}
  local ids = {}
  for i, m in ipairs(members) do
    answers[i], ids[i] = J.alias(cx, m.id, J.put_one(cx, m.place + 1, m.id, m.body, m.edges)), m.id
  end
  J.tie_all(cx)
  J.close(cx)
  J.look_again(cx, answers)
  return { cx.to_wake or 0, cx.outbox, cx.due_at and cx.due_at - cx.now or -1, answers, ids }
end

-- discard: forget this queue's part of a flow. KEYS 1 prefix. ARGS flow. RETURNS nothing
function J.discard(keys, args)
  call("UNLINK", keys[1] .. "fl:" .. args[1])
  call("ZREM", keys[1] .. "fz", args[1])
  return 0
end

-- staged: flows begun before a time. KEYS 1 prefix. ARGS before, limit. RETURNS flow, beginning, …
function J.staged(keys, args)
  return call("ZRANGEBYSCORE", keys[1] .. "fz", "-inf", args[1], "WITHSCORES", "LIMIT", 0, args[2])
end

-- known: which of these ids have a record or are about to. KEYS 1 prefix. ARGS now, id, … RETURNS "1" or "0" per id
function J.known(keys, args)
  local cx, answers = J.open(keys[1], args[1]), {}
  for i = 2, #args do answers[i - 1] = J.look(cx, args[i]) and 1 or 0 end
  return answers
end
