-- fields: the layout of every packed value, and the fields of hashes. When the library is built,
-- each RECORD.<name>, RUN.<name>, … in a Lua file is replaced by the value given here. Python reads
-- the same file (keys.py). Positions count from 1. Formats are those of struct.pack: >
-- big-endian, B and In unsigned integers of 1 and n bytes. Times are milliseconds in 6 bytes.
--
-- These values are stored in users' servers: a change must still understand what is stored.

-- The record of a job (KEY.job). Names in brackets depend on the flags:
--   created I6, flags B, #nk B, [#nk I2, #options I2: FLAG.more], [due I6, life I3: FLAG.later],
--   nk, options, payload
-- The producer packs all of it but `created` and the part of FLAG.later: the body. `nk` is the
-- task's name and the job's key (or nil) as MessagePack, as events hold them. `options` is a
-- MessagePack map of the options that differ from their defaults. Without FLAG.later the job was
-- due when it was created, in life 0. The head is short on purpose: a job with a payload of 100
-- bytes then needs the allocator's next smaller size.
RECORD.created = ">I6"
RECORD.head = ">I6BB" -- created, flags, #nk
RECORD.lengths = ">I2I2" -- #nk, #options
RECORD.later = ">I6I3" -- due, life
RECORD.created_end = 6
RECORD.body_at = 7
RECORD.flags_at = 7
RECORD.short_length_at = 8
RECORD.short_nk_at = 9
RECORD.lengths_at = 9
RECORD.long_nk_at = 13
RECORD.longest_head = 12 -- a record that is not longer than this has no name and cannot be read
BODY.lengths_at = 3
BODY.short_nk_at = 3
BODY.long_nk_at = 7
BODY.long_head_end = 6

-- Flags of a record. The first four say what a hot path must look at in the options.
FLAG.given_id = 1 -- the caller gave the id
FLAG.at_put = 2 -- a priority, time, ttl, lock or edges
FLAG.at_start = 4 -- a ttl or a cost
FLAG.at_end = 8 -- a result_ttl, schedule, channel or lock
FLAG.more = 16 -- the record has long lengths, and maybe options
FLAG.later = 64 -- the record has a due time and a life

-- The record of an ended job begins with how it ended; the record itself follows unchanged:
--   \255, state B, finished I6, #run I2, run, #reason B, reason, #result I4, result, record
-- `result` is "" for none, else "\1" and its bytes. No other record begins with \255: it would have
-- been created in the year 10854.
ENDED.mark = "\255"
ENDED.mark_byte = 255
ENDED.completed = "\255\4"
ENDED.head = ">BI6I2" -- behind the mark: state, finished, #run
ENDED.head_at = 2
ENDED.state_at = 2
ENDED.run_at = 11
ENDED.run_flags_at = 43
ENDED.result_length = ">I4"

-- The run of a job (KEY.runs): jobs that have started, or differ from what their record says.
--   attempt I4, failures I3, stalls I3, started I6, due I6, order I6 I2, ticket I2, flags B,
--   #token B, token, worker
-- `order` is the job's place in the waiting list, for when it returns: batch and place within it.
-- `ticket` distinguishes the job's entry in the waiting list from stale ones that it has left.
RUN.format = ">I4I3I3I6I6I6I2I2BB"
RUN.counts = ">I4I3I3" -- attempt, failures, stalls
RUN.first_counts = "\0\0\0\1\0\0\0\0\0\0" -- those of a job's first run
RUN.fresh_flags = "\0\0\1" -- ticket 0, and only RUN_FLAG.active
RUN.no_time = "\0\0\0\0\0\0"
RUN.counts_end = 10
RUN.started_at = 11
RUN.started_end = 16
RUN.due_at = 17
RUN.due_end = 22
RUN.flags_before = 32
RUN.flags_at = 33
RUN.token_length_at = 34
RUN.token_at = 35

-- Flags of a run
RUN_FLAG.active = 1 -- the job is leased
RUN_FLAG.cancel = 2 -- it was asked to stop
RUN_FLAG.extras = 4 -- it has extras (KEY.extras)
RUN_FLAG.awaited = 8 -- jobs wait for its end
RUN_FLAG.watched = 16 -- listeners wait for its end, or for what its run stores
RUN_FLAG.left_entry = 32 -- it left an entry in the waiting list: written by older versions
RUN_FLAG.last_chance = 64 -- its next stall would fail it

-- A failed run (KEY.failed_runs): attempt I4, time I6, #worker I2, worker, failure as MessagePack.
-- EXTRA.failure holds the same without the worker.
FAILED_RUN.format = ">I4I6I2" -- attempt, time, #worker
FAILED_RUN.short = ">I4I6" -- attempt, time
FAILED_RUN.worker_length = ">I2"
FAILED_RUN.no_worker = "\0\0"
FAILED_RUN.worker_before = 12
FAILED_RUN.worker_at = 13
FAILED_RUN.short_end = 10
FAILED_RUN.short_failure_at = 11

-- Fields of a job's extras (KEY.extras). A lease comes with all of them.
EXTRA.failure = "failure" -- why it failed (FAILED_RUN.short, failure); "": see its last failed run
EXTRA.saved = "saved" -- the job's checkpoint
EXTRA.saved_place = "saved_place" -- "<attempt>.<number>" of the newest checkpoint that has a number
EXTRA.progress = "progress"
EXTRA.edges = "edges" -- how many children the job has ever waited for
EXTRA.open = "open" -- how many of them have not ended
EXTRA.flow = "flow" -- the flow that gave the job its first edges
EXTRA.tying = "tying" -- the flow that has more edges for this job
EXTRA.follows = "follows" -- the job waits for the end of the running job whose lock it wants
EXTRA.signal = "signal" -- the signal that the job waits for
EXTRA.signals = "signals" -- how many signals it has received
EXTRA.why = "why" -- why it was asked to stop
EXTRA.who = "who" -- who asked
EXTRA.put_off = "put_off" -- "times\tsince\tdue": workers have deferred the job
EXTRA.deferred = "deferred" -- "reason\tattempt\tunfit since\ttext": how they did last
EXTRA.edge = "e:" -- <queue>\n<id> of a child → "<ordinal>:<1 if its result is wanted>"
EXTRA.edge_pattern = "^e:([^\n]*)\n(.*)$"
EXTRA.input = "i:" -- <ordinal> → how that child ended
EXTRA.parent = "P:" -- <queue>\n<parent>\n<id the parent waits for> → a number: their order
EXTRA.parent_pattern = "^P:([^\n]*)\n([^\n]*)\n(.*)$"
EXTRA.received = "g:" -- <n> → "<name>\n<value>" of a signal
EXTRA.step = "s:" -- <name> → what that step of the job has recorded
EXTRA.listener = "w:" -- <channel> → "1": publish the job's end there

-- How a child ended (EXTRA.input): state B, #codec B, codec, then "", "\1" and the result, or "\3"
-- and a failed run. jobq 0.1 wrote "\2" and a failure.
INPUT.head = ">BB"
INPUT.failed_run = "\3"

-- The settings of a queue (KEY.settings). Lua reads those of META in context.lua with the counters.
SETTING.mode = "mode" -- plain or keyed
SETTING.paused = "paused" -- 1 or 0
SETTING.partitions = "partitions" -- of the whole queue
SETTING.base = "base" -- in a partition: the prefix of the whole queue
SETTING.parts = "parts" -- 1 in a partition
SETTING.limit = "limit"
SETTING.rate = "rate"
SETTING.key_limit = "key_limit"
SETTING.key_rate = "key_rate"
SETTING.max_waiting = "max_waiting" -- "<this partition's share>/<of the whole queue>"
SETTING.reserved = "reserved" -- places of max_waiting that staged flows have taken
SETTING.declared = "declared" -- the limits that code declares, as JSON
SETTING.version = "version" -- and their version
SETTING.changed = "changed" -- the limits an operator has set instead, as JSON
SETTING.rate_state = "rate_state" -- the state of the queue's rate limit (see rates.lua)
SETTING.rate_until = "rate_until" -- when the rate allows the next start
SETTING.held = "held" -- when the queue's hold ends
SETTING.held_for = "held_for" -- how long that hold was asked for, in ms
SETTING.keep_completed = "keep4" -- retention in ms, "" for ever; the state's code follows "keep"
SETTING.keep_failed = "keep5"
SETTING.keep_cancelled = "keep6"
SETTING.keep = "keep"
SETTING.count = "count" -- ended jobs kept per state, "" for any number
SETTING.dead = "dead" -- "<prefix of the dead-letter queue>\n<name of this queue>"
SETTING.max_stalls = "max_stalls" -- by task name, as JSON
SETTING.event_meta = "event_meta" -- names of meta that events carry, one per line
SETTING.retries = "retries" -- default max_retries of jobs whose call and task have none
SETTING.ttl = "ttl" -- default ttl of new jobs, in ms
SETTING.behind = "behind" -- "<store's time>:<clock>": the clock was set back (see clock.lua)
SETTING.listened = "listened" -- until when a client listens to the event log
SETTING.tag = "tag" -- the name of the event log, part of every event id
SETTING.gone = "gone" -- how many events were ever dropped from the log
SETTING.gone_to = "gone_to" -- the position of the last one
SETTING.gone_in = "gone_in" -- and its incarnation
SETTING.soft = "soft" -- events kept at least, and at most if a reader has not acknowledged them
SETTING.hard = "hard"
SETTING.told = "told" -- how many operations this partition has reported to shard 0

-- MessagePack
PACK.none = "\192" -- nil
PACK.none_byte = 192
PACK.time = "\207\0\0" -- an unsigned integer of 8 bytes whose last 6 follow
PACK.text_8 = "\168" -- a text of 8 bytes follows
PACK.no_text = "\160"
PACK.small_text = 160 -- plus its length, up to 31
PACK.small_array = 144 -- plus its length, up to 15
PACK.text8 = "\217" -- a text with its length in 1, 2 or 4 bytes
PACK.text16 = "\218"
PACK.text32 = "\219"
PACK.array16 = "\220" -- an array with its length in 2 or 4 bytes
PACK.array32 = "\221"

-- An entry of the event log and the events in it (core/records/event_log.py has the format)
EVENT.entry = "\150\2" -- an array of 6, format 2
EVENT.accepted_entry = "\153\2" -- an array of 9, format 2
EVENT.format_at = 2
EVENT.format = 2
EVENT.incarnation_at = 13
EVENT.incarnation_end = 20
EVENT.item = "\220\0\17" -- an event: an array of 17, of 18 with an actor, of 19 with meta as well
EVENT.longer_item = "\220\0" -- an array of more than 17, whose length follows
EVENT.fields = 17
EVENT.accepted = "\220\0\17\0" -- the same with the code of the kind behind it
EVENT.accepted_with_meta = "\220\0\19\0"
EVENT.started = "\220\0\17\3"
EVENT.started_with_meta = "\220\0\19\3"
EVENT.completed = "\220\0\17\4"
EVENT.completed_with_meta = "\220\0\19\4"
EVENT.life_0 = "\0"
EVENT.no_counts = "\0\0\0" -- attempt, failures and stalls of a job that was never started
EVENT.first_counts = "\1\0\0" -- and of a first run
EVENT.first_start = "\1\0\0\3\2" -- counts of a first run, state active, previously waiting
EVENT.now_completed = "\4\3" -- state completed, previously active
EVENT.delayed = "\0"
EVENT.waiting = "\2"

-- A completed job as it is published to a caller that waits for it (signals.lua):
--   \255, finished I6, the lengths of what follows, prefix, id, record, run, result
PUBLISHED.mark = "\255"
PUBLISHED.head = ">I6I2I2I4I2I4"
