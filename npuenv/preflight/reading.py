"""A file or a command as a Launch: verl commands, shell scripts that hold one, verl and ROLL YAML.

Also what the words of a script show by themselves: how Ray is started, packages for GPUs, unset variables.
Nothing that is read is ever run. What could not be decided is open in the launch, never guessed.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.documents import JsonError, parse_json, read_bytes
from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.core.shellwords import UNKNOWN, open_quote, source_of, tokens
from npuenv.matrix import load_matrix
from npuenv.preflight.composing import NO_LAUNCH, Framework, LaunchText, ReadOptions, compose, of_verl_call
from npuenv.preflight.configs import Config, Search, read_config
from npuenv.preflight.launch import (
    MOST_BYTES,
    LaunchFinding,
    LaunchSetting,
    find_call,
    front,
    is_driver,
    is_launcher,
    launch_finding,
    script_of,
    shell_text,
    unjudged,
)
from npuenv.preflight.rules.base import nearest
from npuenv.preflight.script import Word, survey

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.preflight.launch import Call
    from npuenv.preflight.script import Script, StartedCommands

# `# npuenv 0.1.0: verl 0.7.1, recipe ...`, `# npuenv launch NAME for ROLL 0.3.0, stack ...`, and the same in Chinese.
_RENDERED = re.compile(r"^# npuenv .*?\b(verl|ROLL) ([^,，、]+)[,，、]", re.MULTILINE)
JOB_VARIABLES = "env_vars."  # in front of the name of a variable that stands in a JSON text
_RAY = "runs of ray 2.48.0, 2.49.2, 2.50.1, 2.60.0: what `ray start --num-gpus=8` registers beside 8 NPUs"
_DRIVER = "verl wheels: verl/trainer/main_ppo.py, and alibaba/ROLL start_*_pipeline.py: one process that starts Ray"
_CONTINUED = "GNU Bash manual, Escape Character: a backslash and a newline right behind it continue a line"
_MANUAL = "GNU Bash manual: Shell Parameter Expansion; The Set Builtin, -u"
_USED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")  # nothing that says what else to take: ${X:-1}
_SET = re.compile(
    r"(?<![\w$.])([A-Za-z_]\w*)(?:\[[^\]]*\])?\+?=|\$\{([A-Za-z_]\w*):?[-=?+]|\bfor\s+([A-Za-z_]\w*)\s"
    r"|\b(?:read|mapfile|readarray|getopts|printf\s+-v|declare|local|export|unset)\s([^\n;|&<]*)|-[znv]\s+\"?\$?\{?([A-Za-z_]\w*)"
)
# What a shell, a scheduler, a container or the vendor's environment scripts set.
_OUTSIDE = re.compile(
    r"HOME|USER|LOGNAME|PWD|OLDPWD|PATH|SHELL|LANG|LC_\w+|TERM|HOSTNAME|TMPDIR|E?UID|RANDOM|SECONDS|LINENO|PPID|IFS"
    r"|BASH\w*|FUNCNAME|OPTARG|OPTIND|PIPESTATUS|\w*PATH|\w*_HOME|LD_PRELOAD|\w*_?(?:RANK|WORLD_SIZE)|MASTER_\w+"
    r"|(?:SLURM|PBS|RAY|ASCEND|HCCL|CANN|CONDA|VIRTUAL|VC|MA|K8S|KUBERNETES|POD|NODE|JOB|WANDB|HF|CUDA|MLP|GITHUB)_?\w*"
    r"|NNODES|N_?GPUS\w*|NPROC\w*|\w*(?:PROXY|proxy|TOKEN|KEY|IP|ADDR|PORT|HOSTFILE)"
)
_HEAD = 600  # characters in which that stands


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
    is_named = options.release or options.machine.packages
    if found is None or is_named or options.framework not in (None, found[1].lower()):
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
    environ, refused = {**_leading(words), **_of_job(words, "")}, _started_often(words, call, "")
    if call.framework == "roll":
        return replace(_of_roll_call(call, environ, options, options.folder), refused=refused)
    return of_verl_call(LaunchText(NO_LAUNCH, "", "", tuple(words), call, refused=refused), environ, options)


def _no_launch(where: str, other: str | None) -> BadInput:
    """Nothing that is judged is started; `other` is what is started instead, where it is a known program of verl."""
    key = "no-launch-words" if where == "command" else "no-launch"
    if other is None:
        args = {"path": where} if key == "no-launch" else {}
        return BadInput(Message(f"preflight.{key}", args), Message("preflight.what-is-read"))
    args = {"program": other.replace(UNKNOWN, "…")}
    return BadInput(Message("preflight.only-unjudged", args), Message("preflight.what-is-judged"))


def _text_of(path: Path) -> str:
    if path.is_dir():
        script = path / "run.sh"  # as render-launch names it
        if script.is_file():
            hint = Message("preflight.folder-hint", {"path": shlex.quote(str(script))})
            raise BadInput(Message("preflight.folder", {"path": str(path)}), hint)
        raise _unusable("folder", path)
    if not path.exists():
        raise _unusable("no-file", path)
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


def _read_yaml(text: str, path: Path, options: ReadOptions) -> LaunchText:
    config = read_config(text, str(path), Search((path.parent,), options.folder))
    framework = _framework_of(config)
    if framework is None:
        raise _unusable("no-framework", path)
    settings, environ = _split_environ(config, framework)
    launch = compose(framework, settings, environ, options, f"{framework}-yaml", config)
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
    exported = ((each.name, _variable(each.name, each.word, name), each.is_sure) for each in script.exports)
    environ = {key: replace(setting, is_sure=is_sure) for key, setting, is_sure in exported}
    environ.update(_of_job(script.words, name))
    # What is about the whole script is said with its first launch.
    of_all = () if nth else _problems_of_script(found, script.call.framework, text, name, options.environ)
    place: dict[str, Any] = {
        "notes": () if nth else tuple(_notes(found, name)),
        "refused": (*_cut_off(script, name), *of_all, *_started_often(script.words, script.call, name)),
        **{"arguments": arguments, "nth": nth, "count": count, "around": name},
    }
    if script.call.framework == "roll":
        return replace(_of_roll_call(script.call, environ, options, path.parent), **place)
    reading = LaunchText(NO_LAUNCH, name, text, script.words, script.call, script)
    return of_verl_call(replace(reading, **place), environ, options)


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


def _started_often(words: Sequence[Word], call: Call, path: str) -> tuple[LaunchFinding, ...]:
    """A driver that a launcher would start once for each card: it is one process, which starts the others by Ray."""
    if not is_driver(call.program):
        return ()
    values = [word.value for word in words]
    launcher = next((word for word in words[: values.index(call.program)] if is_launcher(word.value)), None)
    if launcher is None:
        return ()
    args = {"launcher": launcher.value, "program": call.program}
    says = Message("preflight_rules.launcher", {name: each.replace(UNKNOWN, "…") for name, each in args.items()})
    return (launch_finding("preflight.launcher", "error", says, (_setting("start", launcher, path),), _DRIVER),)


def _problems_of_script(
    found: StartedCommands, framework: str, text: str, path: str, known: Mapping[str, str]
) -> Iterator[LaunchFinding]:
    """What is about the script as a whole: GPUs for Ray, packages for GPUs, unset variables."""
    for word in found.gpus:
        says = Message("preflight_rules.ray-gpus", {"word": word.value})
        yield launch_finding("preflight.ray-gpus", "error", says, (_setting("ray start", word, path),), _RAY)
    yield from _gpu_packages(found, framework, path)
    yield from _unset_variables(text, path, known)


def _setting(key: str, word: Word, path: str) -> LaunchSetting:
    return LaunchSetting(key, word.value, word.raw, Location(path, word.line if path else 1))


def _gpu_packages(found: StartedCommands, framework: str, path: str) -> Iterator[LaunchFinding]:
    """Packages for GPUs that a script installs before it starts the run."""
    rows = (row for row in load_matrix().unsupported if row.kind == "package" and framework in row.frameworks)
    known = {row.package: row for row in rows if row.believe and not row.until and row.package}
    for word in found.installs:
        name = re.split(r"[=<>!~\[;@ ]", word.value)[0].casefold().replace("_", "-")
        if name in known:
            says, setting = Message("preflight_rules.gpu-package", {"name": name}), _setting("install", word, path)
            yield launch_finding("preflight.gpu-package", "warning", says, (setting,), known[name].source)


def _cut_off(script: Script, path: str) -> Iterator[LaunchFinding]:
    """Places where the shell ends the command, though its words go on."""
    of_windows = [cut for cut in script.cuts if cut.why == "carriage-return"]
    for cut in (each for each in script.cuts if each not in of_windows[1:]):
        key, sign, text = cut.lost.partition("=")
        setting = LaunchSetting(key or "\\", text if sign else None, text, Location(path, cut.line))
        says = Message(f"preflight_rules.cut-{cut.why}", {"line": cut.line})
        yield launch_finding("preflight.cut-off", "error", says, (setting,), _CONTINUED)


def _unset_variables(text: str, path: str, known: Mapping[str, str]) -> Iterator[LaunchFinding]:
    """A problem for each name; nothing where another file that the script reads may set it.

    With a name like it that is set, the name is a slip; without one it may come from the environment.
    """
    if re.search(r"^\s*(?:source|\.|eval)\s", text, re.MULTILINE):
        return
    names = {name for found in _SET.findall(text) for group in found for name in re.findall(r"[A-Za-z_]\w*", group)}
    ends = bool(re.search(r"^\s*set\s+(?:-\w+\s+)*-\w*u|^\s*set\s.*nounset|^#!.*\s-\w*u", text, re.MULTILINE))
    found_names = set[str]()
    for token in tokens(source_of(text)):
        is_quoted = token.text.startswith('"') and "$(" not in token.text  # where a single quote is a sign like others
        text_of_shell = token.text if is_quoted else re.sub(r"'[^']*'", "", token.text)
        for name in (one or other for one, other in _USED.findall(text_of_shell)):
            if name in names or name in known or name in found_names or _OUTSIDE.fullmatch(name):
                continue
            found_names.add(name)
            near = nearest(name, names, 0.88)
            setting = LaunchSetting(name, None, token.text, Location(path, token.line))
            key = "unset-near" if near else "unset-ends" if ends else "unset-empty"
            says = Message(f"preflight_rules.{key}", {"name": name, "near": near or "-"})
            yield launch_finding("preflight.unset", "error" if near else "warning", says, (setting,), _MANUAL)
