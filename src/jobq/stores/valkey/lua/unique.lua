-- unique: unique locks. Which effect a held lock has on a new job is core's table
-- (core/rules/locks.py: ON_HELD_LOCK). `standing`, `releases` and `passes_on` are copied from
-- there; tests/rules/test_locks.py compares both. The follow-up of a running keep_last job holds
-- the lock "<lock>\nnext".
local STATE = J.STATE

-- The id of the job that holds a lock, or nil.
local function holder(cx, lock)
  local held = call("HGET", cx.prefix .. KEY.locks, lock)
  if not held then return nil end
  local until_ms, id = held:match("^(%d+)\t(.*)$")
  until_ms = tonumber(until_ms)
  if until_ms > 0 and until_ms <= cx.now then return nil end
  return id
end

local function take(cx, lock, id, ttl)
  local until_ms = ttl and cx.now + ttl or 0
  call("HSET", cx.prefix .. KEY.locks, lock, string.format("%.0f", until_ms) .. "\t" .. id)
  if ttl then
    call("ZADD", cx.prefix .. KEY.lock_ends, until_ms, lock)
  else
    call("ZREM", cx.prefix .. KEY.lock_ends, lock)
  end
end

local function drop(cx, lock, id)
  if holder(cx, lock) == id then
    call("HDEL", cx.prefix .. KEY.locks, lock)
    call("ZREM", cx.prefix .. KEY.lock_ends, lock)
    return true
  end
  return false
end

function J.lock(cx, job, opts) take(cx, opts.lock, job.id, opts.lock_ttl) end
function J.follow(cx, job, opts) take(cx, opts.lock .. "\nnext", job.id) end

-- Whether another job holds the lock that this job needs.
function J.locked_out(cx, job)
  local opts = J.options(job)
  local id = opts.lock and holder(cx, opts.lock)
  return id and id ~= job.id
end

-- Copies core/rules/locks.py: standing. `job` is the holder of a lock, or nil if its record is
-- gone.
local function standing(cx, job)
  if not job then return "gone" end
  if job.finished then return "ended" end
  return job.state ~= STATE.active and J.starts(cx, job) == 0 and "fresh" or "started"
end

-- Whether a new job with this lock would be accepted as a job of its own that follows no other.
-- J.resolve_lock decides the same and acts on it.
function J.is_free_for(cx, opts)
  local id = holder(cx, opts.lock)
  if not id then return true end
  return J.ON_HELD_LOCK[opts.lock_mode or "simple"][standing(cx, J.look(cx, id))] == "accept"
end

-- Decide what a held lock means for a new job, and replace the job that holds the lock if the mode
-- says so.
-- RETURNS the job to return instead (or its id if its record is gone); or nil, and whether the new
--   job follows the running one
function J.resolve_lock(cx, opts, body)
  local id = holder(cx, opts.lock)
  if not id then return nil, false end
  local job = J.look(cx, id)
  local effect = J.ON_HELD_LOCK[opts.lock_mode or "simple"][standing(cx, job)]
  if effect == "accept" then return nil, false end
  if effect == "follow" then
    local next_id = holder(cx, opts.lock .. "\nnext")
    job = next_id and J.load(cx, next_id)
    if not job then return nil, true end
    effect = "replace"
  end
  if effect == "replace" then J.replace(cx, job, opts, body) end
  return job or id
end

-- Give a job that has never started the payload and options of a new one, except those it keeps
-- (KEPT in core/rules/options.py). With debounce its wait begins again. Callers that wait for the
-- job's end are still notified.
function J.replace(cx, job, opts, body)
  local flags, nn, no, at = J.head(body, 1)
  local old, changed = J.options(job), {}
  for name, value in pairs(opts) do changed[name] = value end
  for _, name in ipairs(J.KEPT_WHEN_REPLACED) do changed[name] = old[name] end
  job.flags = J.without(flags, FLAG.given_id)
    + (J.has(job.flags, FLAG.given_id) and FLAG.given_id or 0)
  job.opts = changed
  if old.chan and old.chan ~= opts.chan then
    J.extra(cx, job, EXTRA.listener .. old.chan, "1")
    job.rflags = J.with(job.rflags, RUN_FLAG.watched)
    J.save_run(cx, job)
  end
  J.renew(job, mpack(changed), body:sub(at + nn + no))
  J.write(cx, job)
  J.new_arguments(cx, job)
  if opts.lock_mode == "debounce" then
    take(cx, opts.lock, job.id, opts.lock_ttl)
    local due = J.due(cx, opts)
    if due > cx.now and job.state ~= STATE.blocked then
      J.due_again(cx, job)
      J.to_delayed(cx, job, "changed", due, "replaced")
      return
    end
  end
  if job.state == STATE.waiting then J.await_ttl(cx, job) end
  J.event(cx, job, "changed", job.state, "replaced")
end

-- Unblock the follow-up of a lock, if there is one and the job that it follows has ended.
-- Copies core/rules/locks.py: passes_on.
local function pass_on(cx, lock)
  local next_id = holder(cx, lock .. "\nnext")
  local follower = next_id and J.load(cx, next_id)
  if not follower or follower.state ~= STATE.blocked then return end
  local id = holder(cx, lock)
  local stands = id and standing(cx, J.look(cx, id))
  if stands == "fresh" or stands == "started" then return end
  drop(cx, lock .. "\nnext", next_id)
  if not id then take(cx, lock, next_id, J.options(follower).lock_ttl) end
  call("HDEL", cx.prefix .. KEY.extras .. next_id, EXTRA.follows)
  J.unblock_if_free(cx, follower)
end

-- Release the lock of a job that has ended, unless the lock holds for a time.
-- Copies core/rules/locks.py: releases.
function J.unlock(cx, job, opts)
  drop(cx, opts.lock .. "\nnext", job.id)
  if opts.lock_mode ~= "throttle" or job.state == STATE.cancelled then
    drop(cx, opts.lock, job.id)
  end
  pass_on(cx, opts.lock)
end

-- The holder of a lock and when the lock ends, by the clock. RETURNS {id, until or ""}, or nil
local function held(cx, lock)
  local id = holder(cx, lock)
  if not id then return nil end
  local until_ms = tonumber(call("HGET", cx.prefix .. KEY.locks, lock):match("^%d+"))
  return { id, until_ms > 0 and J.whole(until_ms - cx.ahead) or "" }
end

-- find_lock: who holds a unique lock.
-- KEYS prefix
-- ARGS now, lock
-- RETURNS {id of the job, when the lock ends or "", id of its follow-up or ""}, or {} if it is free
function J.find_lock(keys, args)
  local cx, lock = J.open(keys[1], args[1], true), args[2]
  local found = held(cx, lock)
  if not found then return {} end
  found[3] = holder(cx, lock .. "\nnext") or ""
  return found
end

-- release_lock: release a unique lock before its job ends.
-- KEYS prefix
-- ARGS now, prefix of shard 0, actor or "", lock, id of the job that must hold it or ""
-- RETURNS {1 if it was released, messages waiting, jobs to wake workers for elsewhere}
function J.release_lock(keys, args)
  local now, home, actor, lock, job = unpack(args)
  local cx = J.open(keys[1], now)
  local id = holder(cx, lock)
  local released = id and (job == "" or job == id) and drop(cx, lock, id)
  if released then
    J.log_operation(cx, home, "released_lock", id, actor)
    pass_on(cx, lock)
    J.deliver_local(cx)
  end
  J.close(cx)
  return { released and 1 or 0, cx.outbox, cx.to_wake or 0 }
end

-- Removing an ended job releases the lock that it may hold for a time.
function J.unlock_removed(cx, job)
  local opts = J.options(job)
  if opts.lock then drop(cx, opts.lock, job.id) end
end

-- Remove locks that are over. RETURNS how many
function J.sweep_locks(cx, limit)
  local locks = call("ZRANGEBYSCORE", cx.prefix .. KEY.lock_ends, "-inf", cx.now, "LIMIT", 0, limit)
  if #locks > 0 then
    call("HDEL", cx.prefix .. KEY.locks, unpack(locks))
    call("ZREM", cx.prefix .. KEY.lock_ends, unpack(locks))
  end
  return #locks
end
