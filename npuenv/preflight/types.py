"""A launch as it was written, and what will not work in it: Setting, Launch, LaunchFinding."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.finding import STATUS_OF, Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.core.finding import Location, Severity
    from npuenv.core.messages import Message
    from npuenv.matrix.keys import KeyTable


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
        return bool(setting is not None and "+" in setting.mark) or any(
            key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in self.from_files
        )

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
