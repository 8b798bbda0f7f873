"""What makes a worker work: one noun, one loop, one file. Each loop has `tick()` (one pass) and `run()` (until stopped).

handles    one store handle per place, event loop and process, counted
sender     puts: one in flight, the rest ride in the next     ids        ids for new jobs
fetcher    the one settle+claim exchange in flight            exchange   repeats it under one name until it is answered
runner     runs leases, from claim to outcome                 run        one of them
batches    one call for many of them                          builtin    tasks that every worker knows
slots      how many more may run                              notes      progress and log lines, in batches
keeper     renews leases, from a thread of its own, with the pulse ("I am here") and an ear for cancels
ticker     upkeep                scheduler  due schedules     leader     picks the one worker that does both
station    all of these for one store; a Worker has one per store
handler    what is asked of tasks and queues, as protocols    service    the shape of every loop    settings   its numbers
clock      this machine's
"""
