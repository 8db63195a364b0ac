"""Reduced NPU stacks of real x86_64 wheels on a machine without NPUs: torch_npu is there, CANN is not.

The first stack is torch for the CPU with torch_npu and triton-ascend. The second adds vllm (without kernels) and
vllm-ascend, built from their source archives. Where CANN is needed a CANN that computes nothing stands in.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.app.installation import failed_checks
from npuenv.cli import main
from npuenv.core.documents import load_toml
from npuenv.core.errors import NpuenvError, StepFailed
from npuenv.core.messages import say
from npuenv.facts.pip import for_uv, pip_settings
from npuenv.host.local import LocalHost
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.executor import ExecutionContext, Outcome, execute
from npuenv.install.planning import plan_install
from npuenv.install.target import check_target, digests_of, find_python
from npuenv.lock.checking import require_complete, require_sources
from npuenv.lock.make import make_lock
from npuenv.lock.uv import Resolver, find_uv, platform_options
from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.plan import Plan
    from npuenv.lock.file import Lock
    from npuenv.resolve.types import BuildStep

pytestmark = [
    pytest.mark.registry,
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="needs x86_64 Linux"
    ),
    pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="needs gcc and nm"),
]
TORCH, TORCH_NPU, TRITON_ASCEND, TRITON = "2.13.0+cpu", "2.13.0", "3.2.0", "2.1.0"
VLLM = "0.18.0"
# What builds vllm without kernels and vllm-ascend; their run time needs far more and is left out.
BUILD = ("setuptools-scm>=8", "wheel", "packaging", "ninja", "cmake>=3.26", "jinja2", "pybind11", "setuptools-rust")
ADDED = {"INSTALLER", "REQUESTED", "RECORD", "direct_url.json", "uv_cache.json"}  # by the installer, to a dist-info
OF_VENV = {"_virtualenv.py", "_virtualenv.pth"}
OF_CANN = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH", "PYTHONPATH")


@dataclass(slots=True)
class Environment:
    """A stack, its lock, and where they go."""

    stack: Stack
    lock: Lock
    target: EnvironmentPlace
    plan: Plan
    resolver: Resolver

    @property
    def root(self) -> Path:
        return Path(self.target.root)

    @property
    def site(self) -> Path:
        return self.root / "lib/python3.11/site-packages"

    def install(self, *, only: str | None = None) -> Outcome:
        """Executes the plan; says how long it took."""
        session = ExecutionContext(
            self.resolver.host, self.target.root, for_uv(self.resolver.settings, self.resolver.indexes)
        )
        began = time.monotonic()
        outcome = execute(self.plan, session, only=only)
        did = ", ".join(outcome.done) or "nothing"
        sys.stderr.write(f"{self.stack.name}: {time.monotonic() - began:.1f} s: {did}\n")
        return outcome

    def uv(self, *words: str) -> None:
        """uv in this environment, as a user would call it beside npuenv."""
        env = {**os.environ, **for_uv(self.resolver.settings).environ}
        argv = (find_uv(), "pip", *words, "--python", self.target.python)
        subprocess.run(argv, check=True, capture_output=True, text=True, timeout=300, env=env)

    def inspect(self, *words: str) -> tuple[int, list[str]]:
        """The exit code and the problems that the environment's inspector tells."""
        argv = (self.target.python, "-I", "-B", f"{self.root}/.npuenv/inspector.py", *words)
        ran = subprocess.run(argv, capture_output=True, text=True, timeout=300)
        return ran.returncode, [line for line in ran.stdout.splitlines() if line.startswith("problem: ")]

    def verify(self, *options: str) -> tuple[int, list[str]]:
        return self.inspect("verify", str(self.root), self.lock.hash, *options, f"triton-ascend=={TRITON_ASCEND}")

    def in_shell(self, code: str, **env: str) -> str:
        """What Python prints in a shell that has sourced the activation script."""
        script = f'. "{self.root}/activate.sh" && python -c "$CODE"'
        given = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), "CODE": code, **env}
        ran = subprocess.run(("sh", "-c", script), env=given, capture_output=True, text=True, timeout=300)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout.strip()


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where everything of this module lies."""

    folder: Path
    resolver: Resolver

    @property
    def cann_root(self) -> Path:
        return self.folder / "Ascend" / "cann-9.1.0"

    def stack(self, base: Stack, name: str, **changes: Any) -> Stack:
        """The base with the versions of which wheels are to be had here, and CANN where the stand-in will be."""
        versions = {"torch": TORCH, "torch-npu": TORCH_NPU, "triton-ascend": TRITON_ASCEND}
        kept = [pin for pin in base.pins if pin.name not in ("torchvision", "torchaudio")]
        pins = [replace(pin, version=versions.get(pin.name, pin.version)) for pin in kept]
        if base.pin("triton-ascend") is None:
            torch_npu = next(pin for pin in pins if pin.name == "torch-npu")
            pins.append(replace(torch_npu, name="triton-ascend", version=TRITON_ASCEND, index=None))
        return replace(
            base, name=name, pins=tuple(pins), cann_root=str(self.cann_root), system_packages=(), date="", **changes
        )

    def environment(self, stack: Stack, given: dict[str, str]) -> Environment:
        """Locks and plans; skips where this machine cannot have the stack."""
        resolver, target = self.resolver, EnvironmentPlace(str(self.folder / stack.name))
        try:
            lock = make_lock(stack, resolver)
            check_target(resolver.host, target, lock)
            require_complete(lock, resolver)
            tools = Tools(
                base_python=find_python(resolver.host, "3.11", stack.platform.arch),
                uv=find_uv(),
                settings=for_uv(resolver.settings, resolver.indexes),
                indexes=resolver.indexes,
                in_links=require_sources(stack, lock, resolver),
                given=given,
                digests=digests_of(resolver.host, given, stack, sys.executable),
            )
        except NpuenvError as error:
            pytest.skip(f"this machine cannot have the stack: {say(error.message)}")
        plan = plan_install(stack, lock, target, tools, activation=render_activations(stack, target.root))
        return Environment(stack, lock, target, plan, resolver)

    def sources(self) -> dict[str, str]:
        """Name -> source archive of vllm and vllm-ascend, from the default index, compared with their hashes."""
        (self.folder / "sources.in").write_text(f"vllm=={VLLM}\nvllm-ascend=={VLLM}\n", encoding="utf-8")
        found = self.folder / "pylock.toml"
        form = ("--no-deps", "--quiet", "--format", "pylock.toml", "-o", str(found))
        platform = platform_options(_resolved("vllm-ascend").platform)
        ran = self.resolver.run(("pip", "compile", *form, *platform, str(self.folder / "sources.in")))
        assert ran.code == 0, ran.err
        return {row["name"]: self._fetched(row["sdist"]) for row in load_toml(found)["packages"]}

    def _fetched(self, sdist: dict[str, Any]) -> str:
        with urllib.request.urlopen(sdist["url"], timeout=120) as answer:
            content = answer.read()
        assert hashlib.sha256(content).hexdigest() == sdist["hashes"]["sha256"]
        path = self.folder / str(sdist["url"]).rpartition("/")[2]
        path.write_bytes(content)
        return str(path)


def _resolved(framework: str) -> Stack:
    stack = resolve(Request(framework=framework, hardware="a2", arch="x86_64", python="3.11"), load_matrix())
    assert isinstance(stack, Stack)
    return stack


def _triton_steps() -> tuple[BuildStep, ...]:
    """How a published recipe removes what is left of triton, and puts triton-ascend in last."""
    steps = tuple(step for step in _resolved(f"vllm-ascend=={VLLM}").order if "triton-ascend" in step.what)
    assert [(step.does, step.what) for step in steps] == [
        ("uninstall", ("triton", "triton-ascend")),
        ("pip", ("triton-ascend",)),
    ]
    return steps


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    folder = tmp_path_factory.mktemp("npu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UV_CACHE_DIR", str(folder / "cache"))
        for name in OF_CANN:
            patch.delenv(name, raising=False)
        host = LocalHost()
        indexes = {row.label: row.url for row in load_matrix().indexes if row.url}
        yield Workshop(folder, Resolver(host, find_uv(), pip_settings(host), indexes))
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def reduced(workshop: Workshop) -> Environment:
    """torch for the CPU, torch_npu, triton-ascend, numpy: installed."""
    base = _resolved("torch-npu")
    requirements = (*base.requirements, "pybind11")  # which triton-ascend 3.2.0 imports and does not ask for
    order = (*base.order, *_triton_steps())
    stack = workshop.stack(base, "torch-npu-reduced", requirements=requirements, order=order)
    made = workshop.environment(stack, {})
    assert made.install().done[-3:] == ("activate", "verify", "finish")
    return made


@pytest.fixture(scope="module")
def cann(workshop: Workshop, reduced: Environment) -> Path:
    """The stand-in at the stack's root for CANN, with the variables that a real one's script sets."""
    from tests.support.stub_cann.build import build, environment

    root: Path = build(reduced.site, workshop.cann_root)
    lines = [f"export {name}={value}\n" for name, value in environment(root).items()]
    (root / "set_env.sh").write_text("".join(lines), encoding="utf-8")
    return root


def test_a_reduced_npu_stack_is_installed_and_says_what_it_is(reduced: Environment) -> None:
    assert {p.name: p.version for p in reduced.lock.packages if p.name in ("torch", "torch-npu", "triton-ascend")} == {
        "torch": TORCH,
        "torch-npu": TORCH_NPU,
        "triton-ascend": TRITON_ASCEND,
    }
    ids = [step.id for step in reduced.plan.steps]
    assert ids.index("triton-leftovers") < ids.index("triton-ascend") == ids.index("activate") - 1
    verified = json.loads((reduced.root / ".npuenv/verified.json").read_text(encoding="utf-8"))
    assert verified["lock"] == reduced.lock.hash
    assert verified["packages"] == len(reduced.lock.packages)
    num_files, tree = _tree(reduced)
    assert (verified["files"], verified["tree"]) == (num_files, tree)
    manifest = json.loads((reduced.root / ".npuenv/manifest.json").read_text(encoding="utf-8"))
    assert (manifest["stack"], manifest["lock"]) == (reduced.stack.name, reduced.lock.hash)
    assert manifest["steps"] == ids
    assert reduced.install().done == ()


def _tree(made: Environment) -> tuple[int, str]:
    """The number of files that the installed distributions own, and one hash over paths and contents."""
    lines = set()
    for record in made.site.glob("*.dist-info/RECORD"):
        for path, *_ in csv.reader(record.read_text(encoding="utf-8").splitlines()):
            if not path.endswith(".pyc"):
                place = os.path.normpath(made.site / path)
                lines.add(f"{os.path.relpath(place, made.root)} {_record_hash(Path(place).read_bytes())}\n")
    ordered = sorted(lines, key=lambda line: line.rpartition(" ")[0])
    return len(lines), hashlib.sha256("".join(ordered).encode()).hexdigest()


def _record_hash(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


@pytest.mark.long
def test_every_file_is_the_one_in_its_wheel_and_there_is_no_other(reduced: Environment, workshop: Workshop) -> None:
    began = time.monotonic()
    owner: dict[Path, str] = {}
    wheels = _wheels(reduced.lock, workshop.folder / "wheels")
    assert len(wheels) == len(reduced.lock.packages)
    for wheel in wheels:
        for place in _compared(wheel, reduced):
            assert owner.setdefault(place, wheel.name) == wheel.name, f"{place} has two owners"
    others = {path for path in reduced.site.rglob("*") if path.is_file() and path.suffix != ".pyc"} - set(owner)
    assert [path for path in others if path.name not in (OF_VENV | ADDED)] == []
    of_triton = {wheel for path, wheel in owner.items() if reduced.site / "triton" in path.parents}
    assert of_triton == {next(wheel.name for wheel in wheels if wheel.name.startswith("triton_ascend-"))}
    spent_s = time.monotonic() - began
    sys.stderr.write(f"{len(owner)} files of {len(wheels)} wheels compared with their RECORD, {spent_s:.1f} s\n")


def _wheels(lock: Lock, folder: Path) -> list[Path]:
    """The lock's wheels as files, by pip, which compares their hashes."""
    wanted = folder.with_suffix(".txt")
    hashes = ((p, " ".join(f"--hash=sha256:{digest}" for digest in p.sha256)) for p in lock.packages)
    wanted.write_text("".join(f"{p.name}=={p.version} {words}\n" for p, words in hashes), encoding="utf-8")
    options = ("--no-deps", "--require-hashes", "--only-binary", ":all:", "--quiet", "--no-cache-dir")
    argv = (sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", str(wanted))
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    return sorted(folder.glob("*.whl"))


def _compared(wheel: Path, made: Environment) -> Iterator[Path]:
    """Where each file of a wheel lies, once its content is what the wheel's RECORD says."""
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
        info = next(name for name in tops if name.endswith(".dist-info"))
        record, data = f"{info}/RECORD", info.removesuffix(".dist-info") + ".data/"
        for path, digest, _ in csv.reader(archive.read(record).decode().splitlines()):
            if path == record or path.endswith(".pyc"):
                continue
            place, is_script = _place(path, data, made)
            content = place.read_bytes()
            if is_script and archive.read(path).startswith(b"#!python"):
                # Its first line names the environment's Python.
                content = b"#!python" + content[len(content.partition(b"\n")[0]) :]
            assert _record_hash(content) == digest, f"{wheel.name}: {path}"
            yield place


def _place(path: str, data: str, made: Environment) -> tuple[Path, bool]:
    """Where a wheel's file goes (PEP 427), and whether it is one of its scripts."""
    if not path.startswith(data):
        return made.site / path, False
    kind, _, rest = path[len(data) :].partition("/")
    places = {"scripts": made.root / "bin", "data": made.root, "purelib": made.site, "platlib": made.site}
    return places[kind] / rest, kind == "scripts"


@pytest.mark.long
def test_without_cann_nothing_is_objected_to_and_the_doctor_names_cann(
    reduced: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    assert failed_checks(reduced.resolver.host, reduced.stack, reduced.target.python) == ()
    code = main(["doctor", "--python", reduced.target.python, "--json"])
    found = {item["check"]: item for item in json.loads(capsys.readouterr().out)["findings"]}
    assert code == 1
    npu = found["python.torch-npu-imports"]
    assert npu["status"] == "fail" and "libhccl.so" in npu["says"]
    assert "Install the CANN toolkit" in npu["fix"]["says"]
    assert found["python.torch-imports"]["status"] == "skip"
    assert found["python.torch-pair"]["status"] == "ok"
    wrong = {name for name, item in found.items() if item["status"] == "fail" and name.startswith("python.")}
    assert wrong == {"python.torch-npu-imports"}


LOOK = """
import json, torch, torch_npu, triton
x = torch.arange(6.0)
print(json.dumps([torch.__version__, torch_npu.__version__, torch.npu.is_available(), torch.npu.device_count(),
                  torch.equal(x.npu().cpu(), x), triton.__file__]))
"""


@pytest.mark.usefixtures("cann")
def test_with_cann_the_activated_environment_sees_eight_devices(reduced: Environment) -> None:
    torch, torch_npu, *seen, triton = json.loads(reduced.in_shell(LOOK).splitlines()[-1])
    assert (torch, torch_npu.partition("+")[0]) == (TORCH, TORCH_NPU)
    assert seen == [True, 8, True]
    assert Path(triton) == reduced.site / "triton/__init__.py"


@pytest.mark.long
def test_triton_over_triton_ascend_is_told_and_the_same_plan_restores_it(reduced: Environment) -> None:
    whole = _tree(reduced)
    over = ("--over", "triton-ascend=triton")
    assert reduced.verify(*over) == (0, [])
    reduced.uv("install", "--no-deps", f"triton=={TRITON}")
    assert (reduced.site / f"triton-{TRITON}.dist-info").is_dir()
    code, problems = reduced.verify(*over)
    assert code == 1
    assert "triton-ascend is damaged" in problems[0] and "triton and triton-ascend" in problems[0]
    # The other way round it is what the plan says.
    reduced.uv("install", "--no-deps", "--reinstall", f"triton-ascend=={TRITON_ASCEND}")
    assert reduced.verify(*over, f"triton=={TRITON}") == (0, [])
    code, problems = reduced.verify()
    assert code == 1 and problems[0].startswith("problem: triton is damaged: triton/")
    reduced.uv("install", "--no-deps", "--reinstall", f"triton=={TRITON}")
    assert reduced.install().done == ("mend", "triton-leftovers", "triton-ascend", "verify", "finish")
    assert _tree(reduced) == whole
    assert not (reduced.site / f"triton-{TRITON}.dist-info").exists()
    assert reduced.install().done == ()


@pytest.mark.long
def test_vllm_and_vllm_ascend_are_built_from_archives_and_left_over_triton_goes(
    workshop: Workshop, reduced: Environment, cann: Path
) -> None:
    made = workshop.environment(_with_vllm(workshop), workshop.sources())
    made.install(only="venv")
    made.uv("install", "--no-deps", f"triton=={TRITON}")
    script = cann / "set_env.sh"
    script.rename(cann / "kept.sh")
    with pytest.raises(StepFailed) as stopped:
        made.install()
    assert stopped.value.message.args["step"] == "vllm"
    assert str(script) in say(stopped.value.message)
    (cann / "kept.sh").rename(script)
    done = made.install().done
    built = ("vllm", "vllm-ascend-source", "vllm-ascend", "triton-leftovers", "triton-ascend")
    assert done == (*built, "activate", "verify", "finish")
    assert f"{made.root}/.npuenv/with-cann.sh" in (made.root / ".npuenv/logs/vllm-ascend.log").read_text("utf-8")
    assert json.loads(made.in_shell(VERSIONS).splitlines()[-1]) == [f"{VLLM}+empty", VLLM]
    assert not list(made.site.glob("triton-*.dist-info"))
    record = next(made.site.glob("triton_ascend-*.dist-info")) / "RECORD"
    owned = {made.site / row[0] for row in csv.reader(record.read_text("utf-8").splitlines())}
    there = {path for path in (made.site / "triton").rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert there == {path for path in owned if made.site / "triton" in path.parents}
    # What was left out or put in at another version is objected to, and nothing else.
    objected = {
        each.check: say(each.says) for each in failed_checks(made.resolver.host, made.stack, made.target.python)
    }
    assert set(objected) == {"python.framework-parts", "python.vllm-ascend-needs"}
    assert "transformers" in objected["python.framework-parts"]
    assert "torch==2.9.0" in objected["python.vllm-ascend-needs"]
    assert made.install().done == ()


VERSIONS = """
import json, vllm
from importlib.metadata import version
print(json.dumps([version("vllm"), version("vllm-ascend")]))
"""


def _with_vllm(workshop: Workshop) -> Stack:
    """A published stack whose components are built without kernels and without what they need at run time."""
    base = _resolved(f"vllm-ascend=={VLLM}")
    sources = []
    for source in base.git_sources:
        # Kernels need a real CANN's compiler, and the run-time requirements some two gigabytes.
        no_kernels = {name: "0" for name in source.build_env if name == "COMPILE_CUSTOM_KERNELS"}
        sources.append(replace(source, requires=(), build_env={**source.build_env, **no_kernels}))
    changes = {"git_sources": tuple(sources), "requirements": (*BUILD, "numpy"), "overrides": ()}
    return workshop.stack(base, "vllm-ascend-reduced", **changes)
