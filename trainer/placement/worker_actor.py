"""The actor in a process that Ray has started: it sets up the trainer and the environment, then executes calls.

It is serialized by value, so that a node without the trainer can run it: it uses only the standard library, and does
not import the trainer at the top.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import io
import os
import socket
import struct
import sys
import tempfile
import zipfile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class WorkerActor:
    """One process of a run. Its calls come from Ray, in several threads: `watch` answers while `call` computes."""

    def __init__(self) -> None:
        self._made: Any = None
        self._place: dict[str, Any] | None = None
        self._failure: Exception | None = None  # of settling, or of making it
        self._kept: socket.socket | None = None  # keeps the port that the ranks may meet at

    def settle(self, root: str, package: bytes | None, address: str, cards: Mapping[str, Any]) -> Any:
        """Makes the trainer importable, from `root` or from a zipped copy of it, and assigns the cards.

        `cards` says which of the node's visible cards are this process's: `variable`, the name of the list of visible
        ones, `local`, positions in it, `held`, those of the complete run, and `resource`, Ray's name for them. Returns
        `pid`, `interface` with the node's address, a `port` that is reserved for this process, `ids` of the cards and
        those `held`, and those `given` by Ray. Repeated calls return the same.
        """
        if self._place is None:
            try:
                self._place = self._settled(root, package, address, cards)
            except Exception as error:
                self._failure = error
                raise
        return self._place

    def _settled(self, root: str, package: bytes | None, address: str, cards: Mapping[str, Any]) -> dict[str, Any]:
        sys.path.insert(0, root if package is None else _unpack(package))
        self._kept = _kept_port()
        port = self._kept.getsockname()[1]
        found: dict[str, Any] = {"pid": os.getpid(), "port": port, "interface": _interface_of(address)}
        if cards:
            found["ids"] = _names(os.environ.get(cards["variable"], ""), cards["local"])
            found["held"] = _names(os.environ.get(cards["variable"], ""), cards["held"])
            found["given"] = _given(cards["resource"])
            os.environ[cards["variable"]] = ",".join(found["ids"])
        return found

    def set_env(self, environ: Mapping[str, str], unless_set: Mapping[str, str]) -> None:
        """Sets variables, some only if the node does not; before the import of any module that reads them."""
        for name, value in unless_set.items():
            os.environ.setdefault(name, value)
        os.environ.update(environ)

    def log_to(self, path: str) -> None:
        """Appends what this process and its children print to a file, if its folder is here."""
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)

    def sees(self, path: str) -> bool:
        """Whether a file of the first node is here too."""
        return os.path.exists(path)

    def prepare(self, place: str, *args: Any) -> None:
        """Calls `module:function`; later calls are methods of its result. Repeated calls do nothing."""
        if self._made is not None:
            return
        if self._failure is not None:
            raise self._failure
        module, _, name = place.partition(":")
        try:
            self._made = getattr(importlib.import_module(module), name)(*args)
        except Exception as error:
            self._failure = error
            raise

    def call(self, name: str, *args: Any) -> Any:
        """Calls a method of that object."""
        if self._failure is not None:
            raise self._failure
        return getattr(self._made, name)(*args)

    def watch(self, name: str, *args: Any) -> Any:
        """Like `call`, in a separate thread."""
        return getattr(self._made, name)(*args)

    def quit(self) -> None:
        """Ends this process at once, after the processes it has started elsewhere. Does not use Ray's head."""
        with contextlib.suppress(Exception):  # the object may not have the method, or be incomplete
            self._made.quit()
        os._exit(0)


def leave_word(variable: str, text: str) -> None:
    """Writes a text atomically into the file that a variable names on this node; does nothing without the variable."""
    path = os.environ.get(variable)
    if path is not None:
        with open(f"{path}.unfinished", "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(f"{path}.unfinished", path)


def zipped(package: str) -> bytes:
    """A package folder as a zip file, its byte code left out; the same bytes for the same files."""
    buffer, above = io.BytesIO(), os.path.dirname(package)
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for folder, inner, files in os.walk(package):
            inner[:] = sorted(each for each in inner if each != "__pycache__")
            for name in sorted(files):
                path = os.path.join(folder, name)
                entry = zipfile.ZipInfo(os.path.relpath(path, above))
                with open(path, "rb") as file:
                    archive.writestr(entry, file.read())
    return buffer.getvalue()


def _interface_of(address: str) -> str | None:
    """The network interface of an address, for collectives; None if unknown."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, contextlib.suppress(OSError):
            # SIOCGIFADDR; an interface without an address refuses
            answer = fcntl.ioctl(asked.fileno(), 0x8915, struct.pack("256s", name[:15].encode()))
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def _unpack(package: bytes) -> str:
    """The folder of a zipped package, unpacked there once for all processes of this user on the node.

    Files that are missing there, because another process is at it or old ones were cleaned away, are put there, each
    atomically.
    """
    name = f"trainer-{os.getuid()}-{hashlib.sha256(package).hexdigest()[:16]}"
    folder = os.path.join(tempfile.gettempdir(), name)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    if os.stat(folder).st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to another user")
    with zipfile.ZipFile(io.BytesIO(package)) as archive, tempfile.TemporaryDirectory(prefix=f"{name}.") as fresh:
        for each in archive.namelist():
            path = os.path.join(folder, each)
            if not os.path.isfile(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.replace(archive.extract(each, fresh), path)
    return folder


def _names(visible: str, local: Sequence[int]) -> list[str]:
    """The numbers by which a program names cards of a node, from the node's list of those that are visible.

    Without a list all are. Example: "4,5,6,7", (1, 9) -> ["5", "missing"]
    """
    listed = visible.replace(" ", "").split(",") if visible.strip() else [str(each) for each in range(max(local) + 1)]
    return [listed[each] if each < len(listed) else "missing" for each in local]


def _kept_port() -> socket.socket:
    """A port that the system gives to no other program while this socket is open, and that torch's store, which reuses
    addresses, can listen on.
    """
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("", 0))
    return reserved


def _given(resource: str) -> Sequence[str]:
    """The cards that Ray has counted for this process, by its own numbers."""
    import ray

    return [str(each) for each in ray.get_runtime_context().get_accelerator_ids().get(resource, [])]
