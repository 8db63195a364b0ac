"""Reading index pages and files over HTTP and from folders, with pip's settings."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import CannotTell
from npuenv.core.messages import say
from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.index.metadata import Unreadable
from npuenv.index.pages import Bounds, Indexes, IndexFile, RequestLimits
from npuenv.lock.uv import write_wheel

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.package_index import Served

pytest.importorskip("pypi_simple", reason="reading an index needs the package pypi-simple")


def one(indexes: Indexes, name: str, kind: str = "wheel") -> IndexFile:
    return next(item for item in indexes.files(name) if item.kind == kind)


def at(url: str, *extra: str) -> PipSettings:
    return PipSettings(
        index_url=PipSetting(url, "test"), extra_index_urls=tuple(PipSetting(each, "test") for each in extra)
    )


def test_a_page_gives_versions_kinds_days_and_hashes(index: Served) -> None:
    index.uploaded = "2026-03-04"
    path = index.add_wheel("vllm", "2.0.0.RC1", "cp312-cp312-manylinux_2_28_aarch64")
    index.add_file("vllm", "vllm-not.a.version.tar.gz", b"")
    index.add_file("vllm", "vllm-2.0.0.exe", b"")
    with Indexes(at(index.url)) as indexes:
        files = indexes.files("vllm")
    assert [(item.version, item.kind, item.uploaded) for item in files] == [
        ("1.0.0", "sdist", ""),
        ("2.0.0rc1", "wheel", "2026-03-04"),
    ]
    assert files[1].file == path.name and len(files[1].sha256) == 64


def test_of_a_wheel_only_the_parts_that_matter_are_fetched(index: Served) -> None:
    folder = index.folder / "simple" / "big"
    folder.mkdir()
    noise = os.urandom(4 * 1024**2).hex()
    path = write_wheel(folder, "big", "1", requires=["numpy"], files={"big/noise": noise})
    index.add_file("big", path.name, path.read_bytes())
    with Indexes(at(index.url)) as indexes:
        assert "Requires-Dist: numpy" in indexes.metadata(one(indexes, "big"))
    assert 0 < index.sent < path.stat().st_size / 4


def test_a_server_that_gives_no_parts_is_read_whole(index: Served) -> None:
    index.gives_parts = False
    index.add_wheel("vllm", "2.0.0", requires=["numpy"])
    with Indexes(at(index.url)) as indexes:
        assert "Requires-Dist: numpy" in indexes.metadata(one(indexes, "vllm"))


def test_metadata_that_stands_beside_the_wheel_is_preferred(index: Served) -> None:
    path = index.add_wheel("vllm", "2.0.0", requires=["numpy"])
    path.with_name(path.name + ".metadata").write_text("Name: beside", encoding="utf-8")
    page = path.parent / "index.html"
    page.write_text(page.read_text().replace("<a ", '<a data-core-metadata="true" '), encoding="utf-8")
    with Indexes(at(index.url)) as indexes:
        assert indexes.metadata(one(indexes, "vllm")) == "Name: beside"


def test_a_json_page_is_read_too_and_yanked_files_are_left_out(index: Served) -> None:
    def entry(version: str, **more: object) -> dict[str, object]:
        name = f"p-{version}-py3-none-any.whl"
        return {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": "0" * 64}, **more}

    files = [
        entry("1.0", **{"upload-time": "2026-05-06T07:08:09.1Z", "core-metadata": True}),
        entry("2.0", yanked=True),
    ]
    page = {"meta": {"api-version": "1.1"}, "name": "p", "files": files}
    index.answer = json.dumps(page).encode()
    index.content_type = "application/vnd.pypi.simple.v1+json"
    with Indexes(at(index.url)) as indexes:
        (item,) = indexes.files("p")
    assert (item.version, item.uploaded, item.has_metadata) == ("1.0", "2026-05-06", True)
    assert item.url == index.url.removesuffix("/simple") + "/files/p-1.0-py3-none-any.whl"


@pytest.mark.parametrize(
    "content", [b'{"files": 3}', b"{", b'{"meta": {"api-version": "9.0"}, "name": "p", "files": []}']
)
def test_a_json_page_that_is_none_cannot_tell(index: Served, content: bytes) -> None:
    index.answer, index.content_type = content, "application/vnd.pypi.simple.v1+json"
    with Indexes(at(index.url)) as indexes, pytest.raises(CannotTell) as caught:
        indexes.files("p")
    assert index.url in say(caught.value.message)


def test_indexes_in_folders_have_equal_rank_and_the_first_file_of_a_name_counts(index: Served, tmp_path: Path) -> None:
    other = tmp_path / "other" / "simple"
    shutil.copytree(index.folder / "simple" / "vllm", other / "vllm")
    index.add_wheel("vllm", "2.0.0")
    (other / "vllm" / "index.html").write_text(
        "".join(f'<a href="{name}">{name}</a>' for name in ("vllm-1.0.0.tar.gz", "vllm-0.9-py3-none-any.whl")),
        encoding="utf-8",
    )
    with Indexes(at(index.url, other.as_uri())) as indexes:
        files = {item.version: item.url for item in indexes.files("vllm")}
    assert list(files) == ["0.9", "1.0.0", "2.0.0"]
    assert files["1.0.0"].startswith(index.url)
    assert files["0.9"] == f"{other.as_uri()}/vllm/vllm-0.9-py3-none-any.whl"
    for place in (str(other), other.as_uri()):
        with Indexes(at(place)) as indexes:
            assert indexes.texts(one(indexes, "vllm", "sdist"), ("setup.py",))["setup.py"].startswith("if _no_device")


def test_credentials_go_to_the_host_of_their_index_alone(index: Served) -> None:
    other = index.url.replace("127.0.0.1", "localhost")
    index.add_wheel("vllm", "2.0.0")
    page = index.folder / "simple" / "vllm" / "index.html"
    page.write_text(page.read_text().replace('href="', f'href="{other}/vllm/'), encoding="utf-8")
    with Indexes(at(index.url.replace("//", "//me:s%40cret@"))) as indexes:
        indexes.metadata(one(indexes, "vllm"))
    sent = {(head.get("Host", "").split(":")[0], head.get("Authorization", "")) for _, head in index.asked}
    assert sent == {("127.0.0.1", "Basic bWU6c0BjcmV0"), ("localhost", "")}


def test_the_proxy_of_pip_is_used(index: Served) -> None:
    proxy = PipSetting(index.url.removesuffix("/simple"), "test")
    settings = PipSettings(index_url=PipSetting("http://nowhere.invalid/simple", "test"), proxy=proxy)
    with Indexes(settings) as indexes, pytest.raises(CannotTell):
        indexes.files("vllm")
    assert index.asked[0][0] == "http://nowhere.invalid/simple/vllm/"


def test_more_than_the_bound_is_refused(index: Served) -> None:
    bounds = Bounds(page=RequestLimits(10_000, 60), archive=RequestLimits(100, 60))
    with Indexes(at(index.url), bounds) as indexes, pytest.raises(Unreadable, match="> 100 bytes"):
        indexes.texts(one(indexes, "vllm", "sdist"), ("setup.py",))
    with Indexes(at(index.url), Bounds(page=RequestLimits(10, 60))) as indexes, pytest.raises(CannotTell):
        indexes.files("vllm")


def test_an_answer_that_trickles_ends_at_the_bound() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
            for _ in range(4000):  # 200 s: only the bound ends it before
                try:
                    connection.sendall(b"<")
                except OSError:  # the reader has gone, which is what is wanted
                    return
                time.sleep(0.05)

    thread = threading.Thread(target=trickle)
    thread.start()
    began = time.monotonic()
    settings = at(f"http://127.0.0.1:{listener.getsockname()[1]}")
    with Indexes(settings, Bounds(page=RequestLimits(10_000, 0.5))) as indexes, pytest.raises(CannotTell) as caught:
        indexes.files("p")
    listener.close()
    thread.join()
    assert time.monotonic() - began < 100
    assert "> 0.5 s" in say(caught.value.message)
