"""The parts of a running worker. Each loop has `tick()`, one pass, and `run()`, which repeats it.

station          everything below for one store; a Worker has one station per store
fetcher          settles ended runs and claims jobs, in one exchange with the store
exchange         repeats an exchange until the store has replied
runner           runs leases, from claim to outcome
run              one lease that is being worked on
apart            runs in child processes and programs
batches          one handler call for several jobs
completions      the end of a run that has called complete_in
last_chance      runs a job alone if its next stall would fail it
child_tasks      KeyboardInterrupt and SystemExit in tasks that handlers create
executors        where handlers run, opened on first use
slots            how many more jobs may run
builtin          tasks that every worker has
notes            progress, log lines and steps of running jobs, in batches
journal          what is logged about runs
keeper           a thread that renews leases and listens for cancels
pulse            announces the worker and receives operators' requests
leader           elects the one worker of a store that runs ticker and scheduler
ticker           upkeep of the store
scheduler        creates the jobs of due schedules
service          the base class of the loops
handler          protocols for tasks and queues, so that the engine does not import them
identity         the worker's name and process
signal_handlers  SIGTERM and SIGINT
settings         intervals and timeouts
clock            this machine's clock
"""
