"""What shell commands do to an environment: the events that the rules read.

Understands pip and uv pip, git clone and checkout, cd, export, source, downloads, and what turns TLS off.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.finding import Location
from npuenv.core.shellscript import Command, commands
from npuenv.core.shellwords import ARCH, UNKNOWN, LineMap
from npuenv.maintain.lint.requirement_files import parse_requirement
from npuenv.maintain.lint.values import Clone, EnvSetting, Event, PipInstall, Remark, Requirement, Uninstall

if TYPE_CHECKING:
    from collections.abc import MutableMapping

_PIP = re.compile(r"(?:.*/)?pip(?:3(?:\.\d+)?)?$")
_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?$")
_INDEX_OPTIONS = (
    "-i", "--index-url", "--index", "--default-index", "--extra-index-url", "--extra-index", "-f", "--find-links",
)  # fmt: skip
_VALUE_OPTIONS = (
    "-c", "--constraint", "-t", "--target", "--trusted-host", "--python", "-p", "--prefix", "--root", "--cert",
    "--timeout", "--no-binary", "--only-binary", "--platform", "--python-version", "--index-strategy",
    "--config-settings", "-C", "--progress-bar", "--retries", "--cache-dir", "--log", "--proxy", "--upgrade-strategy",
    "--implementation", "--abi", "--override", "--link-mode", "--torch-backend", "--exclude-newer", "--extra",
    "--default-timeout",
)  # fmt: skip
_CLONE_OPTIONS = (
    "-b", "--branch", "--depth", "-j", "--jobs", "--reference", "-c", "--config", "-o", "--origin",
)  # fmt: skip
_INDEX_SETTINGS = (
    "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_INDEX",
    "UV_FIND_LINKS",
)  # fmt: skip
_TLS_SETTINGS = ("PIP_TRUSTED_HOST", "GIT_SSL_NO_VERIFY", "UV_INSECURE_HOST")
_CANN_FILE = re.compile(r"Ascend-cann-toolkit_([0-9A-Za-z.\-]+?)_linux")


@dataclass(slots=True)
class ScriptReader:
    """Turns the commands of one script or stage into events; `env` and `folder` go on from command to command."""

    path: str
    env: MutableMapping[str, str] = field(default_factory=dict)
    folder: str = "/"
    events: list[Event] = field(default_factory=list)
    clones: dict[str, int] = field(default_factory=dict)  # folder to the clone's place in `events`
    indexes: list[str] = field(default_factory=list)  # set for the whole script by `pip config`

    def read(self, source: LineMap) -> None:
        """Takes in a text. Changes of folder and of variables stay; a caller that wants them gone restores them."""
        for command in commands(source, self.env):
            self._note(command)

    def _note(self, command: Command) -> None:
        place = Location(self.path, command.line)
        for name, value in command.own.items():
            self._setting(place, name, value, command)
        words = _without_prefix(command.words)
        if not words:
            return
        pip = _pip_arguments(words)
        if pip:
            self._pip(place, pip, command)
        elif words[0] == "cd":
            self.folder = self.inside(words[1] if len(words) > 1 else "")
        elif words[0] == "git":
            self._git(place, words[1:], command)
        elif words[0] == "source":
            self._remark(place, "source", " ".join(words), command)
        elif words[0] in ("wget", "curl"):
            self._download(place, words, command)
        elif words[0].endswith(".sh") or (words[0] in ("bash", "sh") and any(each.endswith(".sh") for each in words)):
            # another script: what it installs is not in this text
            self.events.append(PipInstall(place, (), (), (), (), {}, False, command.arch, command.certain, opaque=True))
        self._cann(place, words, command)

    def _remark(self, place: Location, kind: str, text: str, command: Command) -> None:
        shown = text.replace(UNKNOWN, "?").replace(ARCH, "$(uname -m)")
        self.events.append(Remark(place, kind, shown, command.arch, command.certain))  # type: ignore[arg-type]

    def _setting(self, place: Location, name: str, value: str, command: Command) -> None:
        if UNKNOWN not in value:
            self.events.append(EnvSetting(place, name, value, command.arch))
        if turns_tls_off(name, value):
            self._remark(place, "tls", f"{name}={value}", command)

    def _cann(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        """A toolkit that is installed over the image's own."""
        is_run = words[0] in ("bash", "sh") or words[0].startswith("./")
        found = _CANN_FILE.search(" ".join(words[:3])) if is_run else None
        if found and versions.is_cann(found[1]):
            self._remark(place, "cann", found[1], command)

    def inside(self, name: str) -> str:
        """A path as seen from the folder the script is in. What is not decided stays in it as UNKNOWN."""
        if name.startswith("~") or not name:
            name = "/root/" + name.lstrip("~/")
        return posixpath.normpath(posixpath.join(self.folder, name))

    def _download(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        off = {"--no-check-certificate", "-k", "--insecure"} & set(words[1:])
        if off:
            self._remark(place, "tls", f"{words[0]} {min(off)}", command)
        for each in words[1:]:
            if "://" in each and ARCH not in each and UNKNOWN not in each:
                self._remark(place, "download", each, command)

    def _pip(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        verb, rest = words[0], words[1:]
        if verb == "uninstall":
            known = (each for each in rest if not each.startswith("-") and UNKNOWN not in each)
            names = tuple(map(versions.normalised, known))
            self.events.append(Uninstall(place, names, command.arch, command.certain))
        elif verb == "config" and len(rest) >= 3 and rest[0] == "set":
            self._config(place, rest[1], rest[2], command)
        elif verb == "install":
            self._install(place, rest, command)

    def _config(self, place: Location, key: str, value: str, command: Command) -> None:
        if key.endswith("trusted-host"):
            self._remark(place, "tls", f"pip config set {key} {value}", command)
        elif key.endswith(("index-url", "find-links")):
            self.indexes.append(value)

    def _install(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        options = _options(words)
        for host in options.values("--trusted-host"):
            self._remark(place, "tls", f"pip install --trusted-host {host}", command)
        set_by_env = [part for name in _INDEX_SETTINGS for part in command.env.get(name, "").split()]
        indexes = (*self.indexes, *set_by_env, *options.values(*_INDEX_OPTIONS))
        requirements = list[Requirement]()
        builds = [self.inside(_bare(each)) for each in options.values("-e", "--editable")]
        opaque = any("://" in each and UNKNOWN in each.rpartition("/")[2][:1] for each in options.free)
        for each in options.free:
            found = _requirement_of(each, place)
            if found is not None and not (found.spec == "" and self.inside(_bare(each)) in self.clones):
                spec = None if UNKNOWN in each or ARCH in each else found.spec
                arch, text = command.arch or found.arch, each.replace(UNKNOWN, "?")
                requirements.append(replace(found, spec=spec, arch=arch, indexes=indexes, text=text))
            elif "://" not in each and "==" not in each:
                builds.append(self.inside(_bare(each)))
        files = tuple(self.inside(each) for each in options.values("-r", "--requirement"))
        asks, no_deps = (tuple(requirements), files, tuple(builds), indexes), "--no-deps" in options.flags
        self.events.append(PipInstall(place, *asks, dict(command.env), no_deps, command.arch, command.certain, opaque))

    def _git(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        folder = self.folder
        while len(words) > 1 and words[0] in ("-C", "-c"):
            folder = self.inside(words[1]) if words[0] == "-C" else folder
            words = words[2:]
        verb, rest = (words[0], words[1:]) if words else ("", ())
        if verb == "config" and "http.sslverify" in " ".join(rest).lower() and "false" in " ".join(rest).lower():
            self._remark(place, "tls", "git config http.sslVerify false", command)
        elif verb == "clone":
            self._clone(place, rest, command)
        elif verb == "checkout":
            refs = [each for each in rest if not each.startswith("-")]
            self._check_out(place, folder, refs[0] if refs else "", command)

    def _clone(self, place: Location, words: tuple[str, ...], command: Command) -> None:
        options = _options(words, _CLONE_OPTIONS)
        if not options.free:
            return
        name = options.free[0].rstrip("/").rpartition("/")[2].removesuffix(".git")
        folder = self.inside(options.free[1] if len(options.free) > 1 else name)
        refs = options.values("-b", "--branch")
        self.clones[folder] = len(self.events)
        self.events.append(Clone(place, name.lower(), _decided(refs[-1] if refs else ""), folder, command.certain))

    def _check_out(self, place: Location, folder: str, ref: str, command: Command) -> None:
        """The clone in a folder gets another ref, and the place where that is said."""
        at = self.clones.get(folder)
        event = self.events[at] if at is not None else None
        if at is not None and isinstance(event, Clone) and ref:
            certain = event.certain and command.certain
            self.events[at] = replace(event, place=place, ref=_decided(ref), certain=certain)


def turns_tls_off(name: str, value: str) -> bool:
    """Whether an environment variable switches the check of certificates off."""
    return name in _TLS_SETTINGS and value not in ("", "0", "false")


@dataclass(slots=True)
class _Options:
    flags: set[str] = field(default_factory=set)
    free: list[str] = field(default_factory=list)
    pairs: list[tuple[str, str]] = field(default_factory=list)

    def values(self, *names: str) -> tuple[str, ...]:
        return tuple(value for name, value in self.pairs if name in names)


def _options(words: tuple[str, ...], valued: tuple[str, ...] = ()) -> _Options:
    """Words as options with a value, flags, and the rest. The options of `pip install` unless others are given."""
    valued = valued or (*_INDEX_OPTIONS, *_VALUE_OPTIONS, "-e", "--editable", "-r", "--requirement")
    found = _Options()
    waiting = ""
    for word in words:
        if waiting:
            found.pairs.append((waiting, word))
            waiting = ""
        elif word in valued:
            waiting = word
        elif word.startswith("--") and "=" in word:
            name, _, value = word.partition("=")
            found.pairs.append((name, value))
        elif re.match(r"-[er][^-]", word):
            found.pairs.append((word[:2], word[2:]))
        elif word.startswith("-"):
            found.flags.add(word)
        elif word:
            found.free.append(word)
    return found


def _requirement_of(word: str, place: Location) -> Requirement | None:
    """A word of an install as a requirement; without a version where the text does not decide it."""
    if UNKNOWN not in word or word.endswith(".whl"):
        return parse_requirement(word.replace(UNKNOWN, "_"), place)
    named = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*[=<>!~]", word)
    return Requirement(versions.normalised(named[1]), None, word, place) if named else None


def _without_prefix(words: tuple[str, ...]) -> tuple[str, ...]:
    """A command without `sudo`, `exec`, `env`, `time` in front."""
    while words and words[0] in ("sudo", "exec", "env", "time", "nohup", "command", "-E"):
        words = words[1:]
    return words


def _pip_arguments(words: tuple[str, ...]) -> tuple[str, ...]:
    """The verb and its arguments where the command is pip or uv pip, else nothing."""
    if _PIP.match(words[0]):
        rest = words[1:]
    elif (words[0] == "uv" and words[1:2] == ("pip",)) or (_PYTHON.match(words[0]) and words[1:3] == ("-m", "pip")):
        rest = words[2 if words[0] == "uv" else 3 :]
    else:
        return ()
    while rest and rest[0].startswith("-"):
        rest = rest[1:]
    return rest


def _bare(path: str) -> str:
    """A local project without its extras: `/src/vllm/[audio]` gives `/src/vllm/`."""
    return re.sub(r"\[[^\]]*\]$", "", path)


def _decided(ref: str) -> str | None:
    return None if UNKNOWN in ref or ARCH in ref else ref
