"""What a launch is: the words that start one, what was written, what will not work in it, how large it may be.

Call: which words of a command start a training run of verl or ROLL, and which of them are settings. LaunchSetting,
Launch, LaunchFinding: the launch once it is read. MOST_*: what no launch is as large as, once aliases, variables and
lists are filled in.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.errors import BadInput
from npuenv.core.finding import STATUS_OF, Finding
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.core.finding import Location, Severity
    from npuenv.matrix.keys import KeyTable


MOST_LETTERS = 300_000  # of one YAML file; all values of verl's own configuration take 40,000
MOST_VALUES = 20_000  # of one YAML file, aliases expanded; verl's own configuration has 600
MOST_LEVELS = 60  # far below Python's own limit
MOST_DIGITS = 300  # float() of a longer number fails
MOST_FILES = 200  # that the `defaults:` of one configuration lead to
MOST_WORDS = 10_000  # of one command
MOST_INNER_SCRIPTS = 20  # that stand in the text of one another
MOST_BYTES = 1_000_000  # of one file


class TooLarge(BadInput):
    """It would take minutes or all memory to read it to the end."""

    def __init__(
        self, path: str, most: int, what: Literal["digits", "files", "letters", "levels", "scripts", "values", "words"]
    ) -> None:
        args = {"path": path, "most": most, "what": Message(f"preflight.large-{what}")}
        super().__init__(Message("preflight.too-large", args))


@dataclass(frozen=True, slots=True)
class LaunchSetting:
    """One written value under its dotted key."""

    key: str  # dotted, without Hydra's marks: actor_rollout_ref.rollout.name
    value: Any  # the YAML value; interpolations filled in where that was possible
    text: str  # as it was written
    place: Location
    mark: str = ""  # Hydra's "+", "++" or "~" before the key
    is_open: bool = False  # it holds a ${...} or a shell variable that could not be filled in: `value` is the text
    is_shells: bool = False  # open because only the running shell knows the value
    is_sure: bool = True  # False: it stands in a branch that the text does not decide, and may not be set at all


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the launch is to run, as far as it is known. None: not said, and a rule that needs it says nothing."""

    hardware: str | None = None  # id in matrix/hardware.toml
    cards_per_node: int | None = None
    nodes: int | None = None
    memory_gib: float | None = None  # of one card
    packages: Mapping[str, str] = field(default_factory=dict)  # distribution -> version in the environment
    is_here: bool = False  # it runs on this machine: paths may be looked at


@dataclass(frozen=True, slots=True)
class Launch:
    """One training launch: what was written, over what the framework's release sets by itself."""

    framework: Literal["verl", "roll"]
    release: str | None  # like "0.7.1"; None: not known, and rules that depend on it say so once
    settings: Mapping[str, LaunchSetting]  # by dotted key, the last one written
    defaults: Mapping[str, Any]  # dotted key -> the release's own value; empty where the release is not known
    environ: Mapping[str, LaunchSetting]  # variables that the script or the YAML's system_envs sets, by name
    machine: Machine
    source: Literal["command", "verl-yaml", "roll-yaml"]
    missing_files: tuple[str, ...] = ()  # files of `defaults:` that were not found
    is_partial: bool = False  # words or a file could not be read that may set what `settings` lacks
    program: str = ""  # the module or the script that a command starts; "" for a YAML
    from_files: frozenset[str] = frozenset()  # keys that YAML files bring: Hydra takes any key there
    checkout: KeyTable | None = None  # the keys of the source tree that it lies in; None: those recorded for `release`
    release_name: str = ""  # what the release is called where `release` only counts as it, like a commit; "": nothing

    def get(self, key: str, default: Any = None) -> Any:
        """The value in force: the written one, else the release's, else `default`; None where it is not known."""
        if self.is_open(key):
            return None
        setting = self.settings.get(key)
        return self.defaults.get(key, default) if setting is None else setting.value

    def is_added(self, key: str) -> bool:
        """Whether Hydra takes a written key that the configuration lacks: with a + or ++, or out of a YAML file."""
        setting = self.settings.get(key)
        if setting is not None and "+" in setting.mark:
            return True
        return any(f"{key}.".startswith(f"{each}.") or each.startswith(f"{key}.") for each in self.from_files)

    def is_open(self, key: str) -> bool:
        """Whether nobody knows here which value is in force."""
        setting = self.settings.get(key)
        return self.is_partial if setting is None else setting.is_open


@dataclass(frozen=True, slots=True)
class Change:
    """A correction of one written value: `value` None takes the setting out."""

    key: str
    value: Any
    is_variable: bool = False  # an environment variable rather than a key
    renames: str | None = None  # the old key, which is taken out


@dataclass(frozen=True, slots=True)
class LaunchFinding(Finding):
    """What will not work in a launch, with what was written and the corrections."""

    settings: tuple[LaunchSetting, ...] = ()  # what was written and is at fault; the deciding one first
    changes: tuple[Change, ...] = ()  # together they fix it; empty: only the user can decide
    corrected: tuple[str, ...] = ()  # the lines or words as they read with the changes, where those can be put in


def launch_finding(
    rule: str,
    severity: Severity,
    says: Message,
    settings: tuple[LaunchSetting, ...],
    source: str,
    changes: tuple[Change, ...] = (),
) -> LaunchFinding:
    """A finding at the first of its settings. `source`: a row of the matrix, a document, or what was run."""
    location = settings[0].place if settings else None
    return LaunchFinding(
        rule, STATUS_OF[severity], says, (), source, None, location, settings=settings, changes=changes
    )


_VERL_MODULE = re.compile(r"(?:verl|recipe)\.(?:\w+\.)*main_(?!eval|generation)\w+")
_VERL_FILE = re.compile(r"(?:.*/)?main_(?!eval|generation)\w+\.py")
_ROLL_FILE = re.compile(r"(?:.*/)?start_\w+_pipeline\.py")
_UNJUDGED_MODULE = re.compile(r"verl\.(?:\w+\.)*(?:\w*sft_trainer\w*|main_eval\w*|main_generation\w*|model_merger)")
_UNJUDGED_FILE = re.compile(r"(?:.*/)?(?:\w*sft_trainer\w*|main_eval\w*|main_generation\w*)\.py")
_STARTER = re.compile(r"(?:.*/)?(?:python[\d.]*|torchrun|accelerate|deepspeed)")
_LAUNCHER = re.compile(r"(?:.*/)?(?:torchrun|accelerate|deepspeed|mpirun|mpiexec)|torch\.distributed\.(?:run|launch)")
_FRONT = re.compile(r"[A-Za-z_]\w*=.*|env|exec|nohup|time", re.DOTALL)
_SHELLS = ("bash", "sh", "zsh", "dash")
_VERL_KEY = re.compile(r"(?:\+\+|\+|~)?actor_rollout_ref[.@]")
_OVERRIDE = re.compile(r"(?:\+\+|\+|~)?[A-Za-z_]\w*(?:[.@/][\w@/-]+)+=.*", re.DOTALL)
# Options of Hydra's own command line that take a value.
_VALUED = {
    **dict.fromkeys(("--config-dir", "-cd"), "dir"),
    **dict.fromkeys(("--config-name", "--config_name", "-cn"), "name"),
    **dict.fromkeys(("--config-path", "--config_path", "-cp"), "path"),
    **dict.fromkeys(("--package", "-p"), "package"),
    **dict.fromkeys(("--cfg", "-c"), "cfg"),
}


@dataclass(frozen=True, slots=True)
class Call:
    """A command that starts a run."""

    framework: Literal["verl", "roll"]
    overrides: tuple[int, ...]  # positions in the words of `key=value`, from 0
    program: str  # the module or the script
    options: Mapping[str, str] = field(default_factory=dict)  # dir, name, path: how the configuration is found


def find_call(words: Sequence[str]) -> Call | None:
    """The run that some words start; None where they start something else."""
    for at, word in enumerate(words):
        if word == "-m" and at + 1 < len(words) and _VERL_MODULE.fullmatch(words[at + 1]):
            return _call("verl", words, at + 1)
        if at and _ROLL_FILE.fullmatch(word):
            return _call("roll", words, at)
        if at and _VERL_FILE.fullmatch(word) and any(map(_VERL_KEY.match, words[at:])):
            return _call("verl", words, at)
    first = next((at for at, word in enumerate(words) if _VERL_KEY.match(word)), None)
    if not first or posixpath.basename(words[0]) in ("echo", "printf") or unjudged(words) or script_of(words[:first]):
        return None
    if "-m" in words[: first - 1]:
        return _call("verl", words, words.index("-m") + 1)
    while first > 1 and ("=" in words[first - 1] or words[first - 2] in _VALUED):
        first -= 1
    return _call("verl", words, first - 1)


def _call(framework: Literal["verl", "roll"], words: Sequence[str], program: int) -> Call:
    overrides: list[int] = []
    options: dict[str, str] = {}
    at = program + 1
    while at < len(words):
        name, sign, value = words[at].partition("=")
        if name in _VALUED:
            at += 0 if sign else 1
            options[_VALUED[name]] = value if sign else words[at] if at < len(words) else ""
        elif words[at] and not words[at].startswith("-"):
            overrides.append(at)
        at += 1
    return Call(framework, tuple(overrides), words[program], options)


def is_override(word: str) -> bool:
    """Whether a word is a setting of a command that stands somewhere else: no program is called `a.b=1`."""
    return bool(_OVERRIDE.fullmatch(word))


def is_driver(program: str) -> bool:
    """Whether a module or a file is a driver that starts its processes itself, through Ray."""
    return any(known.fullmatch(program) for known in (_VERL_MODULE, _VERL_FILE, _ROLL_FILE))


def module_of(program: str) -> str:
    """The module that a program is, as far as its name says: /src/verl/trainer/main_ppo.py is verl.trainer.main_ppo."""
    if not program.endswith(".py"):
        return program
    parts = program.removesuffix(".py").split("/")
    first = next((at for at in range(len(parts) - 1, -1, -1) if parts[at] in ("verl", "recipe")), len(parts) - 1)
    return ".".join(parts[first:])


def is_launcher(word: str) -> bool:
    """Whether a word starts a program once for each card."""
    return bool(_LAUNCHER.fullmatch(word))


def unjudged(words: Sequence[str]) -> str | None:
    """The program of verl that some words start and that no rule is about: supervised training, evaluation, merging."""
    starter = next((at for at, word in enumerate(words) if _STARTER.fullmatch(word)), len(words))
    for at, word in enumerate(words[starter + 1 :], starter + 1):
        if (words[at - 1] == "-m" and _UNJUDGED_MODULE.fullmatch(word)) or _UNJUDGED_FILE.fullmatch(word):
            return word
    return None


def shell_text(words: Sequence[str]) -> int | None:
    """The position of the text that a shell among some words is to run: `docker exec c bash -lc "..."` gives 5."""
    for at, word in enumerate(words[:-2]):
        if posixpath.basename(word) in _SHELLS and re.fullmatch(r"-[a-z]*c", words[at + 1]):
            return at + 2
    return None


def front(words: Sequence[str]) -> int:
    """How many words stand before the program: variables set for it, and `env`, `exec`, `nohup`, `time`."""
    return next((at for at, word in enumerate(words) if not _FRONT.fullmatch(word)), len(words))


def script_of(words: Sequence[str]) -> tuple[str, tuple[str, ...]] | None:
    """The shell script that a command runs and its arguments: `bash -x run.sh a` gives ("run.sh", ("a",))."""
    rest = list(words[front(words) :])
    if rest and posixpath.basename(rest[0]) in (*_SHELLS, "source", "."):
        rest.pop(0)
        while rest and rest[0].startswith("-") and rest[0] != "-c":
            rest.pop(0)
        return (rest[0], tuple(rest[1:])) if rest and rest[0] != "-c" else None
    return (rest[0], tuple(rest[1:])) if rest and rest[0].endswith(".sh") else None
