"""Kills an installation with everything it started, at any moment, and runs it again: then every file must be there.

Each result is judged by reading the wheels themselves, not by what the installation says of itself. NPUENV_KILLS sets
the number of random points (8), NPUENV_REAL_KILLS those with real wheels (1), NPUENV_KILL_SEED where they lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import platform
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from npuenv.facts.conditions import INSPECTOR
from npuenv.facts.pip import PipSetting, PipSettings, for_uv
from npuenv.install import env_verifier as inspector
from npuenv.install.components import Tools
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.planning import plan_install
from npuenv.lock.file import read_lock
from npuenv.lock.uv import find_uv, write_wheel
from npuenv.matrix import load_matrix
from npuenv.render.variables import render_activations
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.waiting import is_gone, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.core.plan import Plan
    from tests.install.conftest import World

NUM_KILLS = int(os.environ.get("NPUENV_KILLS", "8"))
NUM_REAL_KILLS = int(os.environ.get("NPUENV_REAL_KILLS", "1"))
FEW = 1  # in the run that every change starts with; the others are slow
SEED = int(os.environ.get("NPUENV_KILL_SEED", "1"))
CHECKOUT = Path(__file__).parents[2]


@dataclass(slots=True)
class Bed:
    """An installation that can be started, killed and judged."""

    root: Path
    wheels: Path
    cache: Path
    process: subprocess.Popen[str]
    pid: int = 0
    said: list[str] = field(default_factory=list)

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.said.clear()
        self.pid = int(self.until("pid ").partition(" ")[2])

    def until(self, beginning: str) -> str:
        """The next line that begins so, or the last one of the run."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))
            if line.startswith((beginning, "end ")):
                return self.said[-1]
        raise AssertionError(self.said)

    def end(self) -> int:
        """The exit code."""
        return int((self.said[-1] if self.said[-1].startswith("end ") else self.until("end ")).partition(" ")[2])

    def run(self) -> int:
        self.start()
        return self.end()

    def kill(self) -> None:
        """Everything at once: all are stopped first, so that none starts another between the look and the kill."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            victims: list[psutil.Process] = []
            fresh = [parent]
            while fresh:
                for victim in fresh:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        victim.suspend()
                victims += fresh
                fresh = [child for child in parent.children(recursive=True) if child not in victims]
            for victim in reversed(victims):
                with contextlib.suppress(psutil.NoSuchProcess):
                    victim.kill()
            psutil.wait_procs(victims[1:], 10)

    def kill_one(self, draw: random.Random) -> None:
        """One process alone, whichever: the installation itself or one that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self.pid)
            draw.choice([parent, *parent.children(recursive=True)]).kill()

    def times(self) -> dict[str, float]:
        """How long each step takes from START on, in a run that nobody disturbs."""
        self.start()
        found, began = {}, 0.0
        while not (line := self.until("")).startswith("end "):
            kind, _, step = line.partition(" ")
            if kind == "start":
                began = time.monotonic()
            elif kind == "done":
                found[step] = time.monotonic() - began
        assert self.end() == 0, self.said
        return found

    def flaws(self) -> list[str]:
        """Files of the wheels that are missing in the environment or have another content, and what uv left torn."""
        site = next(self.root.glob("lib/python*/site-packages"), self.root)
        found = []
        for path in sorted(self.wheels.glob("*.whl")):
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    place = installed_as(name, site, self.root)
                    if place and sha256_of(place) != hashlib.sha256(wheel.read(name)).hexdigest():
                        found.append(str(place))
        return found + [str(path) for path in self.root.rglob(".tmp*")]

    def is_complete(self) -> bool:
        """What the environment says of itself."""
        marker = self.root / "npuenv-env.json"
        return marker.exists() and json.loads(marker.read_text())["status"] == "complete"


def installed_as(name: str, site: Path, root: Path) -> Path | None:
    """Where a wheel's member goes; None for folders and for what an installer rewrites (RECORD, scripts)."""
    first, _, rest = name.partition("/")
    if name.endswith(("/", ".dist-info/RECORD")):
        return None
    if not first.endswith(".data"):
        return site / name
    kind, _, inside = rest.partition("/")
    return {"purelib": site / inside, "platlib": site / inside, "data": root / inside}.get(kind)


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "no file"


@contextlib.contextmanager
def bed_of(plan: Plan, settings: object, *, root: Path, wheels: Path) -> Iterator[Bed]:
    job = root.parent / "job"
    job.write_bytes(pickle.dumps((str(root), plan, settings)))
    with subprocess.Popen(
        [sys.executable, Path(__file__).with_name("installing.py"), job],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
    ) as process:
        assert process.stdin is not None
        try:
            yield Bed(root, wheels, Path(os.environ["UV_CACHE_DIR"]), process)
        finally:
            process.stdin.close()


# uv, which waits before it installs as long as there is a file `hold`.
HELD_UV = """#!/bin/sh
[ "$1 $2" != "pip install" ] || [ ! -e "{hold}" ] || {{ touch "{held}"; while [ -e "{hold}" ]; do sleep 0.02; done; }}
exec "{uv}" "$@"
"""


@pytest.fixture
def small_bed(world: World, tmp_path: Path) -> Iterator[Bed]:
    """An installation of the world's three wheels, for kills between two changes; what uv keeps of them is there."""
    world.link = str(tmp_path / "current")
    world.uv = str(tmp_path / "uv")
    Path(world.uv).write_text(HELD_UV.format(uv=find_uv(), hold=tmp_path / "hold", held=tmp_path / "held"))
    Path(world.uv).chmod(0o755)
    with bed_of(world.installed(), for_uv(world.settings), root=world.root, wheels=world.wheels) as made:
        yield made


@pytest.fixture
def bed(world: World, tmp_path: Path) -> Iterator[Bed]:
    """Eight wheels with hundreds of files, so that there is something to be killed in."""
    draw = random.Random(7)
    files = {f"torch/part{n}.txt": f"{draw.random()}" * draw.randrange(1, 400) for n in range(150)}
    files |= {"torch/__init__.py": "__version__ = '9.1+cpu'\n", "torch/big.txt": "x" * 4_000_000}
    write_wheel(world.wheels, "torch", "9.1+cpu", requires=["numbers"], files=files)
    names = [f"small{n}" for n in range(6)]
    for name in names:
        files = {f"{name}/part{n}.py": f"X = {draw.random()}\n" * draw.randrange(1, 200) for n in range(40)}
        write_wheel(world.wheels, name, "1.0", files=files)
    world.stack = replace(world.stack, requirements=("tools", *names))
    world.link = str(tmp_path / "current")
    with bed_of(world.plan(), for_uv(world.settings), root=world.root, wheels=world.wheels) as made:
        yield made


def points(times: dict[str, float], number: int) -> list[tuple[str, float, bool, bool]]:
    """(step, seconds after its start, with an empty cache, one process alone): four in five while files are written."""
    draw = random.Random(SEED)
    writing = [step for step in times if step == "torch+rest"]
    chosen = []
    for _ in range(number):
        step = draw.choice(writing) if draw.random() < 0.8 else draw.choice(list(times))
        chosen.append((step, draw.uniform(0, 1.05) * times[step], draw.random() < 0.25))
    return [(*point, number % 2 == 1) for number, point in enumerate(chosen)]


def kill_at(bed: Bed, step: str, seconds: float, kill: Callable[[], None] | None = None) -> int:
    """The exit code: -9 where the kill came before the end, 1 where it was that of a program that it started."""
    bed.start()
    bed.until(f"start {step}")
    time.sleep(seconds)
    (kill or bed.kill)()
    return bed.end()


def kill_before_the_end(bed: Bed, step: str, seconds: float, kill: Callable[[], None] | None = None) -> int:
    """The same in an environment made anew, and earlier where the machine is faster than when the times were taken."""
    while (code := kill_at(bed, step, seconds, kill)) == 0 and seconds > 0.01:
        shutil.rmtree(bed.root)
        seconds /= 2
    return code


@pytest.mark.parametrize("num_points", [FEW, pytest.param(NUM_KILLS, marks=pytest.mark.slow)])
def test_killed_at_random_points_and_run_again_it_is_complete(bed: Bed, num_points: int) -> None:
    times = bed.times()
    assert bed.flaws() == []
    if num_points > FEW:
        shutil.rmtree(bed.root)  # the second time the cache is warm, as it is at most points
        times = bed.times()
    num_killed = num_left_incomplete = num_waited = 0
    draw = random.Random(SEED)
    for step, seconds, is_cold, is_one in points(times, num_points):
        shutil.rmtree(bed.root)
        if is_cold:
            shutil.rmtree(bed.cache)
        kill = (lambda: bed.kill_one(draw)) if is_one else None
        code = kill_before_the_end(bed, step, seconds, kill)
        assert code in (0, 1, -9), (step, seconds, bed.said)
        num_killed += code != 0
        flaws = bed.flaws()
        num_left_incomplete += bool(flaws)
        assert not (flaws and bed.is_complete()), (step, seconds, flaws[:5])
        assert bed.run() == 0, (step, seconds, bed.said)
        assert bed.flaws() == [], (step, seconds, is_cold)
        assert bed.is_complete()
        waits = [line for line in bed.said if line.startswith("waits ")]
        assert all(re.search(r"[0-9]", line) for line in waits)  # for a process that is named
        num_waited += bool(waits)
    sys.stderr.write(
        f"{num_points} points: {num_killed} killed, {num_left_incomplete} left incomplete, "
        f"{num_waited} repeats waited, all whole after\n"
    )
    if num_points > FEW:  # else the points lie where nothing happens
        assert num_killed > num_points / 4 and num_left_incomplete > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", [pytest.param(0, marks=pytest.mark.long), 1, pytest.param(2, marks=pytest.mark.long)]
)
def test_killed_twice_in_a_row_it_is_complete_after_the_third_run(bed: Bed, number: int) -> None:
    times = bed.times()
    shutil.rmtree(bed.root)
    kill_at(bed, "torch+rest", times["torch+rest"] * (0.3 + 0.2 * number))
    kill_at(bed, "torch+rest", times["torch+rest"] * (0.4 + 0.1 * number))
    assert bed.run() == 0, bed.said
    assert bed.flaws() == []


@pytest.mark.slow
def test_killed_between_two_steps_it_goes_on_there(small_bed: Bed) -> None:
    bed = small_bed
    shutil.rmtree(bed.root)
    done: set[str] = set()
    for step in ("venv", "torch+rest", "activate", "verify", "finish"):
        kill_at(bed, step, 0.0)
        again = {line.partition(" ")[2] for line in bed.said if line.startswith("done ")}
        assert not done & again, step
        done |= again
    assert bed.run() == 0, bed.said
    assert bed.flaws() == [] and bed.is_complete()


@pytest.mark.parametrize(
    "kill", [pytest.param(os.kill, id="alone"), pytest.param(os.killpg, id="with its group", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_nothing_outlives_an_installation_that_is_killed_and_the_next_one_goes_on(
    small_bed: Bed, tmp_path: Path, kill: Callable[[int, int], None]
) -> None:
    bed = small_bed
    shutil.rmtree(bed.root)
    (tmp_path / "hold").touch()
    try:
        bed.start()
        assert until((tmp_path / "held").exists)
        started = psutil.Process(bed.pid).children(recursive=True)
        assert started
        kill(bed.pid, signal.SIGKILL)
        bed.end()
        assert until(lambda: all(is_gone(child.pid) for child in started))
    finally:
        (tmp_path / "hold").unlink()
    assert bed.run() == 0 and bed.flaws() == []


def damage(bed: Bed) -> None:
    site = next(bed.root.glob("lib/python*/site-packages"))
    for path in ("torch/part3.txt", "small2/part7.py", "small5/part1.py"):
        (site / path).write_text("something else")


@pytest.mark.slow
@pytest.mark.long
def test_killed_while_mending_it_mends_again(bed: Bed) -> None:
    bed.times()
    draw = random.Random(SEED)
    for _ in range(4):
        damage(bed)
        kill_at(bed, "mend", draw.uniform(0, 0.25))
        assert bed.run() == 0, bed.said
        assert bed.flaws() == [] and bed.is_complete()


KILLS_ITSELF = """
import os, runpy, signal, sys
left, program, *rest = sys.argv[1:]
left = int(left)
changes = ("os.remove", "os.rename", "os.rmdir", "os.symlink", "shutil.rmtree", "open")
def count(event, args):
    global left
    if event in changes and (event != "open" or (isinstance(args[1], str) and args[1][:1] in "wax")):
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.argv = [program, *rest]
sys.addaudithook(count)
runpy.run_path(program, run_name="__main__")
"""


def killed_at_every_change(python: Path, program: Path, argv: list[str], between: Callable[[], None]) -> int:
    """Runs a program until it gets through, killed before its first change, its second, ...; the number of kills."""
    for number in range(500):
        ran = subprocess.run([python, "-I", "-B", "-c", KILLS_ITSELF, str(number), program, *argv])
        if ran.returncode == 0:
            return number
        assert ran.returncode == -9
        between()
    raise AssertionError("it never ends")


@pytest.mark.slow
def test_a_mending_killed_before_each_of_its_changes_never_hides_the_damage(small_bed: Bed) -> None:
    bed = small_bed
    site = next(bed.root.glob("lib/python*/site-packages"))
    (site / "numbers_b/__init__.py").write_text("something else")
    python, program = bed.root / "bin/python", bed.root / INSPECTOR

    def is_known_or_gone() -> None:
        argv: list[str | Path] = [python, "-I", "-B", program, "state", bed.root]
        found = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)
        is_gone = "numbers" not in found["dists"] and not list(site.glob("numbers_*"))
        assert "numbers" in found["damaged"] or is_gone
        assert found["verified"] == ""

    # Without undoing anything between the kills, each run also starts from what a killed one left.
    assert killed_at_every_change(python, program, ["mend", str(bed.root)], is_known_or_gone) >= 3
    assert bed.run() == 0, bed.said
    assert bed.flaws() == [] and bed.is_complete()


@pytest.mark.slow
def test_a_switch_killed_before_each_of_its_changes_leaves_two_valid_links(tmp_path: Path) -> None:
    first, second, link = tmp_path / "1", tmp_path / "2", tmp_path / "current"
    for folder in (first, second):
        folder.mkdir()
    link.symlink_to(first)
    program = tmp_path / "inspector.py"
    program.write_text(inspector.text())
    num_kills = 0
    for number in range(20):
        for name, to in (("current", first), ("previous", second)):
            (tmp_path / name).unlink(missing_ok=True)
            (tmp_path / name).symlink_to(to)
        argv = [sys.executable, "-I", "-B", "-c", KILLS_ITSELF, str(number), str(program)]
        ran = subprocess.run([*argv, "switch", second, link])
        assert link.readlink() in (first, second) and (tmp_path / "previous").readlink() in (first, second)
        if ran.returncode == 0:
            break
        num_kills += 1
        again: list[str | Path] = [sys.executable, "-I", program, "switch", second, link]
        assert subprocess.run(again).returncode == 0
        assert link.readlink() == second and (tmp_path / "previous").readlink() == first
    assert num_kills == 4  # a link made and one renamed, twice
    assert link.readlink() == second and (tmp_path / "previous").readlink() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "current", "inspector.py", "previous"]


@pytest.mark.slow
def test_a_file_altered_in_the_cache_is_thrown_away_there_and_the_installation_gets_through(small_bed: Bed) -> None:
    bed = small_bed
    for path in bed.cache.glob("archive-v0/*/numbers_b/__init__.py"):
        content = path.read_bytes()
        path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    shutil.rmtree(bed.root)
    assert bed.run() == 0, bed.said
    assert bed.flaws() == [] and bed.is_complete()
    assert bed.said.count("start mend") == 1
    log = (bed.root / ".npuenv/logs/mend.log").read_text()
    assert "the cache holds numbers altered (numbers_b/__init__.py has another content)" in log


@pytest.mark.slow
def test_a_file_missing_in_the_cache_comes_back_too(small_bed: Bed) -> None:
    bed = small_bed
    for path in bed.cache.glob("archive-v0/*/numbers_b/__init__.py"):
        path.unlink()
    shutil.rmtree(bed.root)
    assert bed.run() == 0, bed.said
    assert bed.flaws() == [] and bed.is_complete()
    assert bed.said.count("start torch+rest") == 2


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long
def test_killed_with_real_wheels_it_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stack: torch has twelve thousand files, and being killed while it is copied is what loses them."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stack = resolve(Request(stack="cpu", arch=platform.machine(), python=python), load_matrix())
    assert isinstance(stack, Stack)
    lock = read_lock(CHECKOUT / "lockfiles" / f"cpu.{stack.platform.tag}.toml")
    wheels = fetched(lock, tmp_path / "wheels")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    settings = for_uv(PipSettings(find_links=(PipSetting(str(wheels), "$PIP_FIND_LINKS"),), is_no_index=True))
    links = {package.name: str(wheels) for package in lock.packages if package.index}
    base = getattr(sys, "_base_executable", sys.executable)
    root = tmp_path / "env"
    tools = Tools(base, find_uv(), settings, {}, links)
    text = render_activations(stack, str(root))
    plan = plan_install(stack, lock, EnvironmentPlace(str(root), str(tmp_path / "current")), tools, activation=text)
    began = time.monotonic()
    num_killed = num_left_incomplete = 0
    with bed_of(plan, settings, root=root, wheels=wheels) as bed:
        bed.times()
        shutil.rmtree(root)  # the second time the cache is warm, as it is at the points
        for step, seconds, *_ in points(bed.times(), NUM_REAL_KILLS):
            shutil.rmtree(root)
            num_killed += kill_before_the_end(bed, step, seconds) == -9
            num_left_incomplete += bool(bed.flaws())
            assert bed.run() == 0, (step, seconds, bed.said)
            assert bed.flaws() == [] and bed.is_complete()
    took = time.monotonic() - began
    sys.stderr.write(f"{num_killed} of {NUM_REAL_KILLS} killed, {num_left_incomplete} left incomplete, {took:.0f} s\n")
    assert num_killed > 0


def fetched(lock: object, folder: Path) -> Path:
    """The lock's wheels in a folder; skips where they cannot be had."""
    folder.mkdir()
    rows = [f"{p.name}=={p.version} " + " ".join(f"--hash=sha256:{h}" for h in p.sha256) for p in lock.packages]  # type: ignore[attr-defined]
    (folder / "requirements.txt").write_text("\n".join(rows) + "\n")
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "-d", str(folder)]
    ran = subprocess.run([*argv, "-r", str(folder / "requirements.txt")], capture_output=True, text=True)
    if ran.returncode != 0:
        pytest.skip(f"the wheels cannot be had here: {ran.stderr.strip().splitlines()[-1]}")
    return folder
