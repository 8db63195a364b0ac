"""This machine as a host: runs programs and reads paths, interprets nothing. Cleans up child processes: see
`undisturbed`, `end_group` and `Guard`; `sourced` gives the host the environment of a shell.

Needed before anything runs, so the expensive imports are inside functions.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import os
import signal
import stat
import time
from typing import IO, TYPE_CHECKING

from npuenv.host import Host, Looked, PathState, Ran, builtin

if TYPE_CHECKING:
    import selectors
    import subprocess
    from collections.abc import Callable, Iterator, Mapping, Sequence


MAX_BYTES = 1 << 20  # stored of a file, or of the two ends of an output stream; the rest is read and dropped
_GRACE_S = 0.2  # how long to wait for the last output of a program that has ended but whose child still holds its pipes
_KERNEL_S = 2.0  # for killed processes to disappear: one that hangs in a driver leaves the kernel late, or never
_SHELL = "/bin/sh"
# Each line is the list of the running groups; the end of the input means that the writer has ended.
_WATCH = (
    'trap "" HUP INT TERM; now=; while read -r line; do now=$line; done; for g in $now; do kill -s KILL -- "-$g"; done'
)
_SOURCE = '. "$1" >/dev/null 2>&1; env -0'


class LocalHost:
    """This machine. Programs run without a shell or input, in their own group that outlives neither them nor this
    process.

    `own` answers commands in this process, by the first argument: they print the output of a program of that name, so
    that a capture can replay them.
    """

    def __init__(self, own: Mapping[str, Callable[[Sequence[str]], str]] | None = None) -> None:
        self._own = own or {}
        self._guard = Guard()

    @property
    def name(self) -> str:
        return os.uname().nodename

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a program. LC_ALL is C unless `env` sets it, so that tools print English."""
        if argv[0] in self._own:
            return Ran(tuple(argv), 0, self._own[argv[0]](argv), "")
        answered = builtin.answer(argv)
        if answered is not None:
            return answered
        environ = {**os.environ, "LC_ALL": "C", **(env or {})}
        why = _why_absent(argv[0], os.get_exec_path(environ))
        if why is not None:
            return Ran(tuple(argv), None, "", why)
        import subprocess  # level 0 runs no program and saves the 4 ms

        process: subprocess.Popen[bytes] | None = None
        try:
            try:
                with undisturbed():
                    self._guard.begin()
                    process = subprocess.Popen(
                        list(argv),
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        env=environ,
                        start_new_session=True,
                    )
                    self._guard.hold(process.pid)
            except (FileNotFoundError, NotADirectoryError) as error:  # absent if its interpreter is
                return Ran(tuple(argv), None, "", error.strerror or "")
            except OSError as error:  # else the shell's 126
                return Ran(tuple(argv), 126, "", f"{argv[0]}: {error.strerror}")
            return _finish(process, tuple(argv), timeout_s)
        finally:
            if process is not None:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None and process.stderr is not None
        with undisturbed():
            end_group(process)
            self._guard.release(process.pid)
            process.stdout.close()
            process.stderr.close()

    def look(self, path: str) -> Looked:
        """The state of a path, following links. A device is not opened: only its permissions are checked."""
        try:
            mode = os.stat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return Looked(path, PathState.ABSENT)
        except (OSError, ValueError) as error:
            return Looked(path, PathState.UNREADABLE, error=_words(error))
        is_writable = os.access(path, os.W_OK)
        try:
            if stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    text = file.read(MAX_BYTES).decode("utf-8", "replace")
                return Looked(path, PathState.FILE, text=text, is_writable=is_writable)
            if stat.S_ISDIR(mode):
                return Looked(path, PathState.FOLDER, names=tuple(sorted(os.listdir(path))), is_writable=is_writable)
        except OSError as error:
            return Looked(path, PathState.UNREADABLE, error=_words(error), is_writable=is_writable)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            # Opening an NPU node can bind the card to this container, so access(2) has to do; it also checks the device
            # cgroup.
            may = is_writable and os.access(path, os.R_OK)
            return Looked(path, PathState.DEVICE, error="" if may else os.strerror(errno.EACCES), is_writable=may)
        return Looked(path, PathState.OTHER, is_writable=is_writable)

    def environ(self) -> Mapping[str, str]:
        """The environment variables of this process."""
        return dict(os.environ)


def is_on_path(program: str, folders: Sequence[str]) -> bool:
    """Whether a program is in one of the accessible folders; a name with a slash is used as it is.

    An inaccessible folder makes execvp(3) refuse any name that no later folder has: that is no sign of the program.
    """
    return "/" in program or any(os.path.isfile(os.path.join(folder, program)) for folder in folders)


def _why_absent(program: str, folders: Sequence[str]) -> str | None:
    """The system's error for a missing program, found without the milliseconds of a process; None if there is something
    of that name.
    """
    if not is_on_path(program, folders):
        return os.strerror(errno.ENOENT)
    try:
        if "/" in program:
            os.stat(program)
    except (FileNotFoundError, NotADirectoryError) as error:
        return error.strerror
    except OSError:  # not accessible, or a loop of links: starting it shows why
        pass
    return None


def _words(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _finish(process: subprocess.Popen[bytes], argv: tuple[str, ...], timeout_s: float) -> Ran:
    assert process.stdout is not None and process.stderr is not None
    streams: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    timed_out = not _drain(process, streams, time.monotonic() + timeout_s)
    half = MAX_BYTES // 2
    for size in streams.values():
        if len(size) > MAX_BYTES:  # the beginning and the end contain the error or the answer
            size[half : -half + 1] = b"\n"
    out, err = (size.decode("utf-8", "replace") for size in streams.values())
    return Ran(argv, None if timed_out else process.returncode, out, err, timed_out)


def _drain(process: subprocess.Popen[bytes], streams: dict[IO[bytes], bytearray], deadline: float) -> bool:
    """Reads both streams until the program has ended; False if the deadline came first."""
    import selectors  # with subprocess, as above

    ended_at: float | None = None
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            selector.register(stream, selectors.EVENT_READ)
        while True:
            now = time.monotonic()
            if ended_at is None and process.poll() is not None:
                ended_at = now
            if ended_at is not None and (not selector.get_map() or now > ended_at + _GRACE_S):
                return True
            if ended_at is None and now >= deadline:
                # read what is available: this process may have been stopped meanwhile
                _read_some(selector, streams, 0.0)
                return False
            # A program that has ended is read to the end also after the deadline.
            until = deadline if ended_at is None else ended_at + _GRACE_S
            _read_some(selector, streams, min(0.02 if not selector.get_map() else 0.1, max(0.0, until - now)))


def _read_some(selector: selectors.BaseSelector, streams: dict[IO[bytes], bytearray], wait_s: float) -> None:
    if not selector.get_map():
        time.sleep(min(wait_s, 0.005))
        return
    for key, _ in selector.select(wait_s):
        stream = key.fileobj
        assert not isinstance(stream, int)
        chunk = os.read(stream.fileno(), 1 << 16)
        if not chunk:
            selector.unregister(stream)
            continue
        size = streams[stream]  # type: ignore[index]
        size.extend(chunk)
        if len(size) > 2 * MAX_BYTES:
            del size[MAX_BYTES // 2 : -MAX_BYTES]


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Delays the signals that end this process until the end of the block.

    With handlers instead of a mask, which the started program would inherit. Only the main thread is interrupted.
    """
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    late: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    held = {number: handler for number, handler in before.items() if callable(handler)}
    try:
        for number in held:
            signal.signal(number, lambda number, _: late.append(number))
        yield
    finally:
        for number, handler in held.items():
            signal.signal(number, handler)
        for arrived in late[:1]:
            signal.raise_signal(arrived)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kills a child that leads a group, and the group, and waits for the child a while.

    A child that hangs in the kernel is abandoned: waiting for it would take forever.
    """
    import subprocess

    # The group is gone if the program and its children ended by themselves; a group id is not reused while the leader
    # is unreaped or members exist.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KERNEL_S)


class Guard:
    """Kills the groups that it holds if this process is killed, for example by SIGKILL.

    A helper shell waits for the end of a pipe that only this process holds open. It costs a fifth of a millisecond
    (measured); the kernel's parent-death signal would need ctypes, and reaches only the child and not its group.
    """

    def __init__(self) -> None:
        self._groups: list[int] = []
        self._lock = _thread.allocate_lock()
        self._owner = os.getpid()
        self._shell = 0  # process id; 0: none runs
        self._pipe = -1  # write end; -1: not opened yet

    def begin(self) -> None:
        """Starts the shell if none runs: before a program is started, so that `hold` only has to write."""
        # Without a shell or descriptors only SIGKILL leaves processes behind.
        with self._lock, contextlib.suppress(OSError):
            if self._pipe < 0:
                self._start()

    def hold(self, group: int) -> None:
        """Adds a group: it will not outlive this process."""
        self.begin()
        with self._lock, contextlib.suppress(OSError):
            self._groups.append(group)
            self._write()

    def release(self, group: int) -> None:
        """Removes a group that has ended: its number may be reused."""
        with self._lock:
            self._groups.remove(group)
            with contextlib.suppress(OSError):  # the shell has been ended: the program here continues without it
                self._write()

    def _start(self) -> None:
        inner, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)
        nothing = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
        actions = [(os.POSIX_SPAWN_DUP2, inner, 0), *nothing]
        try:
            # In its own group, because signals to this process, from Ctrl-C or `timeout`, are not for it.
            self._shell = os.posix_spawn(_SHELL, ["sh", "-c", _WATCH], {}, file_actions=actions, setpgroup=0)
        finally:
            os.close(inner)

    def _write(self) -> None:
        os.write(self._pipe, " ".join(map(str, self._groups)).encode() + b"\n")

    def end(self) -> None:
        """Releases all groups, and ends the shell."""
        shell, pipe = self._shell, self._pipe
        self._shell, self._pipe = 0, -1
        if shell and self._owner == os.getpid():
            with contextlib.suppress(OSError):
                os.kill(shell, signal.SIGKILL)
                os.waitpid(shell, 0)
        if pipe >= 0:
            os.close(pipe)

    def __del__(self) -> None:
        self.end()


def sourced(host: Host, file: str) -> SourcedHost | None:
    """The host with the environment of a shell after it has sourced `file`; None if no shell could report it."""
    import shutil

    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        return None
    env = {"LC_ALL": os.environ.get("LC_ALL", "")}
    ran = host.run((shell, "-c", _SOURCE, shell, file), timeout_s=20.0, env=env)
    pairs = [entry.partition("=") for entry in ran.out.split("\0") if "=" in entry]
    return SourcedHost(host, {name: value for name, _, value in pairs}) if ran.code == 0 and pairs else None


class SourcedHost:
    """A host whose session has other variables; programs are started with exactly these."""

    def __init__(self, host: Host, environ: Mapping[str, str]) -> None:
        self._host = host
        self._environ = dict(environ)

    @property
    def name(self) -> str:
        return self._host.name

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """Runs a program through `env -i`, because a variable may also have to be unset."""
        if builtin.is_answered(argv):
            return self._host.run(argv, timeout_s=timeout_s, env=env)
        import shutil

        path = shutil.which(argv[0], path=self._environ.get("PATH", os.defpath))
        if path is None:
            return Ran(tuple(argv), None, "", "No such file or directory")
        variables = {**self._environ, "LC_ALL": "C", **(env or {})}
        pairs = [f"{name}={value}" for name, value in variables.items()]
        ran = self._host.run(("env", "-i", *pairs, path, *argv[1:]), timeout_s=timeout_s)
        return Ran(tuple(argv), ran.code, ran.out, ran.err, ran.timed_out)

    def look(self, path: str) -> Looked:
        return self._host.look(path)

    def environ(self) -> Mapping[str, str]:
        return dict(self._environ)
