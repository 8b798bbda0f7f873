"""When a process is replaced, how long a restart waits, and how many processes `auto` means."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobq.core.values.units import parse_size
from jobq.executors.cpus import usable_cpus
from jobq.supervisor.child import Recycling, resident_bytes
from jobq.supervisor.process import Seat, restart_delay_s


def test_the_delay_doubles_up_to_half_a_minute() -> None:
    assert [restart_delay_s(n) for n in range(1, 9)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert restart_delay_s(10_000) == 30


def test_a_process_that_lived_for_a_minute_is_restarted_soon_again() -> None:
    seat = Seat()
    assert [seat.failed(1.0, now) for now in (10.0, 20.0, 30.0)] == [0.5, 1, 2]
    assert seat.due == 32.0
    assert seat.failed(60.0, 100.0) == 0.5


def test_a_replacement_is_asked_for_once() -> None:
    recycling = Recycling(max_jobs=10)
    assert recycling.ended(9) is None
    assert recycling.ended(5) == "it has run 14 jobs (--max-jobs 10)"
    assert recycling.ended(100) is None


def test_memory_is_read_at_most_four_times_a_second() -> None:
    now, reads = 0.0, 0

    def memory() -> int:
        nonlocal reads
        reads += 1
        return 2**20 * reads

    recycling = Recycling(max_memory=2**20, memory=memory, clock=lambda: now)
    assert recycling.ended(1) is None  # 1 MiB is not above 1 MiB
    now = 0.2
    assert recycling.ended(1) is None
    assert reads == 1
    now = 0.25
    assert recycling.ended(1) == "it uses 2 MiB of memory (--max-memory 1 MiB)"


def test_the_memory_in_use_grows_with_what_is_kept() -> None:
    before = resident_bytes()
    kept = b"x" * (64 * 2**20)
    assert resident_bytes() - before > 32 * 2**20
    del kept


def test_auto_counts_the_cpus_that_the_process_may_use(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); "
        "from jobq.executors.cpus import usable_cpus; print(usable_cpus())"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "1\n"


@pytest.mark.parametrize(
    ("quotas", "cpus"),
    [
        ({"": "100000 100000"}, 1),
        ({"pod": "50000 100000"}, 1),
        ({"": "max 100000", "pod": "max 100000", "pod/app": "10000 100000"}, 1),
        ({"pod/app": "max 100000"}, None),
        ({"pod": "9999900000 100000"}, None),
    ],
    ids=["the container's", "half a cpu", "the innermost", "no quota", "more than there are"],
)
def test_auto_respects_the_quota_of_a_container(
    tmp_path: Path, quotas: dict[str, str], cpus: int | None
) -> None:
    (tmp_path / "pod/app").mkdir(parents=True)
    own = tmp_path / "own"
    own.write_text("0::/pod/app\n")
    for group, quota in quotas.items():
        (tmp_path / group / "cpu.max").write_text(f"{quota}\n")
    assert usable_cpus(tmp_path, own) == (cpus or len(os.sched_getaffinity(0)))


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("64k", 65536), ("512M", 512 * 2**20), ("1.5GB", 3 * 2**29), ("2 TiB", 2**41)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1M", "M", "1X", "0.1", "nan", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size: use bytes, or"):
        parse_size(text)
