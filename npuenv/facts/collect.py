"""Everything a doctor wants to know about one host, asked once and in order.

Commands on one host run one after the other, each with a timeout: some of the tools refuse to run twice at a time.
"""

from __future__ import annotations

import dataclasses
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core.fact import Evidence, Fact, known
from npuenv.facts.cann import CannFacts
from npuenv.facts.collector import Collector, FactGroup
from npuenv.facts.hccn import HccnFacts
from npuenv.facts.machine import MachineFacts
from npuenv.facts.network import NetworkFacts
from npuenv.facts.npu import NpuFacts
from npuenv.facts.python import PythonFacts, choose, find_python
from npuenv.facts.ray import RayFacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host import Host

# In the order of reading.
GROUPS: dict[str, type[FactGroup]] = {
    "machine": MachineFacts,
    "npu": NpuFacts,
    "python": PythonFacts,
    "hccn": HccnFacts,
    "cann": CannFacts,
    "network": NetworkFacts,
    "ray": RayFacts,
}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is true of a host. A fact that was not asked at this level says so (`npuenv.facts.collector.was_asked`)."""

    environment: Fact[Mapping[str, str]]
    machine: MachineFacts
    npu: NpuFacts
    hccn: HccnFacts
    cann: CannFacts
    network: NetworkFacts
    python: PythonFacts
    ray: RayFacts

    def at(self, path: str) -> Fact[Any]:
        """The fact that a dotted path names: `environment`, `npu.smi`. Raises AttributeError for one that is not."""
        found: Any = self
        for name in path.split("."):
            found = getattr(found, name)
        assert isinstance(found, Fact), path
        return found


def collect(
    host: Host,
    *,
    python: str | None = None,
    level: int = 1,
    framework: str | None = None,
    hashes: bool = False,
    imports: bool = True,
    only: frozenset[str] | None = None,
) -> Facts:
    """The facts of a host. `python` is the interpreter to look at (None: the session's), `level` how far to go: 0 reads
    files only and runs no program, 1 also runs quick ones and imports what is installed, 2 also uses cards and the
    network, 3 keeps them busy. Without `imports` no installed module is tried. `only` names the groups that are wanted
    (None: all); the others are not asked.

    A question that a capture does not hold is an unknown fact, never a "no".
    """
    wanted = {name: kind for name, kind in GROUPS.items() if only is None or name in only}
    asked = choose(host, python)
    collector = Collector(host, level, asked, framework=framework, hashes=hashes, imports=imports, groups=wanted)
    if "python" in wanted:
        find_python(collector)  # first: whom it finds is asked by the other groups too
    found: dict[str, Any] = {
        name: kind(**{field.name: collector.get(f"{name}.{field.name}") for field in dataclasses.fields(kind)})
        for name, kind in GROUPS.items()
    }
    return Facts(environment=known(host.environ(), Evidence("environment", "")), **found)


def to_json(facts: Facts) -> dict[str, Any]:
    """The facts as JSON values by group: each with its state, its value (null unless known) and its evidence."""
    return {field.name: _to_json(getattr(facts, field.name)) for field in dataclasses.fields(facts)}


def _to_json(found: Any) -> dict[str, Any]:
    """A fact, or a group of them."""
    if isinstance(found, Fact):
        evidence = [{"command": item.command, "line": item.line} for item in found.evidence]
        return {"state": found.state.value, "value": plain(found.value), "evidence": evidence}
    return {field.name: _to_json(getattr(found, field.name)) for field in dataclasses.fields(found)}


def plain(value: Any) -> Any:
    """A value as JSON has it: what has named fields as a mapping, enumerations as their words, tuples as lists."""
    if isinstance(value, Fact):
        return _to_json(value)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, set, frozenset)):
        return [plain(item) for item in value]
    return value
