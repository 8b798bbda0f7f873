"""A DAG for Airflow 3: the lake takes in new events, is audited, and gets a report.

Airflow 2 has `DAG` in `airflow`, and `BashOperator` in `airflow.operators.bash`.

JQ_URL and JQ_LAKE come from the environment of Airflow's workers. They need Java and
`pip install 'jobq[spark]'`; on a cluster, add --master to each command."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

RUN = 'jq-pipeline run --source "$JQ_URL" --lake "$JQ_LAKE" --once'
AUDIT = 'jq-pipeline audit --lake "$JQ_LAKE" --store "$JQ_URL"'
REPORT = 'jq-pipeline report --lake "$JQ_LAKE" --out "$JQ_LAKE/report.html"'
COST = (
    'jq-pipeline show cost --lake "$JQ_LAKE" --since "{{ ds }}" --until "{{ ds }}" -o csv '
    '> "$JQ_LAKE/cost-{{ ds }}.csv"'
)

with DAG(
    "jobq_lake",
    description="Events of jobq into the lake, an audit, and a report",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,  # a run takes in everything that is new, also what missed hours left
    max_active_runs=1,  # a lake has one writer at a time
    default_args={"retries": 2, "retry_delay": timedelta(minutes=2)},
) as dag:
    run = BashOperator(task_id="run", bash_command=RUN, execution_timeout=timedelta(minutes=50))
    # The task fails if the lake is violated (1). It is skipped if the lake is unprovable (2): a
    # busy store has moved on since `run`, or records are in quarantine. A repetition would judge
    # the same events again.
    audit = BashOperator(task_id="audit", bash_command=AUDIT, retries=0, skip_on_exit_code=2)
    report = BashOperator(task_id="report", bash_command=REPORT)
    cost = BashOperator(task_id="cost", bash_command=COST)
    run >> [audit, report, cost]
