"""`npuenv preflight` and rendered recipes against verl and ROLL themselves.

    python -m tests.contract.upstream [--verl DIR]... [--roll DIR]... [--python EXE]

A checkout of verl: no error of preflight about one of its scripts that verl, the shell or the engine does not give too.
Without one, that part is left out, because the packages on the index hold no scripts; recipes and mistakes are judged
by those packages all the same. A checkout of ROLL, which is on no index: its own loader takes every recipe that is
rendered for it. EXE has torch and all that both import; left out, one is made of the larger CPU stack and packages of
the index. Ends with 1 where the figures are worse than they must be.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.cli import main as cli
from npuenv.core.errors import NpuenvError
from npuenv.core.messages import say
from npuenv.install.environments import default_environment
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, known_releases
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.configs import find_checkout
from npuenv.preflight.launch import Machine
from npuenv.preflight.reading import all_of, read_file, read_text
from npuenv.preflight.rules import examine
from npuenv.render.launch.verl import render_verl
from tests.contract.make_verl_keys import programs
from tests.contract.mutants import Mutant, chosen, mutants
from tests.contract.started import started
from tests.render.conftest import make_stack
from tests.render.verl_jobs import RECIPES, published

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.preflight.launch import LaunchFinding

VERDICTS = Path(__file__).with_name("verl_verdicts.py")
ROLL_VERDICTS = Path(__file__).with_name("roll_verdicts.py")
# What verl imports beside torch, ray, transformers and tensordict: without dependencies, which the CPU stack has.
MORE = ("hydra-core==1.3.2", "omegaconf==2.3.0", "antlr4-python3-runtime==4.9.3", "orjson", "pillow", "codetiming",
        "dill", "torchdata", "pandas", "datasets", "peft", "accelerate", "multiprocess", "xxhash", "pytz",
        "python-dateutil", "six", "tzdata", "cachetools", "pybind11", "megatron-core", "dacite")  # fmt: skip
# What only a card or the generating engine could show: preflight says it of scripts that are written for GPUs, or from
# the engine's own check.
OF_THE_MACHINE = {
    "preflight.engine": "an engine without a build for NPUs",
    "preflight.attention-backend": "a kernel of GPUs",
    "preflight.quantization": "a number format that A2 and A3 lack",
    "preflight.batched-tokens": "vllm/config/scheduler.py refuses it when the engine starts",
}
OF_THE_SHELL = ("preflight.cut-off", "preflight.unset")
MOST, LEAST_FOUND = 60, 57


class Framework:
    """A Python that can import verl or ROLL out of a tree."""

    def __init__(self, python: Path, packages: Sequence[Path] = ()) -> None:
        self._python, self._packages = python, packages

    def judge(self, program: Path, tree: Path, cases: object) -> list[str]:
        """The lines of a program of verdicts. Raises SystemExit where it gives none."""
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, self._packages)), "RAY_DEDUP_LOGS": "0"}
        done = subprocess.run(
            [str(self._python), str(program), str(tree)], cwd=tree, input=json.dumps(cases), env=environ,
            capture_output=True, text=True, check=False, timeout=1800,
        )  # fmt: skip
        lines = done.stdout.splitlines()
        if not lines and cases:
            raise SystemExit(f"{program.stem}: nothing can be asked: {done.stderr[-1500:]}")
        return lines

    def verdicts(self, tree: Path, launches: Sequence[tuple[str, Sequence[str]]]) -> list[str | None]:
        """What verl says of each launch, in their order: None where it takes it."""
        said: list[str | None] = []
        while len(said) < len(launches):
            cases = {
                "programs": programs(tree),
                "launches": [[name, list(words)] for name, words in launches[len(said) :]],
            }
            said += [json.loads(line) for line in self.judge(VERDICTS, tree, cases)]
            if len(said) < len(launches):
                said.append("the process ended")
        return said


def framework(python: Path | None, folder: Path) -> Framework:
    """The given Python, or one made in a folder. Raises SystemExit where the larger CPU stack is not installed."""
    if python is not None:
        return Framework(python)
    stack = default_environment("cpu-full")
    packages = sorted(stack.glob("lib/python*/site-packages"))
    if not packages:
        raise SystemExit("verl cannot be imported: `npuenv install cpu-full --yes` brings torch, or give --python EXE")
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", str(stack / "bin" / "python"), str(folder)], check=True)
    made = folder / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "--python", str(made), "--no-deps", *MORE], check=True)
    return Framework(made, packages)


def wheel(release: str, folder: Path) -> Path:
    """A release of the package index, unpacked."""
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "pip", "install", "--no-deps", "--target", str(folder), f"verl=={release}"], check=True)
    return folder


def asked(release: str, folder: Path) -> ReadOptions:
    return ReadOptions(defaults_of, "verl", release, Machine(), folder=folder, checkout=find_checkout((folder,)))


# --- verl's own scripts


@dataclass(frozen=True)
class Row:
    """An error of preflight, and what verl or the shell says of the same launch; None: nothing."""

    script: str
    is_npu: bool  # one of verl's workflows for NPUs runs it
    problem: LaunchFinding
    verdict: str | None


def scripts_of(tree: Path) -> dict[str, bool]:
    """Every shell script of a checkout; True for those that a workflow for NPUs runs."""
    flows = [each for each in tree.glob(".github/workflows/*.yml") if re.search("npu|ascend", each.name)]
    run = {name for each in flows for name in re.findall(r"[\w./-]+\.sh\b", each.read_text(encoding="utf-8"))}
    names = (str(each.relative_to(tree)) for each in sorted(tree.rglob("*.sh")))
    return {name: name in run for name in names}


def rows(tree: Path, release: str, verl: Framework) -> tuple[int, list[Row]]:
    """How many scripts were judged, and preflight's errors with what verl says of each alone."""
    found: list[tuple[str, bool, LaunchFinding]] = []
    judged = 0
    for name, is_npu in scripts_of(tree).items():
        try:
            readings = all_of(read_file(tree / name, asked(release, tree)), asked(release, tree))
        except NpuenvError:
            continue  # it starts nothing that preflight is about
        judged += 1
        problems = [p for r in readings for p in examine(r.launch, refused=r.refused) if p.severity == "error"]
        found += [(name, is_npu, each) for each in problems]
    runs = [started(tree / name, tree) for name, _, _ in found]
    said: list[str | None] = [
        run.refused if each.check in OF_THE_SHELL else None for run, (*_, each) in zip(runs, found)
    ]
    # A launch may have several mistakes: what verl blames that is not the problem's own goes, and verl is asked again.
    open_: dict[int, tuple[str, tuple[str, ...]]] = {
        at: run.launches[0] for at, run in enumerate(runs)
        if run.launches and found[at][2].check not in (*OF_THE_SHELL, *OF_THE_MACHINE)
    }  # fmt: skip
    while open_:
        again = {}
        for at, text in zip(open_, verl.verdicts(tree, list(open_.values()))):
            said[at], (module, words) = text, open_[at]
            own = {setting.key for setting in found[at][2].settings}
            rest = tuple(word for word in words if _key(word) in own or not _is_blamed(_key(word), text or ""))
            if len(rest) < len(words):
                again[at] = module, rest
        open_ = again
    return judged, [Row(*each, text) for each, text in zip(found, said)]


def _key(word: str) -> str:
    return word.partition("=")[0].lstrip("+~")


def _is_blamed(key: str, text: str) -> bool:
    return bool("." in key and re.search(rf"\b{re.escape(key.rpartition('.')[2])}\b", text))


def compare(tree: Path, verl: Framework) -> bool:
    release = (tree / "verl/version/version").read_text(encoding="utf-8").strip()
    judged, found = rows(tree, release, verl)
    alone = [row for row in found if row.verdict is None and row.problem.check not in OF_THE_MACHINE]
    of_machine = [row for row in found if row.verdict is None and row.problem.check in OF_THE_MACHINE]
    print(f"\nverl {release}: {judged} scripts, {sum(scripts_of(tree).values())} of workflows for NPUs")
    print(f"  errors {len(found)}: {len(found) - len(alone) - len(of_machine)} verl gives too,"
          f" {len(of_machine)} only a machine could show, {len(alone)} neither")  # fmt: skip
    print(f"  errors in scripts of workflows for NPUs: {sum(row.is_npu for row in found)}")
    for row in found:
        why = row.verdict or OF_THE_MACHINE.get(row.problem.check) or "NOT CONFIRMED: " + say(row.problem.says)
        print(f"  {row.script}: {row.problem.check}: {' '.join(why.split())[:160]}")
    return not alone and not any(row.is_npu and row.verdict is None for row in found)


# --- rendered recipes and planted mistakes


def rendered(release: str) -> dict[str, str]:
    """run.sh of every recipe that can be rendered for a release."""
    found = {}
    for id in RECIPES:
        job, placement, recipe, paths = published(id, release)
        try:
            found[id] = render_verl(job, placement, recipe, stack=make_stack(), paths=paths)["run.sh"]
        except NpuenvError:
            continue  # not in this release, and it says so
    return found


def refusals(texts: Sequence[str], tree: Path, verl: Framework) -> list[str | None]:
    """What the shell or verl says of each script."""
    launches: list[tuple[str, tuple[str, ...]]] = []
    said: list[str | int | None] = []
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "run.sh")
        for text in texts:
            script.write_text(text, encoding="utf-8")
            run = started(script, tree)
            said.append(run.refused or len(launches))
            launches += [] if run.refused else [run.launches[0] if run.launches else ("nothing", ())]
    verdicts = verl.verdicts(tree, launches)
    return [verdicts[each] if isinstance(each, int) else each for each in said]


def recipes(release: str, tree: Path, verl: Framework) -> bool:
    texts = rendered(release)
    said = dict(zip(texts, refusals(list(texts.values()), tree, verl)))
    wrong = {id: text for id, text in said.items() if text is not None}
    print(f"  verl {release}: {len(said)} recipes, {len(wrong)} refused")
    print("".join(f"    {id}: {text}\n" for id, text in wrong.items()), end="")
    return not wrong and bool(said)


def roll_recipes(tree: Path, release: str, roll: Framework) -> bool:
    """Whether ROLL's loader takes every recipe that is rendered for a checkout of it."""
    cases = []
    for row in load_matrix().roll_recipes:
        place = tree / "examples" / "npuenv" / row.id
        words = ["--for", "roll", "--release", release, "--recipe", row.id, "-o", str(place), "--quiet"]
        if cli(["render-launch", *words]) != 0:
            print(f"  ROLL {release}: {row.id} cannot be rendered")
            return False
        shutil.move(place / f"{row.id}.yaml", tree / "examples" / "npuenv" / f"{row.id}.yaml")
        cases.append((row.pipeline, "npuenv", row.id))
    said = list(map(json.loads, roll.judge(ROLL_VERDICTS, tree, cases)))
    wrong = {name: text for (_, _, name), text in zip(cases, said) if text is not None}
    print(f"  ROLL {release}: {len(said)} recipes, {len(wrong)} refused")
    print("".join(f"    {name}: {text}\n" for name, text in wrong.items()), end="")
    return not wrong and len(said) == len(cases)


def release_of(checkout: Path) -> str:
    """The tag of a checkout without its v, else the commit's first digits."""

    def git(*words: str) -> str:
        done = subprocess.run(("git", "-C", str(checkout), *words), capture_output=True, text=True, check=False)
        return done.stdout.strip()

    return git("describe", "--tags", "--exact-match").removeprefix("v") or git("rev-parse", "--short=8", "HEAD")


def errors_of(mutant: Mutant, release: str, folder: Path) -> list[str]:
    """The rules that call a mutant an error; a text that cannot be read is one, too."""
    try:
        known = asked(release, folder)
        readings = all_of(read_text(mutant.text, folder / mutant.base, known), known)
    except NpuenvError as error:
        return [error.message.key]
    return [p.check for r in readings for p in examine(r.launch, refused=r.refused) if p.severity == "error"]


def mistakes(bases: dict[str, str], release: str, tree: Path, verl: Framework) -> bool:
    """Mutants of scripts that preflight and verl take."""
    taken = dict(zip(bases, refusals(list(bases.values()), tree, verl)))
    right = {
        id: text for id, text in bases.items()
        if taken[id] is None and not errors_of(Mutant("", id, text, True), release, tree)
    }  # fmt: skip
    drawn = [each for each in mutants(right, 6) if each.is_checked or has_effect(each, right[each.base], tree)]
    said = dict[Mutant, str | None]()
    picked = chosen(drawn, MOST)
    while ask := [each for each in picked if each not in said]:
        said.update(zip(ask, refusals([each.text for each in ask], tree, verl)))
        drawn = [each for each in drawn if not each.is_checked or said.get(each, "not asked yet") is not None]
        picked = chosen(drawn, MOST)
    missed = [each for each in picked if not errors_of(each, release, tree)]
    confirmed = sum(said[each] is not None for each in picked)
    print(f"  verl {release}: {len(picked)} mistakes in {len(right)} scripts, {confirmed} refused by the shell or verl,"
          f" {len(picked) - len(missed)} found")  # fmt: skip
    print(
        "".join(
            f"    missed: {each.rule} in {each.base}: {_changed(right[each.base], each.text)}\n" for each in missed
        ),
        end="",
    )
    return len(picked) == MOST and len(picked) - len(missed) >= LEAST_FOUND


def has_effect(mutant: Mutant, before: str, tree: Path) -> bool:
    """Whether other values start: a later word of the script can have the last say on the key that was changed."""
    return _in_force(mutant.text, tree) != _in_force(before, tree)


def _in_force(text: str, tree: Path) -> list[tuple[str, dict[str, str]]]:
    """The programs that a script starts, each with the last value of every key."""
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch, "run.sh")
        script.write_text(text, encoding="utf-8")
        launches = started(script, tree).launches
    return [(module, dict(word.partition("=")[::2] for word in words)) for module, words in launches]


def _changed(before: str, after: str) -> str:
    old = set(before.splitlines())
    return next((line.strip() for line in after.splitlines() if line not in old), "a line is gone")


def bases_of(tree: Path) -> Iterator[tuple[str, str]]:
    """The scripts of a checkout that workflows for NPUs run, and the examples."""
    for name, is_npu in scripts_of(tree).items():
        if is_npu or name.startswith("examples/"):
            yield name, (tree / name).read_text(encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> bool:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--verl", type=Path, action="append", default=[], metavar="DIR")
    words.add_argument("--roll", type=Path, action="append", default=[], metavar="DIR")
    words.add_argument("--python", type=Path, metavar="EXE")
    words.add_argument("--only", choices=("scripts", "recipes", "mistakes"), action="append")
    given = words.parse_args(arguments)
    parts = given.only or ("scripts", "recipes", "mistakes")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        verl = framework(given.python, Path(scratch, "python"))
        trees = []
        for at, tree in enumerate(given.verl):  # a copy: scripts write beside themselves
            trees.append(Path(scratch, f"tree{at}"))
            shutil.copytree(tree, trees[-1], ignore=shutil.ignore_patterns(".git"), symlinks=True)
        if "scripts" in parts:
            if not trees:
                print("verl's own scripts: left out, there is no checkout of verl (--verl DIR)")
            good = sum(compare(tree, verl) for tree in trees) == len(trees)
        releases = [each for each in known_releases("verl") if rendered(each)] if "recipes" in parts else []
        if releases:
            print("\nrendered recipes, composed and validated")
            taken = [recipes(each, wheel(each, Path(scratch, each)), verl) for each in releases]
            good = all(taken) and good
        if "recipes" in parts and not given.roll:
            print("\nROLL's recipes: left out, there is no checkout of ROLL (--roll DIR)")
        for at, checkout in enumerate(given.roll if "recipes" in parts else ()):
            tree = Path(scratch, f"roll{at}")
            shutil.copytree(checkout, tree, ignore=shutil.ignore_patterns(".git"), symlinks=True)
            good = roll_recipes(tree, release_of(checkout), verl) and good
        if "mistakes" in parts:
            print("\nplanted mistakes")
            newest = known_releases("verl")[-1]
            bases = rendered(newest)
            good = mistakes(bases, newest, wheel(newest, Path(scratch, "newest")), verl) and good
            for tree in trees:
                release = (tree / "verl/version/version").read_text(encoding="utf-8").strip()
                good = mistakes(dict(bases_of(tree)), release, tree, verl) and good
    return good


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    sys.exit(0 if main() else 1)
