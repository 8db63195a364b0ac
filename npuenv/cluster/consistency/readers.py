"""What the facts of one node say about each thing that must agree: one function for each reader `rules.toml` names.

A reader knows of no other node. Texts in which a capture has put stand-ins are left out: the same stand-in means
another name on each node.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from npuenv.cluster.consistency import readers
from npuenv.cluster.consistency.values import NONE, NodeValues, Value, ValueKey
from npuenv.core.fact import Evidence, State
from npuenv.core.files import folder_of
from npuenv.core.toml_input import load_file
from npuenv.facts.collector import was_asked
from npuenv.facts.npu.driver import VARIABLE, visible

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts

_STAND_IN = re.compile(
    r"\b(?:host|user|serial)\d+\b|\*\*\*|\b(?:203\.0\.113|198\.51\.100)\.\d+\b|\b2001:db8::[0-9a-f]+\b"
)
UNLIMITED = -1
_GIB = 1 << 20  # KiB
_WORK = frozenset({"torch", "torch-npu", "vllm", "vllm-ascend", "sglang", "transformers", "verl", "roll"})
_STORES = ("overlay2", "snapshots", "overlay")  # where docker, containerd and podman keep the layers of images
_OF_PODS = re.compile(r"/kubelet/|/docker/|/containers/|/containerd/")  # volumes of what runs there, one's own


@dataclass(frozen=True, slots=True)
class SessionVariables:
    """Which variables of a session are compared."""

    compared: re.Pattern[str]
    own: re.Pattern[str]  # differ from node to node by their meaning
    breaking: re.Pattern[str]  # a difference ends the run

    def is_compared(self, name: str) -> bool:
        return bool(self.compared.fullmatch(name)) and not self.own.fullmatch(name)


@functools.cache
def session_variables() -> SessionVariables:
    """Which variables are compared, and which of them break a run."""
    rows = load_file(folder_of(__file__) / "variables.toml", is_ours=True)
    return SessionVariables(*(re.compile("|".join(rows[name])) for name in ("compared", "own", "breaking")))


def has_stand_in(text: str) -> bool:
    """Whether something in the text was replaced before it left its machine."""
    return _STAND_IN.search(text) is not None


def one(fact: Fact[Any], show: Callable[[Any], str | None], *, absent: str | None = NONE) -> NodeValues:
    """A fact with one value; `absent` is what a looked-for and missing one counts as (None: it does not count).

    A value for which `show` has no text is unknown.
    """
    if not was_asked(fact):
        return NodeValues(level=fact.evidence[0].line.rpartition(" ")[2])
    line = fact.evidence[0] if fact.evidence else Evidence("", "")
    if fact.state is State.UNKNOWN:
        return NodeValues(blind={None: line})
    text = absent if fact.state is State.ABSENT else show(fact.value)
    if text is None:
        return NodeValues() if fact.state is State.ABSENT else NodeValues(blind={None: line})
    if has_stand_in(text):
        return NodeValues(hidden=frozenset({ValueKey().topic}))
    return NodeValues({ValueKey(): Value(text, line)})


def plain(facts: Facts, path: str, absent: str | None) -> NodeValues:
    """A fact whose value, or an attribute of it, is compared as it is written: `machine.system.name`."""
    group, name, *attributes = path.split(".")

    def show(value: Any) -> str | None:
        for attribute in attributes:
            value = getattr(value, attribute)
        return str(value) if value not in (None, "") else None

    return one(getattr(getattr(facts, group), name), show, absent=absent)


def many(fact: Fact[Any], show: Callable[[Any], Mapping[str, str]]) -> NodeValues:
    """A fact with a value for each of several topics."""
    if fact.value is None:
        return one(fact, lambda _: None, absent=None)
    command = fact.evidence[0].command if fact.evidence else ""
    return listed(show(fact.value), command, "{} {}")


def listed(found: Mapping[str, str], command: str, line: str) -> NodeValues:
    """All topics of a node with their values; `line` says how the two stand together as evidence."""
    hidden = frozenset(topic for topic, text in found.items() if has_stand_in(f"{topic} {text}"))
    values = {
        ValueKey(topic): Value(text, Evidence(command, line.format(topic, text)), _number(text))
        for topic, text in found.items()
        if topic not in hidden
    }
    return NodeValues(values, is_list=True, command=command, hidden=hidden)


def _number(text: str) -> float | None:
    return float(text) if text.isdecimal() else None


def visible_cards(facts: Facts) -> NodeValues:
    """How many cards the session has: those that a variable names, else all whose device nodes there are."""
    nodes, environment = facts.npu.nodes, facts.environment.value or {}
    if nodes.value is None or VARIABLE not in environment:
        return one(nodes, lambda nodes: str(len(nodes.cards)), absent="0")
    line = Evidence("environment", f"{VARIABLE}={environment[VARIABLE]}")
    seen = visible(environment, len(nodes.value.cards))
    return NodeValues(blind={None: line}) if seen is None else NodeValues({ValueKey(): Value(str(seen), line)})


def driver(facts: Facts) -> NodeValues:
    """The version file's, or where there is none, the one that npu-smi names."""
    if facts.npu.driver.is_known:
        return one(facts.npu.driver, lambda info: str(info.version).lower())
    if facts.npu.smi.value is not None:
        return one(facts.npu.smi, lambda table: table.driver.lower() if table.driver else None)
    return one(facts.npu.driver, lambda info: str(info.version))


def driver_in_use(facts: Facts) -> NodeValues:
    """What npu-smi names, where it answers: after an upgrade without a restart it is not the file's."""
    return one(facts.npu.smi, lambda table: table.driver.lower() if table.driver else None, absent=None)


def cann(facts: Facts) -> NodeValues:
    return one(facts.cann.toolkit, lambda found: str(found.version).upper())


def cann_ops(facts: Facts) -> NodeValues:
    return one(facts.cann.ops, lambda found: f"{found.version} {found.chip}".strip(), absent=None)


def ray(facts: Facts) -> NodeValues:
    return _package(facts, "ray")


def frameworks(facts: Facts) -> NodeValues:
    """The distributions that do the work of a run, and are released for one another."""
    return many(facts.python.interpreter, lambda found: {k: v for k, v in found.distributions.items() if k in _WORK})


def packages(facts: Facts) -> NodeValues:
    """All distributions but those that have a row of their own."""
    own = {"ray", *_WORK}
    return many(facts.python.interpreter, lambda found: {k: v for k, v in found.distributions.items() if k not in own})


def _package(facts: Facts, name: str) -> NodeValues:
    fact = facts.python.interpreter
    found = one(fact, lambda found: found.distributions.get(name, NONE))
    return replace(found, values={key: _called(value, f"{name} {value.text}") for key, value in found.values.items()})


def _called(value: Value, line: str) -> Value:
    return Value(value.text, Evidence(value.evidence.command, line.replace(NONE, "-")), value.number)


def image(facts: Facts) -> NodeValues:
    """What a container can read of its image: the stack that a rendered one names, and how many layers lie beneath.

    Numbers of layers are compared where the same kind of store counts them: each adds layers of its own.
    """
    if not facts.machine.container.is_known:
        return NodeValues()
    stack = (facts.environment.value or {}).get("NPUENV_STACK")
    found = listed({"NPUENV_STACK": stack} if stack else {}, "environment", "{}={}")
    topics = {store: f"lowerdir ({store})" for store in _STORES}
    store, count = _layers(facts)
    values = dict(found.values)
    if store:
        values[ValueKey(topics.pop(store))] = Value(str(count), Evidence("/proc/self/mountinfo", f"/ {store}: {count}"))
    return replace(found, values=values, hidden=found.hidden | {*topics.values()})


def _layers(facts: Facts) -> tuple[str, int]:
    """The kind of store that the root of a container lies in, and how many folders lie beneath it; "" for another."""
    root = next((row for row in reversed(facts.machine.mounts.value or ()) if row.place == "/"), None)
    if root is None or root.kind != "overlay":
        return "", 0
    own = next((option for option in root.options if option.startswith("upperdir=")), "")
    # A list of many is cut off in no table, but newer systems give each folder an option of its own.
    lists = [option.partition("=")[2] for option in root.options if option.startswith(("lowerdir=", "lowerdir+="))]
    count = sum(len(names.split(":")) for names in lists if names)
    return next((store for store in _STORES if f"/{store}/" in own and count), ""), count


def limits(facts: Facts) -> NodeValues:
    """The limits that a training job meets; those of other things differ with the memory of a machine."""
    wanted = ("Max open files", "Max locked memory", "Max processes", "Max stack size", "Max address space")
    return many(
        facts.machine.limits,
        lambda found: {
            name: ":unlimited" if found[name] == UNLIMITED else str(found[name]) for name in wanted if name in found
        },
    )


def shared_memory(facts: Facts) -> NodeValues:
    return _sized(facts.machine.shared_memory, lambda space: space.size_kib)


def memory(facts: Facts) -> NodeValues:
    return _sized(facts.machine.memory_kib, lambda kib: kib)


def _sized(fact: Fact[Any], kib_of: Callable[[Any], int]) -> NodeValues:
    found = one(fact, lambda value: f"{kib_of(value) / _GIB:.1f} GiB")
    if fact.value is None:
        return found
    number = kib_of(fact.value)
    return replace(found, values={key: replace(value, number=number) for key, value in found.values.items()})


def cpus(facts: Facts) -> NodeValues:
    return one(facts.machine.cpus, lambda count: f"{count:g}")


def kernel_settings(facts: Facts) -> NodeValues:
    """What was set on purpose; what follows from the size of the machine is left out."""
    compared = ("transparent_hugepage", "overcommit_memory", "max_map_count", "selinux_enforcing", "numa_nodes")
    return many(facts.machine.settings, lambda found: {name: found[name] for name in compared if name in found})


def network_mounts(facts: Facts) -> NodeValues:
    """File systems of the network by where they are mounted."""
    from npuenv.facts.machine.storage import NETWORK_KINDS

    def show(rows: Any) -> dict[str, str]:
        kept = (row for row in rows if row.kind in NETWORK_KINDS and not _OF_PODS.search(row.place))
        return {row.place: f"{row.kind} {_access(row.options)}" for row in kept}

    return many(facts.machine.mounts, show)


def _access(options: tuple[str, ...]) -> str:
    return "ro" if "ro" in options else "rw"


def variables(facts: Facts) -> NodeValues:
    """The session's variables that all nodes should have alike."""
    names = readers.session_variables()
    found = facts.environment.value or {}
    return listed({name: text for name, text in found.items() if names.is_compared(name)}, "environment", "{}={}")


def ray_token(facts: Facts) -> NodeValues:
    """Whether there is a token file; only of a Ray that reads one."""
    version = (facts.python.interpreter.value.distributions if facts.python.interpreter.value else {}).get("ray", "")
    numbers = [int(part) for part in re.findall(r"\d+", version)[:2]]
    environ = facts.environment.value or {}
    if numbers < [2, 59] or environ.get("RAY_AUTH_MODE", "").lower() == "disabled":
        return NodeValues()
    return one(facts.ray.token, lambda _: ":present", absent=":absent")


def clock_kept(facts: Facts) -> NodeValues:
    """Whether the clock follows others; a container without such a program has its host's clock and says nothing."""
    return one(facts.network.clock, lambda found: ":kept" if found.is_synchronised else ":not-kept", absent=None)


def port_range(facts: Facts) -> NodeValues:
    def show(found: Any) -> str:
        kept = ",".join(f"{first}-{last}" for first, last in found.reserved)
        return f"{found.first}-{found.last}" + (f" - {kept}" if kept else "")

    return one(facts.network.port_range, show)


def rank_table(facts: Facts) -> NodeValues:
    def show(table: Any) -> str:
        devices = [(each.id, item.card, item.ip, item.rank) for each in table.servers for item in each.devices]
        return f"{table.path} #{_digest(repr(devices))}"

    return one(facts.hccn.rank_table, show, absent=None)


def _digest(text: str) -> str:
    import zlib

    return f"{zlib.crc32(text.encode()):08x}"


def libstdcxx(facts: Facts) -> NodeValues:
    return one(facts.machine.libstdcxx, lambda found: f"GLIBCXX {found.level}" if found.level else None, absent=None)


def account(facts: Facts) -> NodeValues:
    """The number of the session's user: names are stand-ins, and shared storage goes by the number."""
    return one(facts.machine.account, lambda found: f"uid {found.uid}", absent=None)


def kernel_chips(facts: Facts) -> NodeValues:
    """The chips that CANN has operator kernels for."""
    return one(facts.cann.kernels, lambda found: ", ".join(sorted(found.chips)) or NONE, absent=None)


def huge_pages(facts: Facts) -> NodeValues:
    """The memory that is set aside as huge pages, which nothing else can use."""
    return one(facts.machine.memory, lambda found: None if found.huge_pages is None else str(found.huge_pages))


def compilers(facts: Facts) -> NodeValues:
    return many(facts.cann.compilers, lambda found: dict(found))
