-- Jobs that failed for good, by cause, with the time of the first and the last one.
select
    concat_ws('/', tenant, queue, coalesce(fingerprint, reason, 'unknown')) as cause,
    tenant,
    queue,
    string_agg(distinct name, ', ' order by name) as tasks,
    sum("final") as dead,
    min(first_at) as first_at,
    max(last_at) as last_at,
    max_by(example, last_at) as example
from {{ source('lake', 'errors') }}
group by tenant, queue, coalesce(fingerprint, reason, 'unknown')
having sum("final") > 0
