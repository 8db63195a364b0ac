"""Locks made by the real uv from tiny wheels in folders and static indexes; nothing is asked of a network."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from npuenv.core.errors import BadInput, CannotTell, NothingFits
from npuenv.core.messages import Message, say
from npuenv.facts.pip import pip_settings
from npuenv.host import Ran
from npuenv.host.local import LocalHost
from npuenv.lock import inputs, make, uv
from npuenv.lock.checking import require_complete, require_sources
from npuenv.lock.file import Lock, Missing, Proof, parse_lock, read_lock, write_lock
from npuenv.lock.inputs import inputs_of, stand_in_requires
from npuenv.lock.make import Known, make_lock, solve
from npuenv.lock.store import shelf_locks, shipped_folder
from npuenv.lock.uv import Resolver, deciding_line, find_uv, uv_platform, write_wheel
from npuenv.matrix import load_matrix
from npuenv.matrix.rows import WheelHash
from npuenv.resolve import resolve
from npuenv.resolve.types import GitSource, Override, Pin, Platform, Reason, Request, Stack

if TYPE_CHECKING:
    from collections.abc import Sequence
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
def shop(tmp_path: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
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
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
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
    unknown = "what it requires is not known"  # no row of stand_ins.toml speaks of torx
    assert lock.missing == (Missing("torx", "9.1+cpu", "index-out-of-reach", "special", unknown),)
    torx = lock.package("torx")
    assert torx is not None and torx.sha256 == ()
    assert versions(lock)["upper"] == "1.0"
    assert parse_lock(write_lock(lock)) == lock


def test_a_version_its_index_does_not_carry_is_said_to_be_missing_there(shop: Shop) -> None:
    shop.stack = replace(shop.stack, pins=(pin("torx", "9.2+cpu", "special"),))
    assert [(m.name, m.reason) for m in shop.lock().missing] == [("torx", "not-on-index")]


def test_a_labelled_version_is_not_taken_from_an_extra_index(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    write_wheel(shop.default, "torx", "9.2+cpu")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", simple_index(shop.default))
    shop.stack = replace(shop.stack, pins=(pin("torx", "9.2+cpu", "special"),))
    assert [(m.name, m.reason) for m in shop.lock().missing] == [("torx", "not-on-index")]


def test_what_an_index_carries_is_remembered_by_version(shop: Shop) -> None:
    resolver, known = shop.resolver(), Known()
    other = replace(shop.stack, pins=(pin("torx", "9.2+cpu", "special"),))
    solved = [solve(stack, inputs_of(stack), resolver, known) for stack in (shop.stack, other, shop.stack)]
    assert [[missing.reason for missing in each.missing] for each in solved] == [[], ["not-on-index"], []]


def test_a_stand_in_brings_along_what_the_real_package_needs(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make, "_recorded_wheels", dict)
    for name in ("filelock", "typing-extensions", "networkx", "jinja2", "fsspec", "sympy", "setuptools"):
        write_wheel(shop.default, name, "70.0")
    shop.stack = replace(shop.stack, pins=(pin("torch", "2.8.0+cpu", "special"),))
    simple_index(shop.default)
    lock = shop.lock("https://index.invalid/simple/")
    assert [missing.name for missing in lock.missing] == ["torch"] and not lock.missing[0].detail
    assert {"filelock", "sympy", "networkx"} < {each.name for each in lock.packages if each.why == ("torch",)}


def test_a_uv_that_stopped_says_nothing_about_the_versions(shop: Shop) -> None:
    class Stopped:
        def __getattr__(self, name: str) -> Any:
            return getattr(LocalHost(), name)

        def run(self, argv: Sequence[str], **options: Any) -> Ran:
            if "compile" in argv:
                return Ran(tuple(argv), 2, "", "error: Failed to build `upper==1.0`")
            return LocalHost().run(argv, **options)

    stack = replace(shop.stack, pins=())
    with pytest.raises(CannotTell) as caught:
        make_lock(stack, replace(shop.resolver(), host=Stopped()))
    assert caught.value.message.key == "locking.uv-stopped"
    assert "Failed to build" in say(caught.value.message)


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


def test_equal_rank_of_extra_indexes_takes_the_best_version(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", simple_index(shop.special))
    assert versions(shop.lock())["base"] == "3.0"


def test_the_deciding_line_of_uv_is_its_because() -> None:
    text = "warning: x\nerror: No solution found\n  cause: Because there is no version of a==1, you lose.\n\nhint: y"
    assert deciding_line(text) == "Because there is no version of a==1, you lose."


@pytest.fixture
def dated(market: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The index that tells ages, in place of the shop's own."""
    monkeypatch.setenv("PIP_INDEX_URL", market.url)
    return market


def capped(stack: Stack, day: str, *requirements: str) -> Stack:
    return replace(stack, pins=(), requirements=requirements, date=day)


@pytest.mark.parametrize(
    ("day", "version"),
    [("2025-03-09", "1"), ("2025-03-10", "2"), ("2025-03-11", "2"), ("", "3"), ("2030-01-01", "3")],
)
def test_the_day_counts_to_its_end_and_nothing_younger_is_taken(dated: Any, shop: Shop, day: str, version: str) -> None:
    dated.put("base", "1", day="2025-01-01")
    dated.put("base", "2", day="2025-03-10")
    dated.put("base", "3", day="2025-03-12")
    lock = make_lock(capped(shop.stack, day, "base"), dated.resolver())
    assert versions(lock) == {"base": version}
    assert lock.newest == day and parse_lock(write_lock(lock)) == lock


def test_what_the_stack_itself_pins_may_be_younger_than_its_day(dated: Any, shop: Shop) -> None:
    dated.put("base", "1", day="2025-01-01")
    dated.put("base", "2", day="2025-12-01")
    dated.put("fresh", "1", "base", day="2025-12-01")
    stack = replace(capped(shop.stack, "2025-06-30", "base"), pins=(pin("fresh", "1"),))
    assert versions(make_lock(stack, dated.resolver())) == {"base": "1", "fresh": "1"}
    exact = capped(shop.stack, "2025-06-30", "base", "fresh==1")
    assert versions(make_lock(exact, dated.resolver())) == {"base": "1", "fresh": "1"}
    replaced = replace(capped(shop.stack, "2025-06-30", "base"), overrides=(override("replace", "base==2"),))
    assert versions(make_lock(replaced, dated.resolver())) == {"base": "2"}


def test_an_index_that_does_not_tell_ages_cannot_answer_for_a_day(dated: Any, shop: Shop) -> None:
    dated.put("base", "1", day="")
    with pytest.raises(CannotTell) as caught:
        make_lock(capped(shop.stack, "2025-06-30", "base"), dated.resolver())
    assert "2025-06-30" in say(caught.value.message) and "base" in say(caught.value.message)


def test_find_links_need_no_age(dated: Any, shop: Shop) -> None:
    write_wheel(shop.links, "base", "1")
    assert versions(make_lock(capped(shop.stack, "2025-06-30", "base"), dated.resolver())) == {"base": "1"}


def test_a_source_archive_beside_a_fitting_wheel_is_not_locked(dated: Any, shop: Shop) -> None:
    dated.put("base", "1")
    (wheel,) = dated.files["base"]
    archive = {"filename": "base-1.tar.gz", "url": "/files/base-1.tar.gz", "hashes": {"sha256": "f" * 64}}
    dated.files["base"].append({**archive, "upload-time": wheel["upload-time"]})
    package = make_lock(capped(shop.stack, "", "base"), dated.resolver()).package("base")
    assert package is not None and package.sha256 == (wheel["hashes"]["sha256"],)


def test_a_day_that_is_no_date_is_refused(shop: Shop) -> None:
    with pytest.raises(BadInput):
        make_lock(capped(shop.stack, "June 2025", "base"), shop.resolver())


@pytest.mark.parametrize(("glibc", "version"), [("2.17", "1"), ("2.28", "2"), ("2.33", "2"), ("2.34", "3")])
def test_no_wheel_above_the_platforms_c_library_is_taken(dated: Any, shop: Shop, glibc: str, version: str) -> None:
    for minor, each in (("17", "1"), ("28", "2"), ("34", "3")):
        dated.put("base", each, tag=f"cp311-cp311-manylinux_2_{minor}_aarch64")
    stack = replace(capped(shop.stack, "", "base"), platform=Platform("aarch64", "3.11", glibc=glibc))
    lock = make_lock(stack, dated.resolver())
    assert versions(lock) == {"base": version} and lock.platform == f"aarch64-cp311-glibc{glibc}"


def test_the_hashes_are_those_of_wheels_for_the_c_library(dated: Any, shop: Shop) -> None:
    for minor in ("17", "28", "34"):
        dated.put("base", "1", tag=f"cp311-cp311-manylinux_2_{minor}_aarch64")
    stack = replace(capped(shop.stack, "", "base"), platform=Platform("aarch64", "3.11"))
    package = make_lock(stack, dated.resolver()).package("base")
    wanted = [row["hashes"]["sha256"] for row in dated.files["base"] if "2_34" not in row["filename"]]
    assert package is not None and package.sha256 == tuple(sorted(wanted))


@pytest.mark.parametrize(
    ("glibc", "known"), [("2.17", "17"), ("2.27", "17"), ("2.28", "28"), ("2.30", "28"), ("2.34", "34"), ("2.99", "40")]
)
def test_a_c_library_uv_does_not_know_is_rounded_down(glibc: str, known: str) -> None:
    assert uv_platform(Platform("aarch64", "3.11", glibc=glibc)) == f"aarch64-manylinux_2_{known}"


@pytest.mark.parametrize("glibc", ["2.12", "2", "musl", "3.1"])
def test_what_is_no_c_library_for_wheels_is_refused(glibc: str) -> None:
    with pytest.raises(BadInput):
        uv_platform(Platform("aarch64", "3.11", glibc=glibc))


def changed(stack: Stack) -> list[Stack]:
    source = GitSource("comp", "https://host/comp", "v1", False, requires=("base",))
    return [
        replace(stack, requirements=("upper", "base")),
        replace(stack, requirements=("upper>=1",)),
        replace(stack, date="2025-01-01"),
        replace(stack, overrides=(override("constrain", "base<2"),)),
        replace(stack, overrides=(override("replace", "base<2"),)),
        replace(stack, overrides=(override("exclude", "base"),)),
        replace(stack, pins=(pin("torx", "9.2+cpu", "special"),)),
        replace(stack, pins=(pin("torx", "9.1+cpu", "other"),)),
        replace(stack, pins=(pin("torx", "9.1+cpu"),)),
        replace(stack, git_sources=(source,)),
        replace(stack, platform=replace(stack.platform, glibc="2.34")),
        replace(stack, platform=replace(stack.platform, python="3.9")),
        replace(stack, platform=replace(stack.platform, arch="riscv64")),
    ]


def test_everything_that_is_asked_changes_the_inputs_and_nothing_else_does(shop: Shop) -> None:
    digests = [inputs_of(stack).digest for stack in (shop.stack, *changed(shop.stack))]
    assert len(set(digests)) == len(digests)
    same = replace(shop.stack, name="other", platform=replace(shop.stack.platform, hardware="a3"), sources=("x",))
    assert inputs_of(same).digest == digests[0] == shop.lock().inputs
    assert str(shop.links) not in inputs_of(shop.stack).canonical() and "://" not in inputs_of(shop.stack).canonical()


def test_numpy_is_bounded_and_never_replaced(shop: Shop) -> None:
    with pytest.raises(BadInput) as caught:
        inputs_of(replace(shop.stack, overrides=(override("replace", "NumPy<2"),)))
    assert "NumPy<2" in say(caught.value.message)
    inputs_of(replace(shop.stack, overrides=(override("constrain", "numpy<2"),)))


@pytest.mark.parametrize("name", ["nvidia-cublas-cu12", "cuda-bindings", "cupy-cuda12x", "kernels-cu13"])
def test_a_cuda_package_refuses_the_set_with_who_pulled_it_in(shop: Shop, name: str) -> None:
    write_wheel(shop.links, name, "12.8")
    write_wheel(shop.links, "drags", "1.0", requires=[name, "base"])
    shop.stack = replace(shop.stack, requirements=("drags",))
    lock = shop.lock()
    assert lock.packages == () and lock.proof == (Proof(f"{name}==12.8", "drags==1.0 (Requires-Dist)"),)
    assert name in lock.missing[0].detail


def test_what_the_recipe_itself_names_is_its_own_choice(shop: Shop) -> None:
    write_wheel(shop.links, "nvidia-modelopt", "1.0", requires=["nvidia-ml-py"])
    write_wheel(shop.links, "nvidia-ml-py", "13.0")
    shop.stack = replace(shop.stack, requirements=("nvidia-modelopt",))
    assert versions(shop.lock()).keys() == {"base", "nvidia-ml-py", "nvidia-modelopt", "torx"}


def test_triton_stands_beside_triton_ascend_in_no_lock(shop: Shop) -> None:
    for name in ("triton", "triton-ascend"):
        write_wheel(shop.links, name, "3.2.0")
    write_wheel(shop.links, "drags", "1.0", requires=["triton"])
    alone = replace(shop.stack, requirements=("drags",))
    assert "triton" in {package.name for package in make_lock(alone, shop.resolver()).packages}
    both = make_lock(replace(alone, requirements=("drags", "triton-ascend")), shop.resolver())
    assert both.packages == () and both.proof == (Proof("triton==3.2.0", "drags==1.0 (Requires-Dist)"),)


@pytest.mark.parametrize(
    ("name", "version", "line"),
    [
        ("torch", "2.5.1+cpu", "sympy==1.13.1"),
        ("torch", "2.10.0+cpu", "sympy>=1.13.3"),
        ("torch", "2.12.0+cpu", "setuptools<82"),
        ("torchvision", "0.23.0+cpu", "torch==2.8.0"),
        ("torchaudio", "2.9.0", "torch==2.9.0"),
        ("torch-npu", "2.8.0.post2", "torch==2.8.0"),
    ],
)
def test_a_stand_in_asks_for_what_that_version_asks(name: str, version: str, line: str) -> None:
    requires = stand_in_requires(name, version)
    assert requires is not None and line in requires


def test_what_nobody_could_read_is_not_made_up() -> None:
    assert stand_in_requires("triton-ascend", "3.2.0") == ()
    assert stand_in_requires("triton-ascend", "3.2.2") == ()
    assert stand_in_requires("triton-ascend", "9.9") is None


def test_an_offline_resolver_answers_from_the_cache_or_not_at_all(shop: Shop) -> None:
    offline = replace(shop.resolver(), is_offline=True)
    assert make_lock(shop.stack, shop.resolver()) == make_lock(shop.stack, offline)


@pytest.mark.registry
@pytest.mark.parametrize(
    "name", ["verl-0.7.1-cann8.5.0", pytest.param("verl-0.7.0-cann8.3.RC1", marks=pytest.mark.long)]
)
def test_a_published_stack_locks_to_the_committed_lock(name: str) -> None:
    host = LocalHost()
    matrix = load_matrix()
    stack = resolve(Request(stack=name, arch="aarch64"), matrix)
    assert isinstance(stack, Stack)
    indexes = {row.label: row.url for row in matrix.indexes if row.url}
    made = make_lock(stack, Resolver(host, find_uv(), pip_settings(host), indexes))
    committed = read_lock(shipped_folder() / made.file_name)
    assert write_lock(replace(made, made_with="")) == write_lock(replace(committed, made_with=""))


def recorded(monkeypatch: pytest.MonkeyPatch, *wheels: tuple[str, str, int]) -> None:
    """Public lock files that record these wheels: file name, hash, number of lock files."""
    rows = tuple(WheelHash(name, "a/b uv.lock", "2026-01-01", sha256, count) for name, sha256, count in wheels)
    monkeypatch.setattr(make, "_recorded_wheels", lambda: {("torx", Version("9.1+cpu")): rows})


def know_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (make, uv):
        monkeypatch.setattr(module, "stand_in_requires", lambda name, version: ("base",))


def test_a_hash_that_no_index_gives_is_taken_from_public_lock_files(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    tag = f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}"
    arch = platform.machine()
    recorded(
        monkeypatch,
        (f"torx-9.1+cpu-{tag}-linux_{arch}.whl", "a" * 64, 3),
        (f"torx-9.1+cpu-{tag}-manylinux_2_28_{arch}.whl", "b" * 64, 2),
        (f"torx-9.1+cpu-{tag}-linux_s390x.whl", "c" * 64, 9),
        (f"torx-9.1+cpu-cp38-cp38-linux_{arch}.whl", "d" * 64, 9),
    )
    know_requirements(monkeypatch)
    lock = shop.lock("https://index.invalid/simple/")
    package = lock.package("torx")
    assert lock.is_complete and not lock.is_from_indexes
    assert package is not None
    assert (package.sha256, package.witnesses, package.index) == (("a" * 64, "b" * 64), 2, "special")
    assert parse_lock(write_lock(lock)) == lock
    given = replace(package, witnesses=0)
    same = replace(lock, packages=tuple(given if each is package else each for each in lock.packages))
    assert same.hash == lock.hash and same.is_from_indexes
    with pytest.raises(NothingFits):  # the file itself still has to come from somewhere
        require_sources(shop.stack, lock, shop.resolver("https://index.invalid/simple/"))


def test_what_is_not_known_of_a_package_no_public_lock_file_makes_up_for(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, ("torx-9.1+cpu-py3-none-any.whl", "a" * 64, 3))
    assert not shop.lock("https://index.invalid/simple/").is_complete  # what it requires
    know_requirements(monkeypatch)
    (shop.special / "torx-9.1+cpu-py3-none-any.whl").unlink()
    lock = shop.lock()  # the index answers, and does not have it
    assert [missing.reason for missing in lock.missing] == ["not-on-index"]
    assert lock.packages[-2].sha256 == ()


def test_the_index_wins_over_public_lock_files_and_a_difference_is_reported(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, ("torx-9.1+cpu-py3-none-any.whl", "a" * 64, 3))
    warnings: list[Message] = []
    lock = make_lock(shop.stack, replace(shop.resolver(), warn=warnings.append))
    package = lock.package("torx")
    assert package is not None and package.witnesses == 0
    digest = hashlib.sha256((shop.special / "torx-9.1+cpu-py3-none-any.whl").read_bytes()).hexdigest()
    assert package.sha256 == (digest,)
    assert [(said.key, said.args["index"], said.args["recorded"]) for said in warnings] == [
        ("locking.hash-differs", digest, "a" * 64)
    ]
    recorded(monkeypatch, ("torx-9.1+cpu-py3-none-any.whl", digest, 3))
    warnings.clear()
    make_lock(shop.stack, replace(shop.resolver(), warn=warnings.append))
    assert warnings == []


def test_recorded_wheels_are_wheels_with_a_hash_and_a_source() -> None:
    for row in load_matrix().wheel_hashes:
        parse_wheel_filename(row.id)
        assert re.fullmatch(r"[0-9a-f]{64}", row.sha256) and row.independent >= 1 and row.source


def test_a_package_that_is_installed_without_its_requirements_brings_none_in(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = ("base==1.0", "nowhere==1")
    for module in (make, uv, inputs):
        monkeypatch.setattr(module, "ignored_requirements", lambda name, version: pins if name == "torx" else ())
    write_wheel(shop.special, "torx", "9.1+cpu", requires=pins)
    lock = shop.lock()
    assert lock.is_complete and versions(lock)["base"] == "2.0", lock.missing
    package = lock.package("torx")
    assert package is not None and package.ignores == pins
    assert parse_lock(write_lock(lock)) == lock
    assert lock.inputs == inputs_of(shop.stack).digest
    monkeypatch.undo()
    assert lock.inputs != inputs_of(shop.stack).digest


@pytest.mark.slow
def test_triton_ascend_is_locked_without_its_requirements_by_name() -> None:
    matrix = load_matrix()
    rows = {version: matrix.triton_ascend_row(version) for version in ("3.2.1", "3.2.2")}
    num_locks = dict.fromkeys(rows, 0)
    for lock in shelf_locks(shipped_folder()):
        triton = lock.package("triton-ascend")
        if triton is None or triton.version not in rows:
            continue
        row = rows[triton.version]
        assert row is not None and "numpy==1.26.4" in row.requires
        assert triton.ignores == row.requires
        assert all(not each.ignores for each in lock.packages if each is not triton)
        num_locks[triton.version] += 1
    assert all(num_locks.values())
