-- leases: what a worker does with leases it holds: renew them, and note progress and steps.
local LINES = J.DEFAULT.lines -- log lines kept per job

-- The letter for the lease of a run with this token: h held, l lost, c held and asked to stop.
local function lease_state(run, token)
  if not run then return "l" end
  local flags, n = run:byte(RUN.flags_at, RUN.token_length_at)
  if flags % 2 == 0 or run:sub(RUN.token_at, RUN.token_length_at + n) ~= token then return "l" end
  return J.has(flags, RUN_FLAG.cancel) and "c" or "h"
end

-- extend: renew leases.
-- KEYS prefix
-- ARGS now, lease_ms, then per lease: id, token
-- RETURNS a letter per lease (see lease_state)
function J.extend(keys, args)
  local cx, lease_ms = J.open(keys[1], args[1]), tonumber(args[2])
  local ids, answers, times = {}, {}, {}
  for i = 3, #args, 2 do ids[#ids + 1] = args[i] end
  local runs = J.hmget(cx.prefix .. KEY.runs, ids)
  for i = 1, #ids do
    answers[i] = lease_state(runs[i], args[2 + 2 * i])
    if answers[i] ~= "l" then
      times[#times + 1] = cx.now + lease_ms
      times[#times + 1] = ids[i]
    end
  end
  J.variadic("ZADD", cx.prefix .. KEY.leases, times, 2)
  local soonest = J.counters(cx).leases
  if #times > 0 and (soonest == 0 or cx.now + lease_ms < soonest) then
    J.lease_timer(cx, cx.now + lease_ms)
    J.save_counters(cx)
  end
  return table.concat(answers)
end

-- Set extras of an active job, and the flag of its run that it has extras.
local function set_extras(prefix, id, run, fields)
  if #fields == 0 then return end
  call("HSET", prefix .. KEY.extras .. id, unpack(fields))
  local flags = run:byte(RUN.flags_at)
  if not J.has(flags, RUN_FLAG.extras) then
    call("HSET", prefix .. KEY.runs, id, run:sub(1, RUN.flags_before)
      .. string.char(flags + RUN_FLAG.extras) .. run:sub(RUN.token_length_at))
  end
end

-- Whether a checkpoint of a lease is stored already, or was held up until a newer one was. `number`
-- is 0 if its worker does not count. Copies core/rules/outcomes.py: is_late.
function J.is_late(prefix, id, attempt, number)
  if number <= 0 then return false end
  local newest = call("HGET", prefix .. KEY.extras .. id, EXTRA.saved_place) or "0.0"
  local last_attempt, last = newest:match("^(%d+)%.(%d+)$")
  return tonumber(last_attempt) == attempt and number <= tonumber(last)
end

-- note: store progress, checkpoints, log lines and steps of running jobs.
-- KEYS prefix
-- ARGS per note: id, token, progress and checkpoint ("" for none, else "\1" and its bytes), number
--   of the checkpoint, number of log lines, number of steps, line, …, then per step: its name and
--   what it has recorded
-- RETURNS a letter per note (see lease_state)
function J.note(keys, args)
  local prefix, i, answers = keys[1], 1, {}
  while i <= #args do
    local id, token, progress, saved, number, n, steps = unpack(args, i, i + 6)
    number, n, steps = tonumber(number), tonumber(n), tonumber(steps)
    local step_at, after = i + 7 + n, i + 7 + n + 2 * steps
    local run, fields = call("HGET", prefix .. KEY.runs, id), {}
    local state = lease_state(run, token)
    if state ~= "l" then
      local attempt = sunpack(RUN.counts, run)
      if progress ~= "" then fields[1], fields[2] = EXTRA.progress, progress:sub(2) end
      if saved ~= "" and not J.is_late(prefix, id, attempt, number) then
        fields[#fields + 1], fields[#fields + 2] = EXTRA.saved, saved:sub(2)
        fields[#fields + 1] = number > 0 and EXTRA.saved_place or nil
        fields[#fields + 1] = number > 0 and J.whole(attempt) .. "." .. J.whole(number) or nil
      end
      for k = step_at, after - 1, 2 do
        fields[#fields + 1], fields[#fields + 2] = EXTRA.step .. args[k], args[k + 1]
      end
      set_extras(prefix, id, run, fields)
      if n > 0 then
        call("RPUSH", prefix .. KEY.log_lines .. id, unpack(args, i + 7, i + 6 + n))
        call("LTRIM", prefix .. KEY.log_lines .. id, -LINES, -1)
      end
      if J.has(run:byte(RUN.flags_at), RUN_FLAG.watched) then
        call("PUBLISH", prefix .. KEY.noted_channel .. id, "noted\n" .. prefix .. "\n" .. id)
      end
    end
    answers[#answers + 1] = state
    i = after
  end
  return table.concat(answers)
end
