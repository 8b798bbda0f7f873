-- Run time per tenant, task and day, and the part that went to runs that did not go well.
select
    tenant,
    queue,
    name as task,
    day,
    sum(runs) as runs,
    sum(run_ms) / 3600000.0 as run_hours,
    sum(lost_ms) / 3600000.0 as lost_hours
from {{ source('lake', 'task_hour') }}
group by tenant, queue, name, day
