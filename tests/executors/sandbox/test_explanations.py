"""A refusal by the kernel becomes an error in the words of permissions."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from jobq import PermissionDenied, Permissions
from jobq.executors.sandbox import explain, explain_signal
from jobq.executors.sandbox.kernel import this_kernel
from tests.executors.sandbox.channel import Channel
from tests.executors.sandbox.test_escapes import ESCAPES, Escape, asked


def test_paths_are_named(channel: Channel) -> None:
    folder = channel.target.folder
    assert (
        channel.explanation("read_absolute") == f"{folder}/secret is not readable for task render"
    )
    assert channel.explanation("create") == f"{folder}/created is not writable for task render"
    readable = Permissions(read=[folder])
    assert (
        channel.explanation("overwrite", readable)
        == f"{folder}/target is not writable for task render"
    )
    moved = channel.explanation("move_in", readable)
    assert moved.startswith(f"moving {folder}/target to ")


@pytest.mark.parametrize(
    ("attempt", "permissions", "words"),
    [
        ("connect_ipv4", Permissions(), "the network is not allowed"),
        (
            "connect_ipv4",
            Permissions(network=[1]),
            "network access other than TCP to port 1 is not",
        ),
        (
            "connect_unix",
            Permissions(network=True),
            "a socket other than TCP or UDP is not allowed",
        ),
        ("fork", Permissions(), "starting a process is not allowed"),
        ("run_program", Permissions(), "running this program is not allowed"),
        ("signal_worker", Permissions(), "signalling another process is not allowed"),
        ("change_mode", Permissions(), "changing the mode of a file is not allowed"),
        ("change_times", Permissions(), "changing the times of a file is not allowed"),
        ("allocate", Permissions(memory="512M"), "more than 512 MiB of memory are not allowed"),
        ("open_many_files", Permissions(files=64), "more than 64 open files are not allowed"),
    ],
)
def test_other_refusals_say_what_was_refused(
    channel: Channel, attempt: str, permissions: Permissions, words: str
) -> None:
    assert channel.explanation(attempt, permissions).startswith(words)


@pytest.mark.parametrize("escape", ESCAPES, ids=str)
def test_other_calls_of_the_same_function_change_no_explanation(
    escape: Escape, channel: Channel
) -> None:
    """What was refused is named, not what the handler does elsewhere."""
    plain = asked(escape, channel, without=())
    if plain.permissions.cpu_ms is not None:
        pytest.skip("a signal ends it, so there is no error to explain")
    expected, found = map(channel.ask, (plain, dataclasses.replace(plain, distracted=True)))
    names = re.compile(r"jobq-\w+")  # of temporary folders
    assert names.sub("", found.explanation) == names.sub("", expected.explanation)


@pytest.mark.parametrize(
    ("attempt", "options", "words"),
    [
        ("read_by_hard_link", {}, "linking {secret} to "),
        ("move_out", {}, "moving "),
        ("leave_process_group", {}, "leaving the process group is not allowed"),
        ("make_process_of_worker", {"processes": 3}, "a system call (clone: Operation not"),
        ("fork_bomb", {"processes": 3}, "more than 3 processes are not allowed"),
        ("run_setuid_program", {"processes": 3}, "running {setuid} is not allowed"),
    ],
)
def test_a_refusal_names_what_the_handler_tried(
    channel: Channel, attempt: str, options: dict[str, Any], words: str
) -> None:
    target = channel.target
    if "{setuid}" in words and not target.setuid:
        pytest.skip("only root can make a setuid program for this test")
    if options and not this_kernel().counts_processes:
        pytest.skip("this user's processes cannot be counted here")
    expected = words.format(secret=target.secret, setuid=target.setuid)
    assert channel.explanation(attempt, Permissions(**options)).startswith(expected)


def test_a_socket_that_is_not_ready_is_not_a_refused_process() -> None:
    error = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    assert explain(error, Permissions(processes=2), "render") is None


def test_a_file_that_cannot_be_mapped_is_not_the_network(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    with pytest.raises(PermissionError) as caught, path.open("rb") as file:
        mmap.mmap(file.fileno(), 1, prot=mmap.PROT_WRITE)
    assert "network" not in str(explain(caught.value, Permissions(), "render"))


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), FileNotFoundError(errno.ENOENT, "gone", "/x"), MemoryError(), KeyError("x")],
    ids=repr,
)
def test_errors_with_other_causes_stay_as_they_are(error: Exception) -> None:
    assert explain(error, Permissions(), "render") is None


def test_an_allowed_path_that_the_file_mode_forbids_keeps_its_error() -> None:
    error = PermissionError(errno.EACCES, "denied", "/nowhere/at/all")
    assert explain(error, Permissions(read=["/nowhere"], write=["/nowhere"]), "render") is None


def test_a_name_that_cannot_be_resolved_is_explained_only_if_that_is_not_allowed() -> None:
    error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert "the network is not" in str(explain(error, Permissions(), "render"))
    assert "without port 53" in str(explain(error, Permissions(network=[443]), "render"))
    assert explain(error, Permissions(network=[53, 443]), "render") is None
    assert explain(error, Permissions(network=True), "render") is None


def test_signals_of_the_kernel_are_explained() -> None:
    denied = explain_signal(signal.SIGXCPU, Permissions(cpu=2), "render")
    assert isinstance(denied, PermissionDenied)
    assert str(denied) == "more than 2 s of processor time are not allowed for task render"
    assert explain_signal(signal.SIGXCPU, Permissions(), "render") is None
    assert explain_signal(signal.SIGSEGV, Permissions(cpu=2), "render") is None
