"""What the launch files of both frameworks share: options and result, cards and placements, overrides, releases."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.finding import Location, Status
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, known_releases, nearest_release
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.configs import short_name
from npuenv.preflight.launch import Launch, LaunchSetting, Machine
from npuenv.preflight.memory.types import Cards, Estimate, Job, Placement, read_cards, read_memory, written_cards
from npuenv.preflight.reading import read_text, read_words
from npuenv.preflight.rules import RULES, examine
from npuenv.preflight.rules.cards import most_cards
from npuenv.render.files import UNSAFE_IN_YAML, plain
from npuenv.render.variables import render_ray

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npuenv.preflight.launch import LaunchFinding
    from npuenv.preflight.memory.types import Layout
    from npuenv.resolve.types import Stack


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What the user said. None or "": not said, the recipe or the stack decides."""

    recipe: str = ""  # a published run of the stack's framework
    release: str = ""  # of the framework, or any commit of it
    model: str | None = None
    cards_per_node: int | None = None
    cards_of_host: int | None = None  # what the host has that the files are for; None: not known
    nodes: int | None = None
    card_memory_gib: float | None = None
    train: str | None = None
    infer: str | None = None
    reference: str | None = None
    layout: Layout | None = None
    head: str = ""
    allows_local_code: bool = False
    overrides: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchFiles:
    """The files of a run by name, and what they rest on."""

    files: Mapping[str, str]
    stack: Stack
    options: LaunchOptions  # with recipe and release
    job: Job
    placement: Placement
    estimate: Estimate
    because: Message  # how many cards it is for, and why
    notes: tuple[Message, ...] = ()  # what was decided in a way that the user may not expect

    @property
    def fits(self) -> bool:
        """Whether the run fits into the cards' memory, by the estimate."""
        return self.estimate.verdict != "infeasible"


_MOST_NAMES = 8  # in one sentence
_QUOTED_NAME = r"""\s*(?:"[A-Za-z][\w./-]*"|'[A-Za-z][\w./-]*')\s*"""
_QUOTED_LIST = re.compile(rf"\[{_QUOTED_NAME}(?:,{_QUOTED_NAME})*\]")
_NOT_NAMES = frozenset({"true", "false", "null", "none", "yes", "no", "on", "off", "y", "n", "nan", "inf"})
Unknown = Literal["recipe", "key", "verl-key", "release", "framework", "stack"]


def cards_of(asked: LaunchOptions, stack: Stack, published: Cards) -> Cards:
    """The cards of the run: what was said, else the stack's hardware and the published numbers, at most the host's."""
    for option, number in (("--cards-per-node", asked.cards_per_node), ("--nodes", asked.nodes)):
        if number is not None and number < 1:
            raise BadInput(Message("launch_roll.no-number", {"key": option, "value": number}))
    if asked.card_memory_gib is not None:
        read_memory(str(asked.card_memory_gib))
    hardware = stack.platform.hardware or published.hardware
    most = most_cards(hardware)
    if most and asked.cards_per_node and asked.cards_per_node > most:
        beyond = {"value": asked.cards_per_node, "hardware": hardware, "most": most}
        raise BadInput(Message("launch_roll.no-such-node", beyond), Message("launch_roll.no-such-node-hint"))
    return Cards(
        hardware=hardware,
        per_node=asked.cards_per_node or min(published.per_node, asked.cards_of_host or published.per_node),
        nodes=asked.nodes or published.nodes,
        memory_gib=asked.card_memory_gib or published.memory_gib,
    )


def because(asked: LaunchOptions, cards: Cards, published: int) -> Message:
    """How many cards a node has in these files, and who decided it."""
    who = "published"
    if asked.cards_per_node is not None:
        who = "said"
    elif asked.cards_of_host is not None and asked.cards_of_host != published:
        who = "host-fewer" if asked.cards_of_host < published else "host-more"
    args = {"cards": cards.per_node, "nodes": cards.nodes, "published": published, "host": asked.cards_of_host or 0}
    return Message(f"launch_roll.cards-{who}", args)


def ray_scripts(
    asked: LaunchOptions, cards: Cards, stack: Stack, own: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The scripts that start Ray by hand or by themselves; one node needs none: the framework starts Ray there."""
    if cards.nodes == 1:
        return {}
    return render_ray(cards, head=asked.head or None, framework=stack.framework, stack=stack, own=own)


def parse_cards(text: str, cards: Cards) -> tuple[int, ...]:
    """Global card numbers of a list like "0-3,8-11".

    Raises: BadInput for what is no list, and for a card that is not there or stands twice.
    Example: "0-1,4" -> (0, 1, 4)
    """
    found = read_cards(text, cards.count)
    if found is None:
        raise BadInput(Message("launch_roll.bad-cards", {"text": repr(text)}), Message("launch_roll.bad-cards-hint"))
    absent = next((card for card in found if card >= cards.count), None)
    if absent is not None:
        args = {"card": absent, "count": cards.count, "nodes": cards.nodes, "each": cards.per_node}
        hint = Message("launch_roll.no-card-hint", {"last": cards.count - 1})
        raise BadInput(Message("launch_roll.no-card", args), hint)
    twice = next((card for at, card in enumerate(found) if card in found[:at]), None)
    if twice is not None:
        raise BadInput(Message("launch_roll.card-twice", {"card": twice}), Message("launch_roll.bad-cards-hint"))
    return tuple(found)


def chosen_placement(asked: LaunchOptions, cards: Cards) -> Placement | None:
    """The placement that the user's own words give, or None where they give none and it has to be planned.

    One of `train` and `infer` alone leaves all other cards to the other (split), or both to the same (colocated). The
    reference goes with the cards that generate where it is not said: there a model without gradients has room.

    Raises: BadInput for card lists that are none, and where the lists contradict the layout.
    """
    layout, given = asked.layout, {"train": asked.train, "infer": asked.infer, "reference": asked.reference}
    lists = {role: parse_cards(text, cards) for role, text in given.items() if text is not None}
    if not lists:
        return _whole(cards) if layout == "colocated" else None
    placed = _completed(lists, cards, layout)
    if layout is not None and placed.layout != layout:
        args = {"layout": layout, "train": written_cards(placed.train), "infer": written_cards(placed.infer)}
        raise BadInput(Message("launch_roll.layout-differs", args), Message("launch_roll.layout-differs-hint"))
    return placed


def _whole(cards: Cards) -> Placement:
    every = tuple(range(cards.count))
    return Placement(every, every, every)


def _completed(lists: dict[str, tuple[int, ...]], cards: Cards, layout: Layout | None) -> Placement:
    train, infer = lists.get("train"), lists.get("infer")
    if train is None and infer is None:
        hint = Message("launch_roll.reference-alone-hint")
        raise BadInput(Message("launch_roll.reference-alone"), hint)
    train = train if train is not None else _others(infer or (), cards, layout)
    infer = infer if infer is not None else _others(train, cards, layout)
    return Placement(train, infer, lists.get("reference", infer))


def _others(taken: tuple[int, ...], cards: Cards, layout: Layout | None) -> tuple[int, ...]:
    if layout == "colocated":
        return taken
    rest = tuple(card for card in range(cards.count) if card not in taken)
    if not rest:
        raise BadInput(Message("launch_roll.no-cards-left"), Message("launch_roll.no-cards-left-hint"))
    return rest


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings, in the order in which each branch comes first.

    Raises: BadInput for a key below a value.
    """
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, name = key.split(".")
        place = tree
        for part in above:
            inner = place.setdefault(part, {})
            if not isinstance(inner, dict):
                args = {"key": key, "part": part}
                raise BadInput(
                    Message("launch_roll.not-a-group", args), Message("launch_roll.change-key", {"key": key})
                )
            place = inner
        place[name] = value
    return tree


def parse_overrides(words: Iterable[str]) -> dict[str, str]:
    """`("max_steps=5",)` -> `{"max_steps": "5"}`. A `+` before a key stays: it insists on a key that nobody knows.

    Raises: BadInput for a word without `=`, and for a value that could break out.
    """
    found: dict[str, str] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not re.fullmatch(r"\+{0,2}[A-Za-z_][\w.-]*", key):
            args = {"word": repr(word)}
            raise BadInput(Message("launch_roll.bad-override", args), Message("launch_roll.bad-override-hint"))
        found[key] = plain(_unquoted(value), key, UNSAFE_IN_YAML)
    return found


def _unquoted(value: str) -> str:
    """A list of quoted names without the quotes, which mean the same there: `["console","wandb"]` -> `[console,wandb]`.

    Numbers and truth values keep theirs: without them they would be something else.
    """
    if not _QUOTED_LIST.fullmatch(value):
        return value
    names = [each.strip().strip("'\"") for each in value.strip()[1:-1].split(",")]
    return value if {name.casefold() for name in names} & _NOT_NAMES else f"[{','.join(names)}]"


def unknown(name: str, accepted: Iterable[str], what: Unknown) -> BadInput:
    """The error for a name that is none of `accepted`, with the nearest one first."""
    names = tuple(accepted)
    folded = {each.casefold(): each for each in names}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=_MOST_NAMES, cutoff=0.5)
    message = Message(f"launch_roll.unknown-{what}", {"name": safe_shown(name)})
    if close:
        near = folded[close[0]]
        if len(names) > _MOST_NAMES and what in ("key", "verl-key"):
            names = tuple(folded[each] for each in close)  # of hundreds of keys the first say nothing
        return BadInput(message, Message("launch_roll.unknown-near", {"near": near, "accepted": _few(names, near)}))
    return BadInput(message, Message("launch_roll.unknown-none", {"accepted": _few(names, "")}))


def safe_shown(name: str) -> str:
    """A name as it can stand in a sentence: control characters shown, not sent to the terminal."""
    return name if name.isprintable() else repr(name)


def _few(names: tuple[str, ...], near: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(names))
    if len(names) <= _MOST_NAMES:
        return names
    others = [name for name in names if name != near]
    return (*((near,) if near else ()), *others[: _MOST_NAMES - 1], "…")


_LEFT_OUT = frozenset({"preflight.memory"})
# Warnings that are errors in a launch of npuenv's own: cards shared in part, sequences lost or uneven.
_STRICT = frozenset({"preflight.device-overlap", "preflight.micro-batch", "preflight.mini-batch-uneven"})


def refuse_verl(program: str, words: Sequence[str], cards: Cards, release: str) -> None:
    """Refuses overrides, as words of a shell, that verl would not run with. Raises: BadInput with preflight's words."""
    plain = [part for word in words for part in shlex.split(word)]
    asked = ReadOptions(defaults_of, "verl", release, _machine(cards))
    reading = read_words(["python3", "-m", program, *plain], asked)
    _refuse(examine(reading.launch, refused=reading.refused))


def refuse_roll(name: str, text: str, cards: Cards, release: str) -> None:
    """Refuses a YAML that ROLL would not run with. Raises: BadInput with preflight's words."""
    reading = read_text(text, Path(name), ReadOptions(defaults_of, "roll", release, _machine(cards)))
    _refuse(examine(reading.launch, refused=reading.refused))


def refuse_numbers(launch: Launch, needed: Iterable[str]) -> None:
    """Refuses what is no number where a key takes one, before a job counts a default in its place.

    `needed` are the keys that null leaves without a number. Raises: BadInput with preflight's words.
    """
    nulls = (found for key in needed if (found := launch.settings.get(key)) is not None and found.value is None)
    said = {**launch.settings, **{each.key: replace(each, value="", text="null") for each in nulls}}
    rules = [rule for rule in RULES if rule.id == "preflight.number"]
    _refuse(examine(replace(launch, settings=said), rules))


def _machine(cards: Cards) -> Machine:
    return Machine(cards.hardware, cards.per_node, cards.nodes)


def _refuse(found: Iterable[LaunchFinding]) -> None:
    errors = [
        each
        for each in found
        if each.check not in _LEFT_OUT
        and (each.status is Status.FAIL or (each.status is Status.WARN and each.check in _STRICT))
    ]
    if not errors:
        return
    first = errors[0]
    changes = tuple(f"{each.key}={each.value}" for each in first.changes if each.value is not None)
    hint = Message("launch.not-run-hint", {"changes": changes}) if changes else None
    raise BadInput(Message("launch.not-run", {"what": tuple(each.says for each in errors)}), hint)


_COMMIT = re.compile(r"[0-9a-f]{7,40}|main")


def judged_as(framework: str, release: str) -> Message | None:
    """What to tell about a release that is not known itself, but lies near one that is; None for a known one.

    Raises: BadInput for a name that is neither a version nor a commit, and for a version older than all known ones or
    of another major number than the newest.
    Example: verl 0.9.1 -> None; 0.10.0 -> "judged as 0.9.1"; 9.9 -> BadInput
    """
    name = short_name(release)
    if framework == "roll" and not versions.is_release(name):
        return None
    known = _known(framework)
    if name in known:
        return None
    if _COMMIT.fullmatch(name):
        newest = form_of(framework, name)
        return Message("launch.judged-as", {"framework": framework, "release": name, "nearest": newest})
    nearest = nearest_release(framework, name)
    args: dict[str, object] = {"framework": framework, "release": name, "nearest": nearest or "-", "known": known}
    if nearest is None or versions.python_version(name).major != versions.python_version(known[-1]).major:
        raise BadInput(Message("launch.no-release", args), Message("launch.no-release-hint", args))
    return Message("launch.judged-as", args)


def form_of(framework: str, release: str) -> str:
    """The release whose form launch files get: a version itself, and the newest one for a commit of verl."""
    name = short_name(release)
    return known_releases(framework)[-1] if _COMMIT.fullmatch(name) else name


def _known(framework: str) -> tuple[str, ...]:
    """The versions that keys were recorded for, that renamed one, or that a stack has, oldest first."""
    rows = (row for row in load_matrix().recipes if row.framework == framework)
    stacks = (row.release for row in rows if versions.is_release(row.release))
    renamed = (row.since for row in load_matrix().launch_keys if row.since and framework == "verl")
    return tuple(sorted({*known_releases(framework), *stacks, *renamed}, key=versions.python_version))


def launch_of(
    framework: Literal["verl", "roll"], release: str, values: Mapping[str, object], environ: Mapping[str, str]
) -> Launch:
    """The values of a recipe as a launch, over what the release sets by itself."""

    def settings(pairs: Mapping[str, object]) -> dict[str, LaunchSetting]:
        return {key: LaunchSetting(key, found, str(found), Location("", 0)) for key, found in pairs.items()}

    known = defaults_of(framework, release)
    return Launch(framework, release, settings(values), known, settings(environ), Machine(), "command")
