"""What people ask of a lake, answered from its derived tables.

scope.py      which days, tenant, queue and task an answer is about
causes.py     failures by cause: dead letters, and failures that are new since a time
cost.py       run time per tenant and task, and how much of it was lost
burn.py       how fast queues use up the error budgets of their targets
standouts.py  what differs most from an earlier period
workers.py    utilisation per worker, retries and stalls per task and worker
views.py      the answers by name, as `jq-pipeline show` prints them

The derived tables are small and exact even when events are late, so the answers are too. Spark
aggregates; the rules are pure functions over the few rows that are left.
"""
