"""jq-worker as a process: it runs jobs, drains, stops, and is killed."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import Ctl
from tests.stores.valkey import servers

Start = Callable[..., "subprocess.Popen[str]"]
Until = Callable[[Callable[[], Any], str], Any]


def state(ctl: Ctl, id: str) -> str:
    return str(ctl.json("job", "status", id)["state"])


def hold(ctl: Ctl, tmp_path: Path, n: int) -> list[str]:
    """Submit jobs that run until the test lets them finish."""
    ids = [f"held-{i}" for i in range(n)]
    lines = "\n".join(json.dumps({"name": "hold", "args": [str(tmp_path)], "id": id}) for id in ids)
    ctl("job", "submit", "-q", "shop", "--lines", "-", input=lines)
    return ids


def read_until(worker: subprocess.Popen[str], text: str) -> None:
    """Return once the worker has printed a line with this text."""
    assert worker.stdout is not None
    assert any(text in line for line in worker.stdout), f"the worker never printed {text!r}"


def all_started(tmp_path: Path, ids: list[str]) -> bool:
    return all((tmp_path / f"{id}.started").exists() for id in ids)


def test_a_worker_runs_jobs_and_drains_on_sigterm(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    ids = hold(ctl, tmp_path, 3)
    worker = start_worker("--concurrency", "2", "--name", "w1")
    until(lambda: all_started(tmp_path, ids[:2]), "two jobs to run")
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "finishing running jobs")
    (tmp_path / "go").touch()
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    assert [state(ctl, id) for id in ids] == ["completed", "completed", "waiting"]
    assert ctl.json("worker", "list") == []
    assert "Traceback" not in output


def test_a_second_signal_releases_running_jobs_at_once_without_a_failure(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    (id,) = hold(ctl, tmp_path, 1)
    worker = start_worker("--drain", "1h")
    until(lambda: all_started(tmp_path, [id]), "the job to run")
    worker.send_signal(signal.SIGTERM)
    read_until(worker, "finishing running jobs")
    worker.send_signal(signal.SIGINT)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    job = ctl.json("job", "status", id)
    assert (job["state"], job["failures"], job["stalls"]) == ("waiting", 0, 0)


def test_another_worker_runs_the_jobs_of_a_killed_worker(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    ids = hold(ctl, tmp_path, 20)
    first = start_worker("--lease", "2s", "--name", "first")
    until(lambda: all_started(tmp_path, ids), "all jobs to run")
    first.kill()
    first.wait()
    (tmp_path / "go").touch()
    second = start_worker("--name", "second")
    ctl("job", "wait", *ids, "--for", "30s")
    jobs = ctl.json("job", "list", "-q", "shop", "--state", "completed")
    assert {job["id"] for job in jobs} == set(ids)
    assert all(
        job["stalls"] >= 1 and job["attempt"] == job["stalls"] + 1 and job["failures"] == 0
        for job in jobs
    )
    assert {job["worker"] for job in jobs} == {"second"}
    events = ctl.json("events", "--all")
    assert sum(event["kind"] == "completed" for event in events) == len(ids)
    assert sum(event["kind"] == "stalled" for event in events) == sum(job["stalls"] for job in jobs)
    second.terminate()
    assert second.wait(30) == 0


def test_an_operator_shuts_down_one_worker_gracefully_and_another_at_once(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    ids = hold(ctl, tmp_path, 1)
    idle, busy = (
        start_worker("--name", "idle", "--queues", "emails", app="shopapp"),
        start_worker("--name", "busy"),
    )
    until(
        lambda: all_started(tmp_path, ids) and len(ctl.json("worker", "list")) == 2,
        "the workers to be there",
    )
    assert [(w["name"], w["pid"], w["concurrency"]) for w in ctl.json("worker", "list")] == [
        ("busy", busy.pid, 100),
        ("idle", idle.pid, 100),
    ]
    assert [w["name"] for w in ctl.json("worker", "list", "-q", "emails")] == ["idle"]
    assert "running" in ctl("worker", "list").stdout
    assert ctl.json("worker", "shutdown", "idle", "--wait", "30s") == [
        {"name": "idle", "asked": True, "wish": "shutdown", "done": True}
    ]
    assert "busy has stopped" in ctl("worker", "shutdown", "busy", "--now", "--wait", "30s").stdout
    assert [idle.wait(30), busy.wait(30)] == [0, 0]
    job = ctl.json("job", "status", ids[0])
    assert (job["state"], job["failures"], job["stalls"]) == ("waiting", 0, 0)
    assert "no worker busy" in ctl("worker", "drain", "busy", code=1).stderr
    assert "no workers: start one with" in ctl("worker", "list").stderr


def test_a_drained_worker_stays_and_can_be_resumed(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    (first,) = hold(ctl, tmp_path, 1)
    worker = start_worker("--name", "w")
    until(lambda: all_started(tmp_path, [first]), "the job to run")
    assert "not yet: w" in ctl("worker", "drain", "w", "--wait", "10ms", code=1).stderr
    until(lambda: ctl.json("worker", "list")[0]["draining"], "the worker to drain")
    assert "draining" in ctl("worker", "list").stdout
    (tmp_path / "go").touch()
    ctl("job", "wait", first, "--for", "30s")
    assert "w is drained" in ctl("worker", "drain", "w", "--wait", "30s").stdout
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    assert worker.poll() is None
    assert state(ctl, "sum") == "waiting"
    assert "w claims jobs again" in ctl("worker", "resume", "w", "--wait", "30s").stdout
    ctl("job", "wait", "sum", "--for", "30s")
    assert not ctl.json("worker", "list")[0]["draining"]


def test_an_operator_changes_the_concurrency_of_a_worker(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    ids = hold(ctl, tmp_path, 3)
    start_worker("--name", "w", "--concurrency", "1")
    until(lambda: len(list(tmp_path.glob("*.started"))) == 1, "one job to run")
    assert "w runs up to 3 jobs at once" in (
        ctl("worker", "concurrency", "3", "w", "--wait", "30s").stdout
    )
    until(lambda: all_started(tmp_path, ids), "all jobs to run")
    assert ctl.json("worker", "list")[0]["concurrency"] == 3
    assert "is not in the range" in ctl("worker", "concurrency", "0", "w", code=2).stderr


def test_a_name_is_refused_while_its_worker_lives_and_free_when_it_is_dead(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    first = start_worker("--name", "w")
    until(
        lambda: (tmp_path / "jobs.db").exists() and ctl.json("worker", "list"),
        "the worker to be there",
    )
    second = start_worker("--name", "w")
    output, _ = second.communicate(timeout=30)
    assert second.returncode == 2
    assert f"a worker named 'w' is alive (process {first.pid} on" in output
    assert "Traceback" not in output
    assert first.poll() is None
    first.kill()
    first.wait()
    third = start_worker("--name", "w")
    until(
        lambda: [w["pid"] for w in ctl.json("worker", "list")] == [third.pid],
        "another to take the name",
    )


def test_the_environment_and_a_file_configure_a_worker(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    (tmp_path / "worker.yaml").write_text(
        "concurrency: 3\nworker-id: from-the-file\nqueues: [shop]\n"
    )
    start_worker(
        "--config",
        f"{tmp_path}/worker.yaml",
        "--concurrency",
        "4",
        app="shopapp",
        JQ_WORKER_ID="from-the-environment",
    )
    until(
        lambda: (tmp_path / "jobs.db").exists() and ctl.json("worker", "list"),
        "the worker to be there",
    )
    (seen,) = ctl.json("worker", "list")
    assert (seen["name"], seen["concurrency"]) == ("from-the-environment", 4)
    assert [queue["queue"] for queue in seen["queues"]] == ["shop"]


def test_the_option_url_overrides_the_apps_store(
    ctl: Ctl, url: str, tmp_path: Path, start_worker: Start
) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    start_worker(
        "--url",
        url,
        JQ_URL=f"sqlite:///{tmp_path}/other.db",
        JQ_TEST_SHOP=f"sqlite:///{tmp_path}/apps-own.db",
    )
    ctl("job", "wait", "sum", "--for", "30s")
    assert ctl.json("job", "status", "sum")["result"] == 5


def test_the_apps_store_overrides_the_environment(
    ctl: Ctl, url: str, tmp_path: Path, start_worker: Start
) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    start_worker(JQ_URL=f"sqlite:///{tmp_path}/other.db", JQ_TEST_SHOP=url)
    ctl("job", "wait", "sum", "--for", "30s")


def test_a_job_of_an_unknown_task_is_delayed_and_the_worker_continues(
    ctl: Ctl, start_worker: Start
) -> None:
    ctl("job", "submit", "nobody_knows", "-q", "shop", "--id", "strange", "--max-retries", "0")
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    start_worker()
    ctl("job", "wait", "sum", "--for", "30s")
    strange = ctl.json("job", "status", "strange")
    assert (strange["state"], strange["failures"]) in {
        ("delayed", 0),
        ("waiting", 0),
        ("active", 0),
    }
    assert "unknown" in [
        event["reason"] for event in ctl.json("events", "--all") if event["job"] == "strange"
    ]


def test_submit_can_wait_for_the_result(ctl: Ctl, start_worker: Start) -> None:
    start_worker()
    assert (
        ctl.json("job", "submit", "add", "-q", "shop", "--payload", "[2, 40]", "--wait", "30s")[
            "result"
        ]
        == 42
    )
    ctl("job", "submit", "boom", "-q", "shop", "--wait", "30s", code=1)


# ── a store that is unavailable at the start ──────────────────────────────────────────────────────


@pytest.fixture
def away(tmp_path: Path) -> servers.Server:
    """The URL of a Valkey server that is not running yet."""
    return servers.Server(servers.valkey_or_skip(), tmp_path)


def test_a_worker_waits_for_a_store_that_starts_later(
    ctl: Ctl, away: servers.Server, start_worker: Start, until: Until
) -> None:
    worker = start_worker("--url", away.url)
    read_until(worker, "waits for its store")
    away.start()
    try:
        ctl.url = away.url
        ctl(
            "job",
            "submit",
            "add",
            "-q",
            "shop",
            "--payload",
            "[2, 3]",
            "--id",
            "sum",
            "--wait",
            "20s",
        )
        assert ctl.json("job", "status", "sum")["result"] == 5
        worker.send_signal(signal.SIGTERM)
        output, _ = worker.communicate(timeout=30)
    finally:
        away.kill()
    assert worker.returncode == 0, output
    assert "works again after" in output
    assert "Traceback" not in output


def test_a_worker_that_waits_for_its_store_can_be_stopped(
    away: servers.Server, start_worker: Start, until: Until
) -> None:
    worker = start_worker("--url", away.url)
    read_until(worker, "waits for its store")
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    assert "Traceback" not in output


def test_a_worker_waits_no_longer_than_the_option_allows(
    away: servers.Server, start_worker: Start
) -> None:
    worker = start_worker("--url", away.url, "--wait", "200ms")
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 1, output
    assert output.splitlines()[-1].startswith("Error: no reply from")
    assert "Traceback" not in output


def test_a_worker_of_a_package_runs_its_queues_with_lifespan_and_middleware(
    ctl: Ctl, start_worker: Start
) -> None:
    ctl("job", "submit", "-q", "mails", "mail", "--arg", "to=you", "--id", "m1")
    ctl("job", "submit", "-q", "orders", "ship", "--arg", "order=7", "--id", "o1")
    options = ["--queues", "orders=2,mails", "--lifespan", "storeapp.hooks:lifespan"]
    worker = start_worker(*options, "--middleware", "storeapp.hooks:prints", app="storeapp")
    read_until(worker, "with value returned")
    read_until(worker, "with value returned")
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    assert "the lifespan ends" in output
    assert ctl.json("job", "status", "-q", "orders", "o1")["result"] == "shipped 7"
