"""Locks made by the real uv from tiny wheels in folders and static indexes; nothing is asked of a network."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from npuenv.errors import BadInput, NothingFits
from npuenv.facts.pip import pip_settings
from npuenv.host.local import LocalHost
from npuenv.lock import Lock, Missing, parse_lock, write_lock
from npuenv.lock.make import Resolver, deciding_line, find_uv, make_lock
from npuenv.lock.refuse import require_agreement, require_complete, require_sources
from npuenv.lock.wheels import write_wheel
from npuenv.messages import Message, say
from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Stack

if TYPE_CHECKING:
    from pathlib import Path

REASON = Reason(Message("plan.why-rest"))


def pin(name: str, version: str, index: str | None = None) -> Pin:
    return Pin(name, version, REASON, REASON, "wheel-exists", index)


def simple_index(folder: Path) -> str:
    """A static index over the wheels in a folder."""
    shutil.rmtree(folder / "simple", ignore_errors=True)
    for wheel in sorted(folder.glob("*.whl")):
        page = folder / "simple" / wheel.name.split("-")[0].replace("_", "-") / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        with page.open("a") as file:
            file.write(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>\n')
    return (folder / "simple").as_uri()


@dataclass
class Shop:
    """Wheels by the place they lie in, and the stack that wants some."""

    links: Path
    default: Path
    special: Path
    stack: Stack

    def resolver(self, special: str | None = None) -> Resolver:
        return Resolver(
            LocalHost(), find_uv(), pip_settings(LocalHost()), {"special": special or simple_index(self.special)}
        )

    def lock(self, special: str | None = None) -> Lock:
        return make_lock(self.stack, self.resolver(special))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    folders = [tmp_path / name for name in ("links", "default", "special")]
    for folder in folders:
        folder.mkdir()
    links, default, special = folders
    write_wheel(default, "base", "1.0")
    write_wheel(default, "base", "1.5")
    write_wheel(default, "base", "2.0")
    write_wheel(default, "upper", "1.0", requires=["base"])
    write_wheel(special, "torx", "9.1+cpu", requires=["base"])
    write_wheel(special, "base", "3.0")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setenv("PIP_INDEX_URL", simple_index(default))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")  # a setting of the user's shell that must not leak in
    stack = Stack(
        "tiny", "cpu", Platform(platform.machine(), f"3.{sys.version_info[1]}"), (pin("torx", "9.1+cpu", "special"),),
        ("upper",), (), (), (), {}, None, None, None, (), "measured-here", (),
    )  # fmt: skip
    return Shop(links, default, special, stack)


def versions(lock: Lock) -> dict[str, str]:
    return {package.name: package.version for package in lock.packages}


def test_a_labelled_package_comes_from_its_index_and_the_others_do_not(shop: Shop) -> None:
    lock = shop.lock()
    assert lock.is_complete
    assert versions(lock) == {"base": "2.0", "torx": "9.1+cpu", "upper": "1.0"}
    assert [(p.name, p.index, p.why) for p in lock.packages] == [
        ("base", None, ("torx", "upper")),
        ("torx", "special", ("stack",)),
        ("upper", None, ("stack",)),
    ]


def test_hashes_are_those_of_the_files(shop: Shop) -> None:
    package = shop.lock().package("base")
    wheel = shop.default / "base-2.0-py3-none-any.whl"
    assert package is not None and package.sha256 == (hashlib.sha256(wheel.read_bytes()).hexdigest(),)


def test_the_same_inputs_give_the_same_text(shop: Shop) -> None:
    assert write_lock(shop.lock()) == write_lock(shop.lock())


def test_a_wheel_in_find_links_needs_no_index(shop: Shop) -> None:
    write_wheel(shop.links, "torx", "9.1+cpu")
    lock = shop.lock("https://index.invalid/simple/")
    assert lock.is_complete
    assert require_sources(shop.stack, lock, shop.resolver("https://index.invalid/simple/")) == {
        "torx": str(shop.links)
    }


def test_a_wheel_of_another_version_in_find_links_is_no_substitute(shop: Shop) -> None:
    write_wheel(shop.links, "torx", "9.1")
    lock = shop.lock("https://index.invalid/simple/")
    assert versions(lock)["torx"] == "9.1+cpu"
    assert [missing.name for missing in lock.missing] == ["torx"]


def test_an_index_out_of_reach_makes_the_lock_partial_and_the_rest_resolves(shop: Shop) -> None:
    lock = shop.lock("https://index.invalid/simple/")
    assert lock.missing == (Missing("torx", "9.1+cpu", "index-out-of-reach", "special"),)
    torx = lock.package("torx")
    assert torx is not None and torx.sha256 == ()
    assert versions(lock)["upper"] == "1.0"
    assert parse_lock(write_lock(lock)) == lock


def test_a_version_its_index_does_not_carry_is_said_to_be_missing_there(shop: Shop) -> None:
    shop.stack = replace(shop.stack, pins=(pin("torx", "9.2+cpu", "special"),))
    assert [(m.name, m.reason) for m in shop.lock().missing] == [("torx", "not-on-index")]


def test_a_partial_lock_is_refused_with_label_address_and_folders(shop: Shop) -> None:
    resolver = shop.resolver("https://me:pw@index.invalid/simple/")
    lock = make_lock(shop.stack, resolver)
    for refused in (lambda: require_complete(lock, resolver), lambda: require_sources(shop.stack, lock, resolver)):
        with pytest.raises(NothingFits) as caught:
            refused()
        text = say(caught.value.message)
        assert "torx 9.1+cpu" in text and "special" in text and str(shop.links) in text
        assert "https://***@index.invalid/simple/" in text


def test_a_set_that_does_not_resolve_gives_the_resolvers_reason(shop: Shop) -> None:
    shop.stack = replace(shop.stack, requirements=("upper", "base>=7"))
    lock = shop.lock()
    assert lock.packages == ()
    assert [(m.name, m.reason) for m in lock.missing] == [("*", "does-not-resolve")]
    assert "base" in lock.missing[0].detail and "tiny depends on" in lock.missing[0].detail


def override(does: str, requirement: str) -> Override:
    return Override("upper", does, requirement, REASON)


@pytest.mark.parametrize(
    ("does", "requirement", "base"),
    [("constrain", "base<2", "1.5"), ("replace", "base==1.0", "1.0"), ("exclude", "base", None)],
)
def test_overrides_reach_the_resolver(shop: Shop, does: str, requirement: str, base: str | None) -> None:
    shop.stack = replace(shop.stack, overrides=(override(does, requirement),))
    assert versions(shop.lock()).get("base") == base


def test_what_a_built_component_needs_is_locked_and_the_component_is_a_source(shop: Shop) -> None:
    source = GitSource("Comp", "https://host/comp.git", "v1", False, requires=("base<2", "torx>=1"))
    shop.stack = replace(shop.stack, git_sources=(source,))
    lock = shop.lock()
    assert versions(lock) == {"base": "1.5", "torx": "9.1+cpu", "upper": "1.0"}
    assert [(s.name, s.ref) for s in lock.sources] == [("Comp", "v1")]


def test_a_lock_of_other_pins_or_another_platform_is_refused(shop: Shop) -> None:
    lock = shop.lock()
    require_agreement(shop.stack, lock)
    with pytest.raises(BadInput) as caught:
        require_agreement(replace(shop.stack, pins=(pin("torx", "9.2+cpu", "special"),)), lock)
    assert "torx 9.1+cpu / 9.2+cpu" in say(caught.value.message)
    with pytest.raises(BadInput):
        require_agreement(replace(shop.stack, platform=Platform("riscv64", "3.11")), lock)


def test_equal_rank_of_extra_indexes_takes_the_best_version(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", simple_index(shop.special))
    assert versions(shop.lock())["base"] == "3.0"


def test_the_deciding_line_of_uv_is_its_because() -> None:
    text = "warning: x\nerror: No solution found\n  cause: Because there is no version of a==1, you lose.\n\nhint: y"
    assert deciding_line(text) == "Because there is no version of a==1, you lose."
