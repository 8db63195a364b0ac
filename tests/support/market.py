"""A package index of small wheels on the loopback address that tells when each was uploaded."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import threading
import zipfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.uv import Resolver, find_uv, write_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Market:
    """The index. Put wheels on it with `put`; `resolver` is uv with this index alone and a cache of its own."""

    folder: Path
    url: str = ""
    files: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)  # paths that were asked for

    def put(
        self, name: str, version: str, *requires: str, day: str = "2025-01-01", tag: str = "", python: str = ""
    ) -> None:
        wheel = write_wheel(self.folder, name, version, requires=requires, tag=tag or "py3-none-any")
        row: dict[str, Any] = {"filename": wheel.name, "url": f"/files/{wheel.name}"}
        row["core-metadata"] = True
        row["hashes"] = {"sha256": hashlib.sha256(wheel.read_bytes()).hexdigest()}
        row |= {"upload-time": f"{day}T12:00:00Z"} if day else {}
        row |= {"requires-python": python} if python else {}
        self.files.setdefault(name, []).append(row)

    def resolver(self, indexes: dict[str, str] | None = None) -> Resolver:
        return Resolver(LocalHost(), find_uv(), pip_settings(LocalHost()), indexes or {})

    def answer(self, path: str) -> tuple[str, bytes] | None:
        self.asked.append(path)
        kind, _, name = path.strip("/").partition("/")
        if kind == "files" and name.endswith(".metadata"):
            with zipfile.ZipFile(self.folder / name.removesuffix(".metadata")) as wheel:
                inside = next(each for each in wheel.namelist() if each.endswith("/METADATA"))
                return "text/plain", wheel.read(inside)
        if kind == "simple" and name in self.files:
            page = {"meta": {"api-version": "1.1"}, "name": name, "files": self.files[name]}
            return "application/vnd.pypi.simple.v1+json", json.dumps(page).encode()
        return None


@pytest.fixture
def market(tmp_path: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Market]:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    folder = tmp_path / "market"
    folder.mkdir()
    market = Market(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = market.answer(self.path)
            self.send_response(200 if found else 404)
            kind, body = found or ("text/plain", b"")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "max-age=600")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # the test's output is not the place for an access log

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128  # uv opens 50 connections at once; with the usual five the kernel drops some

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    market.url = f"http://127.0.0.1:{server.server_address[1]}/simple/"
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", market.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    yield market
    server.shutdown()
    server.server_close()
    thread.join()
