"""Rules about what is started and what it starts from: modules of verl, and choices of its configuration groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.matrix.keys import configs_of, is_recorded, programs_of, releases_beside
from npuenv.preflight.calls import module_of
from npuenv.preflight.rules.base import nearest, problem, rule
from npuenv.preflight.rules.keys import TABLE, has_own_keys, is_slip
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.types import Launch, Problem

_GROUPS = "verl/trainer/config/"


@rule("program", "verl", source=f"{TABLE}: modules with hydra.main")
def _program(launch: Launch) -> Iterator[Problem]:
    """A module that no release has, and that is nearly one of this release's."""
    module = module_of(launch.program)
    near = nearest(module, programs_of("verl", launch.release), 0.9)
    if launch.program and module not in programs_of("verl") and near and is_slip(module, near, 0.85):
        yield problem(launch, (), program=module, near=near, release=launch.release or "")


@rule("choice", "verl", source=f"{TABLE}: configuration groups")
def _group(launch: Launch) -> Iterator[Problem]:
    """A choice that its configuration group does not have; files of the user's own may bring more of them."""
    if has_own_keys(launch) or launch.from_files or launch.is_partial or launch.release is None:
        return
    beside = releases_beside("verl", launch.release)
    configs = frozenset[str]().union(*(configs_of("verl", name) for name in beside))
    is_sure = len(beside) == 2 or is_recorded("verl", launch.release)
    for key, setting in launch.settings.items():
        folder = f"{_GROUPS}{key.partition('@')[0]}/"
        known = sorted(each.removeprefix(folder) for each in configs if folder in each)
        is_choice = known and isinstance(setting.value, str) and not setting.is_open and setting.mark != "~"
        if is_choice and setting.value not in known:
            near = nearest(setting.value, known)
            yield problem(
                launch,
                (key,),
                severity="error" if is_sure else "warning",
                changes=(Change(key, near),) if near else (),
                key=key,
                text=setting.text,
                values=tuple(known),
            )
