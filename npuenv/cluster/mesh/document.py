"""A finished mesh as the `npuenv.mesh/1` document, which every form of the report is made from. See `document`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.cluster.mesh.localize import Kind, Suspect, reduce
from npuenv.cluster.mesh.types import SAMPLED, Outcome
from npuenv.cluster.nodeset import fold
from npuenv.core.errors import ExitCode
from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Container, Mapping, Sequence

    from npuenv.cluster.mesh.asking import Missing
    from npuenv.cluster.mesh.localize import Culprit
    from npuenv.cluster.mesh.types import Device, Pair, Plan, Results

SCHEMA = "npuenv.mesh/1"
_MOST_NOTES = 1000  # of single pings, in the document; the matrix has all of them


@dataclass(frozen=True, slots=True)
class Finished:
    """What a run came to."""

    plan: Plan
    results: Results
    missing: tuple[Missing, ...] = ()  # nodes and cards that could not take part at all
    lost: Mapping[str, Message] | None = None  # nodes that could not ping, and why
    seconds: float = 0.0

    @property
    def pairs(self) -> list[Pair]:
        """The pings of the plan, in its order."""
        return [pair for pings in self.plan.rounds for pair in pings]

    @property
    def code(self) -> ExitCode:
        """1 where pings failed or two devices have one address, else 3 where something could not be tried."""
        counts = self.results.counts(self.pairs)
        if counts[Outcome.FAILED] or counts[Outcome.WEAK] or any(each.is_fault for each in self.missing):
            return ExitCode.PROBLEMS
        is_unknown = counts[Outcome.SILENT] + counts[Outcome.UNTRIED] + counts[Outcome.PENDING] > 0
        return ExitCode.UNKNOWN if is_unknown or self.missing or not self.pairs else ExitCode.FINE


def document(finished: Finished, lang: str) -> dict[str, Any]:
    """The JSON document. Keys, kinds and letters do not depend on the language, `says` does."""
    plan, results = finished.plan, finished.results
    by_outcome: dict[Outcome, list[Pair]] = {outcome: [] for outcome in Outcome}
    for pair in finished.pairs:
        by_outcome[results.of(pair)].append(pair)
    fine, lossy, weak = (by_outcome[outcome] for outcome in (Outcome.OK, Outcome.LOSSY, Outcome.WEAK))
    failed = [*by_outcome[Outcome.FAILED], *weak]
    silent, unmade = by_outcome[Outcome.SILENT], [*by_outcome[Outcome.UNTRIED], *by_outcome[Outcome.PENDING]]
    unknown = [*silent, *unmade]
    told = _Teller(plan.devices, lang, frozenset(weak))
    notes = sorted((*failed, *lossy, *by_outcome[Outcome.SILENT], *by_outcome[Outcome.UNTRIED]))
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
        "culprits": told.culprits(failed, [*fine, *lossy], "culprit"),
        "lossy": told.culprits(lossy, fine, "lossy"),
        "unknown": [
            *told.unmade(unmade, finished.pairs, finished.lost or {}),
            *told.culprits(silent, [*fine, *lossy, *failed], "silent"),
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


def _limits(finished: Finished, *, is_whole: bool) -> list[Message]:
    """What the result does not say. Whole: all pings of the plan were made."""
    limits = []
    if finished.plan.mode == SAMPLED:
        asked = {place for pair in finished.pairs for place in pair}
        is_sure = is_whole and asked and len(asked) == len(finished.plan.devices) and not finished.missing
        limits.append(Message("mesh.limit-sampled" if is_sure else "mesh.limit-sampled-unsure"))
    if any(device.board is not None for device in finished.plan.devices):
        limits.append(Message("mesh.limit-boards"))
    return limits


class _Teller:
    """Says what culprits are about. `weak` are the failed pings of which some packets came back."""

    def __init__(self, devices: Sequence[Device], lang: str, weak: frozenset[Pair]) -> None:
        self._devices, self._lang, self._weak = devices, lang, weak

    def culprits(self, bad: Sequence[Pair], good: Sequence[Pair], manner: str) -> list[dict[str, Any]]:
        """The fewest that explain the bad pings. `manner`: culprit, lossy or silent, which are said differently."""
        return [self._culprit(each, manner) for each in reduce(self._devices, bad, good)]

    def unmade(self, pairs: Sequence[Pair], all_pairs: Sequence[Pair], lost: Container[str]) -> list[dict[str, Any]]:
        """The pings that were not made, by whose they were: of a node that dropped out, else of a card."""

        def whose(pair: Pair) -> Suspect:
            node = self._devices[pair[0]].node
            return Suspect(Kind.NODE, (node,)) if node in lost else Suspect(Kind.SENDS, (pair[0],))

        totals, found = Counter(map(whose, all_pairs)), []
        for owner, count in Counter(map(whose, pairs)).items():
            name = owner.about[0] if owner.kind is Kind.NODE else self._card(int(owner.about[0]))
            says = Message("mesh.unmade", {"name": name, "count": count, "total": totals[owner]})
            kind, about = owner.kind.word, self._about(owner)
            found.append({"kind": kind, "about": about, "pings": count, "says": say(says, self._lang), "or": []})
        return found

    def _culprit(self, culprit: Culprit, manner: str) -> dict[str, Any]:
        num_weak = sum(pair in self._weak for pair in culprit.explains) if manner == "culprit" else 0
        if num_weak:
            manner = "weak" if num_weak == len(culprit.explains) else "partly-weak"
        is_dead = manner == "culprit"
        what = self._words(culprit.suspect, is_dead=is_dead)
        says = Message(f"mesh.{manner}", {"what": what, "count": len(culprit.explains)})
        return {
            "kind": culprit.suspect.kind.word,
            "about": self._about(culprit.suspect),
            "pings": len(culprit.explains),
            "says": say(says, self._lang),
            "or": [
                {
                    "kind": other.kind.word,
                    "about": self._about(other),
                    "says": say(self._words(other, is_dead=is_dead), self._lang),
                }
                for other in culprit.alternatives
            ],
        }

    def _about(self, suspect: Suspect) -> dict[str, Any]:
        """What it names: the places of devices, nodes, cards or subnets."""
        devices = [int(part) for part in suspect.about] if suspect.kind in _ABOUT_DEVICES else []
        if devices:
            named = [self._devices[place] for place in devices]
            return {"devices": devices, "nodes": [each.node for each in named], "cards": [each.card for each in named]}
        return {_ABOUT[suspect.kind]: list(suspect.about)} if suspect.kind in _ABOUT else {}

    def _words(self, suspect: Suspect, *, is_dead: bool) -> Message:
        """Where it is; and where nothing at all gets through, that, for kinds that are said so."""
        if suspect.kind in (Kind.PARTITION, Kind.SIDE_PARTITION):
            return Message(f"mesh.kind-{suspect.kind.word}", {"groups": " | ".join(map(str, suspect.about))})
        parts: list[object] = list(suspect.about)
        if suspect.kind in _ABOUT_DEVICES:
            parts = [self._card(int(place)) for place in suspect.about]
        args = dict(zip(("one", "other"), parts))
        manner = "kind" if is_dead or suspect.kind not in _SAID_OF_DEAD else "at"
        return Message(f"mesh.{manner}-{suspect.kind.word}", args)

    def _card(self, place: int) -> Message:
        device = self._devices[place]
        return Message("mesh.card-at", {"node": device.node, "card": device.card, "ip": device.ip})


_ABOUT_DEVICES = (Kind.PAIR, Kind.ONE_WAY, Kind.CARD, Kind.SENDS, Kind.RECEIVES, Kind.CARD_FLAPS)
_FLAPS = (Kind.CARD_FLAPS, Kind.NODE_FLAPS, Kind.SIDE_FLAPS)
# "Nothing gets through", or "some of its pings come back": not so where packets are lost.
_SAID_OF_DEAD = (Kind.CARD, Kind.SENDS, Kind.RECEIVES, *_FLAPS)
_ABOUT = {
    **dict.fromkeys((Kind.PARTITION, Kind.PARTITION_ONE_WAY), "groups"),
    **dict.fromkeys((Kind.NODE, Kind.NODES, Kind.NODES_ONE_WAY, Kind.NODE_FLAPS), "nodes"),
    **dict.fromkeys((Kind.NODE_SENDS, Kind.NODE_RECEIVES), "nodes"),
    **dict.fromkeys((Kind.UPLINK, Kind.UPLINK_SENDS, Kind.UPLINK_RECEIVES), "nodes"),
    **dict.fromkeys((Kind.SIDE, Kind.SIDE_INSIDE, Kind.SIDE_CUT_OFF, Kind.SIDE_FLAPS), "cards"),
    **dict.fromkeys((Kind.SIDES_APART, Kind.SIDES_ONE_WAY), "cards"),
    **dict.fromkeys((Kind.SIDE_PARTITION, Kind.SIDE_PARTITION_ONE_WAY), "card_groups"),
    **dict.fromkeys((Kind.SUBNET, Kind.SUBNETS_APART, Kind.SUBNETS_ONE_WAY), "subnets"),
}


def estimate(plan: Plan, seconds_a_ping: float, total_s: float) -> dict[str, object]:
    """What is said about the time before it is spent."""
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
