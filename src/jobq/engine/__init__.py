"""The parts of a running worker. A loop (a `Service`) has `tick()`, one pass, and `run()`.

station      everything below for one store; a Worker has one station per store
fetcher      settles ended runs and claims jobs, in one exchange with the store
exchange     repeats an exchange until the store has replied
slots        how many more jobs may run
runner       runs leases, from claim to outcome
run          one lease that is being worked on
processes    runs in child processes and programs
batches      one handler call for several jobs
interrupts   stops runs early; catches SIGTERM and SIGINT
child_tasks  KeyboardInterrupt and SystemExit in tasks that handlers create
last_chance  runs a job alone if its next stall would fail it
notes        progress, log lines and steps of running jobs, in batches
journal      what is logged about runs
keeper       a thread that renews leases and listens for cancels
pulse        announces the worker and receives operators' requests
upkeep       elects the leader of a store, the one worker that runs its upkeep and schedules
scheduler    creates the jobs of due schedules
service      the base class of the loops
handler      protocols for tasks, queues and middleware, so that the engine imports none
executors    where handlers run, opened on first use
builtin      tasks that every worker has
identity     the worker's name and process, its intervals and timeouts
"""
