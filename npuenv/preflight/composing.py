"""The launch that a command or a configuration comes to: its settings laid over what the framework's release sets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.core.shellwords import UNKNOWN
from npuenv.preflight.configs import Config, Search, counted_as, program_config
from npuenv.preflight.hydra import NotHydra, fill, read_override
from npuenv.preflight.launch import Launch, LaunchFinding, LaunchSetting, Machine, launch_finding, module_of

if TYPE_CHECKING:
    from npuenv.preflight.configs import Checkout
    from npuenv.preflight.launch import Call
    from npuenv.preflight.script import Script, Word

Framework = Literal["verl", "roll"]
Defaults = Callable[[str, str], Mapping[str, Any]]

_STRATEGIES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")
_GRAMMAR = "hydra-core 1.3 hydra/grammar/OverrideParser.g4"
_OF_RAY = re.compile(r"(?:ray_kwargs\.)?ray_init\.runtime_env\.env_vars\.(\w+)")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What is known besides the text. None: not said."""

    defaults_of: Defaults  # framework, release -> the release's own values; empty where it is not known
    framework: Framework | None = None
    release: str | None = None
    machine: Machine = field(default_factory=Machine)
    environ: Mapping[str, str] = field(default_factory=dict)  # variables of the place where it is to run
    folder: Path = field(default_factory=Path)  # relative paths of a command start here
    # Whether a shell takes a script's text. Without a shell, everything passes.
    parses: Callable[[str], bool] = lambda text: True
    checkout: Checkout | None = None  # of verl, in which the launch lies


@dataclass(frozen=True, slots=True)
class LaunchText:
    """A launch with the text it came from, which is what a correction changes."""

    launch: Launch
    path: str  # of the text; "" for a command line
    text: str  # "" for a command line
    words: tuple[Word, ...] = ()  # of a command line or of a script's launch
    call: Call | None = None
    script: Script | None = None
    refused: tuple[LaunchFinding, ...] = ()  # what the words alone show: Hydra's grammar, and how Ray is started
    notes: tuple[Message, ...] = ()
    arguments: tuple[str, ...] = ()  # what the script is called with
    nth: int = 0  # which launch of the script this is
    count: int = 1  # launches of the script
    around: str = ""  # the script that it stands in, also where `path` is the YAML that the script names


NO_LAUNCH = Launch("verl", None, {}, {}, {}, Machine(), "command")


def compose(
    framework: Framework,
    settings: Mapping[str, LaunchSetting],
    environ: Mapping[str, LaunchSetting],
    options: ReadOptions,
    source: str,
    config: Config,
) -> Launch:
    """The launch of some settings and variables. Raises: BadInput where another framework was asked for."""
    if options.framework not in (None, framework):
        args = {"found": framework, "asked": options.framework}
        raise BadInput(Message("preflight.other-framework", args), Message("preflight.other-framework-hint", args))
    name = options.release or options.machine.packages.get(framework)
    release = counted_as(framework, name) if name else None
    found = options.checkout if framework == "verl" and options.checkout and not options.checkout.damage else None
    if found is not None and name in (None, found.version):
        name, release = found.version, found.release
    table = found.keys if found is not None and name == found.version else None
    defaults = table.defaults if table else options.defaults_of(framework, release) if release else {}
    if engine := _engine_of(settings, config):
        defaults = {**defaults, **{f"{part}.strategy": engine for part in _STRATEGIES}}
    known = {name: str(each.value) for name, each in environ.items() if not each.is_open}
    return Launch(
        framework,
        release,
        fill(settings, defaults, {**options.environ, **known}),
        defaults,
        fill(environ, {}, options.environ),
        options.machine,
        source,  # type: ignore[arg-type]  # one of the three by construction
        config.missing,
        from_files=frozenset(config.settings),
        checkout=table,
        release_name=name if name and name != release else "",
    )


def _engine_of(settings: Mapping[str, LaunchSetting], config: Config) -> str:
    """The engine that a configuration or a choice of one brings, whose strategy differs from the plain one's."""
    chosen = settings.get("model_engine")
    if chosen is not None and not chosen.is_open and isinstance(chosen.value, str):
        return "" if chosen.value == "dp" else chosen.value
    return "megatron" if any("megatron" in base for base in config.bases) else ""


def of_verl_call(reading: LaunchText, environ: dict[str, LaunchSetting], options: ReadOptions) -> LaunchText:
    """The launch of a verl command: its configuration file, where it names one, under its words."""
    assert reading.call is not None
    beside = Path(reading.path).parent if reading.path else options.folder
    base = _verl_config(reading.call, options, beside)
    settings = dict(base.settings)
    refused: list[LaunchFinding] = []
    for at in reading.call.overrides:
        word = reading.words[at]
        place = Location(reading.path, word.line if reading.path else 1, at + 1)
        try:
            found = _settings_of(word, place)
        except NotHydra as error:
            refused.append(_refusal(error, word, place))
            continue
        for setting in found:
            settings.pop(setting.key, None)
            settings[setting.key] = setting
    through_ray = ((_OF_RAY.fullmatch(key), each) for key, each in settings.items())  # variables of the workers
    environ = {**environ, **{match[1]: each for match, each in through_ray if match}}
    launch = compose("verl", settings, environ, options, "command", base)
    words = [reading.words[at].value for at in reading.call.overrides]
    is_partial = base.is_partial or any(UNKNOWN in word.partition("=")[0] for word in words)
    launch = replace(launch, program=reading.call.program, is_partial=is_partial)
    return replace(reading, launch=launch, refused=(*reading.refused, *refused))


def _verl_config(call: Call, options: ReadOptions, beside: Path) -> Config:
    """The configuration that a command starts from: the file that it names, or the program's own."""
    module = module_of(call.program)
    own = program_config(module)
    name = call.options.get("name", "") or posixpath.basename(own)
    if not name:
        return Config(is_partial=True)
    named = [Path(call.options[key]) for key in ("dir", "path") if key in call.options]
    folders = tuple(base / folder for folder in named for base in (options.folder, beside))
    if not own:  # a program that no release has brings its folder along, as verl's recipes do
        folders = (*folders, options.folder.joinpath(*module.split(".")[:-1], "config"))
    is_open = UNKNOWN in name or any(UNKNOWN in str(folder) for folder in named)
    if is_open:  # mostly the folder of the script, which it asks for itself
        folders = (*folders, *(place for folder in named for place in _places(folder, beside)))
    found = Search(folders, options.folder, "verl").config(name, is_primary=True)
    is_lost = (is_open or not own) and f"{name.removesuffix('.yaml')}.yaml" in found.missing
    return Config(is_partial=True) if is_lost else found


def _places(folder: Path, beside: Path) -> tuple[Path, ...]:
    """Where a folder may be, of whose path only the running script knows the beginning."""
    end = str(folder).rpartition(UNKNOWN)[2].lstrip("/")
    return tuple(top / end for top in (beside, *beside.resolve().parents)) if end else (beside,)


def _settings_of(word: Word, place: Location) -> list[LaunchSetting]:
    """What a word of the command sets: one setting, or one for each leaf of a dictionary."""
    if UNKNOWN in word.value:
        mark, key = re.fullmatch(r"(\+\+|\+|~|)(.*)", word.value.partition("=")[0], re.DOTALL).groups()  # type: ignore[union-attr]
        if UNKNOWN in key or "=" not in word.value or key.startswith("hydra."):
            return []
        text = word.raw.partition("=")[2].strip("'\"")
        return [LaunchSetting(key, text, text, place, mark, is_open=True, is_shells=True, is_sure=word.is_sure)]
    found = read_override(word.value)
    if found.key.startswith("hydra.") and found.key != "hydra.searchpath":
        return []
    whole = LaunchSetting(
        found.key, found.value, found.text, place, found.mark, found.is_computed, is_sure=word.is_sure
    )
    return list(_leaves(whole))


def _leaves(setting: LaunchSetting) -> Sequence[LaunchSetting]:
    if not isinstance(setting.value, dict) or not setting.value:
        return (setting,)
    inner = [replace(setting, key=f"{setting.key}.{key}", value=value) for key, value in setting.value.items()]
    return tuple(leaf for each in inner for leaf in _leaves(each))


def _refusal(error: NotHydra, word: Word, place: Location) -> LaunchFinding:
    key = word.value.partition("=")[0].lstrip("+~")
    _, sign, text = word.value.partition("=")
    setting = LaunchSetting(key, text if sign else None, text, place)
    says = Message(f"preflight.refused-{error.why}", {"key": key, "what": error.what})
    return launch_finding("preflight.hydra-grammar", "error", says, (setting,), _GRAMMAR)
