"""jq-worker --processes: worker processes are started, restarted, replaced and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import waiting
from tests.cli.fleet import APP, Output, is_alive, stop, wait_for_workers, workers
from tests.cli.kit import Ctl
from tests.cli.test_worker_process import all_started, hold, state

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an application whose code a test may change."""
    folder = tmp_path / "release-1"
    folder.mkdir()
    (folder / "fleetapp.py").write_text(APP)
    return folder


def submit(ctl: Ctl, name: str, payload: str = "[]") -> object:
    """Run a job and return its result."""
    job = ctl.json("job", "submit", name, "-q", "shop", "--payload", payload, "--wait", "30s")
    return job["result"]


# ── starting and stopping ─────────────────────────────────────────────────────────────────────────


def test_each_process_is_a_worker_of_its_own(ctl: Ctl, start_worker: Start) -> None:
    supervisor = start_worker("--processes", "3", "--name", "web", "--concurrency", "5")
    output = Output(supervisor)
    pids = wait_for_workers(ctl, "web-1", "web-2", "web-3")
    assert len({supervisor.pid, *pids.values()}) == 4
    assert {worker["concurrency"] for worker in workers(ctl).values()} == {5}
    assert submit(ctl, "add", "[2, 3]") == 5
    stop(supervisor, output)
    assert not any(is_alive(pid) for pid in pids.values())
    assert workers(ctl) == {}


def test_workers_without_a_name_share_the_beginning_of_theirs(
    ctl: Ctl, start_worker: Start, tmp_path: Path
) -> None:
    supervisor = start_worker(JQ_PROCESSES="2")
    waiting.wait_until(
        lambda: (tmp_path / "jobs.db").exists() and len(workers(ctl)) == 2, "two workers"
    )
    first, second = sorted(workers(ctl))
    assert first.removesuffix("-1") == second.removesuffix("-2")
    assert f"-{supervisor.pid}-" in first


@pytest.mark.parametrize("everyone", [False, True], ids=["the supervisor", "every process"])
def test_a_signal_to_any_of_them_drains_all(
    ctl: Ctl, tmp_path: Path, start_worker: Start, everyone: bool
) -> None:
    """A service manager sends its signal to every process. That must not count as a second one."""
    supervisor = start_worker("--processes", "2", "--concurrency", "2", "--name", "w")
    output = Output(supervisor)
    pids = wait_for_workers(ctl, "w-1", "w-2")
    ids = hold(ctl, tmp_path, 5)
    waiting.wait_until(
        lambda: len(list(tmp_path.glob("*.started"))) == 4, "two jobs to run in each process"
    )
    for pid in [supervisor.pid, *(pids.values() if everyone else ())]:
        os.kill(pid, signal.SIGTERM)
    output.wait_for("finishing the running jobs of 2 processes (up to 30 s)")
    if everyone:
        output.wait_for("SIGTERM, finishing running jobs", times=2)
    (tmp_path / "go").touch()
    code, text = output.end()
    assert code == 0, text
    assert sorted(state(ctl, id) for id in ids) == ["completed"] * 4 + ["waiting"]
    assert "releasing" not in text
    assert workers(ctl) == {}


def test_a_second_signal_releases_the_jobs_of_all_processes(
    ctl: Ctl, tmp_path: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--drain", "1h", "--concurrency", "1")
    output = Output(supervisor)
    output.wait_for("is up after", times=2)
    ids = hold(ctl, tmp_path, 2)
    waiting.wait_until(lambda: all_started(tmp_path, ids), "both jobs to run")
    supervisor.send_signal(signal.SIGINT)
    output.wait_for("finishing the running jobs")
    supervisor.send_signal(signal.SIGTERM)
    code, text = output.end()
    assert code == 0, text
    jobs = [ctl.json("job", "status", id) for id in ids]
    assert [(job["state"], job["failures"], job["stalls"]) for job in jobs] == [
        ("waiting", 0, 0)
    ] * 2


def test_a_ctrl_c_reaches_only_the_supervisor_which_stops_a_process_that_starts(
    folder: Path, start_worker: Start
) -> None:
    (folder / "fleetapp.py").write_text(
        "import os, signal, time\n"
        "from pathlib import Path\n"
        "signal.signal(signal.SIGINT, lambda *_: Path('interrupted').touch())\n"
        "signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n"
        "Path('imports').touch()\n"
        "time.sleep(600)\n"
    )
    supervisor = start_worker("--processes", "2", app="fleetapp", folder=folder, own_group=True)
    output = Output(supervisor)
    waiting.wait_until((folder / "imports").exists, "the app to be imported")
    os.killpg(supervisor.pid, signal.SIGINT)
    code, text = output.end()
    assert code == 0, text
    assert "Traceback" not in text
    assert not (folder / "interrupted").exists()


def test_an_operator_shuts_down_one_worker_for_good_and_the_last_ends_the_supervisor(
    ctl: Ctl, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w")
    output = Output(supervisor)
    wait_for_workers(ctl, "w-1", "w-2")
    ctl("worker", "shutdown", "w-1", "--wait", "30s")
    output.wait_for("was shut down by an operator and is not replaced")
    assert set(workers(ctl)) == {"w-2"}
    supervisor.send_signal(signal.SIGHUP)  # starts all again
    wait_for_workers(ctl, "w-1", "w-3")
    ctl("worker", "shutdown", "w-1", "w-3", "--wait", "30s")
    code, text = output.end()
    assert code == 0, text


def test_a_terminal_that_is_closed_stops_the_supervisor(start_worker: Start) -> None:
    ours, theirs = pty.openpty()
    supervisor = start_worker("--processes", "1", stdin=theirs)
    os.close(theirs)
    output = Output(supervisor)
    output.wait_for("is up after")
    supervisor.send_signal(signal.SIGHUP)
    output.wait_for("all worker processes have been replaced")
    os.close(ours)
    supervisor.send_signal(signal.SIGHUP)  # as the kernel does in a session of its own
    code, text = output.end()
    assert code == 0, text
    assert "SIGHUP: finishing the running jobs" in text


# ── processes that die ────────────────────────────────────────────────────────────────────────────


def test_a_process_that_dies_is_restarted_under_its_name(
    ctl: Ctl, tmp_path: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w", "--lease", "2s")
    output = Output(supervisor)
    pids = wait_for_workers(ctl, "w-1", "w-2")
    ids = hold(ctl, tmp_path, 4)
    waiting.wait_until(lambda: all_started(tmp_path, ids), "the jobs to run")
    os.kill(pids["w-1"], signal.SIGKILL)
    output.wait_for(f"worker process w-1 (pid {pids['w-1']}) was killed by SIGKILL")
    output.wait_for("is up after", times=3)
    again = wait_for_workers(ctl, "w-1", "w-2")
    assert again["w-2"] == pids["w-2"]
    assert again["w-1"] != pids["w-1"]
    (tmp_path / "go").touch()
    ctl("job", "wait", *ids, "--for", "30s")
    stop(supervisor, output)


def test_a_handler_that_exits_its_process_costs_a_delay_that_doubles(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "1", "--lease", "1s", app="fleetapp", folder=folder)
    output = Output(supervisor)
    for ups, delay in enumerate(("0.5 s", "1 s", "2 s"), 1):
        output.wait_for("is up after", times=ups)
        ctl("job", "submit", "crash", "-q", "shop")
        output.wait_for(f"exited with code 7; starting it again in {delay}")
    output.wait_for("is up after", times=4)
    stop(supervisor, output)


@pytest.mark.parametrize("processes", ["1", "4"])
def test_an_app_that_cannot_be_imported_ends_the_supervisor_with_one_message(
    folder: Path, start_worker: Start, processes: str
) -> None:
    (folder / "fleetapp.py").write_text("import no_such_module")
    supervisor = start_worker("--processes", processes, app="fleetapp", folder=folder)
    code, text = Output(supervisor).end()
    assert code == 2
    assert text.count("fleetapp imports no_such_module, which is not installed") == 1
    assert "no worker process could start, so jq-worker ends" in text
    assert "Traceback" not in text


def test_a_process_killed_before_it_is_up_ends_the_supervisor_with_an_error(
    folder: Path, start_worker: Start
) -> None:
    (folder / "fleetapp.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)")
    supervisor = start_worker("--processes", "2", app="fleetapp", folder=folder)
    code, text = Output(supervisor).end()
    assert code == 1
    assert "was killed by SIGSEGV before it was up" in text


def test_a_store_in_memory_is_refused(start_worker: Start) -> None:
    code, text = Output(start_worker("--processes", "2", "--url", "memory://")).end()
    assert code == 2
    assert "which is visible in one process only" in text


def test_processes_do_not_outlive_a_supervisor_that_is_killed(
    ctl: Ctl, tmp_path: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w")
    output = Output(supervisor)
    pids = wait_for_workers(ctl, "w-1", "w-2")
    ids = hold(ctl, tmp_path, 2)
    waiting.wait_until(lambda: all_started(tmp_path, ids), "the jobs to run")
    supervisor.kill()
    code, _ = output.end()  # the output ends with the last process
    assert code == -signal.SIGKILL
    waiting.wait_until(
        lambda: not any(is_alive(pid) for pid in pids.values()), "the processes to end"
    )


# ── replacing ─────────────────────────────────────────────────────────────────────────────────────


def test_sighup_replaces_all_processes_and_there_are_never_fewer(
    ctl: Ctl, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w")
    output = Output(supervisor)
    before = wait_for_workers(ctl, "w-1", "w-2")
    supervisor.send_signal(signal.SIGHUP)
    fewest = 2

    def replaced() -> bool:
        nonlocal fewest
        listed = workers(ctl)
        fewest = min(fewest, len(listed))
        return output.has("all worker processes have been replaced")

    waiting.wait_until(replaced, "new processes")
    assert fewest == 2
    output.wait_for(") has stopped", times=2)
    after = {worker["pid"] for worker in workers(ctl).values()}
    assert len(after) == 2
    assert after.isdisjoint(before.values())
    text = stop(supervisor, output)
    # Each old process stops after its successor is up.
    ups = [n for n, line in enumerate(text.splitlines()) if "is up after" in line]
    ends = [n for n, line in enumerate(text.splitlines()) if ") has stopped" in line]
    assert ups[2] < ends[0]
    assert ups[3] < ends[1]


def test_a_replaced_process_finishes_its_running_jobs(
    ctl: Ctl, tmp_path: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "1", "--name", "w")
    output = Output(supervisor)
    old = wait_for_workers(ctl, "w-1")["w-1"]
    (id,) = hold(ctl, tmp_path, 1)
    waiting.wait_until(lambda: all_started(tmp_path, [id]), "the job to run")
    supervisor.send_signal(signal.SIGHUP)
    output.wait_for("all worker processes have been replaced")
    assert submit(ctl, "add", "[2, 3]") == 5  # in the new process
    assert is_alive(old)
    (tmp_path / "go").touch()
    ctl("job", "wait", id, "--for", "30s")
    job = ctl.json("job", "status", id)
    assert (job["state"], job["attempt"], job["worker"]) == ("completed", 1, "w-1")
    output.wait_for(f"worker process w-1 (pid {old}) has stopped")
    stop(supervisor, output)


def test_sighup_starts_the_release_that_a_symbolic_link_names_now(
    ctl: Ctl, tmp_path: Path, folder: Path, start_worker: Start
) -> None:
    new = tmp_path / "release-2"
    new.mkdir()
    (new / "fleetapp.py").write_text(APP.replace("return 1", "return 2"))
    current = tmp_path / "current"
    current.symlink_to(folder)
    supervisor = start_worker("--processes", "1", app="fleetapp", folder=current)
    output = Output(supervisor)
    output.wait_for("is up after")
    assert submit(ctl, "version") == 1
    current.unlink()
    current.symlink_to(new)
    supervisor.send_signal(signal.SIGHUP)
    output.wait_for("all worker processes have been replaced")
    output.wait_for(") has stopped")
    assert submit(ctl, "version") == 2
    stop(supervisor, output)


def test_a_release_that_does_not_start_leaves_the_old_processes_working(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w", app="fleetapp", folder=folder)
    output = Output(supervisor)
    before = wait_for_workers(ctl, "w-1", "w-2")
    (folder / "fleetapp.py").write_text("syntax error")
    supervisor.send_signal(signal.SIGHUP)
    output.wait_for("exited with code 2 before it was up: the restart ends here")
    assert wait_for_workers(ctl, "w-1", "w-2") == before
    assert submit(ctl, "version") == 1
    (folder / "fleetapp.py").write_text(APP.replace("return 1", "return 22"))
    supervisor.send_signal(signal.SIGHUP)
    output.wait_for("all worker processes have been replaced")
    output.wait_for(") has stopped", times=2)
    assert submit(ctl, "version") == 22
    stop(supervisor, output)


def test_a_process_is_replaced_after_its_number_of_jobs(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--max-jobs", "3", "--name", "w", app="fleetapp", folder=folder)
    output = Output(supervisor)
    old = wait_for_workers(ctl, "w-1")["w-1"]
    assert [submit(ctl, "who") for _ in range(3)] == [old] * 3
    output.wait_for("it has run 3 jobs (--max-jobs 3)")
    output.wait_for(f"(pid {old}) has stopped")
    new = wait_for_workers(ctl, "w-2")["w-2"]
    assert submit(ctl, "who") == new
    stop(supervisor, output)


def test_a_process_that_uses_too_much_memory_is_replaced(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    supervisor = start_worker("--max-memory", "400M", "--name", "w", app="fleetapp", folder=folder)
    output = Output(supervisor)
    old = wait_for_workers(ctl, "w-1")["w-1"]
    assert submit(ctl, "leak", "[1]") == old
    assert submit(ctl, "leak", "[400]") == old
    submit(ctl, "leak", "[1]")  # the memory is read every 0.25 s at most
    waiting.wait_until(
        lambda: output.has("of memory (--max-memory 400 MiB)") or submit(ctl, "who") != old,
        "the process to be replaced",
    )
    output.wait_for(f"(pid {old}) has stopped")
    assert submit(ctl, "who") == wait_for_workers(ctl, "w-2")["w-2"]
    stop(supervisor, output)


def test_no_job_is_lost_or_stalls_while_processes_are_replaced(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    count = 600
    lines = "\n".join(json.dumps({"name": "who", "id": f"j{n}"}) for n in range(count))
    ctl("job", "submit", "-q", "shop", "--lines", "-", input=lines)
    supervisor = start_worker(
        *("--processes", "2", "--max-jobs", "50", "--concurrency", "2", "--log-level", "info"),
        app="fleetapp",
        folder=folder,
    )
    output = Output(supervisor)
    output.wait_for("is up after", times=2)
    supervisor.send_signal(signal.SIGHUP)
    ctl("job", "wait", *(f"j{n}" for n in range(count)), "--for", "60s")
    stop(supervisor, output)
    kinds = Counter(event["kind"] for event in ctl.json("events", "--all"))
    assert kinds["completed"] == count
    assert kinds["stalled"] == kinds["failed"] == kinds["retried"] == 0
    assert output.has("asks to be replaced")


def test_reload_replaces_the_processes_when_the_code_changes(
    ctl: Ctl, folder: Path, start_worker: Start
) -> None:
    pytest.importorskip("watchfiles")
    (folder / "fleetapp.py").write_text("syntax error")
    supervisor = start_worker("--reload", app="fleetapp", folder=folder)
    output = Output(supervisor)
    output.wait_for("waiting for a change")
    (folder / "fleetapp.py").write_text(APP)
    output.wait_for("fleetapp.py changed: replacing all worker processes")
    output.wait_for("is up after")
    assert submit(ctl, "version") == 1
    (folder / "fleetapp.py").write_text(APP.replace("return 1", "return 22"))
    output.wait_for("all worker processes have been replaced")
    output.wait_for(") has stopped")
    assert submit(ctl, "version") == 22
    stop(supervisor, output)


# ── idle ──────────────────────────────────────────────────────────────────────────────────────────


def test_an_idle_supervisor_sleeps(ctl: Ctl, start_worker: Start) -> None:
    supervisor = start_worker("--processes", "2", "--name", "w")
    wait_for_workers(ctl, "w-1", "w-2")
    output = Output(supervisor)
    output.wait_for("is up after", times=2)

    def switches() -> str:
        status = Path(f"/proc/{supervisor.pid}/status").read_text().splitlines()
        return next(line for line in status if line.startswith("voluntary_ctxt_switches"))

    asyncio.run(waiting.nothing_happens(0.5, "it still handles the last report"))
    before = switches()
    asyncio.run(waiting.nothing_happens(3, "a poll would switch the context"))
    assert switches() == before
    stop(supervisor, output)
