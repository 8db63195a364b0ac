"""Downloads that are cut, refused, altered or full, over a server on the loopback that does what it is told."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import pytest

from npuenv.bundle import fetch as fetching
from npuenv.bundle.fetch import (
    THREADS,
    Download,
    DownloadProgress,
    fetch_all,
    still_to_fetch,
    with_sizes,
)
from npuenv.bundle.layout import failed_by_disk
from npuenv.core.errors import StepFailed
from npuenv.core.messages import Message, say
from npuenv.facts.pip import PipSetting, PipSettings
from tests.support.own_signals import interruptible
from tests.support.sentences import says

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = PipSettings()
DATA = bytes(range(256)) * 4000  # 1 MB


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Server:
    """Serves `files`; what it does wrong is set beside them."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: int = 0  # bytes of each answer, after which the connection is closed; 0: never
    num_cuts: int = 0  # how many answers are still to be cut
    gives_parts: bool = True
    status: int = 200
    num_refusals: int = 0  # answers with `status` before it works
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    proxied: bool = False

    def wanted(self, name: str, data: bytes, *, at: str = "") -> Download:
        self.files[f"/{name}"] = data
        return Download(f"{at}{name}", f"{self.url}/{name}", (sha(data),), len(data))


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, *args: Any, server_state: Server) -> None:
        self.state = server_state
        super().__init__(*args)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        state, span = self.state, self.headers.get("Range", "")
        state.asked.append((self.command, self.path, span))
        data = state.files.get(re.sub(r"^https?://[^/]+", "", self.path))
        if state.num_refusals and with_body:
            state.num_refusals -= 1
            self.send_error(state.status)
            return
        if data is None:
            self.send_error(404)
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", span) if state.gives_parts else None
        start = int(match[1]) if match else 0
        end = int(match[2]) + 1 if match and match[2] else len(data)
        if match and start >= len(data):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        part = data[start:end]
        self.send_response(206 if match else 200)
        if match:
            self.send_header("Content-Range", f"bytes {start}-{start + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if with_body:
            self._send(part)

    def _send(self, part: bytes) -> None:
        with contextlib.suppress(OSError):  # the client may have enough
            if self.state.cut_after and self.state.num_cuts:
                self.state.num_cuts -= 1
                self.wfile.write(part[: self.state.cut_after])
                self.close_connection = True
            else:
                self.wfile.write(part)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    state = Server()

    def handler(*args: Any) -> _Handler:
        return _Handler(*args, server_state=state)

    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        state.url = f"http://127.0.0.1:{http.server_address[1]}"
        threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True).start()
        yield state
        http.shutdown()


def fetch(folder: Path, *wanted: Download, settings: PipSettings = SETTINGS) -> list[DownloadProgress]:
    told: list[DownloadProgress] = []
    fetch_all(wanted, folder, settings, tell=told.append, pause_s=0.001)
    return told


def why(folder: Path, *wanted: Download) -> str:
    with pytest.raises(StepFailed) as caught:
        fetch(folder, *wanted)
    assert caught.value.hint is not None
    return say(caught.value.message)


def test_files_arrive_whole_and_are_counted(server: Server, tmp_path: Path) -> None:
    wanted = [server.wanted(f"f{n}", DATA[: n * 100_000], at="wheels/") for n in range(1, 7)]
    told = fetch(tmp_path, *wanted)
    for item in wanted:
        assert (tmp_path / item.path).read_bytes() == server.files[f"/{Path(item.path).name}"]
    total = sum(item.size for item in wanted)
    assert (told[-1].done, told[-1].total) == (total, total)
    assert sorted(each.file for each in told if each.file) == sorted(item.path for item in wanted)


def test_a_transfer_that_is_cut_goes_on_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.num_cuts = 300_000, 3
    told = fetch(tmp_path, server.wanted("big", DATA))
    assert (tmp_path / "big").read_bytes() == DATA
    assert [span for _, _, span in server.asked] == ["", "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert told[-1].done == len(DATA)


def test_a_cut_without_parts_begins_anew_and_counts_right(server: Server, tmp_path: Path) -> None:
    server.cut_after, server.num_cuts, server.gives_parts = 300_000, 2, False
    told = fetch(tmp_path, server.wanted("big", DATA))
    assert (tmp_path / "big").read_bytes() == DATA
    assert told[-1].done == len(DATA)


def test_the_next_run_takes_what_an_earlier_one_left(server: Server, tmp_path: Path) -> None:
    wanted = server.wanted("big", DATA)
    (tmp_path / "big.part").write_bytes(DATA[:777_777])
    assert still_to_fetch([wanted], tmp_path) == len(DATA) - 777_777
    fetch(tmp_path, wanted)
    assert server.asked == [("GET", "/big", "bytes=777777-")]
    fetch(tmp_path, wanted)
    assert len(server.asked) == 1
    assert still_to_fetch([wanted], tmp_path) == 0


@pytest.mark.parametrize("left", [b"x" * 500_000, DATA, DATA + b"more", b"y" * len(DATA)])
def test_a_beginning_that_does_not_fit_costs_one_more_attempt(left: bytes, server: Server, tmp_path: Path) -> None:
    (tmp_path / "big.part").write_bytes(left)
    told = fetch(tmp_path, server.wanted("big", DATA))
    assert (tmp_path / "big").read_bytes() == DATA
    assert told[-1].done == len(DATA)
    assert not (tmp_path / "big.part").exists()


def test_a_file_of_that_name_with_another_content_is_fetched_anew(server: Server, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(DATA[:-1] + b"?")
    fetch(tmp_path, server.wanted("big", DATA))
    assert (tmp_path / "big").read_bytes() == DATA


def test_another_content_than_wanted_never_gets_the_name(server: Server, tmp_path: Path) -> None:
    wanted = server.wanted("big", DATA)
    server.files["/big"] = DATA[:-1] + b"?"
    said = why(tmp_path, wanted)
    assert wanted.sha256[0] in said and sha(server.files["/big"]) in said
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]


def test_without_a_stated_hash_what_comes_is_taken(server: Server, tmp_path: Path) -> None:
    fetch(tmp_path, Download("big", server.wanted("big", DATA).url, (), 0))
    assert (tmp_path / "big").read_bytes() == DATA


def test_a_server_that_recovers_is_asked_again_and_one_that_does_not_is_given_up(
    server: Server, tmp_path: Path
) -> None:
    wanted = server.wanted("big", DATA)
    server.status, server.num_refusals = 503, 3
    fetch(tmp_path, wanted)
    assert len(server.asked) == 4
    (tmp_path / "big").unlink()
    server.num_refusals = 100
    assert "503" in why(tmp_path, wanted)
    assert len(server.asked) == 9


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_for_good_is_not_asked_again(status: int, server: Server, tmp_path: Path) -> None:
    server.status, server.num_refusals = status, 100
    assert f"HTTP {status}" in why(tmp_path, server.wanted("big", DATA))
    assert len(server.asked) == 1


def test_nobody_listening_is_one_sentence(tmp_path: Path, home: Path) -> None:
    said = why(tmp_path, Download("x.whl", "http://user:secret@127.0.0.1:1/x.whl", ("0" * 64,), 5))
    assert says(said, "bundle.not-coming", file="x.whl") and "secret" not in said and "\n" not in said


def test_one_failure_stops_the_others_and_keeps_what_has_come(server: Server, tmp_path: Path) -> None:
    good = [server.wanted(f"good{n}", DATA) for n in range(3)]
    bad = Download("bad", f"{server.url}/none", ("0" * 64,), 10)
    assert "bad" in why(tmp_path, *good, bad) or "none" in why(tmp_path, *good, bad)
    server.files["/none"] = b"now"
    fetch(tmp_path, *good, Download("bad", f"{server.url}/none", (sha(b"now"),), 3))
    assert all((tmp_path / item.path).read_bytes() == DATA for item in good)


@pytest.fixture
def shut(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set once the threads that fetch are told to end: from then on an interruption has had its effect."""
    event = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            event.set()
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(fetching, "ThreadPoolExecutor", Pool)
    return event


def test_after_an_interruption_nothing_more_is_asked_for(server: Server, tmp_path: Path, shut: threading.Event) -> None:
    wanted = [server.wanted(f"{number}.whl", DATA[: 100 + number]) for number in range(80)]
    ended: list[str] = []

    def interrupting(told: DownloadProgress) -> None:
        ended.extend([told.file] if told.file else [])
        if ended == [told.file]:  # the first, and told once
            # The others wait for this one. Again where it had no effect: Python loses one that comes in a finaliser.
            for _ in range(30):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                if shut.wait(2):
                    break

    with interruptible(), pytest.raises(KeyboardInterrupt):
        fetch_all(wanted, tmp_path, SETTINGS, tell=interrupting)
    assert shut.is_set() and len(server.asked) < 20


def test_an_interruption_while_files_are_still_being_queued_ends_the_run_too(
    server: Server, tmp_path: Path, shut: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [server.wanted(f"{number}.whl", DATA[: 100 + number]) for number in range(80)]
    queued: list[object] = []

    submit = ThreadPoolExecutor.submit

    def interrupted(pool: ThreadPoolExecutor, *args: Any, **options: Any) -> Future[Any]:
        queued.append(args)
        if len(queued) == 40:
            raise KeyboardInterrupt
        return submit(pool, *args, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)

    def held(told: DownloadProgress) -> None:
        shut.wait(60)

    with pytest.raises(KeyboardInterrupt):
        fetch_all(wanted, tmp_path, SETTINGS, tell=held)
    assert shut.is_set() and len(server.asked) <= THREADS


def test_sizes_are_asked_of_the_server(server: Server, tmp_path: Path) -> None:
    wanted = server.wanted("big", DATA)
    unknown = [Download("big", wanted.url, wanted.sha256, 0), Download("none", f"{server.url}/none", (), 0)]
    assert [item.size for item in with_sizes(unknown, SETTINGS)] == [len(DATA), 0]
    assert [item[0] for item in server.asked] == ["HEAD", "HEAD"]


def test_the_proxy_of_pip_is_used(server: Server, tmp_path: Path) -> None:
    server.files["/big"] = DATA
    settings = PipSettings(proxy=PipSetting(server.url, "pip.conf"))
    fetch(tmp_path, Download("big", "http://index.invalid/big", (sha(DATA),), len(DATA)), settings=settings)
    assert server.asked == [("GET", "http://index.invalid/big", "")]


def test_a_local_file_is_copied_and_compared(tmp_path: Path, home: Path) -> None:
    (tmp_path / "source.whl").write_bytes(DATA)
    place = str(tmp_path / "source.whl")
    fetch(tmp_path / "out", Download("a.whl", place, (sha(DATA),), len(DATA)))
    assert (tmp_path / "out/a.whl").read_bytes() == DATA
    assert sha(b"") in why(tmp_path / "out", Download("b.whl", place, (sha(b""),), len(DATA)))
    assert "No such file" in why(tmp_path / "out", Download("c.whl", f"{place}.gone", (sha(b""),), 3))


class _Full:
    """A file on a disk that has room for `room` bytes more."""

    def __init__(self, file: IO[bytes], room: int) -> None:
        self._file, self._room = file, room

    def write(self, data: bytes) -> int:
        self._room -= len(data)
        if self._room < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._file.write(data)

    def __enter__(self) -> _Full:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def test_a_full_disk_is_told_and_what_has_come_stays(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, real = server.wanted("big", DATA), Path.open

    def full(path: Path, mode: str = "r", *args: Any, **options: Any) -> Any:
        file = real(path, mode, *args, **options)
        return _Full(file, 600_000) if path.name.endswith(".part") and mode != "rb" else file

    monkeypatch.setattr(Path, "open", full)
    assert says(why(tmp_path, wanted), "bundle.disk-full")
    monkeypatch.undo()
    has = (tmp_path / "big.part").stat().st_size
    assert 0 < has < len(DATA)
    fetch(tmp_path, wanted)
    assert server.asked[-1] == ("GET", "/big", f"bytes={has}-")
    assert (tmp_path / "big").read_bytes() == DATA


def test_a_disk_that_refuses_for_another_reason_is_told_with_it(tmp_path: Path) -> None:
    message = failed_by_disk(PermissionError(errno.EACCES, "Permission denied"), tmp_path).message
    assert message == Message("bundle.cannot-write", {"path": str(tmp_path), "why": "Permission denied"})


PROGRAM = """
import sys
from pathlib import Path
from npuenv.bundle.fetch import Download, fetch_all
from npuenv.facts.pip import PipSettings
url, sha, size, folder = sys.argv[1:]
tell = lambda told: print(told.done, flush=True)
fetch_all([Download("big", url, (sha,), int(size))], Path(folder), PipSettings(), tell=tell)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_at_any_time_is_taken_up_by_the_next(server: Server, tmp_path: Path) -> None:
    wanted = server.wanted("big", DATA * 8)
    argv = [sys.executable, "-c", PROGRAM, wanted.url, wanted.sha256[0], str(wanted.size), str(tmp_path)]
    for lines in (1, 3):
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for _ in range(lines):
                process.stdout.readline()
            process.kill()
        assert not (tmp_path / "big").exists() or (tmp_path / "big").read_bytes() == DATA * 8
    begun = time.monotonic()
    fetch(tmp_path, wanted)
    assert (tmp_path / "big").read_bytes() == DATA * 8
    assert time.monotonic() - begun < 120
