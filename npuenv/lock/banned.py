"""What must not stand in any lock: CUDA packages, and triton beside triton-ascend. Start from `unwanted`.

Excluding packages by name keeps out those that were known when the list was written; this looks at what came out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.lock.file import STACK, LockedPackage, Proof
from npuenv.lock.inputs import REQUIRE, Inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

_CUDA = re.compile(r"nvidia-.+|cuda-.+|cupy|cupy-cuda.+|.+-cu1[1-9]\d*")
# Bindings in pure Python to a library that comes with the NVIDIA driver; monitoring tools ask for them everywhere.
_HARMLESS = frozenset({"nvidia-ml-py"})


def unwanted(packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[LockedPackage, ...]:
    """The packages of a set that no NPU environment may hold; () for a clean set.

    What the stack's own recipe names is left alone: that is a published choice (nvidia-modelopt, pure Python), not
    something a dependency dragged along.
    """
    own = {line.name for line in inputs.lines if line.kind == REQUIRE and not line.is_dependency}
    bad = [each for each in packages if _CUDA.fullmatch(each.name) and each.name not in own | _HARMLESS]
    if any(each.name == "triton-ascend" for each in packages):
        bad += [each for each in packages if each.name == "triton"]
    return tuple(bad)


def pulled_in_by(bad: Sequence[LockedPackage], packages: Sequence[LockedPackage], inputs: Inputs) -> tuple[Proof, ...]:
    """For each package or line that pulls unwanted ones in, the first of those. CUDA packages need each other: those
    are left out.
    """
    versions = {package.name: package.version for package in packages}
    proofs: dict[str, Proof] = {}
    for each in bad:
        who = [
            f"{name}=={versions[name]} (Requires-Dist)" for name in each.why if name in versions.keys() - _names(bad)
        ]
        if STACK in each.why:
            who += [line.source for line in inputs.lines if line.kind == REQUIRE and line.name == each.name]
        for source in who:
            proofs.setdefault(source, Proof(f"{each.name}=={each.version}", source))
    return tuple(proofs.values())


def _names(packages: Sequence[LockedPackage]) -> set[str]:
    return {package.name for package in packages}
