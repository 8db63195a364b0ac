"""One command on many nodes at once, over the system's ssh client.

One thread waits for all of them. Every node gives exactly one answer, and no node takes longer than its limit. What
happens on a node is not judged here.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import re
import resource
import selectors
import subprocess
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from npuenv.cluster.ssh import NodeFailure, Options, argv_for, failure_of
from npuenv.host.children import end_group, undisturbed

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from npuenv.cluster.inventory import Node

PARALLEL = 32  # far more than two cores can feed, and little for a file server that all of them read from
MAX_BYTES = 64 << 20
_CHUNK = 1 << 16
_ERR_BYTES = 1 << 16  # the end of the client's texts that is kept
_POLL_S = 0.02  # where the kernel cannot tell the end of a process through a descriptor
# sshd drops connections at random while many log in at once (MaxStartups), most of all that of a jump host.
_SHED = re.compile(r"exchange_identification|banner exchange|Not allowed at this time|Exceeded MaxStartups")
# The client has waited in vain for a server that is there, or for a node of which nothing is known.
_NO_GREETING = re.compile(r"timed out during banner exchange|Connection to \S+ port \d+:? (?:Connection )?timed out")
_NO_ANSWER = re.compile(r"connect to (?:host|address) .* timed out")
_TIMES_OTHERS = 2.0  # so much longer than the slowest of the others a node may take to be reached
_AGAIN_AT_MOST = 3
_REST_S = (0.5, 2.0)  # at random, so that those that were dropped together do not come back together
_FILES_EACH = 4  # open files of one session: three pipes, and its process
_FILES_BESIDE = 64


@dataclass(frozen=True, slots=True)
class Answer:
    """What asking one node came to."""

    node: Node
    code: int | None  # the exit code of the command; None: it never came to one
    out: bytes
    err: str  # the end of it where it was long
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
) -> Generator[Answer, None, None]:
    """The answers as they come in, one for every node. Closing the iterator ends all that still runs.

    `limit_s` counts from the start of a node's own connection, less what the caller does with other answers meanwhile.
    Within it a connection that a busy server drops at its very beginning is tried again, and one that took too long
    to come about where the other nodes need about as long.
    `command` is a list of words, quoted for the remote shell. With `keeps_stdin` its input stays open after the data
    until the iterator is closed or the limit is reached. More than `max_bytes` of output end a command. `on_output` is
    called with each piece of output as it comes.
    """
    waiting = list(reversed(nodes))
    parallel = room_for(min(parallel, len(nodes)))
    sessions: list[_Session] = []
    answers: deque[Answer] = deque()
    pace = _Pace()
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
                    session = _Session(selector, request, pace)
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
    """How many nodes of those wished for at once there are open files for, after asking the system for enough."""
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
    """Waits for the next thing to happen, no longer than `most_s`, and lets each session have its share of it."""
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


@dataclass(slots=True)
class _Pace:
    """What is known of how fast nodes are just now."""

    slowest_s: float = 0.0  # of those that have answered; 0: none has yet


@dataclass(frozen=True, slots=True)
class _Request:
    """What is asked of one node; see `ask`."""

    node: Node
    words: Sequence[str]  # for the shell there
    client: Sequence[str]
    options: Options
    data: bytes
    limit_s: float
    max_bytes: int
    keeps_stdin: bool
    on_output: Callable[[Node, bytes], object] | None


class _Session:
    """One client and what it says. `answer` is set once, when it has ended and all that it said was read."""

    def __init__(self, selector: selectors.BaseSelector, request: _Request, pace: _Pace) -> None:
        self.answer: Answer | None = None
        self._selector, self._request, self._pace = selector, request, pace
        self._options = request.options
        self._data = memoryview(request.data)
        self._takes_input = True  # the client still takes its input
        self._num_again = 0
        self._retries_at = 0.0
        self._began = time.monotonic()
        self._deadline = self._began + request.limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._out, self._err = bytearray(), bytearray()
        self._last_try: tuple[NodeFailure | None, bytes] = (None, b"")  # how the try before this one ended
        self._pidfd: int | None = None

    @property
    def must_be_polled(self) -> bool:
        """Whether the selector does not see the end of its process."""
        return self._process is not None and self._pidfd is None

    @property
    def wakes(self) -> float:
        """When it has something to do if no output comes until then."""
        return self._deadline if self._process is not None else min(self._retries_at, self._deadline)

    def extend(self, seconds: float) -> None:
        """Gives it more time: somebody else has used up some of it."""
        self._deadline += seconds

    def start(self) -> None:
        """Starts the client, in a session of its own: it finds no terminal to ask at, and Ctrl-C reaches only us."""
        # No language: ssh speaks English alone, and many a configuration hands LC_* on to the node.
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
        """Sets the answer where it has ended, said too much, or is over its time."""
        if self.answer is not None:
            return
        if self._process is None:
            if now >= self._retries_at:
                self.start()
            return
        if len(self._out) > self._request.max_bytes:
            self._finish(None, NodeFailure.TOO_MUCH)
        elif (code := _exit_code(self._process.pid)) is not None:
            # What it wrote lies in the pipes; another process may hold them open, so that their end is not waited for.
            self._drain()
            failure = failure_of(code, self._text(), self._request.words)
            if not self._retry(now, failure):
                self._finish(code, failure)
        elif now >= self._deadline:
            failure = NodeFailure.TIMED_OUT
            if not self._out and not self._err:  # cut short before it said anything: the try before it says more
                before, self._err[:] = self._last_try
                failure = before or failure
            self._finish(None, failure)

    def _retry(self, now: float, failure: NodeFailure | None) -> bool:
        """Whether it tries again: nothing had begun when the server dropped it, or the client's patience was at its
        end before the node's turn had come, and time is left.
        """
        is_shed = failure is NodeFailure.BROKEN and _SHED.search(self._text()) is not None
        connect_s = self._options.connect_s if is_shed else self._patience()
        until = now + (random.uniform(*_REST_S) if is_shed else 0.0)
        if self._out or not connect_s or self._num_again == _AGAIN_AT_MOST or until >= self._deadline:
            return False
        self._options = replace(self._options, connect_s=connect_s)
        with undisturbed():
            self.end()
        self._num_again += 1
        self._retries_at = until
        self._last_try = failure, bytes(self._err)
        self._data, self._takes_input = memoryview(self._request.data), True
        self._err.clear()
        return True

    def _patience(self) -> int:
        """How long it may take to reach the node next time, by what the others need; 0: it has had that long."""
        given_s = self._options.connect_s
        has_greeting_failed = _NO_GREETING.search(self._text()) is not None
        if not has_greeting_failed and not _NO_ANSWER.search(self._text()):
            return 0
        wanted_s = math.ceil(_TIMES_OTHERS * self._pace.slowest_s)
        if not wanted_s and has_greeting_failed:  # it is there, and of the others none was faster
            wanted_s = 2 * given_s
        return wanted_s if wanted_s > given_s else 0

    def end(self) -> None:
        """Ends the client and what it started, such as its way through a jump host; closes all pipes."""
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
        is_own = failure is None
        if is_own:
            self._pace.slowest_s = max(self._pace.slowest_s, seconds)
        self.answer = Answer(
            self._request.node, code if is_own else None, bytes(self._out), self._text(), seconds, failure
        )

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
        """Hands over as much of the input as the pipe takes."""
        assert self._process and self._process.stdin
        stream = self._process.stdin
        try:
            if self._data:
                self._data = self._data[os.write(stream.fileno(), self._data[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not listen any more; what it says tells why
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
        """The next piece; at the end of the stream, or where nothing lies there, an empty one."""
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

    It is left to be waited for, so that its number, and the one of its group, cannot be another's yet.
    """
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
