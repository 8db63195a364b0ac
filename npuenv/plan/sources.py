"""The steps that fetch a component's repository at its pinned place and build it inside the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from npuenv.messages import Message
from npuenv.plan.cann import cann_scripts
from npuenv.plan.types import Action, Run, Step, Want, WriteFile

if TYPE_CHECKING:
    from npuenv.plan.making import Making
    from npuenv.resolve.types import BuildStep, GitSource


def build(making: Making, item: BuildStep, source: GitSource) -> list[Step]:
    name = canonicalize_name(source.name)
    folder, note = f"{making.target.root}/src/{source.name}", making.target.own(f"source-{name}.txt")
    text = f"{source.repo} {source.ref}\n"
    # A clone knows every branch but the default one under the remote's name only.
    ref = f"origin/{source.ref}" if source.is_moving else source.ref
    fetch = Step(
        f"{item.id}-source" if len(item.what) == 1 else f"{name}-source",
        Message("plan.why-source-moving" if source.is_moving else "plan.why-source",
                {"repo": source.repo, "ref": source.ref}),
        (
            Run(("rm", "-rf", folder)),
            Run(("git", "clone", "--filter=blob:none", "--no-checkout", source.repo, folder)),
            Run(("git", "-C", folder, "checkout", "--detach", ref)),
            Run(("git", "-C", folder, "submodule", "update", "--init", "--recursive")),
            WriteFile(note, text),
        ),
        (Want("file.text", (note,), text), Want("path.state", (f"{folder}/.git",), "folder")),
        needs_network=True,
    )  # fmt: skip
    if source.how == "pythonpath":
        return [fetch]
    where = ("-e", folder) if source.how == "editable" else (folder,)
    build = making.uv(
        "pip", "install", "--python", making.target.python, "--no-deps", "--no-build-isolation", *where,
        env={**_build_env(making), **source.build_env},
    )  # fmt: skip
    do: tuple[Action, ...] = (build,)
    if making.stack.cann_root:
        # Builds need CANN's variables; its set_env.sh is a shell script, so a small launcher sources it.
        launcher = making.target.own("with-cann.sh")
        do = (WriteFile(launcher, _LAUNCHER, 0o755), Run(("sh", launcher, *build.argv), build.env, build.unset))
    want = Want("env.dists", (making.target.root, name), "complete")
    return [fetch, Step(item.id if len(item.what) == 1 else name, item.why, do, (want,))]


def _build_env(making: Making) -> dict[str, str]:
    # With torch_npu installed a plain `import torch` in a setup.py dies where no card is there: no autoload.
    env = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "VIRTUAL_ENV": making.target.root}
    if making.stack.cann_root:
        env["NPUENV_CANN"], env["NPUENV_NNAL"] = cann_scripts(making.stack)
    return env | ({"SOC_VERSION": making.stack.soc_version} if making.stack.soc_version else {})


_LAUNCHER = """\
#!/bin/sh
# Runs a command with the environment of CANN (its script is named in NPUENV_CANN) and of NNAL, where that is installed.
# These scripts read variables that need not be set, so `set -u` must be off here.
set +u
if [ ! -r "$NPUENV_CANN" ]; then
    echo "CANN is not installed: there is no $NPUENV_CANN" >&2
    exit 1
fi
. "$NPUENV_CANN"
if [ -r "$NPUENV_NNAL" ]; then
    . "$NPUENV_NNAL"
fi
PATH="$VIRTUAL_ENV/bin:$PATH"
export PATH
exec "$@"
"""
