"""pip's trusted-host: a certificate that nobody vouches for is taken from the named hosts, and from no other."""

from __future__ import annotations

import http.server
import shutil
import ssl
import subprocess
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.bundle.fetch import Download, fetch_all, with_sizes
from npuenv.core.errors import CannotTell
from npuenv.core.messages import say
from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.index.pages import Bounds, Fetch, RequestLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LIMIT = RequestLimits(1000, 60.0)
CONTENT = b"what an index gives"


class _Handler(http.server.BaseHTTPRequestHandler):
    """Gives the same content everywhere, but for /away, which leads to the same server under its other name."""

    def do_GET(self) -> None:
        if self.path == "/away":
            address: Any = self.server.server_address
            self.send_response(302)
            self.send_header("Location", f"https://localhost:{address[1]}/")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.do_HEAD()
        self.wfile.write(CONTENT)

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a certificate of its own making, cert.pem, and its key, key.pem."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("there is no openssl here to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    argv = [openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
            "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]  # fmt: skip
    subprocess.run(argv, check=True, capture_output=True, timeout=240)
    return folder


@pytest.fixture
def port(made: Path, home: Path) -> Iterator[int]:
    """Where a server with that certificate listens."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "cert.pem", made / "key.pem")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def trusting(*hosts: str) -> PipSettings:
    return PipSettings(trusted_hosts=tuple(PipSetting(host, "test") for host in hosts))


def read(settings: PipSettings, url: str) -> bytes:
    fetch = Fetch(settings, Bounds(wait_s=60.0))
    try:
        found = fetch.read(url, LIMIT)
    finally:
        fetch.close()
    assert found is not None
    return found[0]


@pytest.mark.parametrize("hosts", [("127.0.0.1",), ("other.example", "127.0.0.1:{port}")])
def test_a_trusted_host_needs_no_certificate_that_anybody_vouches_for(port: int, hosts: tuple[str, ...]) -> None:
    settings = trusting(*(host.format(port=port) for host in hosts))
    assert read(settings, f"https://127.0.0.1:{port}/") == CONTENT
    assert read(settings, f"https://me:word@127.0.0.1:{port}/") == CONTENT


@pytest.mark.parametrize("hosts", [(), ("localhost",), ("127.0.0.1:1",), ("127.0.0.11",), ("7.0.0.1",), ("a:b:c:d]",)])
def test_any_other_host_is_asked_for_its_certificate(port: int, hosts: tuple[str, ...]) -> None:
    with pytest.raises(CannotTell) as caught:
        read(trusting(*hosts), f"https://127.0.0.1:{port}/")
    assert "certificate" in say(caught.value.message).lower()


def test_a_trusted_host_vouches_for_none_that_it_leads_to(port: int) -> None:
    with pytest.raises(CannotTell) as caught:
        read(trusting("127.0.0.1"), f"https://127.0.0.1:{port}/away")
    assert "certificate" in say(caught.value.message).lower()
    assert read(trusting("127.0.0.1", "localhost"), f"https://127.0.0.1:{port}/away") == CONTENT


def test_a_named_certificate_still_counts_for_the_others(port: int, made: Path) -> None:
    settings = replace(trusting("other.example"), cert=PipSetting(str(made / "cert.pem"), "test"))
    assert read(settings, f"https://127.0.0.1:{port}/") == CONTENT


def test_files_of_a_bundle_come_from_a_trusted_host(port: int, tmp_path: Path) -> None:
    settings = trusting("127.0.0.1")
    (wanted,) = with_sizes([Download("wheels/one", f"https://127.0.0.1:{port}/one", (), 0)], settings)
    assert wanted.size == len(CONTENT)
    fetch_all([wanted], tmp_path / "out", settings, tell=lambda told: None, pause_s=0.01)
    assert (tmp_path / "out/wheels/one").read_bytes() == CONTENT
