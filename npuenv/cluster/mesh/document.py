"""The result of a mesh as the `npuenv.mesh/1` document, from which every format of the report is made."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.cluster.inventory import fold
from npuenv.cluster.localize import Hypothesis, Kind, localize_faults
from npuenv.cluster.mesh import SAMPLED, PingOutcome
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from npuenv.cluster.localize import Fault
    from npuenv.cluster.mesh import MeshDevice, MissingDevice, Pair, PingPlan, Results

SCHEMA = "npuenv.mesh/1"
_MOST_NOTES = 1000  # single pings in the document; the matrix has all


@dataclass(frozen=True, slots=True)
class MeshResult:
    """The result of a run."""

    plan: PingPlan
    results: Results
    missing: tuple[MissingDevice, ...] = ()  # nodes and cards that could not take part
    lost: Mapping[str, Message] | None = None  # nodes that could not ping, and why
    seconds: float = 0.0

    @property
    def pairs(self) -> list[Pair]:
        """The pings of the plan in order."""
        return [pair for pings in self.plan.rounds for pair in pings]

    @property
    def code(self) -> ExitCode:
        """1 if pings failed or two devices have one address, else 3 if something could not be tried."""
        counts = self.results.counts(self.pairs)
        if counts[PingOutcome.FAILED] or counts[PingOutcome.WEAK] or any(each.is_fault for each in self.missing):
            return ExitCode.PROBLEMS
        is_unknown = counts[PingOutcome.SILENT] + counts[PingOutcome.UNTRIED] + counts[PingOutcome.PENDING] > 0
        return ExitCode.UNKNOWN if is_unknown or self.missing or not self.pairs else ExitCode.FINE


def document(finished: MeshResult, lang: str) -> dict[str, Any]:
    """The JSON document. Keys, kinds and letters do not depend on the language, `says` does."""
    plan, results = finished.plan, finished.results
    by_outcome: dict[PingOutcome, list[Pair]] = {outcome: [] for outcome in PingOutcome}
    for pair in finished.pairs:
        by_outcome[results.of(pair)].append(pair)
    fine, lossy, weak = (by_outcome[outcome] for outcome in (PingOutcome.OK, PingOutcome.LOSSY, PingOutcome.WEAK))
    failed = [*by_outcome[PingOutcome.FAILED], *weak]
    silent, untried = by_outcome[PingOutcome.SILENT], by_outcome[PingOutcome.UNTRIED]
    unmade = [*untried, *by_outcome[PingOutcome.PENDING]]
    unknown = [*silent, *unmade]
    describer = _Describer(plan.devices, lang, frozenset(weak))
    notes = sorted((*failed, *lossy, *silent, *untried))
    return {
        "schema": SCHEMA,
        "npuenv": __version__,
        "exit": int(finished.code),
        "mode": plan.mode,
        "seconds": round(finished.seconds, 1),
        "seconds_a_ping": None if results.seconds_a_ping is None else round(results.seconds_a_ping, 4),
        "rounds": len(plan.rounds),
        "summary": {
            "devices": len(plan.devices),
            "planned": plan.num_pings,
            **{"ok": len(fine), "lossy": len(lossy), "failed": len(failed), "unknown": len(unknown)},
        },
        "culprits": describer.culprits(failed, [*fine, *lossy], "culprit"),
        "lossy": describer.culprits(lossy, fine, "lossy"),
        "unknown": [
            *describer.unmade(unmade, finished.pairs, finished.lost or {}),
            *describer.culprits(silent, [*fine, *lossy, *failed], "silent"),
        ],
        "missing": [
            {"node": each.node, "card": each.card, "fault": each.is_fault, "says": say(each.why, lang)}
            for each in finished.missing
        ],
        "lost": [{"node": node, "says": say(why, lang)} for node, why in (finished.lost or {}).items()],
        "limits": [say(limit, lang) for limit in _limits(finished, is_whole=not unknown)],
        "devices": [
            {"node": each.node, "card": each.card, "ip": each.ip, "netmask": each.netmask, "network": each.network}
            for each in plan.devices
        ],
        "matrix": [row.decode("ascii") for row in results.rows],
        "pings": [
            {"from": pair[0], "to": pair[1], "outcome": results.of(pair).name.lower(), "line": results.notes[pair]}
            for pair in notes[:_MOST_NOTES]
            if pair in results.notes
        ],
    }


def _limits(finished: MeshResult, *, is_whole: bool) -> list[Message]:
    """What the result does not cover. `is_whole`: all planned pings were made."""
    limits = []
    if finished.plan.mode == SAMPLED:
        asked = {index for pair in finished.pairs for index in pair}
        is_sure = is_whole and asked and len(asked) == len(finished.plan.devices) and not finished.missing
        limits.append(Message("mesh.limit-sampled" if is_sure else "mesh.limit-sampled-unsure"))
    if any(device.board is not None for device in finished.plan.devices):
        limits.append(Message("mesh.limit-boards"))
    return limits


class _Describer:
    """Describes faults. `weak`: the failed pings of which some packets came back."""

    def __init__(self, devices: Sequence[MeshDevice], lang: str, weak: frozenset[Pair]) -> None:
        self._devices, self._lang, self._weak = devices, lang, weak

    def culprits(self, bad: Sequence[Pair], good: Sequence[Pair], style: str) -> list[dict[str, Any]]:
        """The fewest faults that explain the bad pings. `style`: culprit, lossy or silent, for the sentence."""
        return [self._culprit(each, style) for each in localize_faults(self._devices, bad, good)]

    def unmade(self, pairs: Sequence[Pair], all_pairs: Sequence[Pair], lost: Container[str]) -> list[dict[str, Any]]:
        """The pings that were not made, by source: a node that dropped out, else a card."""

        def owner_of(pair: Pair) -> Hypothesis:
            node = self._devices[pair[0]].node
            return Hypothesis(Kind.NODE, (node,)) if node in lost else Hypothesis(Kind.SENDS, (pair[0],))

        totals, found = Counter(map(owner_of, all_pairs)), []
        for owner, count in Counter(map(owner_of, pairs)).items():
            name = owner.about[0] if owner.kind is Kind.NODE else self._card(int(owner.about[0]))
            says = Message("mesh.unmade", {"name": name, "count": count, "total": totals[owner]})
            kind, about = owner.kind.word, self._about(owner)
            found.append({"kind": kind, "about": about, "pings": count, "says": say(says, self._lang), "or": []})
        return found

    def _culprit(self, fault: Fault, style: str) -> dict[str, Any]:
        num_weak = sum(pair in self._weak for pair in fault.explains) if style == "culprit" else 0
        if num_weak:
            style = "weak" if num_weak == len(fault.explains) else "partly-weak"
        is_dead = style == "culprit"
        what = self._describe(fault.hypothesis, is_dead=is_dead)
        says = Message(f"mesh.{style}", {"what": what, "count": len(fault.explains)})
        return {
            "kind": fault.hypothesis.kind.word,
            "about": self._about(fault.hypothesis),
            "pings": len(fault.explains),
            "says": say(says, self._lang),
            "or": [self._alternative(other, is_dead=is_dead) for other in fault.alternatives],
        }

    def _alternative(self, other: Hypothesis, *, is_dead: bool) -> dict[str, Any]:
        says = say(self._describe(other, is_dead=is_dead), self._lang)
        return {"kind": other.kind.word, "about": self._about(other), "says": says}

    def _about(self, hypothesis: Hypothesis) -> dict[str, Any]:
        """The indexes of devices, nodes, cards or subnets of a hypothesis."""
        key = _key_of(hypothesis.kind)
        if key or not hypothesis.about:
            return {key: list(hypothesis.about)} if key else {}
        indexes = [int(part) for part in hypothesis.about]
        named = [self._devices[index] for index in indexes]
        return {"devices": indexes, "nodes": [each.node for each in named], "cards": [each.card for each in named]}

    def _describe(self, hypothesis: Hypothesis, *, is_dead: bool) -> Message:
        """The hypothesis in words. `is_dead`: nothing gets through."""
        kind, about = hypothesis
        if kind in (Kind.PARTITION, Kind.SIDE_PARTITION):
            return Message(f"mesh.kind-{kind.word}", {"groups": " | ".join(map(str, about))})
        parts = about if _key_of(kind) else [self._card(int(index)) for index in about]
        style = "kind" if is_dead or kind not in _WORDED_AS_DEAD else "at"
        return Message(f"mesh.{style}-{kind.word}", dict(zip(("one", "other"), parts)))

    def _card(self, index: int) -> Message:
        device = self._devices[index]
        return Message("mesh.card-at", {"node": device.node, "card": device.card, "ip": device.ip})


# Their sentences say "nothing gets through", or "some pings come back": wrong if packets are lost.
_WORDED_AS_DEAD = (Kind.CARD, Kind.SENDS, Kind.RECEIVES, Kind.CARD_FLAPS, Kind.NODE_FLAPS, Kind.SIDE_FLAPS)
# What kinds are about, by prefix; all others are about devices, or about nothing.
_ABOUT = {
    **{"NODE": "nodes", "UPLINK": "nodes", "PARTITION": "groups"},
    **{"SIDE_PARTITION": "card_groups", "SIDE": "cards", "SUBNET": "subnets"},
}


def _key_of(kind: Kind) -> str:
    return next((key for start, key in _ABOUT.items() if kind.name.startswith(start)), "")


def estimate(plan: PingPlan, seconds_a_ping: float, total_s: float) -> dict[str, object]:
    """The arguments of the message about the expected time."""
    nodes = {device.node for device in plan.devices}
    return {
        "pings": plan.num_pings,
        "devices": len(plan.devices),
        "nodes": len(nodes),
        "names": fold(nodes),
        "most": plan.most_of_a_node,
        "each": f"{seconds_a_ping:.2f}",
        "time": _duration(total_s),
    }


def _duration(seconds: float) -> Message:
    if seconds < 100:
        return Message("mesh.seconds", {"count": max(1, round(seconds))})
    if seconds < 6000:
        return Message("mesh.minutes", {"count": round(seconds / 60)})
    return Message("mesh.hours", {"count": f"{seconds / 3600:.1f}"})
