"""The inside of `trainer.tasks.code`: raises the walls around this process, then runs the untrusted source in it.

Run as a script by an isolated interpreter, so it imports the standard library only. Reads a job (JSON) from stdin and
answers on stdout: for a program whatever it prints; for calls one JSON line each. Nothing that an answer is compared
with ever enters this process. If a wall cannot be raised, nothing is run and the exit code is the job's `no_wall`.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import resource
import sys
from typing import Any

_EPERM, _ENOSYS = 1, 38
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _BITS, _GIVE = 0x20, 0x15, 0x45, 0x06  # load a word, compare, any bit, return
_CLONE_THREAD = 0x00010000
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_NOBODY = 65534
_MACHINES = ("x86_64", "aarch64")
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# The system calls that computing, reading files and writing to an open pipe take; all others are refused. Not among
# them: sockets, new processes, other programs, signals, and every call that changes a file or a folder.
# Source: Linux, arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h.
# Numbers on x86_64 and on aarch64, where the older ones of each pair of names do not exist.
# fmt: off
_CALLS: dict[str, tuple[int, int | None]] = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67),
    "pwrite64": (18, 68), "close": (3, 57), "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222),
    "mprotect": (10, 226), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233), "brk": (12, 214),
    "dup": (32, 23), "dup3": (292, 24), "pipe2": (293, 59), "ppoll": (271, 73), "pselect6": (270, 72),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "sched_yield": (24, 124), "sched_getaffinity": (204, 123), "nanosleep": (35, 101), "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113), "clock_getres": (229, 114), "gettimeofday": (96, 169), "times": (100, 153),
    "getrusage": (98, 165), "getrlimit": (97, 163), "sysinfo": (99, 179), "uname": (63, 160), "getcwd": (79, 17),
    "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174), "geteuid": (107, 175),
    "getgid": (104, 176), "getegid": (108, 177), "exit": (60, 93), "exit_group": (231, 94), "futex": (202, 98),
    "set_tid_address": (218, 96), "set_robust_list": (273, 99), "restart_syscall": (219, 128),
    "newfstatat": (262, 79), "faccessat": (269, 48), "faccessat2": (439, 439), "readlinkat": (267, 78),
    "getdents64": (217, 61), "statfs": (137, 43), "fstatfs": (138, 44), "statx": (332, 291), "getrandom": (318, 278),
    "membarrier": (324, 283), "rseq": (334, 293), "stat": (4, None), "lstat": (6, None), "poll": (7, None),
    "access": (21, None), "pipe": (22, None), "select": (23, None), "dup2": (33, None), "readlink": (89, None),
    "arch_prctl": (158, None), "time": (201, None),
}
# fmt: on
# Allowed by an argument only: (open or None, openat, clone, clone3, prlimit64, ioctl, fcntl).
_BY_ARGUMENT = {"x86_64": (2, 257, 56, 435, 302, 16, 72), "aarch64": (None, 56, 220, 435, 261, 29, 25)}
# ioctl requests of Python on a file: terminal, width, close on exec. Others freeze file systems and set flags.
_CONTROLS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
# Copy a descriptor, its flags. Others (owner, signal) have the kernel send signals, SIGKILL to a neighbour too.
_COMMANDS = (0, 1, 2, 3, 1030)

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filters", ctypes.POINTER(_Filter)))


class _Beneath(ctypes.Structure):
    _layout_ = "ms"
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def limits(*, cpu_s: int, memory_bytes: int) -> None:
    """Resource limits of this process and its threads."""
    for name, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(name, (most, most))


def wall_of_files() -> str | None:
    """Only the interpreter's own library and system libraries can be read from here on; gives the name of the wall.

    Landlock where the kernel has it, else another user for root. None: neither could be had.
    """
    if _landlock():
        return "landlock"
    if os.geteuid() != 0:
        return None
    os.setgroups([])
    os.setgid(_NOBODY)
    os.setuid(_NOBODY)
    return "user"


def _landlock() -> bool:
    version = _libc.syscall(444, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    # Every right over files that this version knows: 13 at first, then to move (2), truncate (3), control devices (5).
    rights = ctypes.c_uint64((1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1)
    rules = _libc.syscall(444, ctypes.byref(rights), ctypes.c_size_t(8), 0)
    if rules < 0:
        return False
    library = os.path.dirname(os.__file__)
    for path in (library, os.path.join(sys.base_prefix, "lib"), "/lib", "/lib64", "/usr/lib", "/usr/lib64"):
        _allow(rules, path, 4 | 8)  # read files, list folders
    for path in ("/etc/ld.so.cache", "/dev/null", "/dev/urandom", "/etc/localtime"):
        _allow(rules, path, 4)
    _allow(rules, "/usr/share/zoneinfo", 4 | 8)
    done: bool = _libc.syscall(446, rules, 0) == 0
    os.close(rules)
    return done


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # not on this system: then there is nothing to allow
        return
    _libc.syscall(445, rules, 1, ctypes.byref(_Beneath(rights, folder)), 0)
    os.close(folder)


def wall_of_calls() -> bool:
    """Refuses every system call that is not on the list, in all threads to come. False: this kernel cannot."""
    machine = platform.machine()
    if machine not in _MACHINES:
        return False
    program = _program(machine)
    filters = (_Filter * len(program))(*(_Filter(*line) for line in program))
    known = _Program(len(program), filters)
    done: bool = _libc.prctl(22, 2, ctypes.byref(known), 0, 0) == 0
    return done


def _program(machine: str) -> list[tuple[int, int, int, int]]:
    """The filter as (code, jump if true, jump if false, value) lines of classic BPF."""
    opened, opened_at, clone, clone3, prlimit, ioctl, fcntl = _BY_ARGUMENT[machine]
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, _AUDIT[machine]), (_GIVE, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    for numbers in _CALLS.values():
        number = numbers[_MACHINES.index(machine)]
        if number is not None:
            lines += [(_EQUAL, 0, 1, number), (_GIVE, 0, 0, _ALLOW)]
    # glibc turns to clone, whose flags can be read here, when clone3 is not implemented.
    lines += [(_EQUAL, 0, 1, clone3), (_GIVE, 0, 0, _REFUSE | _ENOSYS)]
    if opened is not None:
        lines += _judged(opened, 1, [(_BITS, 0, 1, _WRITES)], is_refused=True)
    lines += _judged(opened_at, 2, [(_BITS, 0, 1, _WRITES)], is_refused=True)
    lines += _judged(clone, 0, [(_BITS, 0, 1, _CLONE_THREAD)])
    lines += _judged(prlimit, 0, [(_EQUAL, 0, 1, 0)])  # of this process only
    for number, argument, accepted in ((ioctl, 1, _CONTROLS), (fcntl, 1, _COMMANDS)):
        lines += _judged(number, argument, [(_EQUAL, 0, 1, value) for value in accepted])
    return [*lines, (_GIVE, 0, 0, _REFUSE | _EPERM)]


def _judged(
    number: int, argument: int, tests: list[tuple[int, int, int, int]], *, is_refused: bool = False
) -> list[tuple[int, int, int, int]]:
    """One system call by one argument: allowed if a test holds, or, for `is_refused`, if none does."""
    hit, miss = (_REFUSE | _EPERM, _ALLOW) if is_refused else (_ALLOW, _REFUSE | _EPERM)
    lines = [(_LOAD, 0, 0, 16 + 8 * argument)]  # its lower half, where all flags and commands are
    for test in tests:
        lines += [test, (_GIVE, 0, 0, hit)]
    lines.append((_GIVE, 0, 0, miss))
    return [(_EQUAL, 0, len(lines), number), *lines]


def plain(value: object) -> object:
    """The value in the language's own types, which can be read back from how they are written."""
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return (set if kind is frozenset else kind)(plain(each) for each in value)
    scalars: tuple[type[Any], ...] = (bool, int, float, complex, str, bytes)
    for scalar in scalars:
        if isinstance(value, scalar):
            return scalar(value)
    return value


def _read_job() -> dict[str, object]:
    with open(0, "rb", closefd=False) as file:
        job: dict[str, object] = json.loads(file.read())
    given = os.memfd_create("stdin")
    with open(given, "wb", closefd=False) as file:
        file.write(str(job["stdin"]).encode(errors="replace"))
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.close(given)
    return job


def _main() -> None:
    job = _read_job()
    calls = job["calls"]
    answers = -1
    if calls is not None:  # then what the source prints is nobody's business
        answers = os.dup(1)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
    _libc.prctl(38, 1, 0, 0, 0)  # no new privileges, without which neither wall can be raised
    files = wall_of_files()
    limits(cpu_s=int(str(job["cpu_s"])), memory_bytes=int(str(job["memory_bytes"])))
    if files is None or not wall_of_calls():
        os._exit(int(str(job["no_wall"])))
    names: dict[str, object] = {"__name__": "__main__", "__builtins__": __builtins__}
    source = compile(str(job["source"]), "answer.py", "exec")
    if calls is None:
        exec(source, names)
        return
    assert isinstance(calls, list)
    exec(source, names)
    for number, call in enumerate(calls):
        try:
            line = json.dumps([number, repr(plain(eval(call, names)))])
        except Exception:  # untrusted: a call that fails has no value, the next may have one
            continue
        os.write(answers, line.encode() + b"\n")
    os._exit(0)


if __name__ == "__main__":
    _main()
