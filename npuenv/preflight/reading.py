"""A file or a command as a Launch: verl commands, shell scripts that hold one, verl and ROLL YAML.

Nothing that is read is ever run. What could not be decided is open in the launch, never guessed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from npuenv.core.documents import JsonError, parse_json, read_bytes
from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.core.shellwords import UNKNOWN, open_quote
from npuenv.preflight.configs import Config, Search, counted_as, program_config, read_config
from npuenv.preflight.hydra import NotHydra, fill, read_override
from npuenv.preflight.launch import (
    MOST_BYTES,
    Launch,
    LaunchFinding,
    LaunchSetting,
    Machine,
    find_call,
    front,
    launch_finding,
    module_of,
    script_of,
    shell_text,
    unjudged,
)
from npuenv.preflight.script import Script, Word, survey
from npuenv.preflight.script_problems import cut_off, problems_of_script, started_often

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.configs import Checkout
    from npuenv.preflight.launch import Call
    from npuenv.preflight.script import StartedCommands

Framework = Literal["verl", "roll"]
Defaults = Callable[[str, str], Mapping[str, Any]]

# `# npuenv 0.1.0: verl 0.7.1, recipe ...`, `# npuenv launch NAME for ROLL 0.3.0, stack ...`, and the same in Chinese.
_RENDERED = re.compile(r"^# npuenv .*?\b(verl|ROLL) ([^,，、]+)[,，、]", re.MULTILINE)
JOB_VARIABLES = "env_vars."  # in front of the name of a variable that stands in a JSON text
_HEAD = 600  # characters in which that stands
_GRAMMAR = "hydra-core 1.3 hydra/grammar/OverrideParser.g4"


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


def read_file(path: Path, options: ReadOptions, arguments: Sequence[str] = ()) -> LaunchText:
    """A YAML file or a shell script. Raises BadInput where there is nothing to read, or no launch in it."""
    return read_text(_text_of(path), path, options, arguments)


def read_text(text: str, path: Path, options: ReadOptions, arguments: Sequence[str] = (), nth: int = 0) -> LaunchText:
    """The same for a text that stands, or is to stand, in a file of that name. `nth`: which launch of a script."""
    options = _with_written_release(text, options)
    if _is_script(text, path):
        return _read_script(text, path, options, tuple(arguments), nth)
    return _read_yaml(text, path, options)


def _with_written_release(text: str, options: ReadOptions) -> ReadOptions:
    """With the release that npuenv wrote into the head of a file it rendered, where nothing else names one."""
    found = _RENDERED.search(text[:_HEAD])
    if (
        found is None
        or options.release
        or options.machine.packages
        or options.framework not in (None, found[1].lower())
    ):
        return options
    return replace(options, release=found[2].strip())


def all_of(reading: LaunchText, options: ReadOptions) -> tuple[LaunchText, ...]:
    """A launch and the further ones of its script. Raises BadInput where one of those cannot be read."""
    if reading.count == 1:
        return (reading,)
    path = Path(reading.around)
    text = reading.text if reading.script is not None else _text_of(path)
    rest = (read_text(text, path, options, reading.arguments, nth) for nth in range(1, reading.count))
    return (reading, *rest)


def read_words(words: Sequence[str], options: ReadOptions) -> LaunchText:
    """A command line as its words: a launch, or a shell script that holds one.

    Raises BadInput where it starts no training run of verl or ROLL.
    """
    call = find_call(words)
    if call is None:
        named, inner = script_of(words), shell_text(words)
        if inner is not None:
            return _read_inner(words[inner], words[inner + 2 :], options)
        if named is None:
            raise _no_launch("command", unjudged(words))
        return read_file(options.folder / named[0], options, named[1])
    return _read_placed([Word(word, word, at, 0, 0) for at, word in enumerate(words, 1)], call, options)


def _read_inner(text: str, arguments: Sequence[str], options: ReadOptions) -> LaunchText:
    """The first launch of a text for a shell, as the command that it comes to: its variables in front of its words."""
    found = survey(text, arguments, options.environ)
    if not found.launches:
        raise _no_launch("command", found.unjudged[0][1] if found.unjudged else None)
    first = found.launches[0]
    front = [each.word for each in first.exports if each.siblings]
    words = [Word(word.raw, word.value, at, 0, 0) for at, word in enumerate((*front, *first.words), 1)]
    call = find_call([word.value for word in words])
    assert call is not None  # variables in front do not change what is started
    return _read_placed(words, call, options)


def _read_placed(words: Sequence[Word], call: Call, options: ReadOptions) -> LaunchText:
    environ, refused = {**_leading(words), **_of_job(words, "")}, started_often(words, call, "")
    if call.framework == "roll":
        return replace(_of_roll_call(call, environ, options, options.folder), refused=refused)
    return _of_verl_call(LaunchText(_NO_LAUNCH, "", "", tuple(words), call, refused=refused), environ, options)


def _no_launch(where: str, other: str | None) -> BadInput:
    """Nothing that is judged is started; `other` is what is started instead, where it is a known program of verl."""
    key = "no-launch-words" if where == "command" else "no-launch"
    if other is None:
        args = {"path": where} if key == "no-launch" else {}
        return BadInput(Message(f"preflight.{key}", args), Message("preflight.what-is-read"))
    args = {"program": other.replace(UNKNOWN, "…")}
    return BadInput(Message("preflight.only-unjudged", args), Message("preflight.what-is-judged"))


def _text_of(path: Path) -> str:
    if path.is_dir() or not path.exists():
        raise _unusable("folder" if path.is_dir() else "no-file", path)
    try:
        text = read_bytes(path, MOST_BYTES).decode("utf-8-sig")
    except OSError as error:
        args = {"path": str(path), "why": error.strerror or str(error)}
        raise BadInput(Message("preflight.unreadable", args)) from error
    except UnicodeDecodeError as error:
        raise _unusable("not-text", path) from error
    if "\0" in text:
        raise _unusable("not-text", path)
    if not text.strip():
        raise _unusable("empty", path, count=0)
    return text


def _unusable(why: str, path: Path, **args: object) -> BadInput:
    return BadInput(Message(f"preflight.{why}", {"path": str(path), **args}), Message("preflight.what-is-read"))


def _is_script(text: str, path: Path) -> bool:
    if path.suffix in (".yaml", ".yml", ".json"):
        return False
    return path.suffix in (".sh", ".bash") or text.startswith("#!") or bool(re.search(r"^\s*\S*python3?\s", text, re.M))


# --- YAML


def _read_yaml(text: str, path: Path, options: ReadOptions) -> LaunchText:
    config = read_config(text, str(path), Search((path.parent,), options.folder))
    framework = _framework_of(config)
    if framework is None:
        raise _unusable("no-framework", path)
    settings, environ = _split_environ(config, framework)
    launch = _launch(framework, settings, environ, options, f"{framework}-yaml", config)
    return LaunchText(launch, str(path), text)


def _framework_of(config: Config) -> Framework | None:
    tops = {key.partition(".")[0] for key in config.settings}
    if tops & {"actor_rollout_ref", "critic"} or config.bases:
        return "verl"
    return "roll" if tops & {"actor_train", "actor_infer", "pretrain", "rlvr", "train_env_manager"} else None


def _split_environ(config: Config, framework: str) -> tuple[dict[str, LaunchSetting], dict[str, LaunchSetting]]:
    """ROLL takes variables of its processes from `system_envs`."""
    settings, environ = dict(config.settings), dict[str, LaunchSetting]()
    for key in [key for key in settings if framework == "roll" and key.startswith("system_envs.")]:
        name = key.partition(".")[2]
        environ[name] = replace(settings.pop(key), key=name)
    return settings, environ


# --- commands and scripts


def _read_script(text: str, path: Path, options: ReadOptions, arguments: tuple[str, ...], nth: int) -> LaunchText:
    if line := open_quote(text):
        args = {"path": str(path), "line": line}
        raise BadInput(Message("preflight.open-quote", args), Message("preflight.open-quote-hint"))
    folders, name = (path.parent, options.folder), str(path)
    found = survey(text, arguments, options.environ, lambda file: _sourced(file, folders), path=name)
    if nth >= len(found.launches):
        others = (*found.unjudged, *found.unread)
        raise _no_launch(name, others[0][1] if others else None)
    script, count = found.launches[nth], len(found.launches)
    environ = {
        each.name: replace(_variable(each.name, each.word, name), is_sure=each.is_sure) for each in script.exports
    }
    environ.update(_of_job(script.words, name))
    # What is about the whole script is said with its first launch.
    of_all = () if nth else problems_of_script(found, script.call.framework, text, name, options.environ)
    place: dict[str, Any] = {
        "notes": () if nth else tuple(_notes(found, name)),
        "refused": (*cut_off(script, name), *of_all, *started_often(script.words, script.call, name)),
        **{"arguments": arguments, "nth": nth, "count": count, "around": name},
    }
    if script.call.framework == "roll":
        return replace(_of_roll_call(script.call, environ, options, path.parent), **place)
    reading = LaunchText(_NO_LAUNCH, name, text, script.words, script.call, script)
    return _of_verl_call(replace(reading, **place), environ, options)


def _notes(found: StartedCommands, path: str) -> Iterator[Message]:
    lines = tuple(str(each.words[0].line) for each in found.launches)
    if len(lines) > 1:
        yield Message("preflight.more-launches", {"path": path, "count": len(lines), "lines": lines})
    for line, file in found.unread:
        yield Message("preflight.not-read", {"path": path, "line": line, "file": file.replace(UNKNOWN, "…")})
    for line, program in found.unjudged:
        yield Message("preflight.unjudged", {"path": path, "line": line, "program": program.replace(UNKNOWN, "…")})


def _sourced(name: str, folders: Sequence[Path]) -> str | None:
    """The text of a file that a script reads with `source`, where it lies beside the script."""
    end = name.rpartition(UNKNOWN)[2].lstrip("/") if UNKNOWN in name else name
    places = [folder / end for folder in folders] if end and not end.startswith("/") else []
    found = next((place for place in places if place.is_file()), None)
    try:
        return None if found is None else _text_of(found)
    except BadInput:
        return None


def _variable(name: str, word: Word, path: str, at: int = 0) -> LaunchSetting:
    value = word.value.partition("=")[2]
    text = word.raw.partition("=")[2] if UNKNOWN in value else value
    is_open = UNKNOWN in value
    return LaunchSetting(name, text if is_open else value, text, Location(path, word.line, at), "", is_open, is_open)


def _leading(words: Sequence[Word]) -> dict[str, LaunchSetting]:
    """The variables in front of a command."""
    found = {}
    for at, word in enumerate(words[: front([word.value for word in words])], 1):
        name, sign, _ = word.value.partition("=")
        if sign:
            found[name] = replace(_variable(name, word, "", at), place=Location("", 1, at))
    return found


def _of_job(words: Sequence[Word], path: str) -> dict[str, LaunchSetting]:
    """The variables that `ray job submit --runtime-env-json` gives to the run."""
    values = [word.value for word in words]
    for at, word in enumerate(words):
        name, sign, text = word.value.partition("=")
        if name == "--runtime-env-json" and (sign or at + 1 < len(values)):
            try:
                found = parse_json(text if sign else values[at + 1])
            except JsonError:
                return {}
            pairs = found.get("env_vars") if isinstance(found, dict) else None
            place = Location(path, word.line if path else 1, at + 1)
            items = pairs.items() if isinstance(pairs, dict) else ()
            return {key: LaunchSetting(f"{JOB_VARIABLES}{key}", str(value), str(value), place) for key, value in items}
    return {}


def _of_ray_init(settings: Mapping[str, LaunchSetting]) -> dict[str, LaunchSetting]:
    """The variables that the trainer gives to its workers through Ray."""
    found = ((re.fullmatch(r"(?:ray_kwargs\.)?ray_init\.runtime_env\.env_vars\.(\w+)", key), key) for key in settings)
    return {match[1]: settings[key] for match, key in found if match}


def _of_verl_call(reading: LaunchText, environ: dict[str, LaunchSetting], options: ReadOptions) -> LaunchText:
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
    launch = _launch("verl", settings, {**environ, **_of_ray_init(settings)}, options, "command", base)
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


def _of_roll_call(call: Call, environ: Mapping[str, LaunchSetting], options: ReadOptions, beside: Path) -> LaunchText:
    """The launch of a ROLL command: the YAML that it names."""
    folder, name = call.options.get("path", ""), call.options.get("name", "")
    if not name:
        raise BadInput(Message("preflight.no-config-name", {"program": call.program.replace(UNKNOWN, "…")}))
    file = name if name.endswith((".yaml", ".yml")) else f"{name}.yaml"
    folder = "" if UNKNOWN in folder else folder  # mostly `$(basename $(dirname $0))`: beside the script
    program = Path(posixpath.dirname(call.program))
    places = [base / inner / folder / file for base in (options.folder, beside) for inner in (program, Path())]
    places.append(beside / file)  # a script may put it into the framework's tree itself, as those of render-launch do
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        looked = tuple(dict.fromkeys(map(str, places)))
        raise BadInput(Message("preflight.no-config", {"name": name, "looked": looked}))
    reading = read_file(found, replace(options, framework=options.framework or "roll"))
    return replace(reading, launch=replace(reading.launch, environ={**environ, **reading.launch.environ}))


# --- the launch

_NO_LAUNCH = Launch("verl", None, {}, {}, {}, Machine(), "command")


def _launch(
    framework: Framework,
    settings: Mapping[str, LaunchSetting],
    environ: Mapping[str, LaunchSetting],
    options: ReadOptions,
    source: str,
    config: Config,
) -> Launch:
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


_STRATEGIES = ("actor_rollout_ref.actor", "actor_rollout_ref.ref", "critic")


def _engine_of(settings: Mapping[str, LaunchSetting], config: Config) -> str:
    """The engine that a configuration or a choice of one brings, whose strategy differs from the plain one's."""
    chosen = settings.get("model_engine")
    if chosen is not None and not chosen.is_open and isinstance(chosen.value, str):
        return "" if chosen.value == "dp" else chosen.value
    return "megatron" if any("megatron" in base for base in config.bases) else ""
