"""Listens on ports for a while and knocks at those of the other nodes, all at once. For any Python from 3.6 on.

Input: a line of JSON with `me`, `word` (that tells our own listeners from others), `ports`, `targets` (name ->
address), `callers` (how many nodes will knock here) and `limit_s`; then it stays open. Output: one marked JSON line:
what became of listening on each port and of each knock, of a large message to each node that a small one reached, and
how many seconds it lasted. It ends when all has been reached and has been heard, at the limit, or when its input ends.
What others send is read up to the end of a line, and never used but for the word and the names. An address can lead to
another node than the one it is said to be, even to this one itself: whoever listens answers with its own name.
"""

import contextlib
import errno
import fcntl
import json
import os
import selectors
import socket
import struct
import sys
import termios
import time
from typing import Any

ATTEMPT_S = 3.0  # a connection attempt that nobody answers is begun anew after this
AGAIN_S = 0.2  # the other node may not have begun to listen
AT_ONCE = 200
LARGE = 0  # stands for a port in what is waited for and reached: the large message
LARGE_BYTES = 12000  # more than one packet of any usual size, jumbo frames included; less than a first send buffer
LARGE_S = 5.0  # four times is a lost packet sent again by then
REST_S = 0.3  # so that the last answer gets through before our sockets close


class Knocker:
    """What this node hears and reaches."""

    def __init__(self, asked: "dict[str, Any]") -> None:
        self.asked = asked
        self.word = asked["word"].encode("ascii")
        self.me = asked["me"].encode("utf-8")
        self.selector = selectors.DefaultSelector()
        self.listening: dict[str, str] = {}
        self.reached: dict[str, dict[str, str]] = {name: {} for name in asked["targets"]}
        self.open_at: dict[str, int] = {}  # a port at which a small message has reached the node
        self.heard: set[tuple[str, str]] = set()
        self.lines: dict[socket.socket, bytes] = {}
        self.waiting = [(0.0, name, port) for port in asked["ports"] for name in asked["targets"]]
        self.trying: dict[socket.socket, tuple[float, str, int]] = {}
        self.began = time.monotonic()
        self.ends = self.began + asked["limit_s"]
        self.is_left = False

    def listen(self) -> None:
        for port in self.asked["ports"]:
            said = ""
            opened = 0
            for family, place in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
                try:
                    server = socket.socket(family, socket.SOCK_STREAM)
                    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    if family == socket.AF_INET6:
                        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                    server.bind((place, port))
                    server.listen(256)
                except OSError as error:
                    if family == socket.AF_INET:
                        said = "taken" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
                    continue
                server.setblocking(False)
                opened += family == socket.AF_INET
                self.selector.register(server, selectors.EVENT_READ, (self.accept, port))
            self.listening[str(port)] = "opened" if opened else said

    def accept(self, server: socket.socket, port: int) -> None:
        try:
            caller, _ = server.accept()
        except OSError:
            return
        caller.setblocking(False)
        self.selector.register(caller, selectors.EVENT_READ, (self.hear, port))

    def hear(self, caller: socket.socket, port: int) -> None:
        """A caller says the word, its name and whom it looks for in one line, and gets the word and our name back."""
        try:
            chunk = caller.recv(LARGE_BYTES)
        except OSError:
            chunk = b""
        line = self.lines.pop(caller, b"") + chunk
        if chunk and not line.endswith(b"\n") and len(line) < LARGE_BYTES:
            self.lines[caller] = line
            return
        words = line.split()
        if len(words) > 2 and words[0] == self.word:
            if words[2] == self.me:
                said = LARGE if len(words) > 3 else port
                self.heard.add((words[1].decode("utf-8", "replace"), str(said)))
            with contextlib.suppress(OSError):  # it is gone: its own account says so
                caller.send(self.word + b" " + self.me + b"\n")
        self.close(caller)

    def knock(self, now: float) -> None:
        while self.waiting and len(self.trying) < AT_ONCE and self.waiting[0][0] <= now:
            _, name, port = self.waiting.pop(0)
            address = self.asked["targets"][name]
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            caller = socket.socket(family, socket.SOCK_STREAM)
            caller.setblocking(False)
            if port == LARGE:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * LARGE_BYTES)  # it is sent at once
            code = caller.connect_ex((address, port or self.open_at[name]))
            if code not in (0, errno.EINPROGRESS):
                caller.close()
                self.fail(name, port, code)
                continue
            self.trying[caller] = (now + (ATTEMPT_S if port else LARGE_S), name, port)
            self.selector.register(caller, selectors.EVENT_WRITE, (self.connected, port))

    def connected(self, caller: socket.socket, port: int) -> None:
        _, name, _ = self.trying[caller]
        code = caller.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self.give_up(caller)
            self.fail(name, port, code)
            return
        try:
            # A way with one address at both ends never leaves this machine.
            is_here = caller.getsockname()[0] == caller.getpeername()[0] and name != self.asked["me"]
            # What holds unless the word comes back.
            self.reached[name][str(port)] = "answered by " + self.asked["me"] if is_here else "service"
            line = b" ".join((self.word, self.me, name.encode("utf-8"))) + b"\n"
            caller.send(line if port else line[:-1] + b" " + b"." * (LARGE_BYTES - len(line) - 1) + b"\n")
            self.selector.modify(caller, selectors.EVENT_READ, (self.answered, port))
        except OSError as error:
            self.give_up(caller)
            self.fail(name, port, error.errno or 0)

    def answered(self, caller: socket.socket, port: int) -> None:
        _, name, _ = self.trying[caller]
        try:
            said = caller.recv(512)
        except OSError:
            said = b""
        words = said.split()
        if len(words) > 1 and words[0] == self.word:
            who = words[1].decode("utf-8", "replace")
            self.reached[name][str(port)] = "ok" if who == name else "answered by " + who
            if who == name and name not in self.open_at:
                self.open_at[name] = port
                self.waiting.append((0.0, name, LARGE))
        self.give_up(caller)

    def fail(self, name: str, port: int, code: int) -> None:
        """Notes why and tries again later: the other one may not be there yet."""
        self.reached[name][str(port)] = errno.errorcode.get(code, str(code))
        self.waiting.append((time.monotonic() + AGAIN_S, name, port))

    def expire(self, now: float) -> None:
        for caller, (until, name, port) in list(self.trying.items()):
            if now >= until:
                # Connected but silent: a service that speaks only when it is spoken to in its own words.
                has_connected = self.selector.get_key(caller).data[0] == self.answered
                # All received but not answered is a busy node.
                if has_connected and port == LARGE and unacknowledged(caller):
                    self.reached[name][str(LARGE)] = "lost"
                self.give_up(caller)
                if not has_connected:
                    self.fail(name, port, errno.ETIMEDOUT)

    def give_up(self, caller: socket.socket) -> None:
        del self.trying[caller]
        self.close(caller)

    def close(self, end: socket.socket) -> None:
        self.selector.unregister(end)
        end.close()

    def leave(self, stream: object, port: int) -> None:
        if not os.read(0, 1):
            self.is_left = True

    def is_done(self) -> bool:
        opened = sum(said == "opened" for said in self.listening.values())
        expected = (opened + bool(opened)) * self.asked["callers"]  # of each the large message, too
        return not self.waiting and not self.trying and len(self.heard) >= expected

    def run(self) -> None:
        self.listen()
        self.selector.register(0, selectors.EVENT_READ, (self.leave, 0))
        rest = None
        while not self.is_left:
            now = time.monotonic()
            if now >= self.ends or (rest is not None and now >= rest):
                break
            if rest is None and self.is_done():
                rest = now + REST_S
            self.waiting.sort(key=lambda item: item[0])
            self.knock(now)
            for key, _ in self.selector.select(0.05):
                step, port = key.data
                step(key.fileobj, port)
            self.expire(time.monotonic())


def unacknowledged(sender: socket.socket) -> int:
    """How many bytes the other end has not confirmed."""
    return int(struct.unpack("i", fcntl.ioctl(sender, termios.TIOCOUTQ, b"\0\0\0\0"))[0])


def main() -> None:
    knocker = Knocker(json.loads(sys.stdin.buffer.readline().decode("utf-8")))
    knocker.run()
    large = {name: each.pop(str(LARGE)) for name, each in knocker.reached.items() if str(LARGE) in each}
    told: dict[str, Any] = {"listening": knocker.listening, "reached": knocker.reached, "large": large}
    told["heard"] = sorted(knocker.heard)
    told["lasted"] = time.monotonic() - knocker.began
    sys.stdout.write("\nNPUENV-ANSWER " + json.dumps(told) + "\n")
    sys.stdout.flush()


main()
