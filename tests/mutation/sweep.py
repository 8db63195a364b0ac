"""How many small changes of meaning the default tests notice, room by room: `python -m tests.mutation.sweep`.

A checkout is copied; there one mutant after another stands in for the original while the tests run that pass its place,
cheapest first. A test's failure, or a run without end, is notice. What the tests of its own room leave alive goes to
those of the rooms that use it. Nothing is written to the checkout itself.

    --count N     mutants per room (30)          --seed S      another draw (1)
    --rooms R...  only these                     --checkout D  another checkout than this one
    --like FILE   the mutants of an earlier -o, as far as they still apply
    --jobs N      copies at work at a time (1)   -o FILE       all results, as JSON
    --learnt FILE which test passes which place: read where it is there, else written
    --limit S     seconds for learning from one test file (60)
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from npuenv.core import documents as _toml
from tests.mutation.mutants import Mutant, drawn, marked, mutants_of

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Room: its tests, then those of the rooms that use it, as far as they take seconds; folders, or patterns of files.
ROOMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "npuenv/resolve": (("resolve",), ("install/planning", "cli/test_co*.py", "cli/test_bad_input*.py")),
    "npuenv/checks": (("checks",), ("doctor/test_*.py", "cli/test_doctor_options*.py")),
    "npuenv/facts": (("facts",), ("checks", "doctor/test_*.py", "host")),
    "npuenv/install": (("install",), ("cli/test_rough_conditions*.py", "cli/test_commands*.py")),
    "npuenv/lock": (("lock",), ("install/planning", "cli/test_lock*.py")),
    "npuenv/diagnose": (("diagnose",), ("report", "cli/test_doctor_options*.py")),
    "npuenv/preflight": (("preflight",), ("cli/test_preflight*.py",)),
    "trainer/algorithms": (
        ("trainer/algorithms",),
        ("trainer/test_advantages*.py", "trainer/test_learner*.py", "trainer/test_measures*.py",
         "trainer/test_distributed_sharding*.py"),
    ),
}  # fmt: skip
_FEW_FILES, _FEW_TESTS = 3, 12  # what is tried first
_SLOW_S = 1.0  # a test that takes longer must fail twice: it may have waited for something


@dataclass(slots=True)
class Result:
    """What became of a mutant."""

    mutant: Mutant
    room: str
    result: str = "survived"  # or: noticed, timeout
    by: str = ""  # the test, or what else ended the run
    says: str = ""
    seconds: float = 0.0
    num_passing: int = 0  # tests of the own room that pass the place
    tried: set[str] = field(default_factory=set)

    @property
    def is_noticed(self) -> bool:
        return self.result != "survived"


@dataclass(slots=True)
class Learnt:
    """What running each test file once, with places marked, has shown."""

    seconds: dict[str, float] = field(default_factory=dict)  # of the tests that passed
    loading: dict[str, float] = field(default_factory=dict)  # seconds that a file costs beside its tests
    direct: dict[str, set[str]] = field(default_factory=dict)  # mutant's key -> tests that pass its place
    files: dict[str, set[str]] = field(default_factory=dict)  # mutant's key -> files in which anything passes it
    fragile: set[str] = field(default_factory=set)  # fail where places are marked, and only there
    unfinished: set[str] = field(default_factory=set)  # files that would have taken longer
    known: set[str] = field(default_factory=set)  # files

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), default=sorted, indent=0))

    @classmethod
    def load(cls, path: Path) -> Learnt:
        raw = json.loads(path.read_text())
        direct, files = ({key: set(each) for key, each in raw[name].items()} for name in ("direct", "files"))
        fragile, unfinished, known = (set(raw[name]) for name in ("fragile", "unfinished", "known"))
        return cls(raw["seconds"], raw.get("loading", {}), direct, files, fragile, unfinished, known)


class Copy:
    """A copy of the checkout in a folder of its own, with a process that runs tests there."""

    def __init__(self, checkout: Path, scratch: Path, number: int) -> None:
        self.root = scratch / str(number) / "npuenv"
        listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=checkout,
                                capture_output=True, check=True, text=True).stdout  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (checkout / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, self.root / name)
        if (checkout.parent / "shared").is_dir():
            (scratch / str(number) / "shared").symlink_to((checkout.parent / "shared").resolve())
        self.changes = 0
        self.process = self._started()

    def _started(self) -> subprocess.Popen[str]:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST_", "LC_"))}
        env |= {"PYTHONPATH": str(self.root), "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"}
        asked = "from npuenv.install.environments import default_environment; print(default_environment('cpu'))"
        found = subprocess.run([sys.executable, "-c", asked], cwd=self.root, env=env, capture_output=True, text=True,
                               check=True).stdout.strip()  # fmt: skip
        packages = Path(found) / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
        words = [sys.executable, str(HERE / "worker.py"), *([str(packages)] if packages.is_dir() else [])]
        return subprocess.Popen(words, cwd=self.root, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        said: dict[str, Any] = json.loads(self.process.stdout.readline())
        if said.get("npuenv") and not Path(said["npuenv"]).is_relative_to(self.root.resolve()):
            raise SystemExit(f"the tests import {said['npuenv']}, not the copy")
        return said

    def write(self, path: str, content: bytes) -> None:
        """Puts a file in place, with a time that no other version of it has had: Python compiles it anew."""
        self.changes += 1
        (self.root / path).write_bytes(content)
        os.utime(self.root / path, (1_000_000_000 + self.changes, 1_000_000_000 + self.changes))

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Copies:
    """Some copies, each lent to one thread at a time."""

    def __init__(self, checkout: Path, scratch: Path, count: int) -> None:
        self.free: queue.Queue[Copy] = queue.Queue()
        self.all = [Copy(checkout, scratch, number) for number in range(count)]
        for each in self.all:
            self.free.put(each)

    def each(self, act: Any, things: list[Any]) -> None:
        """`act(copy, thing)` for every thing; what one raises is raised here, after the others have ended."""
        left: queue.Queue[Any] = queue.Queue()
        for thing in things:
            left.put(thing)
        raised: list[BaseException] = []

        def work() -> None:
            copy = self.free.get()
            try:
                while not raised:
                    act(copy, left.get_nowait())
            except queue.Empty:
                pass
            except BaseException as error:
                raised.append(error)
            self.free.put(copy)

        threads = [threading.Thread(target=work) for _ in self.all]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if raised:
            raise raised[0]


def test_files(root: Path, rooms: tuple[str, ...]) -> list[str]:
    patterns = [f"tests/{room}" if room.endswith(".py") else f"tests/{room}/**/test_*.py" for room in rooms]
    return sorted({str(path.relative_to(root)) for pattern in patterns for path in root.glob(pattern)})


def learn(copies: Copies, files: list[str], results: list[Result], sources: dict[str, bytes], learnt: Learnt,
          limit_s: float) -> None:  # fmt: skip
    """Runs the files that are not known yet, with the places of these mutants marked."""
    of_path: dict[str, list[Mutant]] = {}
    for result in results:
        of_path.setdefault(result.mutant.path, []).append(result.mutant)
    guard = threading.Lock()

    def one(copy: Copy, file: str) -> None:
        with tempfile.TemporaryDirectory(prefix="passed-") as folder:
            said = copy.ask(files=[file], passed=folder, stop=False, limit_s=limit_s)
            places = {path.name: path.read_text().splitlines() for path in Path(folder).iterdir()}
        if said["code"] not in (0, 1, 5) and said["is_ended"]:
            tell(f"cannot learn from {file}: pytest ended with {said['code']}")
        tests = {str(each["number"]): test for test, each in said["results"].items()}
        with guard:
            learnt.known.add(file)
            learnt.loading[file] = said["seconds"] - sum(each["seconds"] for each in said["results"].values())
            if not said["is_ended"]:
                learnt.unfinished.add(file)
            for test, each in said["results"].items():
                if each["outcome"] == "passed":
                    learnt.seconds[test] = each["seconds"]
                elif each["outcome"] == "failed":
                    learnt.fragile.add(test)
            for number, keys in places.items():
                for key in keys:
                    learnt.files.setdefault(key, set()).add(file)
                    if tests.get(number) in learnt.seconds:
                        learnt.direct.setdefault(key, set()).add(tests[number])
            tell(f"learnt {file}: {len(tests)} tests, {said['seconds']:.0f} s")

    for copy in copies.all:
        for path, its in of_path.items():
            copy.write(path, marked(sources[path].decode(), its).encode())
    copies.each(one, [file for file in files if file not in learnt.known])
    for copy in copies.all:
        for path in of_path:
            copy.write(path, sources[path])
    _sort_out_fragile(copies, learnt, limit_s)


def _sort_out_fragile(copies: Copies, learnt: Learnt, limit_s: float) -> None:
    """Of the tests that failed where places were marked, keeps those that pass in the unchanged checkout."""
    failed = sorted(learnt.fragile - set(learnt.seconds))

    def again(copy: Copy, file: str) -> None:
        own = {test: 0.0 for test in failed if test.partition("::")[0] == file}
        said = copy.ask(files=[file], tests=own, stop=False, limit_s=limit_s)
        for test, each in said["results"].items():
            if each["outcome"] == "passed":
                learnt.seconds[test] = each["seconds"]

    copies.each(again, sorted({test.partition("::")[0] for test in failed}))
    learnt.fragile &= set(learnt.seconds)


def cheapest(tests: set[str], learnt: Learnt) -> set[str]:
    """A few tests of the few files whose cheapest tests are the cheapest."""
    of_file: dict[str, list[str]] = {}
    for test in sorted(tests, key=lambda test: learnt.seconds[test]):
        own = of_file.setdefault(test.partition("::")[0], [])
        if len(own) < _FEW_TESTS:
            own.append(test)
    cost = {file: learnt.loading.get(file, 0.0) + sum(learnt.seconds[test] for test in own)
            for file, own in of_file.items()}  # fmt: skip
    files = sorted(of_file, key=lambda file: cost[file])
    return {test for file in files[:_FEW_FILES] for test in of_file[file]}


def stages(result: Result, learnt: Learnt, files: list[str]) -> list[set[str]]:
    """Sets of tests, to be run one after another until the mutant is noticed."""
    key = result.mutant.key
    here = set(files)
    own = {test for test in learnt.seconds if test.partition("::")[0] in here}
    direct = learnt.direct.get(key, set()) & own
    beside = {test for test in own if test.partition("::")[0] in learnt.files.get(key, set())}
    if not result.mutant.is_in_function:  # other modules may read a constant too
        beside = own
    return [cheapest(direct, learnt), direct, beside, learnt.fragile & own]


def judge(copy: Copy, result: Result, source: bytes, learnt: Learnt, files: list[str]) -> None:
    began = time.monotonic()
    copy.write(result.mutant.path, result.mutant.applied(source))
    try:
        for tests in stages(result, learnt, files):
            while not result.is_noticed and (left := tests - result.tried):
                _try(copy, result, {test: learnt.seconds[test] for test in left})
    finally:
        copy.write(result.mutant.path, source)
    result.seconds += time.monotonic() - began


def _try(copy: Copy, result: Result, tests: dict[str, float]) -> None:
    """Runs tests against a mutant that is in place; those that have had their say go into `tried`."""
    limit_s = 30 + 8 * sum(tests.values())
    files = sorted({test.partition("::")[0] for test in tests})
    said = copy.ask(files=files, tests=tests, limit_s=limit_s)
    failed = next((test for test, each in said["results"].items() if each["outcome"] == "failed"), None)
    if failed is not None and tests.get(failed, 0.0) > _SLOW_S and len(tests) > 1:
        again = copy.ask(files=[failed.partition("::")[0]], tests={failed: 0.0}, limit_s=limit_s)
        if any(each["outcome"] == "passed" for each in again["results"].values()):
            result.tried.add(failed)
            return
    if failed is not None:
        result.result, result.by, result.says = "noticed", failed, said["results"][failed]["says"]
    elif not said["is_ended"]:
        result.result, result.by = "timeout", next(reversed(said["results"]), files[0])
    elif said["broken"] or said["code"] not in (0, 5):
        result.result, result.by = "noticed", f"collection of {', '.join(said['broken']) or files[0]}"
    result.tried |= set(tests)


def judge_rest(copy: Copy, result: Result, source: bytes, files: set[str]) -> None:
    """The files too long to learn from, whole, for what nothing else noticed."""
    began = time.monotonic()
    for file in sorted(files):
        copy.write(result.mutant.path, result.mutant.applied(source))
        said = copy.ask(files=[file], limit_s=600)
        copy.write(result.mutant.path, source)
        failed = next((test for test, each in said["results"].items() if each["outcome"] == "failed"), None)
        if failed is None:
            continue
        unchanged = copy.ask(files=[file], tests={failed: 0.0}, limit_s=300)
        if all(each["outcome"] == "passed" for each in unchanged["results"].values()):
            result.result, result.by, result.says = "noticed", failed, said["results"][failed]["says"]
            break
    result.seconds += time.monotonic() - began


def draw(checkout: Path, rooms: list[str], count: int, seed: int) -> tuple[list[Result], dict[str, bytes]]:
    sources: dict[str, bytes] = {}
    results = []
    for room in rooms:
        for path in sorted((checkout / room).rglob("*.py")):
            sources[str(path.relative_to(checkout))] = path.read_bytes()
        found = [each for path, source in sources.items() if path.startswith(f"{room}/")
                 for each in mutants_of(path, source)]  # fmt: skip
        results += [Result(mutant, room) for mutant in drawn(found, count, seed, sources)]
    return results, sources


def draw_like(checkout: Path, rooms: list[str], earlier: Path) -> tuple[list[Result], dict[str, bytes], list[str]]:
    """The mutants of an earlier result that still apply, and the names of those that do not."""
    results, sources, gone = [], {}, []
    here: dict[str, dict[str, Mutant]] = {}
    for each in json.loads(earlier.read_text())["mutants"]:
        if each["room"] not in rooms:
            continue
        path = each["path"]
        if path not in here and (checkout / path).is_file():
            sources[path] = (checkout / path).read_bytes()
            here[path] = {mutant.key: mutant for mutant in mutants_of(path, sources[path])}
        mutant = here.get(path, {}).get(each["key"])
        if mutant is None:
            gone.append(each["name"])
        else:
            results.append(Result(mutant, each["room"]))
    return results, sources, gone


def equivalent() -> dict[str, str]:
    """Key of a mutant that no user could tell from the original -> why."""
    rows = _toml.parse_toml((HERE / "equivalent.toml").read_text(encoding="utf-8"))["mutant"]
    return {row["key"]: row["why"] for row in rows}


def table(results: list[Result], excused: dict[str, str]) -> str:
    lines = [f"{'room':<20} {'mutants':>8} {'equivalent':>11} {'noticed':>8} {'of the rest':>12}"]
    for room in [*dict.fromkeys(result.room for result in results), "all"]:
        own = [result for result in results if room in (result.room, "all")]
        same = [result for result in own if result.mutant.key in excused and not result.is_noticed]
        noticed = sum(result.is_noticed for result in own)
        share = noticed / max(1, len(own) - len(same))
        lines.append(f"{room:<20} {len(own):>8} {len(same):>11} {noticed:>8} {share:>12.1%}")
    return "\n".join(lines)


def tell(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def as_json(result: Result, excused: dict[str, str]) -> dict[str, Any]:
    mutant = result.mutant
    return {"room": result.room, "path": mutant.path, "name": mutant.name, "key": mutant.key, "result": result.result,
            "by": result.by, "says": result.says, "seconds": round(result.seconds, 1),
            "num_passing": result.num_passing, "why_equivalent": excused.get(mutant.key, "")}  # fmt: skip


def sweep(copies: Copies, results: list[Result], sources: dict[str, bytes], learnt: Learnt, limit_s: float) -> None:
    root = copies.all[0].root
    learn(copies, test_files(root, tuple({t: 0 for r in results for t in ROOMS[r.room][0]})), results, sources, learnt,
          limit_s)  # fmt: skip

    def own(copy: Copy, result: Result) -> None:
        files = test_files(root, ROOMS[result.room][0])
        result.num_passing = len(learnt.direct.get(result.mutant.key, set()))
        judge(copy, result, sources[result.mutant.path], learnt, files)
        tell(f"{result.result:<9} {result.seconds:5.1f} s  {result.mutant.name}  {result.by}")

    def beside(copy: Copy, result: Result) -> None:
        files = test_files(root, ROOMS[result.room][1])
        judge(copy, result, sources[result.mutant.path], learnt, files)
        if not result.is_noticed:
            rest = set(test_files(root, ROOMS[result.room][0])) & learnt.unfinished
            judge_rest(copy, result, sources[result.mutant.path], rest)
        tell(f"{result.result:<9} {result.seconds:5.1f} s  {result.mutant.name}  {result.by}")

    copies.each(own, results)
    left = [result for result in results if not result.is_noticed]
    learn(copies, test_files(root, tuple({t: 0 for r in left for t in ROOMS[r.room][1]})), left, sources, learnt,
          limit_s)  # fmt: skip
    copies.each(beside, left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation.sweep", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", nargs="+", choices=list(ROOMS), default=list(ROOMS))
    parser.add_argument("--checkout", type=Path, default=ROOT)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--learnt", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("-o", "--output", type=Path)
    words = parser.parse_args()
    began = time.monotonic()
    checkout = words.checkout.resolve()
    gone: list[str] = []
    if words.like is not None:
        results, sources, gone = draw_like(checkout, words.rooms, words.like)
    else:
        results, sources = draw(checkout, words.rooms, words.count, words.seed)
    is_known = words.learnt is not None and words.learnt.exists()
    learnt = Learnt.load(words.learnt) if is_known else Learnt()
    excused = equivalent()
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        copies = Copies(checkout, Path(scratch), words.jobs)
        try:
            sweep(copies, results, sources, learnt, words.limit)
        finally:
            for copy in copies.all:
                copy.end()
            if words.learnt is not None:
                learnt.save(words.learnt)
            if words.output is not None:
                said = {"seconds": round(time.monotonic() - began), "gone": gone,
                        "mutants": [as_json(result, excused) for result in results]}  # fmt: skip
                words.output.write_text(json.dumps(said, indent=1, ensure_ascii=False))
    for result in results:
        if not result.is_noticed and result.mutant.key not in excused:
            print(f"survived: {result.mutant.name}")
    print(table(results, excused))
    return 0


if __name__ == "__main__":
    sys.exit(main())
