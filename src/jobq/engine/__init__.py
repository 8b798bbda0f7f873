"""What makes a worker work: one noun, one loop, one file. Each loop has `tick()` (one pass) and `run()` (until stopped).

handles    one store handle per place, event loop and process, counted
sender     puts: one in flight, the rest ride in the next
fetcher    the one settle+claim exchange in flight        exchange   repeats it until it is answered
runner     one lease, from its claim to its outcome       slots      how many more may run
keeper     renews leases, from a thread of its own        notes      progress and log lines, in batches
ticker, scheduler, pulse    upkeep, due schedules, "I am here"; `leader` picks who does the first two
station    all of these for one store; a Worker has one per store
"""
