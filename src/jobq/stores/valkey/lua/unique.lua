-- unique: locks. What a held lock means for a new job is core's table (core/locks.py: ON_HELD_LOCK); `standing`, `releases` and
-- `passes_on` are copied from there. tests/rules/test_locks.py holds both together.
-- u: lock → "<until>\t<id>", until 0: as long as its job is unfinished · uy: locks by their end
-- The follow-up of a running keep_last job holds "<lock>\nnext".
local STATE = J.STATE

-- Who holds a lock: an id, or nil.
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
  if ttl then call("ZADD", cx.prefix .. KEY.lock_ends, until_ms, lock) else call("ZREM", cx.prefix .. KEY.lock_ends, lock) end
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

-- Whether the lock a job would need is another's.
function J.locked_out(cx, job)
  local opts = J.options(job)
  local id = opts.lock and holder(cx, opts.lock)
  return id and id ~= job.id
end

-- How the holder of a lock stands (core/locks.py: standing).
local function standing(cx, job)
  if not job then return "gone" end
  if job.finished then return "ended" end
  return job.state ~= STATE.active and J.starts(cx, job) == 0 and "fresh" or "started"
end

-- Whether a new job with this lock would be accepted as a job of its own that follows none. (J.meet decides, and acts on it.)
function J.is_free_for(cx, opts)
  local id = holder(cx, opts.lock)
  return not id or J.ON_HELD_LOCK[opts.lock_mode or "simple"][standing(cx, J.look(cx, id))] == "accept"
end

-- What a held lock means for a new job. RETURNS the job to answer with (or its id, if its record is gone), or nil and
-- whether the new one is to follow the one that has started.
function J.meet(cx, opts, body)
  local id = holder(cx, opts.lock)
  if not id then return nil, false end
  local job = J.look(cx, id)
  local meeting = J.ON_HELD_LOCK[opts.lock_mode or "simple"][standing(cx, job)]
  if meeting == "accept" then return nil, false end
  if meeting == "follow" then
    local next_id = holder(cx, opts.lock .. "\nnext")
    job = next_id and J.load(cx, next_id)
    if not job then return nil, true end
    meeting = "replace"
  end
  if meeting == "replace" then J.replace(cx, job, opts, body) end
  return job or id
end

-- A job that has never started gets the data and options of a new one, but for what it keeps (core/locks.py: KEPT_WHEN_REPLACED).
-- With debounce its wait begins again. Whoever waits for its end is still told.
function J.replace(cx, job, opts, body)
  local flags, nn, no, at = J.head(body, 1)
  local old, changed = J.options(job), {}
  for name, value in pairs(opts) do changed[name] = value end
  for _, name in ipairs(J.KEPT_WHEN_REPLACED) do changed[name] = old[name] end
  job.flags, job.opts = J.without(flags, J.GIVEN) + (J.has(job.flags, J.GIVEN) and J.GIVEN or 0), changed
  if old.chan and old.chan ~= opts.chan then
    J.extra(cx, job, "w:" .. old.chan, "1")
    job.rflags = J.with(job.rflags, J.WATCHED)
    J.save_run(cx, job)
  end
  J.renew(job, mpack(changed), body:sub(at + nn + no))
  J.write(cx, job)
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

-- Let the follow-up of a lock go on, if there is one and the job it follows has ended (core/locks.py: passes_on).
local function pass_on(cx, lock)
  local next_id = holder(cx, lock .. "\nnext")
  local follower = next_id and J.load(cx, next_id)
  if not follower or follower.state ~= STATE.blocked then return end
  local id = holder(cx, lock)
  local stands = id and standing(cx, J.look(cx, id))
  if stands == "fresh" or stands == "started" then return end
  drop(cx, lock .. "\nnext", next_id)
  if not id then take(cx, lock, next_id, J.options(follower).lock_ttl) end
  call("HDEL", cx.prefix .. KEY.extras .. next_id, "follows")
  J.unblock_if_free(cx, follower)
end

-- A job has ended: its lock is free, unless it holds for a time (core/locks.py: releases).
function J.unlock(cx, job, opts)
  drop(cx, opts.lock .. "\nnext", job.id)
  if opts.lock_mode ~= "throttle" or job.state == STATE.cancelled then drop(cx, opts.lock, job.id) end
  pass_on(cx, opts.lock)
end

-- Removing an ended job releases the lock it may hold for a time.
function J.unlock_removed(cx, job)
  local opts = J.options(job)
  if opts.lock then drop(cx, opts.lock, job.id) end
end

function J.sweep_locks(cx, limit)
  local locks = call("ZRANGEBYSCORE", cx.prefix .. KEY.lock_ends, "-inf", cx.now, "LIMIT", 0, limit)
  if #locks > 0 then
    call("HDEL", cx.prefix .. KEY.locks, unpack(locks))
    call("ZREM", cx.prefix .. KEY.lock_ends, unpack(locks))
  end
  return #locks
end
