"""A refusal by the kernel becomes an error in the words of permissions."""

from __future__ import annotations

import errno
import signal
import socket

import pytest

from jobq import PermissionDenied, Permissions
from jobq.executors.sandbox import explain, explain_signal
from tests.executors.sandbox.channel import Channel


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
