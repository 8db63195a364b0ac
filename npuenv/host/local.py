"""This machine as a host: runs programs and reads paths, interprets nothing."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import IO, TYPE_CHECKING

from npuenv.host import builtin
from npuenv.host.base import Looked, PathState, Ran
from npuenv.host.children import Guard, end_group, undisturbed

if TYPE_CHECKING:
    import selectors
    import subprocess
    from collections.abc import Callable, Mapping, Sequence

MAX_BYTES = 1 << 20  # stored of a file, or of the two ends of an output stream; the rest is read and dropped
_GRACE_S = 0.2  # how long to wait for the last output of a program that has ended but whose child still holds its pipes


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
            except OSError as error:
                return _refused(tuple(argv), error)
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
        if stat.S_ISREG(mode):
            return _look_at_file(path, is_writable)
        if stat.S_ISDIR(mode):
            return _look_at_folder(path, is_writable)
        if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
            return _look_at_device(path, is_writable)
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


def _refused(argv: tuple[str, ...], error: OSError) -> Ran:
    """The result of a program that did not start: absent if its interpreter is, else the shell's 126."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return Ran(argv, None, "", error.strerror or "")
    return Ran(argv, 126, "", f"{argv[0]}: {error.strerror}")


def _look_at_file(path: str, is_writable: bool) -> Looked:
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError as error:
        return Looked(path, PathState.UNREADABLE, error=_words(error), is_writable=is_writable)
    return Looked(path, PathState.FILE, text=text, is_writable=is_writable)


def _look_at_folder(path: str, is_writable: bool) -> Looked:
    try:
        names = tuple(sorted(os.listdir(path)))
    except OSError as error:
        return Looked(path, PathState.UNREADABLE, error=_words(error), is_writable=is_writable)
    return Looked(path, PathState.FOLDER, names=names, is_writable=is_writable)


def _look_at_device(path: str, is_writable: bool) -> Looked:
    # Opening an NPU node can bind the card to this container, so access(2) has to do; it also checks the device cgroup.
    may = is_writable and os.access(path, os.R_OK)
    return Looked(path, PathState.DEVICE, error="" if may else os.strerror(errno.EACCES), is_writable=may)


def _words(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _finish(process: subprocess.Popen[bytes], argv: tuple[str, ...], timeout_s: float) -> Ran:
    assert process.stdout is not None and process.stderr is not None
    streams: dict[IO[bytes], bytearray] = {process.stdout: bytearray(), process.stderr: bytearray()}
    timed_out = not _drain(process, streams, time.monotonic() + timeout_s)
    out, err = (_trimmed(size).decode("utf-8", "replace") for size in streams.values())
    return Ran(argv, None if timed_out else process.returncode, out, err, timed_out)


def _trimmed(size: bytearray) -> bytes:
    """At most MAX_BYTES: the beginning and the end, which contain the error or the answer."""
    half = MAX_BYTES // 2
    return bytes(size) if len(size) <= MAX_BYTES else bytes(size[:half]) + b"\n" + bytes(size[-half + 1 :])


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
