"""Commands and Python programs on many nodes at once, over the system's ssh client.

One thread serves all connections (`ask`). Every node gives exactly one answer, within its limit. `Transport` holds how
nodes are reached.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import resource
import selectors
import subprocess
import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any

from npuenv.cluster.ssh import NodeFailure, Options, argv_for, failure_of
from npuenv.host.local import end_group, undisturbed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.cluster.inventory import Node


PARALLEL = 32  # more than two cores can feed, and few for a file server that all nodes read from
MAX_BYTES = 64 << 20
_CHUNK = 1 << 16
_ERR_BYTES = 1 << 16  # of the client's stderr, from its end
_POLL_S = 0.02  # where the kernel cannot tell the end of a process through a descriptor
# sshd drops connections at random while many log in at once (MaxStartups), most of all that of a jump host.
_SHED = re.compile(r"exchange_identification|banner exchange|Not allowed at this time|Exceeded MaxStartups")
# A loaded server accepted the connection and was not ready within ConnectTimeout.
_NO_GREETING = re.compile(r"timed out during banner exchange|Connection to \S+ port \d+:? (?:Connection )?timed out")
_MOST_RETRIES = 3
_PAUSE_S = (0.5, 2.0)  # before a retry; random, so that nodes dropped together do not return together
_FILES_EACH = 4  # open files of one session: three pipes, and its process
_FILES_BESIDE = 64


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """The outcome of a command on one node."""

    node: Node
    code: int | None  # the exit code of the command; None: it has none
    out: bytes
    err: str  # its last 64 KiB
    seconds: float
    failure: NodeFailure | None  # None: the command ran to its end


def ask(
    nodes: Sequence[Node],
    command: Sequence[str] | Callable[[Node], Sequence[str]],
    *,
    stdin: bytes | Callable[[Node], bytes] = b"",
    limit_s: float,
    parallel: int = PARALLEL,
    client: Sequence[str] = ("ssh",),
    options: Options | None = None,
    max_bytes: int = MAX_BYTES,
    keeps_stdin: bool = False,
    on_output: Callable[[Node, bytes], object] | None = None,
) -> Generator[NodeAnswer, None, None]:
    """The answers as they come in, one for every node. Closing the iterator ends all running commands.

    `limit_s` counts from the start of a node's own connection, without the time that the caller spends on other
    answers. Within it a connection that a busy server drops before the command has begun is retried.
    `command` is a list of words, quoted for the remote shell. With `keeps_stdin` its input stays open after the data
    until the iterator is closed or the limit is reached. More than `max_bytes` of output end a command. `on_output` is
    called with each piece of output as it comes.
    """
    waiting = list(reversed(nodes))
    parallel = room_for(min(parallel, len(nodes)))
    sessions: list[_Session] = []
    answers: deque[NodeAnswer] = deque()
    with selectors.DefaultSelector() as selector:
        try:
            while waiting or sessions or answers:
                while waiting and len(sessions) < parallel:
                    node = waiting.pop()
                    words = command(node) if callable(command) else command
                    data = stdin(node) if callable(stdin) else stdin
                    request = _Request(
                        node, words, client, options or Options(), data, limit_s, max_bytes, keeps_stdin, on_output
                    )
                    session = _Session(selector, request)
                    sessions.append(session)
                    session.start()
                if sessions:
                    _poll(selector, sessions, 0.0 if answers else None)
                answers += [session.answer for session in sessions if session.answer is not None]
                sessions = [session for session in sessions if session.answer is None]
                if answers and not (waiting and len(sessions) < parallel):  # the next ones run while the caller works
                    began = time.monotonic()
                    yield answers.popleft()
                    held_s = time.monotonic() - began
                    for session in sessions:
                        session.extend(held_s)
        finally:
            with undisturbed():
                for session in sessions:
                    session.end()


def room_for(parallel: int) -> int:
    """At most `parallel`: the number of nodes that there are file descriptors for, after raising the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES_EACH * parallel + _FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):  # then there are as many as before
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            soft = most
    if soft != resource.RLIM_INFINITY:
        parallel = min(parallel, (soft - _FILES_BESIDE) // _FILES_EACH)
    return max(1, parallel)


def _poll(selector: selectors.BaseSelector, sessions: Sequence[_Session], most_s: float | None) -> None:
    """Waits for the next event, at most `most_s`, and has each session handle it."""
    wait_s = min(session.wakes for session in sessions) - time.monotonic()
    if most_s is not None:
        wait_s = min(wait_s, most_s)
    if any(session.must_be_polled for session in sessions):
        wait_s = min(wait_s, _POLL_S)
    for key, _ in selector.select(max(0.0, wait_s)):
        key.data()
    now = time.monotonic()
    for session in sessions:
        session.check(now)


@dataclass(frozen=True, slots=True)
class _Request:
    """A command for one node; see `ask`."""

    node: Node
    words: Sequence[str]  # for the remote shell
    client: Sequence[str]
    options: Options
    data: bytes
    limit_s: float
    max_bytes: int
    keeps_stdin: bool
    on_output: Callable[[Node, bytes], object] | None


class _Session:
    """One ssh client and its output. `answer` is set once, when it has ended and all output was read."""

    def __init__(self, selector: selectors.BaseSelector, request: _Request) -> None:
        self.answer: NodeAnswer | None = None
        self._selector, self._request = selector, request
        self._options = request.options
        self._data = memoryview(request.data)
        self._takes_input = True  # the client still reads its input
        self._num_retries = 0
        self._retries_at = 0.0
        self._began = time.monotonic()
        self._deadline = self._began + request.limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._out, self._err = bytearray(), bytearray()
        self._last_try: tuple[NodeFailure | None, bytes] = (None, b"")  # failure and stderr of the previous try
        self._pidfd: int | None = None

    @property
    def must_be_polled(self) -> bool:
        """Whether the selector cannot see the end of its process."""
        return self._process is not None and self._pidfd is None

    @property
    def wakes(self) -> float:
        """The time at which `check` has something to do without any output."""
        return self._deadline if self._process is not None else min(self._retries_at, self._deadline)

    def extend(self, seconds: float) -> None:
        """Moves the deadline: the caller has used up some of the time."""
        self._deadline += seconds

    def start(self) -> None:
        """Starts the client in a session of its own: without a terminal for prompts, and out of reach of Ctrl-C."""
        # LC_* stays: ssh prints English only, and many configurations pass it on to the node.
        environ = {**os.environ, "SSH_ASKPASS_REQUIRE": "never"}
        pipe = subprocess.PIPE
        argv = argv_for(self._request.node, self._request.words, self._request.client, self._options)
        try:
            with undisturbed():
                self._process = process = subprocess.Popen(
                    argv, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True, env=environ
                )
        except OSError as error:
            self._err += f"{argv[0]}: {error.strerror or error}".encode()
            self._finish(None, NodeFailure.CLIENT)
            return
        assert process.stdin and process.stdout and process.stderr
        self._watch(process.stdout, self._read_out)
        self._watch(process.stderr, self._read_err)
        self._watch(process.stdin, self._write_in, selectors.EVENT_WRITE)
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):  # an old kernel: then it is polled
                self._pidfd = os.pidfd_open(process.pid)
                self._selector.register(self._pidfd, selectors.EVENT_READ, lambda: None)

    def check(self, now: float) -> None:
        """Sets the answer if the client has ended, printed too much, or reached its deadline."""
        if self.answer is not None:
            return
        if self._process is None:
            if now >= self._retries_at:
                self.start()
            return
        if len(self._out) > self._request.max_bytes:
            self._finish(None, NodeFailure.TOO_MUCH)
        elif (code := _exit_code(self._process.pid)) is not None:
            # Another process may hold the pipes open, so read what they contain and do not wait for their end.
            self._drain()
            failure = failure_of(code, self._text(), self._request.words)
            if not self._retry(now, failure):
                self._finish(code, failure)
        elif now >= self._deadline:
            failure = NodeFailure.TIMED_OUT
            if not self._out and not self._err:  # the previous try says more
                previous, self._err[:] = self._last_try
                failure = previous or failure
            self._finish(None, failure)

    def _retry(self, now: float, failure: NodeFailure | None) -> bool:
        """Whether it retries: a busy server dropped the connection (after a pause), or had no time for it within
        ConnectTimeout (once, with twice that time).
        """
        is_shed = failure is NodeFailure.BROKEN and _SHED.search(self._text()) is not None
        is_slow = failure is not None and _NO_GREETING.search(self._text()) is not None and not self._num_retries
        connect_s = self._options.connect_s * (2 if is_slow else 1)
        until = now + (random.uniform(*_PAUSE_S) if is_shed else 0.0)
        if self._out or not (is_shed or is_slow) or self._num_retries == _MOST_RETRIES or until >= self._deadline:
            return False
        self._options = replace(self._options, connect_s=connect_s)
        with undisturbed():
            self.end()
        self._num_retries += 1
        self._retries_at = until
        self._last_try = failure, bytes(self._err)
        self._data, self._takes_input = memoryview(self._request.data), True
        self._err.clear()
        return True

    def end(self) -> None:
        """Ends the client and its children, such as a ProxyCommand; closes all pipes."""
        process = self._process
        if process is None:
            return
        for stream in (process.stdin, process.stdout, process.stderr):
            self._unwatch(stream)
        end_group(process)
        if self._pidfd is not None:
            self._selector.unregister(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
        self._process = None

    def _finish(self, code: int | None, failure: NodeFailure | None) -> None:
        with undisturbed():
            self.end()
        seconds = time.monotonic() - self._began
        code = code if failure is None else None
        self.answer = NodeAnswer(self._request.node, code, bytes(self._out), self._text(), seconds, failure)

    def _text(self) -> str:
        return self._err.decode(errors="replace")

    def _watch(self, stream: IO[bytes], step: Callable[[], object], event: int = selectors.EVENT_READ) -> None:
        os.set_blocking(stream.fileno(), False)
        self._selector.register(stream, event, step)

    def _unwatch(self, stream: IO[bytes] | None) -> None:
        if stream is None or stream.closed:
            return
        with contextlib.suppress(KeyError):  # its end was seen, or all was written
            self._selector.unregister(stream)
        with contextlib.suppress(BrokenPipeError):
            stream.close()

    def _write_in(self) -> None:
        """Writes as much of the input as the pipe takes."""
        assert self._process and self._process.stdin
        stream = self._process.stdin
        try:
            if self._data:
                self._data = self._data[os.write(stream.fileno(), self._data[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it reads no more; its output says why
            self._data = memoryview(b"")
            self._takes_input = False
        if not self._data:
            if self._request.keeps_stdin and self._takes_input:
                self._selector.unregister(stream)
            else:
                self._unwatch(stream)

    def _read_out(self) -> bool:
        assert self._process
        chunk = self._read(self._process.stdout)
        self._out += chunk
        if self._request.on_output is not None and chunk:
            self._request.on_output(self._request.node, chunk)
        return bool(chunk) and len(self._out) <= self._request.max_bytes

    def _read_err(self) -> bool:
        assert self._process
        chunk = self._read(self._process.stderr)
        self._err += chunk
        del self._err[:-_ERR_BYTES]
        return bool(chunk)

    def _read(self, stream: IO[bytes] | None) -> bytes:
        """The next chunk; empty at the end of the stream, or if there is none yet."""
        if stream is None or stream.closed:
            return b""
        try:
            chunk = os.read(stream.fileno(), _CHUNK)
        except BlockingIOError:
            return b""
        if not chunk:
            self._unwatch(stream)
        return chunk

    def _drain(self) -> None:
        while self._read_out():
            pass
        while self._read_err():
            pass


def _exit_code(pid: int) -> int | None:
    """The code of a child that has ended, negative for a signal; None while it runs.

    The child is not reaped, so that its process and group numbers cannot be reused yet.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


Ask = Callable[..., Generator[NodeAnswer, None, None]]  # see `ask`
PYTHON = "python3"
# Reads the program from stdin; the rest of stdin is the program's input.
BOOTSTRAP = "import sys; r = getattr(sys.stdin, 'buffer', sys.stdin); exec(r.read(int(r.readline())))"


@dataclass(frozen=True, slots=True)
class Transport:
    """How nodes are reached."""

    client: Sequence[str] = ("ssh",)
    options: Options | None = None
    parallel: int = PARALLEL
    ask: Ask = ask

    def run_python(
        self,
        nodes: Sequence[Node],
        program: str,
        stdin: Callable[[Node], bytes],
        *,
        parallel: int | None = None,
        **settings: Any,
    ) -> Generator[NodeAnswer, None, None]:
        """Runs a program in the Python of each node; `settings` are those of `ask`.

        `stdin` follows the program on its input, which stays open: its end tells the program to stop.
        """
        code = b"%d\n" % len(program.encode()) + program.encode()
        return self.ask(
            nodes,
            lambda node: (node.python or PYTHON, "-c", BOOTSTRAP),
            stdin=lambda node: code + stdin(node),
            parallel=parallel or self.parallel,
            client=self.client,
            options=self.options,
            keeps_stdin=True,
            **settings,
        )
