-- settle: end runs, then claim more jobs. A worker needs no other call to run jobs.
local STATE = J.STATE
local REMEMBERED_MS = "3600000" -- how long a worker's last exchange is remembered
-- A claim that took nothing.
local NOTHING = { n = 0, ids = {}, stem = "", expires = "0", fresh = {}, others = {} }

-- Why a running job was asked to stop. Sets job.actor to who asked, for the event of its end.
function J.why_cancelled(cx, job)
  local why, who = unpack(call("HMGET", cx.prefix .. KEY.extras .. job.id, EXTRA.why, EXTRA.who))
  job.actor = who or nil
  return why or "cancelled"
end

-- The failure of a run as a worker sent it.
local function run_failure(o, data)
  return {
    run = true, blob = data, error = o.error, fingerprint = o.fingerprint, reason = o.reason,
  }
end

-- What an outcome does besides moving the job: BESIDES.<kind>(cx, job, outcome, data). `data` is
-- the checkpoint.
local BESIDES = {
  snooze = function(cx, job, o, data)
    local number = o.saved_number or 0
    if o.saved then
      if J.is_late(cx.prefix, job.id, job.attempt, number) then return end
      J.extra(cx, job, EXTRA.saved, data)
    elseif number == 0 and J.has(job.rflags, RUN_FLAG.extras) then
      call("HDEL", cx.prefix .. KEY.extras .. job.id, EXTRA.saved)
    end
  end,
  hold = function(cx, job, o)
    local _, key = J.name_key(job)
    J.put_on_hold(cx, key, o.delay)
  end,
}

-- Apply an outcome other than completion. What each does to a job is core's table
-- (core/rules/outcomes.py: EFFECTS). A job that was asked to stop is cancelled instead, as in
-- core/rules/outcomes.py: effect.
-- RETURNS false if the outcome is stale
local function settle_one(cx, o, data, edges)
  local job = J.load(cx, o.id)
  if not job or job.state ~= STATE.active or job.token ~= o.token then return false end
  local effect, failure = J.EFFECTS[o.kind], nil
  if effect.failed then
    job.failures = job.failures + 1
    failure = run_failure(o, data)
  end
  if J.has(job.rflags, RUN_FLAG.cancel) then
    J.finish(cx, job, STATE.cancelled, J.why_cancelled(cx, job), nil, failure)
  elseif effect.state == STATE.failed then
    J.finish(cx, job, STATE.failed, nil, nil, failure)
  elseif effect.state == STATE.blocked then
    J.block(cx, job, o, o.saved and data or nil, edges)
  else
    local reason, err, fingerprint
    if failure then reason, err, fingerprint = J.keep_failure(cx, job, failure) end
    if BESIDES[o.kind] then BESIDES[o.kind](cx, job, o, data) end
    if o.kind == "defer" then
      J.defer(cx, job, o, data)
    elseif effect.returns then
      J.to_waiting(cx, job, effect.kind, "front")
    elseif o.delay > 0 then
      J.to_delayed(cx, job, effect.kind, cx.now + o.delay, reason, err, fingerprint)
    else
      local where = J.queue_end_when_due(cx, job)
      J.to_waiting(cx, job, effect.kind, where, reason, err, fingerprint)
    end
  end
  return true
end

-- The reply to an exchange that was made before: its stale outcomes, and the leases it granted that
-- are still held.
local function repeated(cx, memory)
  local stale, granted = memory:match("^[^\n]*\n([^\n]*)\n(.*)$")
  local leases, n, expires = {}, 0, "0"
  local stem, rest = granted:match("^([^\n]*)\n(.*)$")
  for id in (rest or ""):gmatch("[^\n]+") do
    local job = J.load(cx, id)
    if job and job.state == STATE.active and job.token:sub(1, #stem) == stem then
      local has_extras = J.has(job.rflags, RUN_FLAG.extras)
      J.add_lease(cx, leases, n, job.id, job.rec, J.pack_run(job), has_extras)
      n = n + 1
      expires = call("ZSCORE", cx.prefix .. KEY.leases, id)
    end
  end
  return { stale, -2, 0, 0, 0, expires, "", {}, leases, J.meta(cx).retries or "" }
end

-- settle: apply outcomes, then claim jobs.
-- KEYS prefix
-- ARGS now, worker, call, eight packed numbers: lane, limit (-1 to claim nothing), lease_ms,
--   completions, outcomes of other kinds, 1 if the worker sleeps when it finds nothing, 1 if it may
--   be asleep, 1 if it is not alone (see J.claim); then per completion: id, token, result ("" for
--   none, else "\1" and its bytes); then per other outcome: itself packed {kind, id, token, delay,
--   …}, data, edges packed
-- RETURNS {positions of stale outcomes, as "1,2"; next due in ms, -1 for never, -2 if the exchange
--   was made before; messages waiting; jobs to wake workers for elsewhere; 1 if a job on its last
--   chance is next and was left (see J.claim); lease expiry; what tokens begin with (the position
--   of the lease follows); first runs of jobs flat: id, record; other leases flat: position, id,
--   record, run, extras; the queue's default max_retries or ""}
function J.settle(keys, args)
  local now, worker, name, numbers = unpack(args, 1, 4)
  local lane, limit, lease_ms, completions, others, sleepy, asleep,
    company = sunpack(">dddddddd", numbers)
  local cx = J.open(keys[1], now)
  -- A worker that is about to sleep looks at partitions a second time ("<call>+"). That exchange is
  -- remembered apart, so the first one is not forgotten.
  local memory_key = cx.prefix .. KEY.last_exchange .. worker .. (lane == 0 and "" or "\n" .. lane)
    .. (name:sub(-1) == "+" and "+" or "")
  local memory = call("GET", memory_key)
  if memory and memory:sub(1, #name + 1) == name .. "\n" then return repeated(cx, memory) end
  if asleep == 1 then J.wake_up(cx, worker) end
  local stale = {}
  if completions > 0 then J.complete(cx, args, 5, completions, worker, stale) end
  for i = 1, others do
    local at = 5 + 3 * completions + 3 * (i - 1)
    local edges = args[at + 2] ~= "" and munpack(args[at + 2]) or nil
    if not settle_one(cx, munpack(args[at]), args[at + 1], edges) then
      stale[#stale + 1] = completions + i
    end
  end
  J.deliver_local(cx)
  local stale_text, due, claim = table.concat(stale, ","), -1, NOTHING
  if limit >= 0 then
    J.prepare(cx, 500)
    claim = J.claim(cx, limit, worker, lease_ms, company == 1)
    if claim.n < limit then
      due = claim.gave_up and 0 or J.next_due(cx) -- behind many stale entries there may be more
      if sleepy == 1 and not claim.cut then J.fall_asleep(cx, worker, limit - claim.n) end
    end
    local waiting = J.counters(cx).waiting
    -- A worker that takes or leaves a job on its last chance claims nothing more for now: wake
    -- others.
    cx.woken = (claim.last or claim.left) and waiting or math.min(cx.woken, waiting)
  end
  if cx.freed and J.meta(cx).limit then cx.woken = math.max(cx.woken, 1) end
  if completions + others + claim.n > 0 then
    local granted = table.concat(claim.ids, "\n")
    call("SET", memory_key, name .. "\n" .. stale_text .. "\n" .. claim.stem .. "\n" .. granted,
      "PX", REMEMBERED_MS)
  end
  -- Retention removes a few ended jobs with those that come.
  if completions > 0
    and (J.take_numbers(cx, "sweeps", completions) + completions) % 128 < completions then
    J.sweep(cx, 2 * math.max(completions, 128))
  end
  J.close(cx)
  return {
    stale_text, due, cx.outbox, cx.to_wake or 0, claim.left and 1 or 0, claim.expires, claim.stem,
    claim.fresh, claim.others, J.meta(cx).retries or "",
  }
end
