"""Captures: a host's answers in one JSON file, and a host that answers from such a file.

`RecordingHost` wraps a live host. It redacts every answer first and records it, so that a diagnosis of the live host
and of its capture see the same bytes. `load_capture` returns the host of a capture.

A capture is identified by its schema `npuenv.capture/1`. Commands are found by their argv; their environment is
ignored, so a command that depends on it needs an argv of its own.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from npuenv import __version__
from npuenv.core.documents import JsonError, load_json, parse_json
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host import Host, Looked, NotRecorded, PathState, Ran
from npuenv.host.redact import Redactor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path


SCHEMA = "npuenv.capture/1"
_ANSWER = "NPUENV-ANSWER "  # precedes the JSON of `npuenv.facts.target`


class RecordingHost:
    """A host whose answers are redacted and recorded. A repeated query returns its first answer: a capture has one
    answer per query, and live findings have to follow from the same one.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._redactor = Redactor()
        environ = host.environ()
        self._redactor.see_environ(environ)
        self._redactor.learn_host(host.name)
        # The account's name first: a session in a container often has no USER.
        with contextlib.suppress(NotRecorded):
            self._redactor.text(host.run(("id",)).out)
        self._environ = self._redactor.environ(environ)
        self._ran: dict[tuple[str, ...], Ran] = {}
        self._looked: dict[str, Looked] = {}

    @property
    def name(self) -> str:
        return self._redactor.text(self._host.name)

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """The redacted result of a command. `argv` and `env` may contain real names or stand-ins."""
        redact, restore = self._redactor.text, self._redactor.restore
        key = tuple(redact(word) for word in argv)
        if key in self._ran:
            return self._ran[key]
        real_env = None if env is None else {name: restore(value) for name, value in env.items()}
        ran = self._host.run([restore(word) for word in key], timeout_s=timeout_s, env=real_env)
        self._ran[key] = Ran(key, ran.code, self._output(ran.out), redact(ran.err), ran.timed_out)
        return self._ran[key]

    def _output(self, text: str) -> str:
        """Redacted output. In the JSON of npuenv's own programs each string is redacted by itself.

        As text, `"tiktoken": ["regex` would look like a token and its value.
        """
        before, mark, rest = text.partition(_ANSWER)
        line, end, after = rest.partition("\n")
        try:
            document = parse_json(line, has_nan=True) if mark else None
        except JsonError:
            document = None
        if document is None:
            return self._redactor.text(text)
        new = self._each(list(dict.fromkeys(_strings(document))))
        answer = json.dumps(_with_strings(document, new))
        return f"{self._redactor.text(before)}{mark}{answer}{end}{self._redactor.text(after)}"

    def _each(self, strings: list[str]) -> dict[str, str]:
        """Each string redacted; plain one-line strings together, which is a hundred times faster."""
        plain = [each for each in strings if each.isprintable() and "\\" not in each]
        lines = self._redactor.text("\n".join(plain)).split("\n")
        if len(lines) != len(plain):  # a match extended over several lines
            plain, lines = [], []
        known = dict(zip(plain, lines))
        return {each: known[each] if each in known else self._redactor.text(each) for each in strings}

    def look(self, path: str) -> Looked:
        """The redacted state of a path. The path may contain real names or stand-ins."""
        key = self._redactor.text(path)
        if key in self._looked:
            return self._looked[key]
        looked = self._host.look(self._redactor.restore(key))
        names = tuple(sorted(self._redactor.text(name) for name in looked.names))
        text, error = self._redactor.text(looked.text), self._redactor.text(looked.error)
        self._looked[key] = Looked(key, looked.state, text, names, error, looked.is_writable)
        return self._looked[key]

    def environ(self) -> Mapping[str, str]:
        """The variables that a diagnosis can need; others are not recorded."""
        return dict(self._environ)

    def redact(self, text: str) -> str:
        """A text of the user's, such as a path, with stand-ins, as in all output of this host."""
        return self._redactor.text(text)

    def restore(self, text: str) -> str:
        """The text with this host's real names, for a command that the user is to type; secrets stay hidden."""
        return self._redactor.restore(text)

    def capture_text(self) -> str:
        """All answers so far as a capture, sorted, so that the same answers give the same text."""
        document = {
            "schema": SCHEMA,
            "npuenv": __version__,
            "host": self.name,
            "environ": self._environ,
            "commands": [_ran_to_json(ran) for _, ran in sorted(self._ran.items())],
            "paths": {path: _looked_to_json(looked) for path, looked in sorted(self._looked.items())},
        }
        return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


def _strings(value: Any) -> Iterator[str]:
    """All strings of a JSON value, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _with_strings(value: Any, new: Mapping[str, str]) -> Any:
    """The same JSON value with other strings."""
    if isinstance(value, str):
        return new[value]
    if isinstance(value, dict):
        return {new[key]: _with_strings(each, new) for key, each in value.items()}
    if isinstance(value, list):
        return [_with_strings(each, new) for each in value]
    return value


class RecordedHost:
    """A host that answers from a capture, and raises NotRecorded for anything else."""

    def __init__(self, name: str, environ: Mapping[str, str], ran: Sequence[Ran], looked: Sequence[Looked]) -> None:
        self.name = name
        self._environ = dict(environ)
        self._ran = {item.argv: item for item in ran}
        self._looked = {item.path: item for item in looked}

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        """The recorded result of a command."""
        try:
            return self._ran[tuple(argv)]
        except KeyError:
            raise NotRecorded(" ".join(argv)) from None

    def look(self, path: str) -> Looked:
        """The recorded state of a path."""
        try:
            return self._looked[path]
        except KeyError:
            raise NotRecorded(path) from None

    def environ(self) -> Mapping[str, str]:
        """The recorded variables."""
        return dict(self._environ)

    def commands(self) -> tuple[tuple[str, ...], ...]:
        """Every recorded argv."""
        return tuple(self._ran)


def load_capture(path: Path) -> RecordedHost:
    """The host of a capture file. Raises: BadInput with the file and, if known, the line and column."""
    return _host_of(lambda: load_json(path), path)


def parse_capture(text: str, path: Path) -> RecordedHost:
    """The host of a capture's text; `path` is named in errors. Raises: BadInput."""
    return _host_of(lambda: parse_json(text), path)


def _host_of(read: Callable[[], Any], path: Path) -> RecordedHost:
    try:
        document = read()
    except OSError as error:
        raise _bad(path, Message("host.unreadable", {"why": error.strerror or str(error)})) from error
    except JsonError as error:
        why = Message("host.not-json", {"why": str(error)})
        raise _bad(path, why, Message("host.not-json-hint", {"file": str(path)})) from error
    found = document.get("schema") if isinstance(document, dict) else type(document).__name__
    if found != SCHEMA:
        raise _bad(path, Message("host.wrong-schema", {"found": str(found), "expected": SCHEMA}))
    return _CaptureReader(path).host(document)


class _CaptureReader:
    """Reads a parsed capture, and reports the location of a value of the wrong type."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def host(self, document: dict[str, Any]) -> RecordedHost:
        environ = self._need(document, "environ", dict, "environ")
        commands = self._need(document, "commands", list, "commands")
        paths = self._need(document, "paths", dict, "paths")
        return RecordedHost(
            self._need(document, "host", str, "host"),
            {name: self._need(environ, name, str, f"environ.{name}") for name in environ},
            [self._ran(item, f"commands[{number}]") for number, item in enumerate(commands)],
            [self._looked(path, item, f"paths.{path}") for path, item in paths.items()],
        )

    def _ran(self, item: Any, location: str) -> Ran:
        argv = self._words(item, "argv", location)
        code = self._need(item, "code", (int, type(None)), location)
        out, err = (self._need(item, key, str, location) for key in ("out", "err"))
        return Ran(argv, code, out, err, self._need(item, "timed_out", bool, location, False))

    def _looked(self, path: str, item: Any, location: str) -> Looked:
        word = self._need(item, "state", str, location)
        if word not in {state.value for state in PathState}:
            raise _bad(self._path, Message("host.wrong-state", {"place": location, "found": word}))
        names = self._words(item, "names", location, ())
        text, error = (self._need(item, key, str, location, "") for key in ("text", "error"))
        return Looked(path, PathState(word), text, names, error, self._need(item, "is_writable", bool, location, False))

    def _words(self, item: Any, key: str, location: str, default: object = None) -> tuple[str, ...]:
        words = self._need(item, key, (list, tuple), location, default)
        if not all(isinstance(word, str) for word in words):
            raise _bad(self._path, Message("host.wrong-type", {"place": f"{location}.{key}"}))
        return tuple(words)

    def _need(self, item: Any, key: str, kind: Any, location: str, default: object = None) -> Any:
        value = item.get(key, default) if isinstance(item, dict) else None
        is_missing = isinstance(item, dict) and key not in item and default is None
        if not isinstance(value, kind) or is_missing or (kind == (int, type(None)) and isinstance(value, bool)):
            place = f"{location}.{key}" if location != key else key
            raise _bad(self._path, Message("host.wrong-type", {"place": place}))
        return value


def _ran_to_json(ran: Ran) -> dict[str, object]:
    document: dict[str, object] = {"argv": list(ran.argv), "code": ran.code, "out": ran.out, "err": ran.err}
    return {**document, "timed_out": True} if ran.timed_out else document


def _looked_to_json(looked: Looked) -> dict[str, object]:
    document: dict[str, object] = {"state": looked.state.value}
    optional: dict[str, object] = {"text": looked.text, "names": list(looked.names), "error": looked.error}
    document.update({key: value for key, value in optional.items() if value})
    return {**document, "is_writable": True} if looked.is_writable else document


def _bad(path: Path, why: Message, hint: Message | None = None) -> BadInput:
    args = {"file": str(path), "why": why}
    return BadInput(Message("host.bad-capture", args), hint or Message("host.bad-capture-hint"))
