"""The escape suite: what a hostile handler tries, and which part of the sandbox stops it.

Each row of `ESCAPES` runs as root and as an ordinary user, and has to be refused. Each row runs
again without the parts that it names, and then has to succeed: a row whose protection does nothing
fails. Where several parts stop an attempt, a row names them all.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from jobq.core.policies import Permissions
from jobq.executors.sandbox.apply import PARTS
from jobq.executors.sandbox.kernel import this_kernel
from tests.executors.sandbox.attempts import ATTEMPTS, TRUE, Target
from tests.executors.sandbox.channel import Channel
from tests.executors.sandbox.worker import Request

Options = Callable[[Target], dict[str, Any]]


@dataclass(frozen=True)
class Escape:
    """A row: an attempt, the parts of the sandbox that stop it, and how it ends."""

    attempt: str
    stopped_by: tuple[str, ...]
    permissions: Options = lambda target: {}
    ends: tuple[str, ...] = ("EACCES", "EPERM")
    """The error number, or the signal that ends the process."""
    users: tuple[str, ...] = ("root", "ordinary")
    """Users for whom it succeeds without protection. Others lack the privilege for it anyway."""
    landlock: int | None = None
    """Run it as on a kernel with this version of Landlock."""

    def __str__(self) -> str:
        return self.attempt if self.landlock is None else f"{self.attempt}-landlock{self.landlock}"


def row(attempt: str, *stopped_by: str, **options: Any) -> Escape:
    return Escape(attempt, stopped_by, **options)


def with_ports(target: Target) -> dict[str, Any]:
    """Another port than the worker's is allowed."""
    return {"network": [1]}


def may_read(target: Target) -> dict[str, Any]:
    return {"read": [target.folder]}


FILES, CALLS = "landlock", "seccomp"
# The kernel lets a process inspect another one only with the same capabilities in the same user
# namespace, which `processes` and `namespaces` leave. So these stop it besides Landlock.
INSPECTING = ("landlock", "capabilities", "namespaces", "processes")
NETWORK = ("seccomp", "landlock", "namespaces")

ESCAPES = [
    # reading
    row("read_absolute", FILES),
    row("read_parent_folders", FILES),
    row("read_from_working_folder", FILES),
    row("read_by_symlink", FILES),
    row("read_by_hard_link", FILES, ends=("EXDEV",)),
    row("read_by_proc_self_root", FILES),
    row("read_by_proc_of_worker", *INSPECTING),
    row("read_descriptor_by_proc_of_worker", *INSPECTING),
    row("read_by_handle", FILES, CALLS, "capabilities", users=("root",)),
    row("read_inherited_descriptor", "descriptors", ends=("EBADF",)),
    row("read_in_a_thread", FILES),
    row("list_folder", FILES),
    row("watch_folder", CALLS),
    # the worker's process
    row("read_variable", "variables"),
    row("read_variables_of_worker", *INSPECTING),
    row("read_variables_of_worker", *INSPECTING, permissions=lambda _: {"read": ["/proc"]}),
    row("read_memory_of_worker_by_proc", *INSPECTING),
    row("read_memory_of_worker_by_proc", *INSPECTING, permissions=lambda _: {"read": ["/proc"]}),
    row("read_memory_of_worker", *INSPECTING),
    row("take_descriptor_of_worker", *INSPECTING),
    row("trace_worker", *INSPECTING, CALLS),
    row("signal_worker", FILES),
    row("signal_worker_by_pidfd", FILES),
    row("signal_worker_by_owner", FILES, ends=("no signal",)),
    row("signal_worker", CALLS, landlock=5),
    row("signal_worker_by_pidfd", CALLS, landlock=5),
    row("signal_worker_by_owner", CALLS, landlock=5),
    row("limit_worker", CALLS),
    row("reprioritise_worker", CALLS, "capabilities"),
    row("pin_worker", CALLS, "capabilities"),
    row("attach_shared_memory", CALLS),
    row("inspect_shared_memory", CALLS),
    row("read_kernel_log", CALLS, "capabilities"),
    row("read_keyring", CALLS),
    # writing
    row("overwrite", FILES),
    row("overwrite", FILES, permissions=may_read),
    row("create", FILES, permissions=may_read),
    row("create_in_shared_memory", FILES),
    row("make_folder", FILES, permissions=may_read),
    row("delete", FILES, permissions=may_read),
    row("truncate", FILES, permissions=may_read),
    row("truncate_by_opening_to_read", FILES, permissions=may_read),
    row("truncate", CALLS, permissions=may_read, landlock=2),
    row("truncate_by_opening_to_read", CALLS, permissions=may_read, landlock=2),
    row("truncate_by_opening_for_neither", FILES, permissions=may_read),
    row("truncate_by_opening_for_neither", CALLS, permissions=may_read, landlock=2),
    row("overwrite", FILES, permissions=may_read, landlock=1),
    row("move_out", FILES, permissions=may_read, ends=("EACCES", "EXDEV")),
    row("move_in", FILES, permissions=may_read, ends=("EACCES", "EXDEV")),
    row("change_mode", CALLS),
    row("change_mode_of_readable_descriptor", CALLS, permissions=may_read),
    row("change_owner", CALLS),
    row("change_times", CALLS),
    row("set_attribute", CALLS),
    row("make_device", FILES, "capabilities", users=("root",)),
    # the network
    row("connect_ipv4", *NETWORK),
    row("connect_ipv6", *NETWORK),
    row("send_udp", *NETWORK),
    row("connect_unix", CALLS),
    row("connect_unix", CALLS, permissions=lambda _: {"network": True}),
    row("connect_abstract", *NETWORK),
    row("connect_abstract", CALLS, permissions=lambda _: {"network": True}, landlock=5),
    row("send_from_a_pair", CALLS),
    row("open_raw_socket", CALLS, "capabilities", users=("root",)),
    row(
        "open_raw_socket",
        CALLS,
        "capabilities",
        permissions=lambda _: {"network": True},
        users=("root",),
    ),
    row("open_packet_socket", CALLS, "capabilities", users=("root",)),
    row("open_netlink_socket", CALLS),
    row("connect_ipv4", FILES, permissions=with_ports),
    row("connect_ipv6", FILES, permissions=with_ports),
    row("send_udp", CALLS, permissions=with_ports),
    row("connect_by_fast_open", CALLS, permissions=with_ports),
    row("connect_by_mptcp", CALLS, permissions=with_ports),
    row("bind_port", FILES, permissions=with_ports),
    row("listen_on_any_port", CALLS, permissions=with_ports),
    row("set_up_io_uring", CALLS, ends=("ENOSYS",)),
    # processes and programs
    row("fork", CALLS),
    row("fork_bomb", "processes", permissions=lambda _: {"processes": 3}, ends=("EAGAIN",)),
    row("thread_bomb", "processes", ends=("EAGAIN",)),
    row("run_program", FILES),
    row("run_written_program", FILES, permissions=lambda _: {"run": [TRUE]}),
    row(
        "run_from_memory",
        CALLS,
        permissions=lambda _: {"run": ["/bin/false"], "read": [TRUE]},
        ends=("ENOSYS",),
    ),
    row(
        "run_setuid_program",
        "privileges",
        "namespaces",
        "processes",
        permissions=lambda target: {"run": [target.setuid], "processes": 2},
        users=("ordinary",),
    ),
    row(
        "regain_capabilities",
        "capabilities",
        permissions=lambda _: {"run": ["/bin/cat"], "processes": 2, "read": ["/proc"]},
        users=("root",),
    ),
    row("leave_process_group", CALLS),
    row("undo_death_with_worker", CALLS),
    row("outlive_worker", "death"),
    row("make_process_of_worker", CALLS, permissions=lambda _: {"processes": 3}),
    row("make_user_namespace", CALLS),
    row("mount", FILES, CALLS, "capabilities", users=("root",)),
    row("change_root", CALLS, "capabilities", users=("root",)),
    row("call_in_32_bits", CALLS, ends=("SIGSYS",)),
    # resources
    row("allocate", "limits", permissions=lambda _: {"memory": "512M"}, ends=("ENOMEM",)),
    row("allocate_shared", "limits", permissions=lambda _: {"memory": "512M"}, ends=("ENOMEM",)),
    row("loop", "limits", permissions=lambda _: {"cpu": 1}, ends=("SIGXCPU",)),
    row("loop_and_ignore_signals", "limits", permissions=lambda _: {"cpu": 1}, ends=("SIGKILL",)),
    row("open_many_files", "limits", permissions=lambda _: {"files": 64}, ends=("EMFILE",)),
]


def asked(escape: Escape, channel: Channel, without: tuple[str, ...]) -> Request:
    if escape.attempt == "run_setuid_program" and not channel.target.setuid:
        pytest.skip("only root can make a setuid program for this test")
    permissions = Permissions(**escape.permissions(channel.target))
    if permissions.processes and not this_kernel().counts_processes:
        pytest.skip("this user's processes cannot be counted here")
    return Request(escape.attempt, permissions, without, escape.landlock)


@pytest.mark.parametrize("escape", ESCAPES, ids=str)
def test_an_escape_is_refused(escape: Escape, channel: Channel) -> None:
    outcome = channel.ask(asked(escape, channel, without=()))
    if escape.attempt == "run_setuid_program" and channel.user == "root":
        return  # root may be root
    assert outcome.kind in ("refused", "killed"), outcome
    assert outcome.detail in escape.ends, outcome


@pytest.mark.parametrize("escape", ESCAPES, ids=str)
def test_an_escape_succeeds_without_its_protection(escape: Escape, channel: Channel) -> None:
    if channel.user not in escape.users:
        pytest.skip("this user lacks the privilege for it anyway")
    if unavailable := _not_here(escape):
        pytest.skip(unavailable)
    without = escape.stopped_by
    if channel.user == "ordinary" and "privileges" in without:  # these need no_new_privs
        without = (*without, "landlock", "seccomp")
    outcome = channel.ask(asked(escape, channel, without))
    assert outcome.kind == "escaped", outcome


def test_every_attempt_and_every_part_of_the_sandbox_is_in_the_table() -> None:
    assert {escape.attempt for escape in ESCAPES} == set(ATTEMPTS)
    assert {part for escape in ESCAPES for part in escape.stopped_by} == set(PARTS)


# Attempt → a setting of the kernel that stops it as well, and the values that let it pass.
_SETTINGS = {
    "connect_by_fast_open": ("/proc/sys/net/ipv4/tcp_fastopen", "13"),
    "connect_by_mptcp": ("/proc/sys/net/mptcp/enabled", "1"),
    "read_kernel_log": ("/proc/sys/kernel/dmesg_restrict", "0"),
    "read_memory_of_worker": ("/proc/sys/kernel/yama/ptrace_scope", "0"),
    "read_memory_of_worker_by_proc": ("/proc/sys/kernel/yama/ptrace_scope", "0"),
    "set_up_io_uring": ("/proc/sys/kernel/io_uring_disabled", "0"),
    "take_descriptor_of_worker": ("/proc/sys/kernel/yama/ptrace_scope", "0"),
    "trace_worker": ("/proc/sys/kernel/yama/ptrace_scope", "0"),
}


def _not_here(escape: Escape) -> str:
    """Why an attempt fails on this machine even without protection. Empty if it should succeed."""
    if escape.attempt == "call_in_32_bits" and os.uname().machine != "x86_64":
        return "only x86_64 has 32-bit calls beside its own"
    setting, passing = _SETTINGS.get(escape.attempt, ("", ""))
    try:
        value = Path(setting).read_text().strip() if setting else ""
    except OSError:  # the kernel does not have the setting
        return ""
    return "" if value in passing else f"{setting} is {value}"
