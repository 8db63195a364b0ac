"""The RUN instructions of a rendered Dockerfile, run for real under its own shell, with programs that only record.

Nothing of the machine is touched: PATH holds the recorders alone, and absolute paths are moved below a scratch folder.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.render.docker import render_docker
from npuenv.render.layers import ImageRecipe, layer
from npuenv.resolve import resolve
from npuenv.resolve.types import BuildStep, GitSource, Platform, Request, Stack
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path
    from types import SimpleNamespace

FOLDER = "sample-1.0.a2.ubuntu22.04"
ROOTS = (
    "/opt/",
    "/usr/local/Ascend/",
    "/etc/bash.bashrc",
    "/etc/bashrc",
    "/etc/apt",
    "/etc/yum.repos.d",
    "/var/lib/apt/",
    "/workspace",
)
PROGRAMS = ("apt-get", "getent", "git", "id", "install", "python3", "rm", "useradd", "usermod")
SECRET = "--mount=type=secret,id=netrc,target=/root/.netrc "
# How many words, the words, how many settings, the settings: each ended by a NUL. A shell starts in no time.
RECORDER = """\
#!{bash}
mapfile -d '' settings < /proc/$BASHPID/environ
printf '%s\\0' $(($# + 1)) "${{0##*/}}" "$@" ${{#settings[@]}} "${{settings[@]}}" >> {log}
[ "${{0##*/}}" != id ]
"""
pytestmark = pytest.mark.skipif(not shutil.which("bash"), reason="RUN is written for bash, which is not here")


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Keyword and rest of each instruction, read as a builder reads them: comments and mounts out, lines joined."""
    lines = "\n".join(line for line in dockerfile.splitlines() if line.strip() and not line.startswith("#"))
    whole = re.sub(r"\\\n\s*", " ", lines).replace(SECRET, "")
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in whole.splitlines())]


def values(dockerfile: str, keyword: str) -> dict[str, str]:
    """Name -> value of every ARG or ENV that has a value."""
    rests = [rest for word, rest in instructions(dockerfile) if word == keyword]
    return {name: value.strip('"') for name, sign, value in (rest.partition("=") for rest in rests) if sign}


class Build:
    """Runs an image's RUN instructions below `root` and remembers which programs ran with what."""

    def __init__(self, root: Path, dockerfile: str, **arguments: str) -> None:
        self.root, self.dockerfile = root, dockerfile
        self.env = {**values(dockerfile, "ARG"), **values(dockerfile, "ENV"), **arguments}
        self.env |= {"PATH": str(root / "bin"), "LD_LIBRARY_PATH": "/base"}
        self._lay_out()

    def _lay_out(self) -> None:
        for folder in ("bin", "etc", "usr/local/Ascend/ascend-toolkit", "usr/local/Ascend/nnal/atb"):
            (self.root / folder).mkdir(parents=True)
        for name in PROGRAMS:
            recorder = self.root / "bin" / name
            recorder.write_text(RECORDER.format(bash=shutil.which("bash"), log=shlex.quote(str(self.root / "log"))))
            recorder.chmod(0o755)
        (self.root / "usr/local/Ascend/ascend-toolkit/set_env.sh").write_text("export ASCEND_HOME_PATH=cann\n")
        (self.root / "usr/local/Ascend/nnal/atb/set_env.sh").write_text("export ATB_HOME_PATH=nnal\n")

    def run(self) -> list[subprocess.CompletedProcess[str]]:
        """Each RUN under the image's SHELL, up to the first that fails."""
        shell = json.loads(next(rest for word, rest in instructions(self.dockerfile) if word == "SHELL"))
        done = []
        for layer_script in (rest for word, rest in instructions(self.dockerfile) if word == "RUN"):
            argv = [shutil.which("bash") or shell[0], *shell[1:], self._moved(layer_script)]
            done.append(subprocess.run(argv, env=self.env, capture_output=True, text=True, check=False))
            if done[-1].returncode:
                break
        return done

    def _moved(self, script: str) -> str:
        moved = script
        for place in ROOTS:
            moved = re.sub(rf"(?<![\w.-]){re.escape(place)}", f"{self.root}{place}", moved)
        left = set(re.findall(r"(?<![\w.:*/}-])/[\w./-]+", moved.replace(str(self.root), "").replace("=/d", "")))
        assert {path for path in left if not path.startswith(ROOTS)} <= {"/dev/null", "/bin/bash"}, left
        return moved

    def records(self) -> list[tuple[list[str], dict[str, str]]]:
        """Words (with the scratch folder taken out) and environment of each program, in the order in which they ran."""
        parts, found = iter((self.root / "log").read_text().split("\0")), []
        while count := next(parts):
            words = [next(parts).replace(str(self.root), "") for _ in range(int(count))]
            settings = [next(parts).partition("=") for _ in range(int(next(parts)))]
            found.append((words, {name: value for name, _, value in settings}))
        return found

    def argv(self) -> list[str]:
        return [" ".join(words) for words, _ in self.records()]


def build(sample: SimpleNamespace, root: Path, **arguments: str) -> Build:
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes)
    return Build(root, files[f"{FOLDER}/Dockerfile"], **arguments)


PIP = "python3 -m pip install --no-cache-dir --disable-pip-version-check --no-deps"
LIST = f"{PIP} --require-hashes --requirement /opt/npuenv/requirements"
SOURCE = f"{PIP} --no-build-isolation"


def git(name: str, *, fetch: str, checkout: str = "FETCH_HEAD", tag: str = "") -> list[str]:
    folder = f"/opt/src/{name}"
    return [
        f"git init --quiet {folder}",
        f"git -C {folder} remote add origin https://example.org/{name}.git",
        f"git -C {folder} fetch {fetch}",
        f"git -C {folder} checkout --quiet {checkout}",
        *([f"git -C {folder} tag --force {tag}"] if tag else []),
        f"git -C {folder} submodule update --init --recursive",
    ]


def expected(arch: str) -> list[str]:
    cpu = "--require-hashes --index-url https://pytorch-cpu.example.org/simple/ --requirement"
    ascend = "--require-hashes --index-url https://huawei-ascend.example.org/simple/ --requirement"
    labelled = [f"{PIP} {cpu} /opt/npuenv/requirements.x86_64.torch.pytorch-cpu.txt"] if arch == "x86_64" else []
    check = "python3 /opt/npuenv/healthcheck.py torch==2.7.1 torch-npu==2.7.1 triton-ascend==3.2.0rc4"
    return [
        "python3 -c import sys; sys.exit(sys.version_info[:2] != (3, 11))",
        "apt-get update",
        "apt-get install -y --no-install-recommends gcc g++ git",
        "rm -rf /var/lib/apt/lists/*",
        f"{LIST}.{arch}.torch.txt",
        *labelled,
        f"{LIST}.{arch}.grpcio.txt",
        f"{LIST}.{arch}.ray.txt",
        *git("vllm", fetch="--depth 1 origin v0.11.0", tag="v0.11.0"),
        f"{SOURCE} /opt/src/vllm",
        *git("vllm-ascend", fetch=f"--depth 1 origin {'0' * 40}"),
        f"{SOURCE} /opt/src/vllm-ascend",
        *git("MindSpeed", fetch="--tags origin", checkout="f2b0977e"),
        f"{SOURCE} /opt/src/MindSpeed",
        *git("Megatron-LM", fetch="--depth 1 origin core_v0.12.1", tag="core_v0.12.1"),
        f"{LIST}.{arch}.txt",
        *git("verl", fetch="--depth 1 origin main"),
        f"{SOURCE} --editable /opt/src/verl",
        "python3 -m pip uninstall -y triton triton-ascend",
        f"{PIP} {ascend} /opt/npuenv/requirements.{arch}.triton-ascend.huawei-ascend.txt",
        check,
        "id -u root",
        "useradd --create-home --shell /bin/bash root",
        "getent group HwHiAiUser",
        "usermod --append --groups HwHiAiUser root",
        "install --directory --owner root /workspace",
    ]


@pytest.mark.parametrize(("docker_arch", "arch"), [("amd64", "x86_64"), ("arm64", "aarch64")])
def test_the_build_runs_exactly_these_programs(
    sample: SimpleNamespace, tmp_path: Path, docker_arch: str, arch: str
) -> None:
    made = build(sample, tmp_path, TARGETARCH=docker_arch)
    assert [(done.returncode, done.stderr) for done in made.run() if done.returncode or done.stderr] == []
    assert made.argv() == expected(arch)
    assert (tmp_path / "etc/bash.bashrc").read_text() == f". {tmp_path}/opt/npuenv/activate.sh\n"


def test_sources_are_built_with_the_settings_of_cann(sample: SimpleNamespace, tmp_path: Path) -> None:
    made = build(sample, tmp_path, TARGETARCH="arm64")
    made.run()
    builds = {words[-1].rpartition("/")[2]: env for words, env in made.records() if "--no-build-isolation" in words}
    names = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "ASCEND_HOME_PATH", "ATB_HOME_PATH", "SOC_VERSION", "MAX_JOBS")
    for env in builds.values():
        assert [env[name] for name in names] == ["0", "cann", "nnal", "ascend910b1", "8"]
        stubs = "/usr/local/Ascend/ascend-toolkit/8.3.RC1/aarch64-linux/devlib"
        assert env["LD_LIBRARY_PATH"].replace(str(tmp_path), "") == f"/base:{stubs}"
    assert builds["vllm"]["VLLM_TARGET_DEVICE"] == "empty"
    assert builds["vllm-ascend"]["COMPILE_CUSTOM_KERNELS"] == "0"
    assert [name for name, env in builds.items() if "VLLM_TARGET_DEVICE" in env] == ["vllm"]


def test_settings_of_a_build_do_not_reach_the_installation_of_lists(sample: SimpleNamespace, tmp_path: Path) -> None:
    made = build(sample, tmp_path, TARGETARCH="amd64")
    made.run()
    for words, env in made.records():
        if "--requirement" in words:
            assert "ASCEND_HOME_PATH" not in env
            assert env.get("PIP_CONFIG_FILE", "") == ("/dev/null" if "--index-url" in words else "")


def test_arguments_replace_every_address(sample: SimpleNamespace, tmp_path: Path) -> None:
    mirror = "https://mirror.invalid/it"
    replaced = ("PYTORCH_CPU_INDEX", "HUAWEI_ASCEND_INDEX")
    sources = ("VLLM", "VLLM_ASCEND", "MINDSPEED", "MEGATRON_LM", "VERL")
    names = (*replaced, *(f"NPUENV_GIT_{name}" for name in sources))
    made = build(sample, tmp_path, TARGETARCH="amd64", **dict.fromkeys(names, mirror))
    made.run()
    assert "example.org" not in "\n".join(made.argv())
    assert "\n".join(made.argv()).count(mirror) == len(names)


def test_another_architecture_stops_at_once_and_says_what_to_do(sample: SimpleNamespace, tmp_path: Path) -> None:
    for given in ({"TARGETARCH": "riscv64"}, {}):
        root = tmp_path / str(len(given))
        made = build(sample, root, **given)
        done = made.run()
        assert [each.returncode for each in done] == [2]
        assert says(done[0].stderr, "render.no-arch", archs="amd64, arm64")
        assert not (root / "log").exists()


@pytest.mark.parametrize(
    ("system", "folder", "file"),
    [
        ("ubuntu22.04", "etc/apt", "sources.list"),
        ("ubuntu22.04", "etc/apt", "sources.list.d/ubuntu.sources"),
        ("openeuler24.03", "etc/yum.repos.d", "openEuler.repo"),
    ],
)
def test_a_mirror_stands_in_for_the_hosts_of_repositories_and_is_gone_after(
    sample: SimpleNamespace, tmp_path: Path, system: str, folder: str, file: str
) -> None:
    platforms = {arch: Platform(arch, "3.11", "a2", system) for arch in sample.stacks}
    stacks = {arch: sample.stack(arch, platform=platforms[arch], order=sample.stack().order) for arch in platforms}
    files = render_docker(stacks, sample.locks, indexes=sample.indexes)
    made = Build(tmp_path, files[f"sample-1.0.a2.{system}/Dockerfile"], NPUENV_OS_MIRROR="https://m.invalid/x")
    made.env["TARGETARCH"] = "amd64"
    lists = tmp_path / folder / file
    lists.parent.mkdir(parents=True)
    before = "deb http://archive.example.org/ubuntu jammy main\nbaseurl=https://repo.example.org/OS/\nmetalink=http://x.org/?a\n"
    lists.write_text(before)
    seen = tmp_path / "seen"
    tool = "apt-get" if "apt" in folder else "dnf"
    (tmp_path / "bin" / tool).write_text(
        f'#!/bin/bash\n[ $1 != install ] || while read -r l; do echo "$l"; done < {lists} > {seen}\n'
    )
    (tmp_path / "bin" / tool).chmod(0o755)
    (tmp_path / "bin" / "rm").unlink()
    for name in ("cp", "find", "sed", "mv", "rm"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or name)
    assert [done.returncode for done in made.run() if done.returncode] == []
    assert seen.read_text() == "deb https://m.invalid/x/ubuntu jammy main\nbaseurl=https://m.invalid/x/OS/\n"
    assert lists.read_text() == before
    assert not (tmp_path / f"{folder}.npuenv").exists()


def test_a_failed_program_stops_its_layer(sample: SimpleNamespace, tmp_path: Path) -> None:
    made = build(sample, tmp_path, TARGETARCH="amd64")
    git_program = made.root / "bin" / "git"
    git_program.write_text(git_program.read_text().replace('[ "${0##*/}" != id ]', '[[ " $* " != *" fetch "* ]]'))
    assert [done.returncode for done in made.run()][-1] == 1
    assert made.argv()[-1] == "git -C /opt/src/vllm fetch --depth 1 origin v0.11.0"


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_every_layer_is_good_syntax(sample: SimpleNamespace, shell: str) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell} here")
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes)
    scripts = [rest for word, rest in instructions(files[f"{FOLDER}/Dockerfile"]) if word == "RUN"]
    scripts += [files[f"{FOLDER}/{name}"] for name in ("activate.sh", "entrypoint.sh")]
    assert len(scripts) > 10
    for each in scripts:
        done = subprocess.run([shell, "-n"], input=each, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def plain_git(folder: Path, *words: str) -> str:
    """Real git with settings of its own, so that the user's and the machine's do not matter."""
    identity = {f"GIT_{who}_{what}": "x@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1", **identity}
    done = subprocess.run(["git", "-C", str(folder), *words], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
def test_real_git_gets_each_kind_of_ref_and_tags_can_be_described(sample: SimpleNamespace, tmp_path: Path) -> None:
    """A tag of the first commit, the second commit in short, and a branch at the third."""
    origin = tmp_path / "origin"
    origin.mkdir()
    plain_git(origin, "init", "--quiet", "--initial-branch", "main")
    commits = []
    for number in range(3):
        plain_git(origin, "commit", "--quiet", "--allow-empty", "--message", str(number))
        commits.append(plain_git(origin, "rev-parse", "HEAD"))
    plain_git(origin, "tag", "--annotate", "--message", "x", "v0.11.0", commits[0])
    found = []
    for number, (ref, is_moving) in enumerate((("v0.11.0", False), (commits[1][:8], False), ("main", True))):
        source = GitSource("vllm", f"file://{origin}", ref, is_moving, how="pythonpath")
        done = fetched(sample, source, tmp_path / str(number))
        assert done.returncode == 0, done.stderr
        found.append(plain_git(tmp_path / str(number) / "src/vllm", "rev-parse", "HEAD"))
    assert found == commits
    assert plain_git(tmp_path / "0/src/vllm", "describe", "--tags", "--long") == f"v0.11.0-0-g{commits[0][:7]}"


def fetched(sample: SimpleNamespace, source: GitSource, root: Path) -> subprocess.CompletedProcess[str]:
    """The layer of a source, run with real git in a folder of its own."""
    root.mkdir()
    step = BuildStep("vllm", "git", ("vllm",), Message("cli.yes"))
    stack = sample.stack(git_sources=(source,), order=(step, BuildStep("rest", "rest", (), Message("cli.yes"))))
    recipe = ImageRecipe({"aarch64": stack}, {"aarch64": ()}, {}, lambda message: message.key)
    ((_, script),) = instructions("\n".join(layer(recipe, step)))
    shell = script.replace("/opt/src", f"{root}/src")
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(root), "NPUENV_GIT_VLLM": source.repo}
    return subprocess.run(["bash", "-c", shell], env=env, capture_output=True, text=True, check=False)


@pytest.mark.skipif(not shutil.which("git"), reason="git is not here")
@pytest.mark.parametrize("kind", ["--annotate", "--no-sign"])
def test_a_tag_that_was_moved_ends_the_build_before_anything_is_built(
    sample: SimpleNamespace, tmp_path: Path, kind: str
) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    plain_git(origin, "init", "--quiet", "--initial-branch", "main")
    plain_git(origin, "commit", "--quiet", "--allow-empty", "--message", "0")
    note = ("--message", "x") if kind == "--annotate" else ()
    plain_git(origin, "tag", kind, *note, "v0.11.0")
    commit = plain_git(origin, "rev-parse", "HEAD")[:10]
    source = GitSource("vllm", f"file://{origin}", "v0.11.0", False, how="pythonpath", commit=commit)
    assert fetched(sample, source, tmp_path / "before").returncode == 0
    plain_git(origin, "commit", "--quiet", "--allow-empty", "--message", "1")
    plain_git(origin, "tag", "--force", kind, *note, "v0.11.0")
    done = fetched(sample, source, tmp_path / "after")
    assert done.returncode != 0
    assert not (tmp_path / "after/src/vllm/.git/refs/tags/v0.11.0").exists()


def scripts_of(sample: SimpleNamespace, root: Path) -> Path:
    """The image's own scripts below `root`, with CANN's there too."""
    files = render_docker(sample.stacks, sample.locks, indexes=sample.indexes)
    home = root / "opt/npuenv"
    home.mkdir(parents=True)
    for name in ("activate.sh", "entrypoint.sh", "healthcheck.py"):
        text = files[f"{FOLDER}/{name}"]
        for place in ROOTS:
            text = text.replace(f" {place}", f" {root}{place}")
        (home / name).write_text(text)
    toolkit, nnal = (root / "usr/local/Ascend" / part for part in ("ascend-toolkit", "nnal/atb"))
    for folder, line in ((toolkit, 'PYTHONPATH="/cann:$PYTHONPATH"'), (nnal, 'ATB="$ATB+"; export ATB PYTHONPATH')):
        folder.mkdir(parents=True)
        (folder / "set_env.sh").write_text(f"{line}\n")
    return home


def test_the_entry_point_gives_a_command_the_settings_and_its_words(sample: SimpleNamespace, tmp_path: Path) -> None:
    home = scripts_of(sample, tmp_path)
    bash = shutil.which("bash") or ""
    command = [bash, str(home / "entrypoint.sh"), bash, "-c", 'echo "$PYTHONPATH|$ATB|$NPUENV_STACK|$1"', "x", "a  b"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False)
    assert done.stdout.replace(str(tmp_path), "") == "/opt/src/Megatron-LM:/cann|+|sample-1.0|a  b\n"


def test_the_entry_point_runs_the_script_of_tritons_compiler_before_nnals_where_cann_brings_one(
    sample: SimpleNamespace, tmp_path: Path
) -> None:
    root = "/usr/local/Ascend/cann-8.5.0"
    stacks = {arch: sample.stack(arch, cann_root=root) for arch in ("x86_64", "aarch64")}
    text = render_docker(stacks, sample.locks, indexes=sample.indexes)[f"{FOLDER}/activate.sh"]
    file = tmp_path / "activate.sh"
    file.write_text(text.replace("/usr/local", f"{tmp_path}/usr/local"))
    scripts = {"": "toolkit", "share/info/ascendnpu-ir/bin": "compiler", "../nnal/atb": "nnal"}
    found = {}
    for wanted in (scripts, {place: word for place, word in scripts.items() if word != "compiler"}):
        shutil.rmtree(tmp_path / "usr", ignore_errors=True)
        for place, word in wanted.items():
            folder = tmp_path / root.lstrip("/") / place
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "set_env.sh").write_text(f"echo {word}\n")
        done = subprocess.run(["bash", "-c", f". {file}"], env={}, capture_output=True, text=True, check=False)
        found[len(wanted)] = (done.stdout.split(), done.stderr)
    assert found == {3: (["toolkit", "compiler", "nnal"], ""), 2: (["toolkit", "nnal"], "")}


@pytest.mark.parametrize(
    ("release", "hardware", "wanted"),
    [
        ("0.12.0rc1", "a2", set()),
        ("0.13.0rc1", "a2", {"libjemalloc2"}),
        ("0.13.0", "a3", {"libjemalloc2", "clang-15"}),
        ("0.18.0", "a2", {"libjemalloc2", "clang-15", "numactl"}),
        ("0.18.0-310p", "310p", {"libjemalloc2", "numactl"}),
        ("0.30.0rc2", "a3", {"libjemalloc2", "clang-15", "numactl"}),
    ],
)
def test_an_image_has_what_vllm_ascends_own_images_have_for_a_run(
    release: str, hardware: str, wanted: set[str]
) -> None:
    stack = resolve(Request(stack=f"vllm-ascend-{release}", hardware=hardware, arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)
    assert set(stack.system_packages) - {"gcc", "g++", "cmake", "libnuma-dev", "git"} == wanted


def test_clang_is_found_by_its_plain_name_where_the_distribution_numbers_it(sample: SimpleNamespace) -> None:
    stacks = {arch: sample.stack(arch, system_packages=("gcc", "clang-15")) for arch in ("x86_64", "aarch64")}
    text = render_docker(stacks, sample.locks, indexes=sample.indexes)[f"{FOLDER}/Dockerfile"]
    assert "update-alternatives --install /usr/bin/clang clang /usr/bin/clang-15 20" in text
    assert "update-alternatives --install /usr/bin/clang++ clang++ /usr/bin/clang++-15 20" in text


@pytest.mark.parametrize("is_there", [True, False])
def test_a_library_that_is_there_is_loaded_first_before_what_the_caller_preloads(
    sample: SimpleNamespace, tmp_path: Path, is_there: bool
) -> None:
    stacks = {arch: sample.stack(arch, system_packages=("libjemalloc2",)) for arch in ("x86_64", "aarch64")}
    text = render_docker(stacks, sample.locks, indexes=sample.indexes)[f"{FOLDER}/activate.sh"]
    library = tmp_path / f"usr/lib/{platform.machine()}-linux-gnu/libjemalloc.so.2"
    if is_there:
        library.parent.mkdir(parents=True)
        library.touch()
    file = tmp_path / "activate.sh"
    file.write_text(re.sub(r'(["=])/usr/lib/', rf"\g<1>{tmp_path}/usr/lib/", text).replace("    . ", "    : "))
    script = f". {file} 2>&1; printf '%s|' \"${{LD_PRELOAD-}}\""
    found = [
        subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=False).stdout.rpartition(
            "\n"
        )[2]
        for env in ({"PATH": os.environ["PATH"]}, {"PATH": os.environ["PATH"], "LD_PRELOAD": "/no/libmine.so"})
    ]
    first = f"{library}" if is_there else ""
    assert found[0] == f"{first}|"
    assert found[1].endswith(f"{first}:/no/libmine.so|" if is_there else "/no/libmine.so|")


def test_activation_twice_is_activation_once(sample: SimpleNamespace, tmp_path: Path) -> None:
    home = scripts_of(sample, tmp_path)
    script = f'. {home}/activate.sh; . {home}/activate.sh; echo "$ATB"'
    done = subprocess.run(
        [shutil.which("bash") or "", "-c", script], env={}, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("+\n", "")


@pytest.mark.slow
def test_the_health_check_compares_installed_versions(sample: SimpleNamespace, tmp_path: Path) -> None:
    home = scripts_of(sample, tmp_path)
    for name, version in (("torch", "2.7.1+cpu"), ("torch_npu", "2.7.1")):
        info = tmp_path / "site" / f"{name}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")

    def check(*wanted: str) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-S", str(home / "healthcheck.py"), *wanted],
            env={"PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    assert check("torch==2.7.1", "torch-npu==2.7.1") == (0, "ok\n")
    assert check("torch==2.8.0", "torch-npu==2.7.1") == (1, "torch==2.8.0 != 2.7.1+cpu\n")
    assert check("triton-ascend==3.2.0") == (1, "triton-ascend==3.2.0 != \n")


@pytest.mark.slow
def test_the_health_check_takes_from_the_doctor_what_lies_in_the_image(sample: SimpleNamespace, tmp_path: Path) -> None:
    home = scripts_of(sample, tmp_path)
    doctor = home / "npuenv-doctor.pyz"

    def check(*findings: tuple[str, str], text: str = "") -> tuple[int, str]:
        """With a stand-in for the doctor that prints these findings, or another text."""
        rows = [{"check": check, "status": status, "says": "so"} for check, status in findings]
        said = text or json.dumps({"findings": rows})
        doctor.write_text(
            f"import sys\nassert sys.argv[1:] == ['--level', '0', '--json']\nprint({said!r})\nsys.exit(1)\n"
        )
        done = subprocess.run(
            [sys.executable, str(home / "healthcheck.py"), "--doctor"], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout

    of_the_host = (("cards.present", "fail"), ("driver.loaded", "fail"), ("machine.open-files", "fail"))
    assert check(("python.wheels", "ok"), *of_the_host, ("cann.links", "warn")) == (0, "ok\n")
    assert check(*of_the_host, ("cann.links", "fail")) == (1, "cann.links: so\n")
    assert check(text="no document") == (
        1,
        "npuenv-doctor.pyz: JSONDecodeError: Expecting value: line 1 column 1 (char 0)\n",
    )
