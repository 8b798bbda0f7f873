"""What a hostile handler tries. Each attempt returns what it got, or raises if it is refused.

The attempts run in a child of `worker.py`, which has made a `Target` for them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from jobq.executors.sandbox.syscalls import call, prctl

SECRET = "the worker's secret"
VARIABLE = "ESCAPE_SECRET"
TRUE = "/bin/true"

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_CLONE_PARENT = 0x00008000
_MSG_FASTOPEN = 0x20000000
_IPPROTO_MPTCP = 262
_PTRACE_SEIZE = 0x4206
_MAP_NORESERVE = 0x4000
_NEW_USER = 0x10000000
_NEW_NAMES = 0x00020000
_X86 = os.uname().machine == "x86_64"
_NAME_TO_HANDLE_AT = 303 if _X86 else 264
_PROCESS_VM_READV = 310 if _X86 else 270
_PIDFD_GETFD = 438


@dataclass(frozen=True)
class Target:
    """What the worker has, and a handler must not reach."""

    folder: str
    """A folder of the worker's user with the file `secret`, and `socket`, where it listens."""
    own: str
    """The temporary folder of the child, in which it may do everything."""
    descriptor: int
    """An open descriptor of the secret file."""
    tcp: int
    """Port on which the worker listens on 127.0.0.1."""
    tcp6: int
    udp: int
    abstract: str
    """Name of the abstract Unix socket on which the worker listens."""
    shared: int
    """Id of a System V shared memory segment."""
    address: int
    """Where the secret is in the worker's memory."""
    setuid: str
    """A copy of `id` that belongs to root and has the setuid bit. Empty if there is none."""

    @property
    def secret(self) -> str:
        return f"{self.folder}/secret"


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = libc.syscall(ctypes.c_long(number), *words)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def read_absolute(target: Target) -> str:
    return Path(target.secret).read_text()


def read_parent_folders(target: Target) -> str:
    above = "../" * len(Path(target.own).parts)
    return Path(f"{target.own}/{above}{target.secret.lstrip('/')}").read_text()


def read_from_working_folder(target: Target) -> str:
    os.chdir(target.folder)
    return Path("secret").read_text()


def read_by_symlink(target: Target) -> str:
    os.symlink(target.secret, f"{target.own}/link")
    return Path(f"{target.own}/link").read_text()


def read_by_hard_link(target: Target) -> str:
    os.link(target.secret, f"{target.own}/link")
    return Path(f"{target.own}/link").read_text()


def read_by_proc_self_root(target: Target) -> str:
    return Path(f"/proc/self/root{target.secret}").read_text()


def read_by_proc_of_worker(target: Target) -> str:
    return Path(f"/proc/{os.getppid()}/root{target.secret}").read_text()


def read_descriptor_by_proc_of_worker(target: Target) -> str:
    return Path(f"/proc/{os.getppid()}/fd/{target.descriptor}").read_text()


def read_by_handle(target: Target) -> str:
    handle = ctypes.create_string_buffer(struct.pack("=Ii", 128, 0), 8 + 128)
    mount = ctypes.c_int()
    path = ctypes.create_string_buffer(target.secret.encode())
    _syscall(_NAME_TO_HANDLE_AT, -100, path, handle, ctypes.byref(mount), 0)
    folder = os.open(target.own, os.O_RDONLY)
    return os.read(call("open_by_handle_at", folder, handle, os.O_RDONLY), 100).decode()


def read_inherited_descriptor(target: Target) -> str:
    return os.pread(target.descriptor, 100, 0).decode()


def read_in_a_thread(target: Target) -> str:
    found: list[str | OSError] = []

    def read() -> None:
        try:
            found.append(Path(target.secret).read_text())
        except OSError as error:
            found.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(10)
    if isinstance(found[0], OSError):
        raise found[0]
    return found[0]


def list_folder(target: Target) -> str:
    return " ".join(os.listdir(target.folder))


def watch_folder(target: Target) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    watching = libc.inotify_init1(0)
    if watching < 0 or libc.inotify_add_watch(watching, target.folder.encode(), 0xFFF) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "watches"


# ── the worker's process ──────────────────────────────────────────────────────────────────────────


def read_variable(target: Target) -> str:
    if VARIABLE not in os.environ:
        raise PermissionError(errno.EACCES, "no such variable")
    return os.environ[VARIABLE]


def read_variables_of_worker(target: Target) -> str:
    return Path(f"/proc/{os.getppid()}/environ").read_bytes().decode(errors="replace")[:20]


def read_memory_of_worker_by_proc(target: Target) -> str:
    with open(f"/proc/{os.getppid()}/mem", "rb", buffering=0) as memory:
        memory.seek(target.address)
        return memory.read(len(SECRET)).decode()


def read_memory_of_worker(target: Target) -> str:
    buffer = ctypes.create_string_buffer(len(SECRET))
    here = ctypes.create_string_buffer(struct.pack("=QQ", ctypes.addressof(buffer), len(SECRET)))
    there = ctypes.create_string_buffer(struct.pack("=QQ", target.address, len(SECRET)))
    _syscall(_PROCESS_VM_READV, os.getppid(), here, 1, there, 1, 0)
    return buffer.raw.decode()


def take_descriptor_of_worker(target: Target) -> str:
    worker = os.pidfd_open(os.getppid())
    return os.pread(_syscall(_PIDFD_GETFD, worker, target.descriptor, 0), 100, 0).decode()


def trace_worker(target: Target) -> str:
    call("ptrace", _PTRACE_SEIZE, os.getppid(), 0, 0)
    return "traces"


def signal_worker(target: Target) -> str:
    os.kill(os.getppid(), signal.SIGUSR1)
    return "signalled"


def signal_worker_by_pidfd(target: Target) -> str:
    signal.pidfd_send_signal(os.pidfd_open(os.getppid()), signal.SIGUSR1)
    return "signalled"


def signal_worker_by_owner(target: Target) -> str:
    """Make the worker the owner of a pipe, so that the kernel sends it SIGUSR1 when it is read."""
    ours, theirs = socket.socketpair()
    fcntl.fcntl(ours, fcntl.F_SETOWN, os.getppid())
    fcntl.fcntl(ours, 10, signal.SIGUSR1)  # F_SETSIG
    fcntl.fcntl(ours, fcntl.F_SETFL, os.O_ASYNC)
    theirs.send(b"x")
    return "may have signalled"


def limit_worker(target: Target) -> str:
    resource.prlimit(os.getppid(), resource.RLIMIT_CORE, (0, 0))
    return "limited"


def reprioritise_worker(target: Target) -> str:
    os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid()))
    return "set"


def pin_worker(target: Target) -> str:
    os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid()))
    return "set"


def attach_shared_memory(target: Target) -> str:
    return hex(call("shmat", target.shared, None, 0))


def inspect_shared_memory(target: Target) -> str:
    """The same call removes a segment, and an id can be guessed."""
    call("shmctl", target.shared, 2, ctypes.create_string_buffer(256))  # IPC_STAT
    return "inspected"


def read_kernel_log(target: Target) -> str:
    return str(call("syslog", 3, ctypes.create_string_buffer(100), 100))


def read_keyring(target: Target) -> str:
    return str(call("keyctl", 0, -4, 0))  # KEYCTL_GET_KEYRING_ID of the user's keyring


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def overwrite(target: Target) -> str:
    Path(f"{target.folder}/target").write_text("overwritten")
    return "written"


def create(target: Target) -> str:
    Path(f"{target.folder}/created").write_text("x")
    return "created"


def create_in_shared_memory(target: Target) -> str:
    path = Path(f"/dev/shm/jobq-{os.getpid()}")
    path.write_text("x")
    path.unlink()
    return "created"


def make_folder(target: Target) -> str:
    os.mkdir(f"{target.folder}/made")
    return "made"


def delete(target: Target) -> str:
    os.unlink(f"{target.folder}/target")
    return "deleted"


def truncate(target: Target) -> str:
    os.truncate(target.secret, len(SECRET))
    return "truncated"


def truncate_by_opening_to_read(target: Target) -> str:
    os.open(f"{target.folder}/target", os.O_RDONLY | os.O_TRUNC)
    return "truncated"


def truncate_by_opening_for_neither(target: Target) -> str:
    """The mode 3 asks for neither reading nor writing, so Landlock alone checks nothing else."""
    os.open(f"{target.folder}/target", os.O_ACCMODE | os.O_TRUNC)
    return "truncated"


def move_out(target: Target) -> str:
    Path(f"{target.own}/mine").write_text("x")
    os.rename(f"{target.own}/mine", f"{target.folder}/moved")
    return "moved"


def move_in(target: Target) -> str:
    os.rename(f"{target.folder}/target", f"{target.own}/moved")
    return "moved"


def change_mode(target: Target) -> str:
    os.chmod(target.secret, 0o644)
    return "changed"


def change_mode_of_readable_descriptor(target: Target) -> str:
    os.fchmod(os.open(target.secret, os.O_RDONLY), 0o644)
    return "changed"


def change_owner(target: Target) -> str:
    os.chown(target.secret, os.getuid(), os.getgid())
    return "changed"


def change_times(target: Target) -> str:
    os.utime(target.secret)
    return "changed"


def set_attribute(target: Target) -> str:
    os.setxattr(target.secret, "user.jobq", b"x")
    return "set"


def make_device(target: Target) -> str:
    os.mknod(f"{target.own}/device", 0o600 | 0o020000, os.makedev(1, 5))
    return "made"


# ── the network ───────────────────────────────────────────────────────────────────────────────────


def connect_ipv4(target: Target) -> str:
    with socket.create_connection(("127.0.0.1", target.tcp), timeout=5) as connected:
        return f"connected to {connected.getpeername()}"


def connect_ipv6(target: Target) -> str:
    with socket.create_connection(("::1", target.tcp6), timeout=5) as connected:
        return f"connected to {connected.getpeername()}"


def send_udp(target: Target) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        return str(sender.sendto(b"x", ("127.0.0.1", target.udp)))


def connect_unix(target: Target) -> str:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(f"{target.folder}/socket")
        return f"connected to {connected.getpeername()}"


def connect_abstract(target: Target) -> str:
    with socket.socket(socket.AF_UNIX) as connected:
        connected.connect(target.abstract)
        return f"connected to {connected.getpeername()}"


def send_from_a_pair(target: Target) -> str:
    ours, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return str(ours.sendto(b"x", f"{target.folder}/datagrams"))


def open_raw_socket(target: Target) -> str:
    return repr(socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))


def open_packet_socket(target: Target) -> str:
    return repr(socket.socket(socket.AF_PACKET, socket.SOCK_RAW))


def open_netlink_socket(target: Target) -> str:
    return repr(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))


def connect_by_fast_open(target: Target) -> str:
    """Connect and send in one call, which is not the call that Landlock checks."""
    with socket.socket() as connected:
        connected.sendto(b"x", _MSG_FASTOPEN, ("127.0.0.1", target.tcp))
        return f"connected to {connected.getpeername()}"


def connect_by_mptcp(target: Target) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, _IPPROTO_MPTCP) as connected:
        connected.settimeout(5)
        connected.connect(("127.0.0.1", target.tcp))
        return f"connected to {connected.getpeername()}"


def bind_port(target: Target) -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return "bound"


def listen_on_any_port(target: Target) -> str:
    with socket.socket() as listening:
        listening.listen()
        return f"listens on port {listening.getsockname()[1]}"


def set_up_io_uring(target: Target) -> str:
    return str(call("io_uring_setup", 4, ctypes.create_string_buffer(120)))


# ── processes and programs ────────────────────────────────────────────────────────────────────────


def fork(target: Target) -> str:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return "forked"


def fork_bomb(target: Target) -> str:
    """Start up to 40 processes that wait. The permissions allow 3."""
    ours, theirs = os.pipe()
    started = 0
    try:
        while started < 40:
            if os.fork() == 0:
                os.close(theirs)
                os.read(ours, 1)  # until the first process ends
                os._exit(0)
            started += 1
    except OSError as error:
        if started < 3:
            raise RuntimeError(f"only {started} processes were allowed") from error
        raise
    return f"started {started}"


def thread_bomb(target: Target) -> str:
    """Start up to 700 threads that wait. 512 are allowed."""
    threading.stack_size(64 * 1024)
    end = threading.Event()
    started = 0
    try:
        while started < 700:
            threading.Thread(target=end.wait, args=(30,), daemon=True).start()
            started += 1
    except RuntimeError as error:
        end.set()
        raise OSError(errno.EAGAIN, f"{started} threads") from error
    end.set()
    return f"started {started}"


def run_program(target: Target) -> str:
    os.execv(TRUE, ["true"])
    return "unreachable"


def run_written_program(target: Target) -> str:
    copy = os.open(f"{target.own}/program", os.O_WRONLY | os.O_CREAT, 0o755)
    os.write(copy, b"#!/bin/true\n")
    os.close(copy)
    os.execv(f"{target.own}/program", ["program"])
    return "unreachable"


def run_from_memory(target: Target) -> str:
    program = os.memfd_create("program")
    os.write(program, Path(TRUE).read_bytes())
    os.execve(program, ["true"], {})
    return "unreachable"


def run_setuid_program(target: Target) -> str:
    user = subprocess.run([target.setuid, "-u"], capture_output=True, text=True, timeout=10)
    if user.stdout.strip() != "0":
        raise PermissionError(errno.EPERM, f"runs as user {user.stdout.strip()} {user.stderr}")
    return "runs as root"


def regain_capabilities(target: Target) -> str:
    status = subprocess.run(
        ["/bin/cat", "/proc/self/status"], capture_output=True, text=True, timeout=10
    ).stdout
    effective = int(next(x.split()[1] for x in status.splitlines() if x.startswith("CapEff")), 16)
    if effective == 0:
        raise PermissionError(errno.EPERM, "no capabilities")
    return f"has capabilities {effective:x}"


def leave_process_group(target: Target) -> str:
    os.setsid()
    return "left"


def undo_death_with_worker(target: Target) -> str:
    prctl(_PR_SET_PDEATHSIG, 0)
    return "undone"


def outlive_worker(target: Target) -> str:
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(_PR_GET_PDEATHSIG, ctypes.byref(number))
    if number.value == signal.SIGKILL:
        raise PermissionError(errno.EPERM, "it dies with its worker")
    return "outlives it"


def make_process_of_worker(target: Target) -> str:
    """Make a process whose parent is the worker, which does not know it."""
    made = call("clone", _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
    if made == 0:
        os._exit(0)
    return "made"


def make_user_namespace(target: Target) -> str:
    call("unshare", _NEW_USER | _NEW_NAMES)
    return "made"


def mount(target: Target) -> str:
    os.mkdir(f"{target.own}/mounted")
    where = ctypes.create_string_buffer(f"{target.own}/mounted".encode())
    kind = ctypes.create_string_buffer(b"tmpfs")
    call("mount", kind, where, kind, 0, None)
    return "mounted"


def change_root(target: Target) -> str:
    os.chroot(target.own)
    return "changed"


def call_in_32_bits(target: Target) -> str:
    """Ask for the process id by the 32-bit call, whose numbers differ: mov eax, 20; int 0x80."""
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(b"\xb8\x14\x00\x00\x00\xcd\x80\xc3")
    address = ctypes.addressof(ctypes.c_char.from_buffer(code))
    return str(ctypes.CFUNCTYPE(ctypes.c_int)(address)())


# ── resources ─────────────────────────────────────────────────────────────────────────────────────


def allocate(target: Target) -> str:
    return str(len(mmap.mmap(-1, 10 * 2**30, flags=mmap.MAP_PRIVATE | _MAP_NORESERVE)))


def allocate_shared(target: Target) -> str:
    return str(len(mmap.mmap(-1, 10 * 2**30, flags=mmap.MAP_SHARED | _MAP_NORESERVE)))


def loop(target: Target) -> str:
    """The permissions allow one second. The kernel sends SIGXCPU in the second one.

    The kernel counts in ticks, and on a virtual machine it misses some: hence the margin.
    """
    return _burn(4.0)


def loop_and_ignore_signals(target: Target) -> str:
    """The kernel sends SIGKILL a second later."""
    signal.signal(signal.SIGXCPU, signal.SIG_IGN)
    return _burn(5.0)


def _burn(seconds: float) -> str:
    while time.process_time() < seconds:
        pass
    return f"used {seconds} s of processor time"


def open_many_files(target: Target) -> str:
    opened = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
    return str(len(opened))


ATTEMPTS = {
    name: found
    for name, found in vars(sys.modules[__name__]).items()
    if callable(found) and getattr(found, "__module__", "") == __name__ and name[0].islower()
}
