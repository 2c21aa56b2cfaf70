"""What a submission must not do, and what forbids it: Landlock, seccomp and limits. Linux; no root is needed.

`confine` is for the forking process, once: it and all that it forks read what Python needs and write nothing.
`restrict` is for each fork: no sockets, no processes, no reach to other ones, limits. Neither can be undone.
`try_guards` tries what should be impossible, so that a report says what held here and not what was asked for.

The numbers below are the kernel's interface: landlock(7), seccomp(2), two machines' tables of system calls.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import mmap
import os
import platform
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

GUARDS = {  # what the report says of each
    "files": "reads Python and its libraries, writes nothing",
    "sockets": "opens no connection",
    "processes": "starts no process and reaches no other one",
    "memory": "takes no more memory than allowed",
    "output": "fills no disk",
    "time": "is stopped when its time is up",
}
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}  # audit name, column of the tables below

# No such call at all. None: the machine does not have it.
FORBIDDEN = {
    "socket": (41, 198), "fork": (57, None), "vfork": (58, None), "execve": (59, 221), "execveat": (322, 281),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "kill": (62, 129), "tkill": (200, 130), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240),
    "pidfd_send_signal": (424, 424), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438),
    "setpriority": (141, 140), "ioprio_set": (251, 30), "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119), "sched_setaffinity": (203, 122), "sched_setattr": (314, 274),
    # Ways to change files that Landlock leaves open
    "chmod": (90, None), "fchmod": (91, 52), "fchmodat": (268, 53), "fchmodat2": (452, 452),
    "chown": (92, None), "fchown": (93, 55), "lchown": (94, None), "fchownat": (260, 54),
    "utime": (132, None), "utimes": (235, None), "futimesat": (261, None), "utimensat": (280, 88),
    "setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463),
    "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16),
    "removexattrat": (466, 466), "truncate": (76, 45),
    "shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180),
    "io_uring_setup": (425, 425), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "unshare": (272, 97),
    "setns": (308, 268),
}
CLONE, CLONE3, TGKILL, PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
CLONE_THREAD = 0x10000

if sys.platform == "linux":
    import resource

    _libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Limits:
    """What one fork may use."""

    memory: int = 1 << 30    # bytes on top of what the forking process takes
    statement: float = 10.0  # seconds for one statement of a cell
    call: float = 5.0        # seconds for one call of an answer
    total: float = 30.0      # seconds for the cells, and for all calls of one answer
    grace: float = 2.0       # seconds more, in which a fork can say by itself that its time was up
    processor: int = 300     # seconds of computing, if nobody is there any more to count


# Once, in the forking process

def confine(readable: Iterable[Path], hidden: Sequence[Path]) -> bool:
    """From here on only `readable` without `hidden` is read, nothing is written. False without Landlock."""
    rules = _rules(readable, hidden)
    _drop_privileges()
    if rules < 0:
        return False
    held = _libc.syscall(446, rules, 0) == 0  # landlock_restrict_self
    os.close(rules)
    return held


def _rules(readable: Iterable[Path], hidden: Sequence[Path]) -> int:
    """A Landlock ruleset that forbids all use of files but granted reading; negative without Landlock."""
    version = _libc.syscall(444, None, 0, 1)  # landlock_create_ruleset, asked for its version
    if version < 1:
        return -1
    rights = 13 + sum(version >= since for since in (2, 3, 5))  # later versions know more ways
    attributes = struct.pack("<Q", (1 << rights) - 1)
    rules = _libc.syscall(444, ctypes.c_char_p(attributes), len(attributes), 0)
    read_file, read_folder, write_file = 1 << 2, 1 << 3, 1 << 1
    for path in readable:
        for granted in without(path, hidden):
            _allow(rules, granted, read_file | read_folder if granted.is_dir() else read_file)
    _allow(rules, Path(os.devnull), read_file | write_file)
    return rules


def without(path: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """`path`, or, if something hidden lies in it, its parts in which nothing hidden lies."""
    if path in hidden or not os.path.exists(path):
        return
    if not any(path in place.parents for place in hidden):
        yield path
    else:
        for part in path.iterdir():
            yield from without(part, hidden)


def _allow(rules: int, path: Path, rights: int) -> None:
    with contextlib.suppress(OSError):  # what cannot be opened cannot be granted
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        rule = struct.pack("<Qi", rights, place)
        _libc.syscall(445, rules, 1, ctypes.c_char_p(rule), 0)  # landlock_add_rule
        os.close(place)


def _drop_privileges() -> None:
    """No capability, not even root's, now or by running another program."""
    _libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    header, nothing = struct.pack("<II", 0x20080522, 0), bytes(24)
    _libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(nothing))


# In each fork

def restrict(limits: Limits, mapped: int) -> None:
    """Sets the limits and closes the system calls by which a process reaches beyond itself.

    mapped: what `mapped_memory` was before `confine`; the fork may take limits.memory more.
    """
    _libc.prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: do not outlive the forking process
    for what, value in ((resource.RLIMIT_AS, mapped + limits.memory), (resource.RLIMIT_CORE, 0),
                        (resource.RLIMIT_FSIZE, 0), (resource.RLIMIT_NOFILE, 64),
                        (resource.RLIMIT_CPU, limits.processor)):
        resource.setrlimit(what, (value, value))
    _close_system_calls()


def mapped_memory() -> int:
    """Bytes of address space that this process has mapped."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE


# Classic BPF, as seccomp takes it: load a word of the call's description, compare, return.
LOAD, EQUAL, AT_LEAST, HAS_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
NUMBER, MACHINE, FIRST_ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data, little-endian
ALLOW, KILL = 0x7FFF0000, 0x80000000


def _refuse(code: int) -> int:
    return 0x00050000 | code


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


def _close_system_calls() -> bool:
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return False
    code = b"".join(struct.pack("<HBBI", *instruction) for instruction in _filter(*machine, os.getpid()))
    program = _Program(len(code) // 8, code)
    return _libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0  # PR_SET_SECCOMP, in the mode of filters


def _filter(audit: int, column: int, own: int) -> list[tuple[int, int, int, int]]:
    """Instructions (operation, jump if true, jump if false, operand). `own` is the only process in reach."""
    program = [(LOAD, 0, 0, MACHINE), (EQUAL, 1, 0, audit), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    if column == 0:  # the x32 numbers are a second door to the same calls
        program += [(AT_LEAST, 0, 1, 0x40000000), (RETURN, 0, 0, _refuse(errno.EPERM))]
    for numbers in FORBIDDEN.values():
        if numbers[column] is not None:
            program += [(EQUAL, 0, 1, numbers[column]), (RETURN, 0, 0, _refuse(errno.EPERM))]
    # The flags of clone3 are out of a filter's sight. Where it seems to be missing, libraries use clone.
    program += [(EQUAL, 0, 1, CLONE3[column]), (RETURN, 0, 0, _refuse(errno.ENOSYS))]
    for number, test, operands in ((CLONE, HAS_BIT, (CLONE_THREAD,)), (TGKILL, EQUAL, (own,)),
                                   (PRLIMIT, EQUAL, (0, own))):
        tests = [(test, len(operands) - i, 0, operand) for i, operand in enumerate(operands)]
        program += [(EQUAL, 0, len(tests) + 3, number[column]), (LOAD, 0, 0, FIRST_ARGUMENT), *tests,
                    (RETURN, 0, 0, _refuse(errno.EPERM)), (RETURN, 0, 0, ALLOW)]
    return [*program, (RETURN, 0, 0, ALLOW)]


# Does it hold?

def try_guards(limits: Limits, hidden: Sequence[Path]) -> list[str]:
    """The names of the guards that held when this process, confined and restricted, tried to get past them.

    Call it in a fork that is not needed any more.
    """
    attempts: dict[str, Sequence[Callable[[], object]]] = {
        "files": [*(functools.partial(_read, path) for path in hidden), lambda: os.listdir("/"), _create_file,
                  lambda: os.chmod(hidden[0], 0o700)],
        "sockets": [lambda: socket.socket(socket.AF_INET), lambda: socket.socket(socket.AF_UNIX)],
        "processes": [_start_process, lambda: os.kill(os.getppid(), 0),
                      lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU)],
        "memory": [lambda: mmap.mmap(-1, limits.memory + (1 << 28))],
        "output": [lambda: os.ftruncate(os.memfd_create("output"), 1 << 20)],
        "time": [lambda: resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY,) * 2)],
    }
    return [name for name, tries in attempts.items() if all(map(_fails, tries))]


def _read(path: Path) -> None:
    os.listdir(path) if path.is_dir() else path.read_bytes()


def _create_file() -> None:
    path = Path(f"/tmp/multihead-course-{os.getpid()}")
    path.touch()
    path.unlink()


def _start_process() -> None:
    if not os.fork():
        os._exit(0)


def _fails(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, ValueError):
        return True
    return False


def supported() -> str | None:
    """A sentence, if this system has none of what the guards are made of."""
    if sys.platform != "linux":
        return f"what holds students' code back is part of the Linux kernel; this is {platform.system()}."
    return None
