-- keys: the name of every key. When the library is built, each KEY.<name> in a Lua file is replaced
-- by the text given here, so a name costs the server nothing. Python reads the same file
-- (keys.py).
--
-- A key is the prefix of its queue (or of one partition of it) followed by one of these names.
-- Names that end in ":" are followed by an id, a key or another name: <prefix>j:<id>. The prefix
-- ends with a hash tag, so all keys of a queue are in one slot. keys.py builds prefixes.
--
-- These names are stored in users' servers: never change one. fields.lua describes packed values.

-- One job
KEY.job = "j:" -- <id>: string, the job's record
KEY.runs = "h" -- hash, id → run: jobs that have started or changed since they were put
KEY.extras = "x:" -- <id>: hash of what few jobs have (see EXTRA in fields.lua)
KEY.failed_runs = "er:" -- <id>: list of the job's last failed runs, oldest first
KEY.log_lines = "n:" -- <id>: list of the job's last log lines
KEY.alias = "al:" -- <id>: string, the id of the job whose unique lock kept this job out; for a day
KEY.left = "tb" -- hash, id → "<count>.<ticket>": entries that its jobs left (see waiting.lua)

-- Jobs by state. Scores are milliseconds
KEY.delayed = "d" -- sorted set of ids by due time; fractions keep the order within one ms
KEY.blocked = "b" -- sorted set of ids by the time they were blocked
KEY.block_timeouts = "bt" -- sorted set of blocked ids by when their wait times out
KEY.ttls = "t" -- sorted set of waiting ids by when their ttl ends
KEY.leases = "q" -- sorted set of active ids by when their lease expires

-- Ended jobs, in three sorted sets per state by when they ended. The state's code follows the name
KEY.ended = "e" -- removed by age and by count
KEY.ended_given_id = "k" -- the caller gave the id: removed by age only
KEY.ended_own_ttl = "y" -- kept for a time of their own
KEY.own_ttl_ends = "y" -- sorted set of the ids in ended_own_ttl by when that time is over
KEY.completed = "e4"
KEY.completed_given_id = "k4"
KEY.completed_own_ttl = "y4"
KEY.failed = "e5"
KEY.failed_given_id = "k5"
KEY.failed_own_ttl = "y5"
KEY.cancelled = "e6"
KEY.cancelled_given_id = "k6"
KEY.cancelled_own_ttl = "y6"

-- Waiting jobs (see waiting.lua). A plain queue has one waiting list, a keyed queue has one per key
KEY.plain_list = "w:" -- followed by back<priority>, front<priority> or priorities
KEY.key_list = "k:" -- <key>: the same for one key
KEY.back = "l" -- <priority>: list of entries, first in, first out
KEY.front = "f" -- <priority>: sorted set of entries that are claimed before those of the list
KEY.priorities = "p" -- sorted set of the priorities above 0 that may have entries
KEY.back_0 = "l0"
KEY.key_back_0 = ":l0" -- behind key_list and the key
KEY.front_0 = "f0"
KEY.plain_back_0 = "w:l0"
KEY.plain_front_0 = "w:f0"
KEY.plain_priorities = "w:p"

-- Keys of a keyed queue
KEY.keys_waiting = "ks" -- sorted set of keys with a waiting list, by name
KEY.keys_ready = "r" -- sorted set of keys that a claim may start a job of, by turn
KEY.keys_active = "a" -- hash, key → active jobs; a key without any has no field
KEY.keys_skipped = "hd" -- sorted set of keys that claims skip until then: held, or over their rate
KEY.keys_held = "hx" -- sorted set of held keys by when the hold ends
KEY.keys_held_for = "hl" -- hash, key → how long the hold was asked for, in ms
KEY.key_limits = "kl" -- hash, key → "limit|rate", "\n" and key → the same limits as JSON
KEY.key_rate = "kr:" -- <key>: string, the state of the key's rate limit

-- The queue
KEY.settings = "m" -- hash, what is stored about the queue (see SETTING in fields.lua)
KEY.counters = "n" -- string, packed counters (see counters.lua)
KEY.minute = "mm:" -- <minute in ms>: hash of the figures of a past minute
KEY.log = "s" -- stream, the event log
KEY.log_channel = "log" -- channel: the event log has grown
KEY.noted_channel = "note:" -- <id>: channel: the run of a watched job stored progress or log lines
KEY.readers = "sr" -- hash, reader → the position it has acknowledged
KEY.reported = "td:" -- <nonce>: string, an operation that another partition has reported already
KEY.outbox = "o" -- sorted set of messages to other queues by the time they were posted
KEY.last_exchange = "c:" -- <worker>: string, the last exchange of a worker and what it returned

-- Unique locks
KEY.locks = "u" -- hash, lock → "<until>\t<id>"; until 0: as long as the job is unfinished
KEY.lock_ends = "uy" -- sorted set of locks by when they end

-- Sleeping workers
KEY.sleepers = "z" -- sorted set of workers by since when they sleep, in seconds
KEY.sleeper_slots = "zs" -- hash, worker → its free slots
KEY.deputies = "zd" -- string, deputies were notified a moment ago
KEY.wake = "wake:" -- <worker>: list of markers that the worker pops

-- Schedules
KEY.schedule_specs = "sc" -- hash, id → the spec as the caller packed it
KEY.schedule_states = "ss" -- hash, id → the packed state
KEY.schedules_due = "sd" -- sorted set of ids by their next time
KEY.schedule_ids = "si" -- sorted set of ids in the order of their letters

-- Flows that are staged and not submitted yet (see staging.lua)
KEY.flows = "fz" -- sorted set of flows by when they were begun
KEY.flow_places = "fr" -- hash, flow → the places of max_waiting that it has reserved
KEY.flow_members = "fl:" -- <flow>: set of the ids that are not submitted yet
KEY.flow_tied = "fe:" -- <flow>: list of members with edges, in the order they came
KEY.flow_free = "fm:" -- <flow>: list of members without edges
KEY.flow_sealed = "fs:" -- <flow>: string, all members of the flow have been staged here
KEY.flow_awaited = "fw:" -- <flow>: set of member ids that jobs wait for; <flow>\n<id>: those jobs

-- Channels of the whole store: <name of the space>: and this
KEY.cancel_channel = "cancel:" -- <worker>: which of its jobs the worker is asked to stop
