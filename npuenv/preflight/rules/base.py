"""What every rule is made of: the decorator `rule`, `problem`, and the look-ups that rules share."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.core.shellwords import UNKNOWN
from npuenv.preflight.launch import Change, Launch, LaunchFinding, LaunchSetting, launch_finding

if TYPE_CHECKING:
    from npuenv.core.finding import Severity
    from npuenv.preflight.launch import Machine

_POINTER = re.compile(r"\$\{(?:oc\.select:)?([A-Za-z_][\w.]*)(?:,\s*(.*))?\}")
_MANDATORY = "???"
_ACTOR = "actor_rollout_ref.actor"
_OF_ROLE = re.compile(
    r"(rewards\.[^.]+|[^.]+)\.(?:strategy_args|device_mapping|model_args|worker_cls|infer_batch_size)"
)
_APART = re.compile(r"\b(?:fully_async_policy|one_step_off_policy)\b")
KEEP: Any = object()  # a problem's `to` where only the user can decide


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule found. "" and None: as its rule has it."""

    keys: tuple[str, ...]  # the keys or variables at fault, the deciding one first
    args: dict[str, object]  # of the sentence; key and text (of the first key) and release are there anyway
    to: Any = KEEP  # what the first key is to be instead; None: taken out
    changes: tuple[Change, ...] = ()  # the same where more than one key changes, or another one
    rule: str = ""
    severity: Severity | None = None
    says: str = ""  # the sentence `preflight_rules.<says>`
    source: str = ""


Judge = Callable[[Launch], Iterable[Problem]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is looked for. `judge` gives nothing back where all is well, or where it cannot tell."""

    id: str
    frameworks: tuple[str, ...]
    judge: Callable[[Launch], Iterable[LaunchFinding]]
    is_trainers: bool = False  # it knows what verl's own trainers take: of another program its errors are warnings


BOTH = ("verl", "roll")
RULES: list[Rule] = []


def rule(
    id: str, *frameworks: str, source: str = "", severity: Severity = "error", is_trainers: bool = False
) -> Callable[[Judge], Judge]:
    """Makes a rule `preflight.<id>` of a function; without `frameworks` it is about all of them."""

    def register(judge: Judge) -> Judge:
        def complete(launch: Launch) -> Iterator[LaunchFinding]:
            for each in judge(launch):
                first = each.keys[0] if each.keys else ""
                settings = tuple(found for key in each.keys if (found := written(launch, key)) is not None)
                text = next((setting.text for setting in settings if setting.key == first), "")
                args = {"key": first, "text": text, "release": launch.release, **each.args}
                shown = {name: arg.replace(UNKNOWN, "…") if isinstance(arg, str) else arg for name, arg in args.items()}
                says = Message(f"preflight_rules.{each.says or each.rule or id}", shown)
                changes = each.changes
                if each.to is not KEEP:
                    is_variable = first in launch.environ and first not in launch.settings
                    changes = (Change(first, each.to, is_variable),)
                name, weight = f"preflight.{each.rule or id}", each.severity or severity
                yield launch_finding(name, weight, says, settings, each.source or source, changes)

        RULES.append(Rule(f"preflight.{id}", frameworks or BOTH, complete, is_trainers))
        return judge

    return register


def problem(
    *keys: str,
    to: Any = KEEP,
    changes: Iterable[Change] = (),
    rule: str = "",
    severity: Severity | None = None,
    says: str = "",
    source: str = "",
    **args: object,
) -> Problem:
    """A problem of some keys or variables."""
    return Problem(keys, args, to, tuple(changes), rule, severity, says, source)


def uneven(key: str, size: int | None, cards: int | None, *others: str) -> Iterator[Problem]:
    """A problem where a size does not divide the cards, with the largest size below it that does."""
    if cards and size and cards % size:
        yield problem(key, *others, to=divisor_below(cards, size), size=size, cards=cards)


def written(launch: Launch, key: str) -> LaunchSetting | None:
    """What was written under a key, or for a variable of that name."""
    return launch.settings.get(key) or launch.environ.get(key)


def value(launch: Launch, key: str, default: Any = None, *, depth: int = 4) -> Any:
    """The value in force. A default that points to another key is followed; None where it is not known.

    A mandatory one that nobody wrote counts as `default`.
    """
    found = launch.get(key, default)
    if found == _MANDATORY:
        return default
    pointer = _POINTER.fullmatch(found) if isinstance(found, str) else None
    if pointer is None:
        return found
    if depth == 0:
        return default
    target, other = pointer.groups()
    if target not in launch.settings and target not in launch.defaults:
        return _plain(other) if other is not None else default
    followed = value(launch, target, default, depth=depth - 1)
    return _plain(other) if followed is None and other not in (None, "null") else followed


def _plain(text: str | None) -> Any:
    """The word after the comma of `${oc.select:key,word}` as a value."""
    words: dict[str | None, Any] = {None: None, "null": None, "false": False, "true": True}
    if text in words:
        return words[text]
    number = as_number(text)
    return text if number is None else number


def as_number(text: object) -> int | float | None:
    """A finite number, also one that is written as text; None for anything else, switches too."""
    if isinstance(text, bool) or (isinstance(text, float) and not math.isfinite(text)):
        return None
    if isinstance(text, (int, float)):
        return text
    if isinstance(text, str) and re.fullmatch(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", text.strip()):
        number = float(text)
        if not math.isfinite(number):
            return None
        return int(number) if number.is_integer() and re.fullmatch(r"[+-]?\d+", text.strip()) else number
    return None


def number(launch: Launch, key: str, default: float | None = None) -> int | float | None:
    """The number in force, also where it is written as text like 1e-6; None where there is none."""
    return as_number(value(launch, key, default))


def whole(launch: Launch, key: str, default: int | None = None) -> int | None:
    """The whole number in force, 1 or more; None where it is anything else: another rule speaks of that."""
    found = number(launch, key, default)
    return int(found) if found is not None and found == int(found) and found >= 1 else None


def is_true(launch: Launch, key: str, default: bool = False) -> bool:
    """Whether a switch is known to be on."""
    return str(value(launch, key, default)).lower() in ("true", "1", "yes", "on")


def is_off(launch: Launch, key: str, default: bool = False) -> bool:
    """Whether a switch is known to be off."""
    return not launch.is_open(key) and not is_true(launch, key, default)


def is_set(launch: Launch, key: str) -> bool:
    """Whether something other than null was written."""
    setting = launch.settings.get(key)
    return setting is not None and (setting.is_open or setting.value is not None)


def matching(launch: Launch, pattern: str) -> Iterator[LaunchSetting]:
    """The settings whose keys match a pattern, `*` for any number of parts; open ones left out."""
    if not any(sign in pattern for sign in "*?["):
        setting = launch.settings.get(pattern)
        if setting is not None and not setting.is_open:
            yield setting
        return
    for key, setting in launch.settings.items():
        if (key == pattern or fnmatch.fnmatchcase(key, pattern)) and not setting.is_open:
            yield setting


def is_at_least(launch: Launch, release: str) -> bool | None:
    """Whether the launch's framework is of that release or later; None where that is not known."""
    return reaches(launch.release, release)


def reaches(version: str | None, minimum: str) -> bool | None:
    """Whether a version is `minimum` or later; None where there is none, or one that nobody can read.

    A development build on the way to `minimum` may have what came with it, or not: 0.8.0.dev0 of 0.8.0 gives None.
    """
    if not version:
        return None
    try:
        found, other = versions.python_version(version), versions.python_version(minimum)
    except BadInput:
        return None
    return None if found.is_devrelease and found < other and found.release == other.release else found >= other


def cards_of_machine(machine: Machine) -> int | None:
    """All cards of all nodes, where both are known."""
    return machine.cards_per_node * machine.nodes if machine.cards_per_node and machine.nodes else None


def verl_cards(launch: Launch) -> int | None:
    """The cards that train: n_gpus_per_node x nnodes."""
    per_node, nodes = whole(launch, "trainer.n_gpus_per_node", 8), whole(launch, "trainer.nnodes", 1)
    return per_node * nodes if per_node and nodes else None


def generates_apart(launch: Launch) -> bool:
    """Whether generation has cards of its own: the trainers that run it one step ahead, or as it comes.

    Source: verl wheels 0.7.1, 0.9.1: verl/experimental/fully_async_policy, one_step_off_policy.
    """
    return bool(_APART.search(launch.program)) or "rollout.n_gpus_per_node" in launch.settings


def verl_rollout_cards(launch: Launch) -> int | None:
    """The cards that generate."""
    if not generates_apart(launch):
        return verl_cards(launch)
    per_node, nodes = whole(launch, "rollout.n_gpus_per_node", 8), whole(launch, "rollout.nnodes", 1)
    return per_node * nodes if per_node and nodes else None


def sequence_parallel(launch: Launch) -> tuple[str, int | None]:
    """The key that says over how many cards a sequence is cut, and how many; None where that is not known.

    The older key counts where it is above 1. Source: verl wheels 0.7.1, 0.9.1: verl/workers/config/actor.py.
    """
    if value(launch, f"{_ACTOR}.strategy") == "veomni":
        return (key := f"{_ACTOR}.veomni.ulysses_parallel_size"), whole(launch, key, 1)
    old = f"{_ACTOR}.ulysses_sequence_parallel_size"
    new = f"{_ACTOR}.fsdp_config.ulysses_sequence_parallel_size"
    size = whole(launch, old, 1)
    return (new, whole(launch, new, 1)) if size == 1 else (old, size)


def megatron_sizes(base: str) -> tuple[str, ...]:
    """The keys of Megatron's tensor, pipeline and context parallelism."""
    return tuple(f"{base}.{name}_parallel_size" for name in ("tensor_model", "pipeline_model", "context"))


def product(launch: Launch, *keys: str) -> int | None:
    """The product of sizes that are 1 unless something else is said; None where one is not known."""
    return math.prod(whole(launch, key, 1) or 0 for key in keys) or None


def roles(launch: Launch) -> tuple[str, ...]:
    """The roles of a ROLL launch that have settings of their own, as key beginnings."""
    found: dict[str, None] = {}
    for key in launch.settings:
        match = _OF_ROLE.match(key)
        if match:
            found[match.group(1)] = None
    return tuple(found)


def is_agentic(launch: Launch) -> bool:
    """Whether a launch is of ROLL's agentic pipeline: environments make the prompts."""
    return any(key.startswith("train_env_manager.") for key in launch.settings)


def nearest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The word that is most alike, or None where none is."""
    import difflib  # only where there is a problem already

    found = difflib.get_close_matches(word, list(words), n=1, cutoff=cutoff)
    return found[0] if found else None


def divisor_below(total: int, limit: int) -> int:
    """The largest divisor of `total` that is not above `limit`; 1 at least."""
    return next((size for size in range(min(limit, total), 1, -1) if total % size == 0), 1)
