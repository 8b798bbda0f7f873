-- unique: locks. u: lock → "<until>\t<id>", until 0: as long as its job is unfinished · uy: locks by their end
-- The follow-up of a running keep_last job holds "<lock>\nnext".
local STATE = J.STATE
local PENDING = { [STATE.delayed] = true, [STATE.blocked] = true, [STATE.waiting] = true }

-- Who holds a lock: an id, or nil.
local function holder(cx, lock)
  local held = call("HGET", cx.P .. "u", lock)
  if not held then return nil end
  local until_ms, id = held:match("^(%d+)\t(.*)$")
  until_ms = tonumber(until_ms)
  if until_ms > 0 and until_ms <= cx.now then return nil end
  return id
end

local function take(cx, lock, id, ttl)
  local until_ms = ttl and cx.now + ttl or 0
  call("HSET", cx.P .. "u", lock, string.format("%.0f", until_ms) .. "\t" .. id)
  if ttl then call("ZADD", cx.P .. "uy", until_ms, lock) else call("ZREM", cx.P .. "uy", lock) end
end

local function drop(cx, lock, id)
  if holder(cx, lock) == id then
    call("HDEL", cx.P .. "u", lock)
    call("ZREM", cx.P .. "uy", lock)
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

-- Whether a new job with this lock would be accepted as a job of its own that follows none. (J.meet decides, and acts on it.)
function J.is_free_for(cx, opts)
  local id = holder(cx, opts.lock)
  if not id then return true end
  local job, mode = J.load(cx, id), opts.lock_mode or "simple"
  if not job then return mode ~= "throttle" end
  return mode == "debounce" and not PENDING[job.state]
end

-- What a held lock means for a new job. RETURNS the job to answer with (or its id, if its record is gone), or nil and
-- whether the new one is to follow the one that runs.
function J.meet(cx, opts, body)
  local id = holder(cx, opts.lock)
  if not id then return nil, false end
  local job, mode = J.load(cx, id), opts.lock_mode or "simple"
  if not job then
    if mode == "throttle" then return id end
    return nil, false
  end
  if mode == "debounce" and not PENDING[job.state] then return nil, false end
  if mode == "keep_last" and not PENDING[job.state] and not job.finished then
    local next_id = holder(cx, opts.lock .. "\nnext")
    local follower = next_id and J.load(cx, next_id)
    if not follower then return nil, true end
    J.replace(cx, follower, opts, body)
    return follower
  end
  if mode == "keep_last" and PENDING[job.state] and job.attempt > 0 then
    -- It has run and backs off: what comes now follows it, with the newest data.
    local next_id = holder(cx, opts.lock .. "\nnext")
    local follower = next_id and J.load(cx, next_id)
    if follower then
      J.replace(cx, follower, opts, body)
      return follower
    end
    return nil, true
  end
  if (mode == "debounce" or mode == "keep_last") and PENDING[job.state] then J.replace(cx, job, opts, body) end
  return job
end

-- A pending job gets the newest data and options, and keeps its name, key and priority; a debounced one starts its wait anew.
function J.replace(cx, job, opts, body)
  local flags, nn, no, at = J.head(body, 1)
  local priority = J.options(job).priority
  job.flags, job.opts = flags, opts
  J.renew(job, J.changed_options(job, { priority = priority }, priority == nil and "priority"), body:sub(at + nn + no))
  J.write(cx, job)
  if opts.lock_mode == "debounce" and job.state ~= STATE.blocked then
    take(cx, opts.lock, job.id, opts.lock_ttl)
    local due = opts.at or cx.now + (opts.delay or 0)
    if due > cx.now then
      J.to_delayed(cx, job, "changed", due, "replaced")
      return
    end
  end
  J.event(cx, job, "changed", job.state, "replaced")
end

-- A job has ended: its lock is free, unless it holds for a time (throttle; a cancel frees it all the same).
function J.unlock(cx, job, opts)
  drop(cx, opts.lock .. "\nnext", job.id)
  if opts.lock_mode == "throttle" and job.state ~= STATE.cancelled then return end
  if not drop(cx, opts.lock, job.id) or opts.lock_mode ~= "keep_last" then return end
  local next_id = holder(cx, opts.lock .. "\nnext")
  local follower = next_id and J.load(cx, next_id)
  if follower and follower.state == STATE.blocked then
    drop(cx, opts.lock .. "\nnext", next_id)
    take(cx, opts.lock, next_id, opts.lock_ttl)
    call("HDEL", cx.P .. "x:" .. next_id, "follows")
    J.unblock_if_free(cx, follower)
  end
end

-- Removing an ended job releases the lock it may hold for a time.
function J.unlock_removed(cx, job)
  local opts = J.options(job)
  if opts.lock then drop(cx, opts.lock, job.id) end
end

function J.sweep_locks(cx, limit)
  local locks = call("ZRANGEBYSCORE", cx.P .. "uy", "-inf", cx.now, "LIMIT", 0, limit)
  if #locks > 0 then
    call("HDEL", cx.P .. "u", unpack(locks))
    call("ZREM", cx.P .. "uy", unpack(locks))
  end
  return #locks
end
