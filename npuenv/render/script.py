"""A plan as a POSIX shell script that does the same as `npuenv install`.

The script holds no secrets: variables that carry some are named in its head and read from the caller's environment.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shlex
from typing import TYPE_CHECKING

from npuenv.core.documents import parse_json
from npuenv.core.messages import Message, say
from npuenv.core.plan import Action, Condition, Plan, Step, WriteFile
from npuenv.facts.conditions import INSPECTOR, PREFIX_PYTHON
from npuenv.facts.manifest import MANIFEST, MARKER

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from npuenv.facts.pip import UvSettings

_END = "NPUENV_END_OF_FILE"
_PYTHON_VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"
_STATUS = "${Status}\\n"
_BELOW = ("system.packages", "cann.toolkit", "cann.ops", "cann.nnal")
_HAS_DIST = "import sys; from importlib.metadata import version; version(sys.argv[1])"
_OF_TOOLS = r"s/^\(UV_[A-Za-z0-9_]*\)=.*/\1/p; s/^\(PIP_[A-Za-z0-9_]*\)=.*/\1/p"


def render_script(
    plan: Plan,
    settings: UvSettings,
    *,
    title: str,
    lang: str = "en",
    steps: Sequence[Step] | None = None,
    is_replacing: bool = False,
) -> str:
    """The script's text. `title` says which stack and which npuenv made it; pure, deterministic.

    `steps`: those of the plan that the script does, None for all. `is_replacing`: a finished environment of another
    lock may be given up.
    """
    lines = ["#!/bin/sh", *_comment(say(Message("plan.script-head", {"title": title}), lang))]
    if settings.secret:
        named = Message("plan.script-secrets", {"names": tuple(sorted(settings.secret))})
        lines += _comment(say(named, lang))
    lines += ["set -eu", *_variables(settings), *_claim(plan, lang, is_replacing=is_replacing)]
    steps = plan.steps if steps is None else steps
    for number, step in enumerate(steps, 1):
        lines += ["", *_step(step, f"[{number}/{len(steps)}] {step.id}: {say(step.why, lang)}", lang)]
    return "\n".join(lines) + "\n"


def _variables(settings: UvSettings) -> list[str]:
    """What an installation takes from the caller's environment, and what it sets there for its steps."""
    kept = "|".join(("UV_CACHE_DIR", *sorted(settings.secret)))
    lines = [
        "unset PYTHONPATH PYTHONHOME VIRTUAL_ENV CONDA_PREFIX",
        f"for name in $(env | sed -n {shlex.quote(_OF_TOOLS)}); do",
        f'case $name in {kept}) ;; *) unset "$name" ;; esac',
        "done",
    ]
    for name, value in sorted(settings.public.items()):
        lines += [f"{name}={shlex.quote(value)}", f"export {name}"]
    if cert := settings.public.get("SSL_CERT_FILE"):  # git reads no variable but its own
        lines += [f'[ -n "${{GIT_SSL_CAINFO:-}}" ] || GIT_SSL_CAINFO={shlex.quote(cert)}', "export GIT_SSL_CAINFO"]
    return lines


def _claim(plan: Plan, lang: str, *, is_replacing: bool) -> list[str]:
    """What keeps the script from a folder that `npuenv install` would not touch, and from one that is being worked on.

    A plan that makes no environment claims none. What the steps start holds the lock too, as with `npuenv install`.
    """
    written = [action for step in plan.steps for action in step.do if isinstance(action, WriteFile)]
    manifest = next((action for action in written if action.path.endswith(f"/{MANIFEST}")), None)
    if manifest is None:
        return []
    root, made = manifest.path[: -len(MANIFEST) - 1], parse_json(manifest.text)
    own = posixpath.join(root, ".npuenv")
    said = shlex.quote(_one_line(say(Message("execute.waiting", {"path": root}), lang)))
    guard = [] if made["kind"] == "existing" else _guard(root, made, is_replacing=is_replacing)
    guarded = _unless(guard, Message("plan.script-foreign", {"path": root}), lang)
    return [
        *guarded,
        f"mkdir -p {shlex.quote(own)}",
        f"exec 9>>{shlex.quote(posixpath.join(own, 'running'))}",
        *["if command -v flock >/dev/null && ! flock -n 9; then", f"echo {said} >&2", "flock 9", *guarded, "fi"],
    ]


def _guard(root: str, made: Mapping[str, Any], *, is_replacing: bool) -> list[str]:
    """Conditions of which one holds where the folder is new, was begun and not finished, or holds what the plan makes.

    What `npuenv.install.target` asks, but that a damaged marker says nothing here.
    """
    marker, manifest = posixpath.join(root, MARKER), posixpath.join(root, MANIFEST)
    begun = " | ".join(map(shlex.quote, ("", ".npuenv", f".npuenv\n{MARKER}.new")))
    is_new = f"case $(ls -A {shlex.quote(root)} 2>&1) in {begun}) ;; *) false ;; esac"
    is_own = f"! {_says('kind', 'existing', marker, manifest)} && {_says('stack', '', marker)}"
    if is_replacing:
        return [f"[ ! -e {shlex.quote(root)} ]", is_new, f"{{ {is_own}; }}"]
    other = "conda" if made["kind"] == "venv" else "venv"
    is_same = f"{_says('lock', made['lock'], marker)} && ! {_says('kind', other, manifest)}"
    is_same = f"{{ {_says('status', 'building', marker)} || {{ {is_same}; }}; }}"
    return [f"[ ! -e {shlex.quote(root)} ]", is_new, f"{{ {is_own} && {is_same}; }}"]


def _says(name: str, value: str, *files: str) -> str:
    """Whether one of these files of ours has a value; "" stands for every text."""
    text = f'"{name}": "{value}"' if value else f'"{name}": "'
    return f"grep -Fqs {shlex.quote(text)} {_words(files)}"


def _unless(conditions: Sequence[str], message: Message, lang: str) -> list[str]:
    """Ends the script with a sentence unless one of the conditions holds; without conditions nothing is asked."""
    said = shlex.quote(_one_line(say(message, lang)))
    return [" ||\n".join([*conditions, f"{{ echo {said} >&2; exit 2; }}"])] if conditions else []


def _step(step: Step, head: str, lang: str) -> list[str]:
    body = [line for action in step.do for line in _action(action)]
    tests = [_test(want) for want in step.done_when]
    known = [test for test in tests if test]
    if not known or len(known) < len(tests):
        return [f"echo {shlex.quote(_one_line(head))}", *body]
    condition = " && ".join(known)
    skipped = shlex.quote(_one_line(f"{head} - {say(Message('plan.script-skipped'), lang)}"))
    return [f"if {condition}; then", f"echo {skipped}", "else", f"echo {shlex.quote(_one_line(head))}", *body, "fi"]


def _test(want: Condition) -> str | None:
    """The condition as shell, or None where shell cannot ask it: then the step always runs."""
    place, wanted = want.of[0], shlex.quote(want.value)
    path = shlex.quote(place)
    python = f"{shlex.quote(posixpath.join(place, 'bin/python'))} -I -B"
    inspector = f"{python} {shlex.quote(posixpath.join(place, INSPECTOR))}"
    if want.fact == "env.dists":
        return f"{inspector} check {_words(want.of)} >/dev/null 2>&1"
    if want.fact in ("env.intact", "env.verified"):
        sign = '"damaged": {}' if want.fact == "env.intact" else f'"verified": "{want.value}"'
        return f"{inspector} state {_words(want.of)} 2>/dev/null | grep -q {shlex.quote(sign)}"
    if want.fact == "file.text":
        digest = hashlib.sha256(want.value.encode()).hexdigest()
        return f'[ "$(sha256sum 2>/dev/null < {path} | cut -c 1-64)" = {digest} ]'
    if want.fact == "venv.python":
        return f'[ "$({python} -c {shlex.quote(_PYTHON_VERSION)} 2>/dev/null)" = {wanted} ]'
    if want.fact == "prefix.python":
        return f'[ "$({python} -c {shlex.quote(PREFIX_PYTHON)} {path} 2>/dev/null)" = {wanted} ]'
    if want.fact in _BELOW:
        return _test_below(want)
    if want.fact == "path.link":
        return f'[ "$(readlink {path})" = {wanted} ]'
    if want.fact == "path.state" and want.value in ("file", "folder"):
        return f"[ -{'f' if want.value == 'file' else 'd'} {path} ]"
    if want.fact == "dist.version" and not want.value:
        return f"! {path} -I -c {shlex.quote(_HAS_DIST)} {shlex.quote(want.of[1])} >/dev/null 2>&1"
    return None


def _test_below(want: Condition) -> str:
    """Conditions about what an environment stands on, from the same files and databases as `facts.conditions`."""
    if want.fact == "system.packages":
        database, *names = want.of
        if database == "rpm":
            return f"rpm -q {_words(names)} >/dev/null 2>&1"
        return f"! dpkg-query -W -f {shlex.quote(_STATUS)} {_words(names)} 2>&1 | grep -qv ' ok installed$'"
    root = shlex.quote(want.of[0])
    key, places = {
        "cann.toolkit": ("version=", f"{root}/*-linux/ascend_toolkit_install.info"),
        # The kernels of releases before 8.5 have no file of their own but this one.
        "cann.ops": ("version(_dir)?=", f"{root}/*-linux/ascend_ops_install.info {root}/opp_kernel/version.info"),
        "cann.nnal": ("Ascend-cann-atb *: *", f"{root}/nnal/atb/latest/version.info"),
    }[want.fact]
    line = f"^{key}{re.escape(want.of[1])}([.][Bb][0-9]+)?[[:space:]]*$"
    return f"grep -Eqs {shlex.quote(line)} {places}"


def _action(action: Action) -> list[str]:
    if isinstance(action, WriteFile):
        return _write(action)
    words = _words(action.argv)
    if action.env or action.unset:
        unset = [word for name in action.unset for word in ("-u", name)]
        words = f"env {_words([*unset, *(f'{name}={value}' for name, value in action.env.items())])} {words}"
    return [f"(cd {shlex.quote(action.cwd)} && {words})" if action.cwd else words]


def _write(action: WriteFile) -> list[str]:
    assert _END not in action.text.splitlines(), action.path
    path, new = shlex.quote(action.path), shlex.quote(f"{action.path}.new")
    folder = shlex.quote(posixpath.dirname(action.path))
    if not action.text.endswith("\n"):
        return [f"mkdir -p {folder}", f"printf %s {shlex.quote(action.text)} > {new}", f"mv {new} {path}"]
    lines = [f"mkdir -p {folder}", f"cat > {new} <<'{_END}'", action.text[:-1], _END]
    return [*lines, f"chmod {action.mode:o} {new}", f"mv {new} {path}"]


def _words(words: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in text.splitlines()]


def _one_line(text: str) -> str:
    return " ".join(text.split())
