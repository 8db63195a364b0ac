"""Rendered Dockerfiles, built by buildah without a daemon and without a network, and looked at from inside.

Needs the programs buildah and git, root, and a Python of a version that some stack stands on.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.bundle import zipapp
from npuenv.matrix import load_matrix
from npuenv.render.base import DOCTOR
from npuenv.render.docker import folder_name, render_docker
from npuenv.render.files import write_files
from npuenv.render.layers import git_argument, unpinned_tags
from npuenv.resolve import resolve
from npuenv.resolve.types import Stack
from tests.render.stand_in import has_driver_group, make_base, make_index, make_repository
from tests.support.image_combinations import combinations

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.lock.file import Lock

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
KINDS = [("verl", "a2", "ubuntu22.04"), ("roll", "a3", "ubuntu22.04"), ("vllm-ascend", "310p", "openeuler24.03")]
ROOT = Path(__file__).parent.parent.parent
PROXY, LOGIN = "http://proxy.invalid:3128", "machine example.org login me password letmein\n"
# What buildah says where the kernel would not seal its copy of itself.
NOT_SEALED = "sealing memfd copy: Device or resource busy"
# What the doctor of the checkout imports beside the standard library; the image holds none of it.
NEEDED = (
    *("click", "jinja2", "markdown-it-py", "markupsafe", "mdurl", "packaging", "psutil", "pyelftools", "pygments"),
    *("rich", "ruamel.yaml", "tomli"),
)


@dataclass(frozen=True)
class Built:
    """An image of a stack, the lock it was rendered with, and the builder that holds it."""

    buildah: Buildah
    stack: Stack
    lock: Lock
    name: str

    def run(
        self, *words: str, mounts: tuple[str, ...] = (), env: tuple[str, ...] = (), user: str = "trainer"
    ) -> tuple[int, str]:
        """Exit status and output of a command in a fresh container; its errors where it says nothing else.

        What it says goes into files: on a busy machine buildah now and then ends before it has passed on all of it.
        """
        container = self.buildah("from", "--pull-never", self.name).strip()
        with TemporaryDirectory() as place:
            out, err = Path(place, "out"), Path(place, "err")
            for said in (out, err):
                said.touch()
                said.chmod(0o666)
            options = [word for mount in (*mounts, f"{place}:/said") for word in ("-v", mount)]
            options += ["--user", user]
            options += [word for value in env for word in ("--env", value)]
            within = ("sh", "-c", 'exec "$@" >/said/out 2>/said/err', "sh", *words)
            Path(place).chmod(0o755)
            try:
                done = self.buildah.start("run", "--isolation", "chroot", *options, container, "--", *within)
            finally:
                self.buildah("rm", container)
            return done.returncode, out.read_text() or err.read_text() or done.stderr


class Buildah:
    """buildah with storage of its own."""

    def __init__(self, place: Path, driver: str = "overlay") -> None:
        place.mkdir()
        (place / "storage.conf").write_text(
            f'[storage]\ndriver = "{driver}"\ngraphroot = "{place}/graph"\nrunroot = "{place}/run"\n'
        )
        hidden = ("PIP_", "UV_", "CONTAINERS_", "BUILDAH_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        self.env |= {"CONTAINERS_STORAGE_CONF": str(place / "storage.conf"), "BUILDAH_ISOLATION": "chroot"}

    def start(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The command's end; asked anew, up to four times, where it ended before it had done anything.

        buildah first copies itself into memory and seals the copy, which a busy kernel now and then refuses.
        """
        for _ in range(5):
            done = subprocess.run(["buildah", *words], env=self.env, capture_output=True, text=True, check=False)
            if done.returncode == 0 or NOT_SEALED not in done.stderr:
                break
        return done

    def __call__(self, *words: str) -> str:
        done = self.start(*words)
        assert done.returncode == 0, f"buildah {' '.join(words)}\n{done.stdout[-6000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def build(self, context: Path, name: str, *options: str) -> None:
        """An image in Docker's format: the OCI one has no SHELL."""
        fixed = ("--pull-never", "--format", "docker", "--isolation", "chroot", "--layers=false")
        self("bud", *fixed, *options, "-t", name, str(context))


@pytest.fixture(scope="module")
def buildah(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buildah]:
    """A builder that has built an empty image; skips with buildah's own words where it cannot."""
    missing = [name for name in ("buildah", "git", "ldd") if not shutil.which(name)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    place = tmp_path_factory.mktemp("buildah")
    context = place / "empty"
    context.mkdir()
    (context / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
    said = ""
    for driver in ("overlay", "vfs"):
        builder = Buildah(place / driver, driver)
        words = ("bud", "--pull-never", "--format", "docker", "-t", "localhost/empty", str(context))
        tried = builder.start(*words)
        if tried.returncode == 0:
            yield builder
            for command in (("rm", "--all"), ("rmi", "--all", "--force")):
                builder.start(*command)
            return
        said = tried.stderr.strip().splitlines()[-1]
    pytest.skip(f"buildah cannot build here: {said}")


def stack_of_kind(framework: str, hardware: str, system: str) -> Stack:
    """The first stack of the kind that stands on the Python of this process."""
    for request in combinations(load_matrix()):
        if (request.hardware, request.os) == (hardware, system):
            found = resolve(replace(request, arch=platform.machine()), load_matrix())
            if isinstance(found, Stack) and (found.framework, found.platform.python) == (framework, PYTHON):
                return found
    pytest.skip(f"no {framework} stack for {hardware} on {system} stands on Python {PYTHON}")


def with_repositories(stack: Stack, folder: Path) -> Stack:
    """The stack with a repository for each source; a recorded commit gives way to that of the repository."""
    sources = []
    for source in stack.git_sources:
        made = make_repository(folder, source)
        head = ["git", "-C", str(made), "rev-parse", "HEAD"]
        commit = subprocess.run(head, capture_output=True, text=True, check=True).stdout.strip()
        sources.append(replace(source, commit=commit[:10] if source.commit else ""))
    return replace(stack, git_sources=tuple(sources))


@pytest.fixture(
    scope="module",
    params=KINDS,
    ids=lambda kind: "-".join(kind),
)
def built(buildah: Buildah, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """An image as rendered, with mirrors, a proxy and a password given to its build."""
    place = tmp_path_factory.mktemp("image")
    stack = with_repositories(stack_of_kind(*request.param), place / "repositories")
    lock = make_index(place, stack)
    (place / "netrc").write_text(LOGIN)
    make_base(place / "base" / "root", stack)
    path = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (place / "base" / "Dockerfile").write_text(f"FROM scratch\nCOPY root/ /\nENV PATH={path}\n")
    buildah.build(place / "base", stack.image or "")
    shutil.rmtree(place / "base")
    arch, indexes = stack.platform.arch, {row.label: row for row in load_matrix().indexes}
    files = render_docker({arch: stack}, {arch: lock}, indexes=indexes, user="trainer", has_doctor=True)
    write_files(files, place)
    (place / folder_name(stack) / DOCTOR).write_bytes(zipapp.content())
    mirror = "file:///mirror/simple"
    used = {package.index for package in lock.packages if package.index}
    arguments = dict.fromkeys(("PIP_INDEX_URL", *(indexes[label].argument for label in used)), mirror)
    arguments["https_proxy"] = arguments["http_proxy"] = PROXY
    for source in stack.git_sources:
        arguments[git_argument(source)] = f"file:///mirror/repositories/{source.name}"
    given = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
    name = f"localhost/{folder_name(stack).lower()}"
    mount, secret = f"{place}:/mirror:ro", f"id=netrc,src={place / 'netrc'}"
    buildah.build(place / folder_name(stack), name, "-v", mount, "--secret", secret, *given)
    return Built(buildah, stack, lock, name)


def test_everything_locked_is_installed_and_its_own_check_says_so(built: Built) -> None:
    look = "import importlib.metadata as m; print(*sorted(f'{d.name}=={d.version}' for d in m.distributions()))"
    status, said = built.run("python3", "-c", look)
    locked = {f"{package.name}=={package.version}" for package in built.lock.packages}
    assert status == 0
    assert locked - set(said.split()) == set()
    installs = {
        source.name.lower().replace("-", "_") for source in built.stack.git_sources if source.how != "pythonpath"
    }
    assert {f"{name}==1.0" for name in installs} - set(said.split()) == set()
    kind, *command, last = inspected(built)["Healthcheck"]["Test"]
    assert (kind, last) == ("CMD", "--doctor")
    assert built.run(*command) == (0, "ok\n")


def test_the_health_check_asks_the_doctor_too(built: Built, tmp_path: Path) -> None:
    _, *command = inspected(built)["Healthcheck"]["Test"]
    assert built.run(*command) == (0, "ok\n")
    (tmp_path / "nothing").touch(mode=0o644)
    status, said = built.run(*command, mounts=(f"{tmp_path / 'nothing'}:/opt/npuenv/{DOCTOR}:ro",))
    assert status == 1
    assert said.startswith(f"{DOCTOR}: ")


def test_the_health_check_sees_what_goes_missing(built: Built) -> None:
    _, *command, wanted, last = inspected(built)["Healthcheck"]["Test"]
    assert last == "--doctor"
    name, _, number = wanted.partition("==")
    status, said = built.run(*command, f"{name}=={number}.post9", "nobody-has-this==1")
    assert status == 1
    assert said.splitlines()[0].startswith(f"{name}=={number}.post9 != {number}")
    assert said.splitlines()[1] == "nobody-has-this==1 != "


def test_the_package_tool_of_the_distribution_was_asked_for_the_stacks_packages(built: Built) -> None:
    said = built.run("cat", "/var/log/tool")[1].splitlines()
    packages = built.stack.system_packages
    if (built.stack.platform.os or "").startswith("openeuler"):
        names = " ".join(load_matrix().dnf_names(packages))
        assert said == [f"dnf install -y --setopt=install_weak_deps=False {names}", "dnf clean all"]
    else:
        asked = f"apt-get install -y --no-install-recommends {' '.join(packages)}"
        assert said == ["apt-get update", asked]
    assert f"http_proxy={PROXY}" in built.run("cat", "/var/log/tool.env")[1].replace('"', "").replace("'", "")


def test_sources_were_built_with_the_settings_of_cann(built: Built) -> None:
    site = built.run("python3", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")[1].strip()
    settings = dict(line.split("=", 1) for line in built.run("cat", f"{site}/vllm_built.txt")[1].splitlines())
    assert settings["ASCEND_HOME_PATH"] == built.stack.cann_root
    assert settings["VLLM_TARGET_DEVICE"] == "empty"
    assert settings["SOC_VERSION"] == built.stack.soc_version
    assert settings["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"


def test_the_container_runs_as_the_user_with_the_settings_of_cann(built: Built) -> None:
    config = inspected(built)
    assert config["User"] == "trainer"
    assert config["WorkingDir"] == "/workspace"
    look = "id -un; id -Gn; echo $ASCEND_HOME_PATH $NPUENV_STACK; cd /workspace && test -w . && echo writable"
    status, said = built.run(*config["Entrypoint"], "bash", "-c", look)
    assert status == 0, said
    user, groups, settings, place = said.splitlines()
    assert (status, user, place) == (0, "trainer", "writable")
    assert ("HwHiAiUser" in groups.split()) is has_driver_group(built.stack)
    assert settings == f"{built.stack.cann_root} {built.stack.name}"


def test_mirrors_proxies_and_passwords_do_not_stay(built: Built) -> None:
    """The settings of the container, and every file that the build wrote but the stand-ins' own notes."""
    assert [value for value in inspected(built)["Env"] if "mirror" in value or "proxy" in value.lower()] == []
    look = (
        "import os, sys\n"
        "for place in ('/opt/npuenv', '/etc', '/root', '/home', '/workspace', '/tmp'):\n"
        "    for folder, _, names in os.walk(place):\n"
        "        for path in (os.path.join(folder, name) for name in names):\n"
        "            text = open(path, 'rb').read() if os.path.isfile(path) else b''\n"
        "            if any(word.encode() in text for word in sys.argv[1:]): print(path)\n"
    )
    assert built.run("python3", "-c", look, "/mirror", PROXY, "letmein", user="root") == (0, "")
    document = json.dumps(json.loads(built.buildah("inspect", "--type", "image", built.name)))
    assert "letmein" not in document
    assert built.run("test", "-e", "/root/.netrc")[0] == 1


def test_labels_name_the_stack_the_base_and_what_is_not_pinned(built: Built) -> None:
    labels = inspected(built)["Labels"]
    assert labels["npuenv.stack"] == built.stack.name
    assert labels["org.opencontainers.image.base.name"] == built.stack.image
    assert labels["npuenv.unpinned"] == ",".join(("base-image", *unpinned_tags(built.stack.git_sources)))
    assert labels[f"npuenv.lock.{built.stack.platform.arch}"] == built.lock.hash


def test_the_doctor_runs_inside_and_finds_the_stacks_versions(built: Built, tmp_path: Path) -> None:
    for name in NEEDED:
        for file in distribution(name).files or ():
            if ".." not in file.parts and ".dist-info" not in file.parts[0]:
                place = tmp_path / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), place)
    tmp_path.chmod(0o755)
    mounts = (f"{tmp_path}:/needed:ro", f"{ROOT / 'npuenv'}:/doctor/npuenv:ro")
    env = ("PYTHONPATH=/doctor:/needed", "PYTHONDONTWRITEBYTECODE=1")
    words = ("python3", "-m", "npuenv", "doctor", "--stack", built.stack.name, "--format", "json")
    status, said = built.run(*words, mounts=mounts, env=env)
    assert said.startswith("{"), said[:500]
    report = json.loads(said)
    assert status in (0, 1, 3)
    assert status == report["exit"]
    findings = {finding["check"]: finding for finding in report["findings"]}
    assert findings["stack.python"]["status"] == "ok"
    # The image holds stand-ins of a few packages, so much is missing; but nothing is unreadable for the doctor itself.
    assert {finding["status"] for finding in report["findings"]} <= {"ok", "warn", "fail", "skip", "unknown"}
    settings = findings["stack.settings"]["status"]
    assert settings == ("ok" if built.stack.env else "skip")


def inspected(built: Built) -> dict[str, Any]:
    """The container's settings as Docker's format keeps them."""
    found: dict[str, Any] = json.loads(built.buildah("inspect", "--type", "image", built.name))["Docker"]["config"]
    return found
