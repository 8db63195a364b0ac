"""The steps that fetch a component's source, from its repository or a supplied copy, and build it in the environment.

A source is assembled beside its final location and then exchanged for the former one, so that an unreachable repository
leaves the former source in place. The notes `source-NAME.txt` and `built-NAME.txt` record which source is present and
what was built.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.core.messages import Message
from npuenv.core.plan import Action, Condition, Run, Step, WriteFile
from npuenv.host.base import PathState
from npuenv.install.plan.cann import LAUNCHER, cann_scripts
from npuenv.install.plan.local_sources import is_folder, unpacker

if TYPE_CHECKING:
    from npuenv.host.base import Host
    from npuenv.install.locations import EnvironmentPlace
    from npuenv.install.plan.context import Making
    from npuenv.resolve.types import BuildStep, GitSource, Stack

UNPACKER = "unpacker.py"
_SUPPLIED = re.compile(r"(sha256|tree):[0-9a-f]+|folder .+")  # a note about a source from no repository


def build(making: Making, item: BuildStep, source: GitSource) -> list[Step]:
    """The step that fetches the source, and the one that builds it unless it is used in place."""
    name = canonicalize_name(source.name)
    is_only = len(item.what) == 1
    fetch = f"{item.id}-source" if is_only else f"{name}-source"
    given = making.tools.given.get(name, "")
    if given:
        steps = [_given(making, fetch, source, given)]
    else:
        steps = [(_keep if supplied(making, source) else _cloned)(making, fetch, source)]
    if source.how != "pythonpath":
        steps.append(_built(making, item.id if is_only else name, item.why, source))
    return steps


def supplied_in(host: Host, target: EnvironmentPlace, stack: Stack) -> dict[str, str]:
    """Normalised name -> digest of each source in an environment that came from no repository."""
    found = {}
    for source in stack.git_sources:
        note, text = host.look(_note_path(target, source)), ""
        if note.state is PathState.FILE and host.look(_place(target, source)).state is PathState.FOLDER:
            text = note.text.removesuffix("\n")
        if _SUPPLIED.fullmatch(text):
            found[str(canonicalize_name(source.name))] = text
    return found


def supplied(making: Making, source: GitSource) -> str:
    """The digest of a source from no repository, supplied now or before; "" for one from its repository."""
    name = canonicalize_name(source.name)
    given, digest = making.tools.given.get(name, ""), making.tools.digests.get(name, "")
    if not given:
        return making.tools.supplied_before.get(name, "")
    if _is_linked(source, given, digest):
        return f"folder {given}"  # the user's own folder, whose content may change
    return digest or given  # the same archive at another path is the same source


def _place(target: EnvironmentPlace, source: GitSource) -> str:
    return f"{target.root}/src/{source.name}"


def _note_path(target: EnvironmentPlace, source: GitSource) -> str:
    return target.own(f"source-{canonicalize_name(source.name)}.txt")


def _note(making: Making, source: GitSource) -> tuple[str, str]:
    """The note beside a source: its path, and a text that differs for every source."""
    text = supplied(making, source) or f"{source.repo} {source.ref}"
    return _note_path(making.target, source), f"{text}\n"


def _is_linked(source: GitSource, given: str, digest: str) -> bool:
    """Whether a folder stays editable because the user works in it. Everything else is unpacked or copied."""
    return is_folder(given, digest) and source.how != "install"


def _cloned(making: Making, step: str, source: GitSource) -> Step:
    folder = _place(making.target, source)
    new = f"{folder}.new"
    # A clone has all branches but the default one under the remote's name only.
    ref = f"origin/{source.ref}" if source.is_moving else source.ref
    kind = "-moving" if source.is_moving else "-commit" if source.commit else ""
    why = Message(f"plan.why-source{kind}", {"repo": source.repo, "ref": source.ref, "commit": source.commit})
    do = (
        Run(("rm", "-rf", new)),
        Run(("git", "clone", "--filter=blob:none", "--no-checkout", source.repo, new)),
        # The commit rather than the tag, which its owner can move. The step fails if the commit is unreachable.
        Run(("git", "-C", new, "checkout", "--detach", source.commit or ref)),
        Run(("git", "-C", new, "submodule", "update", "--init", "--recursive")),
        *_exchange(making, source),
    )
    done_when = (
        Condition("file.text", *_want_note(making, source)),
        Condition("path.state", (f"{folder}/.git",), "folder"),
    )
    return Step(step, why, do, done_when, needs_network=True)


def _given(making: Making, step: str, source: GitSource, given: str) -> Step:
    folder = _place(making.target, source)
    new = f"{folder}.new"
    digest = making.tools.digests.get(canonicalize_name(source.name), "")
    program = making.target.own(UNPACKER)
    do: tuple[Action, ...] = (Run(("rm", "-rf", new)),)
    if _is_linked(source, given, digest):
        why = Message("plan.why-source-linked", {"name": source.name, "path": given})
        do += (Run(("mkdir", "-p", f"{making.target.root}/src")), Run(("ln", "-s", given, new)))
    else:
        why = Message("plan.why-source-given", {"name": source.name, "path": given})
        argv = (making.tools.base_python, "-I", "-B", program, "unpack", given, digest or "-", new)
        do += (WriteFile(program, unpacker()), Run(argv))
    wants = (Condition("file.text", *_want_note(making, source)), Condition("path.state", (folder,), "folder"))
    return Step(step, why, (*do, *_exchange(making, source)), wants)


def _keep(making: Making, step: str, source: GitSource) -> Step:
    """Keeps a source that was supplied before: the user may work in it, and its origin is not recorded.

    A script that runs on another machine stops here.
    """
    folder = _place(making.target, source)
    wants = (Condition("file.text", *_want_note(making, source)), Condition("path.state", (folder,), "folder"))
    why = Message("plan.why-source-kept", {"name": source.name, "path": folder})
    return Step(step, why, (Run(("test", "-d", folder)),), wants)


def _want_note(making: Making, source: GitSource) -> tuple[tuple[str, ...], str]:
    path, text = _note(making, source)
    return (path,), text


def _exchange(making: Making, source: GitSource) -> tuple[Action, ...]:
    """Replaces the old folder with the new one. The note is removed before and written after, so that it never lies."""
    folder, (note, text) = _place(making.target, source), _note(making, source)
    return (
        Run(("rm", "-f", note)),
        Run(("rm", "-rf", folder)),
        Run(("mv", f"{folder}.new", folder)),
        WriteFile(note, text),
    )


def _built(making: Making, step: str, why: Message, source: GitSource) -> Step:
    name, folder = canonicalize_name(source.name), _place(making.target, source)
    env = {**_build_env(making, source), **source.build_env}
    where = ("-e", folder) if source.how == "editable" else (folder,)
    # uv checks only a folder's build files for changes; but here every build has another source.
    options = ("--no-deps", "--no-build-isolation", "--reinstall-package", name, *making.tools.offline)
    build = making.uv("pip", "install", "--python", making.target.python, *options, *where, env=env)
    note, text = making.target.own(f"built-{name}.txt"), _built_text(making, source, env)
    do: tuple[Action, ...] = (Run(("rm", "-f", note)), build)
    if making.stack.cann_root:
        # Builds need CANN's variables; its set_env.sh is a shell script, so a small launcher sources it.
        launcher = making.target.own("with-cann.sh")
        run = Run(("sh", launcher, *build.argv), build.env, build.unset)
        do = (Run(("rm", "-f", note)), WriteFile(launcher, LAUNCHER, 0o755), run)
    done_when = (
        Condition("env.dists", (making.target.root, name), "complete"),
        Condition("file.text", (note,), text),
    )
    return Step(step, why, (*do, WriteFile(note, text)), done_when, is_upkeep=making.is_own)


def _built_text(making: Making, source: GitSource, env: dict[str, str]) -> str:
    """The inputs of a build: the source and the variables that affect its result."""
    settings = {**source.build_env} | ({"SOC_VERSION": env["SOC_VERSION"]} if "SOC_VERSION" in env else {})
    return _note(making, source)[1] + "".join(f"{key}={value}\n" for key, value in sorted(settings.items()))


def _build_env(making: Making, source: GitSource) -> dict[str, str]:
    # With torch_npu installed a plain `import torch` in a setup.py fails without a card, hence no autoload.
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VIRTUAL_ENV": making.target.root}
    if making.stack.cann_root:
        env["NPUENV_CANN"], env["NPUENV_NNAL"] = cann_scripts(making.stack)
    if supplied(making, source) and _is_version(source.ref):
        # An archive of a repository has no history from which setuptools-scm could read the version.
        env["SETUPTOOLS_SCM_PRETEND_VERSION"] = source.ref.removeprefix("v")
    return env | ({"SOC_VERSION": making.stack.soc_version} if making.stack.soc_version else {})


def _is_version(ref: str) -> bool:
    return re.fullmatch(r"v?\d+(\.\d+)+((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", ref) is not None
