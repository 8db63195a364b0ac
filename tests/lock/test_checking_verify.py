"""Whether what a lock names is still there: the real uv against indexes that lie in folders."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock.checking import Availability, VerifiedPackage, verify_lock
from npuenv.lock.file import Lock, LockedPackage, Missing
from npuenv.lock.uv import Resolver, find_uv, write_wheel

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Index:
    """A static index in a folder."""

    folder: Path
    pages: dict[str, list[str]] = field(default_factory=dict)

    def offer(self, name: str, version: str, *, text: str = "", attribute: str = "") -> str:
        """Puts a wheel on the index; gives its hash."""
        wheel = write_wheel(self.folder, name, version, files={f"{name}.py": text})
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        self.pages.setdefault(name, []).append(
            f'<a href="{wheel.as_uri()}#sha256={digest}"{attribute}>{wheel.name}</a>'
        )
        self.write()
        return digest

    def write(self) -> None:
        for name, links in self.pages.items():
            page = self.folder / "simple" / name / "index.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text("\n".join(links))

    def withdraw(self, name: str) -> None:
        self.pages[name] = []
        self.write()

    @property
    def url(self) -> str:
        return (self.folder / "simple").as_uri()


@dataclass
class Market:
    """The default index, one with a label, and the lock of what they offered."""

    default: Index
    special: Index
    lock: Lock
    monkeypatch: pytest.MonkeyPatch

    def verify(self, **indexes: str) -> dict[str, Availability]:
        return {row.name: row.offer for row in self.rows(**indexes)}

    def rows(self, **indexes: str) -> tuple[VerifiedPackage, ...]:
        labels = {"special": self.special.url, **indexes}
        return verify_lock(self.lock, Resolver(LocalHost(), find_uv(), pip_settings(LocalHost()), labels))


@pytest.fixture
def market(tmp_path: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Market:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    for name in ("default", "special", "links"):
        (tmp_path / name).mkdir()
    default, special = Index(tmp_path / "default"), Index(tmp_path / "special")
    packages = (
        LockedPackage("base", "1.0", (default.offer("base", "1.0"),)),
        LockedPackage("torx", "9.1+cpu", (special.offer("torx", "9.1+cpu"),), "special"),
        LockedPackage("upper", "1.0", (default.offer("upper", "1.0"),)),
    )
    default.offer("base", "2.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", default.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    tag = f"{platform.machine()}-cp3{sys.version_info[1]}-glibc2.28"
    return Market(default, special, Lock("tiny", tag, "npuenv 1, uv 2", packages), monkeypatch)


def test_everything_is_there_as_it_was_locked(market: Market) -> None:
    assert market.verify() == {
        "base": Availability.AVAILABLE,
        "torx": Availability.AVAILABLE,
        "upper": Availability.AVAILABLE,
    }


def test_a_file_that_was_exchanged_is_changed_and_names_the_hash(market: Market) -> None:
    before = market.lock.packages[0].sha256
    market.default.withdraw("base")
    market.default.offer("base", "1.0", text="other = True\n")
    row = market.rows()[0]
    assert (row.offer, row.detail) == (Availability.CHANGED, before)
    assert market.verify() == {
        "base": Availability.CHANGED,
        "torx": Availability.AVAILABLE,
        "upper": Availability.AVAILABLE,
    }


def test_versions_that_are_gone_are_each_named_and_the_others_still_judged(market: Market) -> None:
    market.default.withdraw("upper")
    market.default.withdraw("base")
    market.default.offer("base", "2.0")
    assert market.verify() == {"base": Availability.GONE, "torx": Availability.AVAILABLE, "upper": Availability.GONE}
    assert "base==1.0" in market.rows()[0].detail[0]


def test_a_version_that_its_own_index_lost_is_not_taken_from_the_default_one(market: Market) -> None:
    market.special.withdraw("torx")
    market.default.offer("torx", "9.1+cpu")
    assert market.verify()["torx"] is Availability.GONE


def test_a_version_that_its_own_index_lost_is_not_taken_from_an_extra_one(market: Market, tmp_path: Path) -> None:
    extra = Index(tmp_path / "links")
    extra.offer("torx", "9.1+cpu")
    market.monkeypatch.setenv("PIP_EXTRA_INDEX_URL", extra.url)
    market.special.withdraw("torx")
    assert market.verify()["torx"] is Availability.GONE


def test_one_lost_file_of_several_is_a_change(market: Market) -> None:
    base = market.lock.packages[0]
    both = replace(base, sha256=(*base.sha256, "f" * 64))
    market.lock = replace(market.lock, packages=(both, *market.lock.packages[1:]))
    row = market.rows()[0]
    assert (row.offer, row.detail) == (Availability.CHANGED, ("f" * 64,))


def test_a_yanked_version_is_told_from_one_that_is_gone(market: Market) -> None:
    market.default.withdraw("upper")
    market.default.offer("upper", "1.0", attribute=' data-yanked="broken"')
    assert market.verify()["upper"] is Availability.YANKED


@pytest.mark.parametrize("url", ["https://index.invalid/simple/", "file:///nowhere/simple"])
def test_an_index_that_does_not_answer_says_nothing_about_its_packages(market: Market, url: str) -> None:
    assert market.verify(special=url) == {
        "base": Availability.AVAILABLE,
        "torx": Availability.OUT_OF_REACH,
        "upper": Availability.AVAILABLE,
    }


def test_a_default_index_that_does_not_answer_says_nothing_either(market: Market) -> None:
    market.monkeypatch.setenv("PIP_INDEX_URL", "https://index.invalid/simple/")
    assert market.verify() == {
        "base": Availability.OUT_OF_REACH,
        "torx": Availability.AVAILABLE,
        "upper": Availability.OUT_OF_REACH,
    }


def test_a_wheel_in_find_links_stands_for_an_index_out_of_reach(market: Market, tmp_path: Path) -> None:
    market.monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    write_wheel(tmp_path / "links", "torx", "9.1+cpu", files={"torx.py": ""})
    assert market.verify(special="https://index.invalid/simple/")["torx"] is Availability.AVAILABLE
    write_wheel(tmp_path / "links", "torx", "9.1+cpu", files={"torx.py": "other = True\n"})
    assert market.verify(special="https://index.invalid/simple/")["torx"] is Availability.OUT_OF_REACH


def test_a_hash_may_lie_on_any_of_the_places_that_pip_would_look_at(market: Market, tmp_path: Path) -> None:
    """uv takes a version's files from the first place that has it; a copy elsewhere must not hide the others."""
    extra = Index(tmp_path / "links")
    extra.offer("base", "1.0", text="rebuilt = True\n")
    market.monkeypatch.setenv("PIP_EXTRA_INDEX_URL", extra.url)
    assert market.verify()["base"] is Availability.AVAILABLE


def test_a_package_without_hash_is_not_asked_for(market: Market) -> None:
    bare = replace(market.lock.packages[1], sha256=())
    missing = (Missing("torx", "9.1+cpu", "index-out-of-reach", "special"),)
    packages = (market.lock.packages[0], bare, market.lock.packages[2])
    market.lock = replace(market.lock, packages=packages, missing=missing)
    assert market.verify()["torx"] is Availability.NO_HASH
    market.special.withdraw("torx")
    assert market.verify()["torx"] is Availability.NO_HASH
