-- completions: end runs that returned. Jobs that no other job, lock or schedule depends on are
-- written together: per job there is only Lua, in locals, because this is half of what a job costs.
local sub, byte, floor = string.sub, string.byte, math.floor
local STATE, STR, pint, two, good_nk = J.STATE, J.STR, J.pint, J.two, J.good_nk
local FOUR = {} -- numbers in four bytes
for n = 0, 255 do FOUR[n] = "\0\0\0" .. J.BYTE[n] end
local NEVER = {}

-- attempt, failures and stalls of a run as events hold them. Nearly all runs are a job's first.
local function counts_of(packed)
  if packed == RUN.first_counts then return EVENT.first_counts end
  local attempt, failures, stalls = sunpack(RUN.counts, packed)
  return pint(attempt) .. pint(failures) .. pint(stalls)
end

-- What matters at the end of a job with a long record. `names`: the meta that events carry, or nil.
-- RETURNS position and length of nk, life, first due time packed or nil, ttl or nil, channel or
--   nil, the event's meta or nil; nothing if a lock or a schedule depends on the end
local function look_closely(rec, flags, names)
  local _, nn, no, nk_at, due, life = J.head(rec, RECORD.body_at)
  local ttl, chan
  if flags % (2 * FLAG.at_end) >= FLAG.at_end then
    local opts = munpack(sub(rec, nk_at + nn, nk_at + nn + no - 1))
    if opts.lock or opts.schedule then return nil end
    ttl, chan = opts.result_ttl, opts.chan
  end
  local meta = names and no > 0
    and J.event_meta(names, sub(rec, nk_at + nn, nk_at + nn + no - 1)) or nil
  return nk_at, nn, life, due > 0 and J.six(due) or nil, ttl, chan, meta
end

-- The slow way: for a job that others depend on, or whose lease is not what the caller thinks.
-- RETURNS whether it was completed
local function complete_one(cx, id, token, result)
  local job = J.load(cx, id)
  if not job or job.state ~= STATE.active or job.token ~= token then return false end
  J.finish(cx, job, STATE.completed, nil, result)
  return true
end

-- Complete `count` jobs. `args` has id, token and result of each, from `first` on. The positions of
-- stale ones are added to `stale`.
function J.complete(cx, args, first, count, worker, stale)
  local prefix, now, now_text, ids, names = cx.prefix, cx.now, cx.now_text, {}, {}
  local jobs, at = prefix .. KEY.job, first
  for i = 1, count do
    local id = args[at]
    ids[i], names[i], at = id, jobs .. id, at + 3
  end
  local runs, recs = J.hmget(prefix .. KEY.runs, ids), J.mget(names)
  local items, keyed = J.items(cx, worker), J.meta(cx).mode == "keyed"
  local records, done, seen = {}, {}, count > 1 and {} or NEVER
  local shelf, given, timed, times = {}, nil, nil, nil
  local n, ran, logged, before6, before = 0, 0, #items, nil, nil
  local meta_names = J.event_meta_names(cx)
  local ended, last = ENDED.completed .. cx.now6, PACK.time .. cx.now6
  local middle = EVENT.now_completed .. PACK.none .. PACK.none .. PACK.none .. PACK.time
  at = first - 3
  for i = 1, count do
    at = at + 3
    local id, token, result, run, rec = ids[i], args[at + 1], args[at + 2], runs[i], recs[i]
    local nk_at, nn, life, due6, ttl, chan, meta
    if run and rec and #rec > RECORD.longest_head and not seen[id] then
      local rflags, tn = byte(run, RUN.flags_at, RUN.token_length_at)
      -- The run is active, neither awaited nor watched, and has this token.
      if rflags % 2 == 1 and floor(rflags / RUN_FLAG.awaited) % 4 == 0 and tn == #token
        and sub(run, RUN.token_at, RUN.token_length_at + tn) == token then
        local flags, short = byte(rec, RECORD.flags_at, RECORD.short_length_at)
        local ok = true
        if flags < FLAG.more then
          nk_at, nn, life = RECORD.short_nk_at, short, 0
        else
          ok, nk_at, nn, life, due6, ttl, chan, meta = pcall(look_closely, rec, flags, meta_names)
        end
        if not ok or nk_at and not good_nk(sub(rec, nk_at, nk_at + nn - 1)) then
          nk_at = nil -- the record cannot be read: take the slow way
        end
        if nk_at then
          local created6 = sub(rec, 1, RECORD.created_end)
          local started6 = sub(run, RUN.started_at, RUN.started_end)
          local run_due6, nk = sub(run, RUN.due_at, RUN.due_end), sub(rec, nk_at, nk_at + nn - 1)
          if run_due6 ~= RUN.no_time then due6 = run_due6 end
          if chan and not ttl then ttl = J.grace(cx, STATE.completed) end
          if started6 ~= before6 then
            before6, before = started6, sunpack(RECORD.created, started6)
          end
          n, ran = n + 1, ran + now - before
          if seen ~= NEVER then seen[id] = true end
          done[n], records[2 * n - 1] = id, names[i]
          records[2 * n] = ended .. two(#run) .. run .. "\0"
            .. (FOUR[#result] or spack(ENDED.result_length, #result)) .. result .. rec
          items[logged + n] = (meta and EVENT.completed_with_meta or EVENT.completed)
            .. (STR[#id] or J.str_head(#id)) .. id .. (life == 0 and EVENT.life_0 or pint(life))
            .. nk .. counts_of(sub(run, 1, RUN.counts_end)) .. middle .. created6 .. PACK.time
            .. (due6 or created6) .. PACK.time .. started6
            .. (meta and last .. PACK.none .. meta or last)
          local list = shelf
          if ttl then
            timed, times = timed or {}, times or {}
            times[#times + 1], times[#times + 2], list = now + ttl, id, timed
          elseif flags % 2 == FLAG.given_id then
            given = given or {}
            list = given
          end
          local m = #list
          list[m + 1], list[m + 2] = now_text, id
          if chan then
            local has_extras = J.has(rflags, RUN_FLAG.extras)
            J.publish_completed(cx, chan, id, rec, run, result, has_extras)
          end
          if keyed then J.key_freed(cx, (select(2, munpack(nk)))) end
        end
      end
    end
    if not nk_at then
      if seen[id] or not complete_one(cx, id, token, result) then stale[#stale + 1] = i end
      logged = #items - n -- complete_one may have added events among these
    end
  end
  if n == 0 then return end
  J.mset(records)
  J.variadic("ZREM", prefix .. KEY.leases, done)
  J.variadic("HDEL", prefix .. KEY.runs, done)
  J.variadic("ZADD", prefix .. KEY.completed, shelf, 2)
  if given then J.variadic("ZADD", prefix .. KEY.completed_given_id, given, 2) end
  if timed then
    J.variadic("ZADD", prefix .. KEY.completed_own_ttl, timed, 2)
    J.variadic("ZADD", prefix .. KEY.own_ttl_ends, times, 2)
  end
  local figures = J.figures(cx)
  figures.completed, figures.run_ms = figures.completed + n, figures.run_ms + ran
  cx.freed = true
end
