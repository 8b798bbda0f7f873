"""Live updates as server-sent events.

`GET /live` sends, until the tab is closed:

- `/live?tenant=&queue=`: `event: queue` with a QueueRow as JSON, whenever the queue changes, at
  most once per second.
- `/live?tenant=` or `/live`: the same for each of the first 50 queues of the overview.
- `/live?tenant=&queue=&id=`: `event: job` with a JobLive as JSON whenever the job changes, and
  `event: end` after the last one.

All tabs that watch the same queue or job share one reader of the store. A comment is sent every 15
seconds, so that proxies keep the connection open.
"""
