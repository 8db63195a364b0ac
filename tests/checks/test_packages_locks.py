"""Environments that the committed locks make are healthy: no check of packages speaks of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.checks import PYTHON as CHECKS
from npuenv.checks import check_all
from npuenv.core.fact import Fact, absent, known
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.lock.file import Lock, read_lock
from npuenv.matrix import load_matrix
from npuenv.matrix.release_stacks import all_recipes
from tests.support.changes import HEALTHY, WHY

if TYPE_CHECKING:
    from npuenv.facts.cann.toolkit import Cann
    from npuenv.facts.collect import Facts

FOLDER = Path(__file__).parents[2] / "lockfiles"
RECIPES = {recipe.id: recipe for recipe in all_recipes(load_matrix())}
# One of each family and era; the 310P, a release candidate, and guides that disagree with their images among them.
STACKS = (
    "cpu.x86_64-cp311",
    "verl-0.6.1-cann8.2.RC1.aarch64",
    "verl-0.7.1-cann8.5.0.x86_64",
    "verl-0.8.0-cann9.0.0.aarch64",
    "verl-cann9.1.0.aarch64",
    "verl-sglang-cann8.5.0.aarch64",
    "roll-cann9.1.0.aarch64",
    "roll-deepspeed-cann8.5.1.aarch64",
    "roll-guide-cann8.3.RC1.aarch64",
    "vllm-ascend-0.8.4rc2.aarch64",
    "vllm-ascend-0.11.0.aarch64",
    "vllm-ascend-0.13.0rc2.aarch64",
    "vllm-ascend-0.18.0-310p.aarch64",
    "vllm-ascend-0.30.0rc2.aarch64",
)


def installed(lock: Lock) -> dict[str, str]:
    """What the lock puts into an environment; packages built from a tag have its number."""
    found = {package.name: package.version for package in lock.packages}
    for source in lock.sources:
        if re.match(r"v?\d+\.\d+", source.ref):
            found[source.name] = source.ref.lstrip("v") + ("+empty" if source.name == "vllm" else "")
    return found


def facts(lock: Lock) -> Facts:
    """The healthy host with this environment, this CANN and the cards that the stack is for."""
    recipe = RECIPES[lock.stack]
    minor = re.search(r"cp3(\d+)", lock.platform)
    assert minor is not None and HEALTHY.python.interpreter.value is not None and HEALTHY.npu.smi.value is not None
    python = HEALTHY.python.interpreter.value._replace(distributions=installed(lock), version=f"3.{minor.group(1)}.4")
    toolkit: Fact[Cann] = absent(WHY)
    if recipe.cann and HEALTHY.cann.toolkit.value is not None:
        toolkit = known(HEALTHY.cann.toolkit.value._replace(version=recipe.cann), WHY)
    chip, device = ("310P3", "_310P") if recipe.hardware == ("310p",) else ("910B2", "A2")
    cards = tuple(dataclasses.replace(card, name=chip) for card in HEALTHY.npu.smi.value.cards)
    packages = HEALTHY.python.packages.value
    assert packages is not None
    built = {**packages.built, "vllm_ascend": {"device_type": device}}
    return dataclasses.replace(
        HEALTHY,
        cann=dataclasses.replace(HEALTHY.cann, toolkit=toolkit),
        npu=dataclasses.replace(HEALTHY.npu, smi=known(HEALTHY.npu.smi.value._replace(cards=cards), WHY)),
        python=dataclasses.replace(
            HEALTHY.python,
            interpreter=known(python, WHY),
            packages=known(dataclasses.replace(packages, built=built, requires={}), WHY),
        ),
    )


@pytest.mark.parametrize("name", STACKS)
def test_what_a_lock_installs_raises_no_alarm(name: str) -> None:
    (path,) = FOLDER.glob(f"{name}-*.toml")
    lock = read_lock(path)
    framework = RECIPES[lock.stack].framework
    found = check_all(facts(lock), framework=framework, level=2, checks=CHECKS)
    loud = {item.check: say(item.says) for item in found if item.status not in (Status.OK, Status.SKIP)}
    assert loud == {}


def test_the_same_environment_with_another_torch_is_not_silent() -> None:
    (path,) = FOLDER.glob("verl-0.7.1-cann8.5.0.x86_64-*.toml")
    lock = read_lock(path)
    healthy = facts(lock)
    assert healthy.python.interpreter.value is not None
    wrong = healthy.python.interpreter.value._replace(distributions={**installed(lock), "torch": "2.9.0"})
    broken = dataclasses.replace(healthy, python=dataclasses.replace(healthy.python, interpreter=known(wrong, WHY)))
    found = check_all(broken, framework="verl", level=2, checks=CHECKS)
    assert "python.torch-pair" in {item.check for item in found if item.status is Status.FAIL}


def test_where_vllm_and_vllm_ascend_contradict_each_other_the_side_of_the_images_holds() -> None:
    """The published stacks with what both packages themselves ask for: nothing is said but of a real breach."""
    matrix = load_matrix()
    loud = {}
    for name in ("vllm-ascend-0.15.0rc1", "vllm-ascend-0.18.0", "vllm-ascend-0.26.0rc1", "verl-0.8.0-cann9.0.0"):
        (path,) = FOLDER.glob(f"{name}.aarch64-*.toml")
        lock = read_lock(path)
        rows = [(source.name, matrix.built_row(source.name, source.ref.lstrip("v"))) for source in lock.sources]
        requires = {owner: row.requires for owner, row in rows if row is not None}
        assert "vllm" in requires
        base = facts(lock)
        assert base.python.packages.value is not None
        packages = known(dataclasses.replace(base.python.packages.value, requires=requires), WHY)
        asked = dataclasses.replace(base, python=dataclasses.replace(base.python, packages=packages))
        found = check_all(asked, framework=RECIPES[lock.stack].framework, level=2, checks=CHECKS)
        loud[name] = [item.check for item in found if item.status not in (Status.OK, Status.SKIP)]
    assert {name: checks for name, checks in loud.items() if checks} == {}
