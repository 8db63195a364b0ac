"""Locks for one generation of cards, made of those that several generations share."""

from __future__ import annotations

from pathlib import Path

from npuenv.lock.file import Lock, parse_lock, write_lock
from npuenv.lock.store import answers, as_locked, find_lock, for_chip, shipped_folder
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

NAME = "vllm-ascend"


def found(name: str, hardware: str, arch: str = "aarch64") -> tuple[Stack, Lock]:
    stack = resolve(Request(stack=name, hardware=hardware, arch=arch), load_matrix())
    assert isinstance(stack, Stack)
    lock = find_lock(stack, Path("none"))
    assert lock is not None
    return stack, lock


def test_a_wheel_for_the_cards_takes_the_place_of_the_build() -> None:
    stack, shared = found("vllm-ascend-0.18.0", "a2")
    chosen, lock = for_chip(stack, shared)
    package = lock.package(NAME)
    (row,) = [row for row in load_matrix().chip_wheels if package and package.sha256 == (row.sha256,)]
    assert (row.version, row.hardware, package and package.index) == ("0.18.0", "a2", None)
    assert NAME in {each.name for each in shared.sources} and NAME not in {each.name for each in lock.sources}
    assert NAME not in {each.name for each in chosen.git_sources}
    (step,) = [step for step in chosen.order if NAME in step.what]
    assert (step.does, step.why.key) == ("pip", "plan.why-chip-wheel")
    assert lock.hash != shared.hash and parse_lock(write_lock(lock)) == lock


def test_other_cards_build_from_source_with_the_same_shared_lock() -> None:
    (a2, for_a2), (a3, for_a3) = found("vllm-ascend-0.18.0", "a2"), found("vllm-ascend-0.18.0", "a3")
    assert for_a2 == for_a3
    assert for_chip(a3, for_a3) == (a3, for_a3)
    mine = for_chip(a2, for_a2)[1]
    assert answers(mine, a2) and not answers(mine, a3)


def test_a_wheel_for_a_newer_c_library_raises_that_of_the_lock() -> None:
    stack, shared = found("verl-0.9.1-cann9.1.0", "a2")
    chosen, lock = for_chip(stack, shared)
    assert (shared.platform, lock.platform) == ("aarch64-cp312-glibc2.28", "aarch64-cp312-glibc2.34")
    assert chosen.platform.tag == lock.platform


def test_a_source_that_the_user_supplies_is_built() -> None:
    stack, shared = found("vllm-ascend-0.18.0", "a2")
    assert for_chip(stack, shared, {"vllm_ascend"}) == (stack, shared)


def test_an_environments_own_lock_decides_whether_it_has_the_wheel() -> None:
    stack, shared = found("vllm-ascend-0.18.0", "a2")
    chosen, lock = for_chip(stack, shared)
    assert as_locked(stack, lock) == chosen and for_chip(stack, lock) == (chosen, lock)
    assert NAME in {each.name for each in as_locked(stack, shared).git_sources}


def test_shipped_locks_are_for_all_cards() -> None:
    texts = {path.name: path.read_text() for path in shipped_folder().glob("*.toml")}
    assert texts and not [name for name, text in texts.items() if f'[[package]]\nname = "{NAME}"' in text]
