"""Run files read back: scripts by running them among stand-ins that note what they are called with, YAML as data.

The scripts look at the host, so a host is made up below a folder and every path of theirs is moved there; what is read
is moved back.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML

from npuenv.core.messages import Message, say

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.render.container.description import Container

Triple = tuple[str, str, bool]  # source, target, whether it is read-only

# Said where the machine that runs the tests has a lower limit; it keeps nothing from starting.
FEW_OPEN_FILES = say(Message("container.few-open-files", {"limit": 65536})) + "\n"
_MOVED = re.compile(r"(?<=[ '=:,])/(?=(?:dev|usr/local|usr/bin|etc|lib|srv)/)")
_STAND_IN = """\
#!{python} -IS
import os, sys, time
PATIENCE_S = 90
name = os.path.basename(sys.argv[0])
seen = dict(os.environ)
for word in sys.argv[1:]:  # a file of users is gone when the script has ended
    if word.startswith("type=bind,source=") and word.endswith("/etc/passwd,readonly"):
        seen["USERS"] = open(word.partition("source=")[2].partition(",")[0]).read()
with open(os.environ["CALLS"], "a") as file:
    file.write(repr([name, sys.argv[1:], seen]) + "\\n")  # importing json takes as long as all the rest
words = sys.argv[1:]
if "--relative=0" in words:  # the head's command outlives the start of its workers, as a training does
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        with open(os.environ["CALLS"]) as file:
            if "--relative=1" in file.read():
                break
        time.sleep(0.02)
if name == "scontrol":
    print("node1"); print("node2")
if name == "srun" and not any(word.startswith("--container-image") for word in words):
    command = [word for at, word in enumerate(words) if not all(each.startswith("--") for each in words[: at + 1])]
    os.execvp(command[0], command)
sys.exit(int(os.environ.get("ENDS_WITH", "0")) if name != "scontrol" else 0)
"""


@dataclass(frozen=True)
class Read:
    """What a run file asks for, whatever its form."""

    devices: frozenset[str]
    mounts: frozenset[Triple]
    environment: dict[str, str]
    image: str
    command: tuple[str, ...]  # with the image's entry point, where the form calls it itself


@dataclass(frozen=True)
class Call:
    program: str
    words: list[str]
    environ: dict[str, str]


@dataclass(frozen=True)
class Host:
    """A made-up host below `root`, and what happened on it."""

    root: Path

    def fill(self, container: Container, *, leave_out: tuple[str, ...] = ()) -> None:
        """Makes every device and source of the container but those left out, and images as files."""
        places = [(item.path, "file") for item in container.devices]
        places += [(mount.source, mount.kind) for mount in container.mounts]
        places += [(place, "directory") for place in container.mount_points]
        for path, kind in places:
            place = self.root / path.lstrip("/")
            if path in leave_out:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            place.mkdir(exist_ok=True) if kind == "directory" else place.touch()
        for ending in ("sif", "sqsh"):
            (self.root / f"{container.name}.{ending}").touch()

    def run(self, script: str, *words: str, ends_with: int = 0) -> tuple[int, str, list[Call]]:
        """Exit code, what was said on stderr, and the calls of docker, apptainer, srun and scontrol."""
        programs, calls = self.root / "bin", self.root / "calls"
        programs.mkdir(exist_ok=True)
        calls.unlink(missing_ok=True)
        for name in ("docker", "podman", "apptainer", "srun", "scontrol"):
            (programs / name).write_text(_STAND_IN.format(python=sys.executable))
            (programs / name).chmod(0o755)
        file = self.root / "script"
        file.write_text(_MOVED.sub(f"{self.root}/", script))
        environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "CALLS": str(calls),
            "ENDS_WITH": str(ends_with),
            "SLURM_JOB_NODELIST": "node[1-2]",
            "TMPDIR": str(self.root),
            "ASCEND_RT_VISIBLE_DEVICES": "4,7",
        }
        interpreter = script.partition("\n")[0].removeprefix("#!")
        done = subprocess.run(
            [interpreter, str(file), *words], env=environ, cwd=self.root, capture_output=True, text=True, timeout=240
        )
        seen = [Call(*ast.literal_eval(line)) for line in calls.read_text().splitlines()] if calls.exists() else []
        return done.returncode, self.back(done.stderr), seen

    def back(self, text: str) -> str:
        return text.replace(f"{self.root}/", "/")


def read_script(host: Host, script: str, *words: str) -> Read:
    """The one call of a container engine that a script ends in."""
    code, said, calls = host.run(script, *words)
    assert (code, said.replace(FEW_OPEN_FILES, "")) == (0, "")
    call = calls[-1]
    reader = {"docker": _docker, "podman": _docker, "apptainer": _apptainer, "srun": _srun}[call.program]
    return reader(host, call)


def options(words: list[str], flags: set[str]) -> tuple[list[tuple[str, str]], list[str]]:
    """Options with their values up to the first word that is none, and the words from there on."""
    found, at = [], 0
    while words[at].startswith("--"):
        name, equals, value = words[at].partition("=")
        if equals or name in flags:
            found.append((name, value))
            at += 1
        else:
            found.append((name, words[at + 1]))
            at += 2
    return found, words[at:]


def _docker(host: Host, call: Call) -> Read:
    assert call.words[0] == "run"
    found, rest = options(call.words[1:], {"--rm", "--init", "--interactive", "--tty"})
    devices, mounts, environment = set(), set(), dict[str, str]()
    for name, value in found:
        if name == "--device":
            outside, inside = host.back(value).split(":")
            assert outside == inside
            devices.add(outside)
        elif name == "--mount":
            parts = dict(part.partition("=")[::2] for part in host.back(value).split(","))
            assert parts["type"] == "bind"
            if parts["target"] == "/etc/passwd":
                continue  # made by the script
            mounts.add((parts["source"], parts["target"], "readonly" in parts))
        elif name == "--env":
            key, told = value.split("=", 1)
            environment[key] = told
    return Read(frozenset(devices), frozenset(mounts), environment, rest[0], tuple(rest[1:]))


def _triples(host: Host, texts: list[str]) -> tuple[frozenset[str], frozenset[Triple]]:
    """`source:target[:ro]` of pyxis and Apptainer, where device nodes are mounts like others."""
    parts = [host.back(text).split(":") for text in texts]
    devices = {source for source, *_ in parts if source.startswith("/dev/")}
    assert [text for text in parts if text[0] in devices and text != [text[0], text[0]]] == []
    mounts = {(text[0], text[1], text[2:] == ["ro"]) for text in parts if text[0] not in devices}
    return frozenset(devices), frozenset(mounts)


def _apptainer(host: Host, call: Call) -> Read:
    assert call.words[0] == "exec"
    found, rest = options(call.words[1:], {"--contain", "--cleanenv", "--writable-tmpfs", "--ipc"})
    assert {"--contain", "--cleanenv"} <= {name for name, _ in found}
    devices, mounts = _triples(host, [value for name, value in found if name == "--bind"])
    marker = "APPTAINERENV_"
    environment = {name.removeprefix(marker): value for name, value in call.environ.items() if name.startswith(marker)}
    return Read(devices, mounts, environment, host.back(rest[0]), tuple(rest[1:]))


def _srun(host: Host, call: Call) -> Read:
    found, rest = options(call.words, {"--no-container-mount-home"})
    given = dict(found)
    assert call.environ["ENROOT_RESTRICT_DEV"] == "y"
    devices, mounts = _triples(host, given["--container-mounts"].replace("\\040", " ").split(","))
    name = "ASCEND_RT_VISIBLE_DEVICES"
    return Read(devices, mounts, {name: call.environ[name]}, host.back(given["--container-image"]), tuple(rest))


def load_yaml(text: str) -> Any:
    return load_all(text)[0]


@functools.cache  # reading takes longer than anything that a test does with it; nobody changes what was read
def load_all(text: str) -> tuple[Any, ...]:
    return tuple(YAML(typ="safe").load_all(text))


def read_compose(text: str) -> Read:
    (service,) = load_yaml(text)["services"].values()
    devices = [device.split(":") for device in service["devices"]]
    assert [pair for pair in devices if pair[0] != pair[1]] == []
    mounts = {(volume["source"], volume["target"], volume["read_only"]) for volume in service["volumes"]}
    return Read(
        frozenset(pair[0] for pair in devices),
        frozenset(mounts),
        service["environment"],
        service["image"],
        tuple(service.get("command", ())),
    )


def pods(text: str) -> list[dict[str, Any]]:
    """The pod of each task of a Job, of Kubernetes or of Volcano, which is the last document."""
    spec = load_all(text)[-1]["spec"]
    templates = [task["template"] for task in spec["tasks"]] if "tasks" in spec else [spec["template"]]
    return [template["spec"] for template in templates]


def read_pod(pod: dict[str, Any]) -> Read:
    """Without devices: the device plugin brings them. What is mounted from no host path is left out."""
    (main,) = pod["containers"]
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {
        (sources[mount["name"]], mount["mountPath"], mount["readOnly"])
        for mount in main["volumeMounts"]
        if mount["name"] in sources
    }
    environment = {item["name"]: item["value"] for item in main["env"] if "value" in item}
    return Read(frozenset(), frozenset(mounts), environment, main["image"], tuple(main.get("args", ())))


def _read_pods(text: str) -> dict[str, Read]:
    return {f"pod {place}": read_pod(pod) for place, pod in enumerate(pods(text))}


YAML_READERS: dict[str, Callable[[str], dict[str, Read]]] = {
    "compose.yaml": lambda text: {"service": read_compose(text)},
    "kubernetes.yaml": _read_pods,
}


def read_all(host: Host, files: dict[str, str]) -> dict[str, Read]:
    """Every file read back, by its name, for YAML with the part of it. KeyError: a form that nothing reads."""
    found = {}
    for name, text in files.items():
        if name.endswith(".sh"):
            found[name] = read_script(host, text)
        else:
            found |= {f"{name} {part}": read for part, read in YAML_READERS[name](text).items()}
    return found
