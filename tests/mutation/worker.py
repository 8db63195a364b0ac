"""A process that runs tests on request, each time in a child of its own: what is slow to load is loaded once.

Run by its path, with the checkout to test as working folder: it must not find `tests` beside itself. It reads one
request a line on stdin, and answers with one line on stdout; both are JSON. See `Request` in `sweep.py`.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

_LOADED = ("pytest", "xdist", "pytest_timeout", "hypothesis", "click", "rich.console", "rich.table", "jinja2", "psutil",
           "packaging.requirements", "packaging.specifiers", "requests", "ruamel.yaml", "elftools.elf.elffile",
           "jsonschema", "torch")  # fmt: skip
_MEMORY_BYTES = 12 << 30  # an endless list must not take the machine with it


class Chosen:
    """What pytest does otherwise in a child: runs only some tests, in an order by cost, and stops at the first failure.

    `passed` names a folder: there a program says which marked places it passes, one file per test and one, named
    `file`, for what happens outside of any.
    """

    def __init__(self, tests: dict[str, float] | None, passed: str | None, *, is_to_stop: bool) -> None:
        self.tests = tests
        self.passed = passed
        self.is_to_stop = is_to_stop
        self.session: Any = None
        self.number = 0
        self.results: dict[str, dict[str, Any]] = {}
        self.broken: list[str] = []
        self.journal: Any = None  # where results are kept as they come: a child may be ended in the middle

    def pytest_collection_modifyitems(self, session: Any, config: Any, items: list[Any]) -> None:
        self.session = session
        if self.tests is None:
            return
        seconds = self.tests
        wanted = [item for item in items if item.nodeid in seconds]
        cost: dict[str, float] = {}
        for item in wanted:
            file = item.nodeid.partition("::")[0]
            cost[file] = cost.get(file, 0.0) + seconds[item.nodeid]
        wanted.sort(key=lambda item: (cost[item.nodeid.partition("::")[0]], seconds[item.nodeid]))
        items[:] = wanted

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.broken.append(report.nodeid)

    def pytest_runtest_protocol(self, item: Any, nextitem: Any) -> None:
        self.number += 1
        self.results[item.nodeid] = {"outcome": "unfinished", "seconds": 0.0, "number": self.number}
        self._keep(item.nodeid)
        if self.passed is not None:
            os.environ["MUTANTS_PASSED"] = f"{self.passed}/{self.number}"

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._keep(nodeid)

    def _keep(self, nodeid: str) -> None:
        self.journal.write(json.dumps([nodeid, self.results[nodeid]]) + "\n")
        self.journal.flush()

    def pytest_runtest_logreport(self, report: Any) -> None:
        result = self.results[report.nodeid]
        result["seconds"] += report.duration
        if report.failed and "DeadlineExceeded" not in report.longreprtext:  # a busy machine is no finding
            result["outcome"] = "failed"
            result["says"] = report.longreprtext[-300:]
            if self.is_to_stop:
                self.session.shouldstop = "noticed"
        elif report.skipped:
            result["outcome"] = "skipped"
        elif report.when == "call" and result["outcome"] == "unfinished":
            result["outcome"] = "passed"


def run(request: dict[str, Any], answer: Path) -> None:
    """In the child: the tests, their results written to a file. Never returns."""
    import pytest

    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, resource.RLIM_INFINITY))
    log = os.open(request.get("log") or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(log, stream)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    passed = request.get("passed")
    if passed is not None:
        os.environ["MUTANTS_PASSED"] = f"{passed}/file"
    chosen = Chosen(request.get("tests"), passed, is_to_stop=request.get("stop", True))
    words = ["-q", "-p", "no:cacheprovider", "-m", "not registry and not slow", "--tb=short",
             "-W", "ignore::pytest.PytestAssertRewriteWarning", *request["files"]]  # fmt: skip
    with answer.with_suffix(".jsonl").open("w") as chosen.journal:
        code = int(pytest.main(words, plugins=[chosen]))
    npuenv = sys.modules.get("npuenv")
    where = str(Path(npuenv.__file__ or "").resolve()) if npuenv is not None else ""
    used = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    said = {"code": code, "broken": chosen.broken, "npuenv": where,
            "cpu_s": sum(each.ru_utime + each.ru_stime for each in used)}  # fmt: skip
    answer.write_text(json.dumps(said))
    os._exit(0)


def attended(pid: int, limit_s: float) -> bool:
    """True when the child ended by itself; else it and its group are ended."""
    until = time.monotonic() + limit_s
    is_ended = False
    while not is_ended and time.monotonic() < until:
        is_ended = bool(os.waitpid(pid, os.WNOHANG)[0])
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # of what it started something may be left in either case
        os.killpg(pid, signal.SIGKILL)
    if not is_ended:
        os.waitpid(pid, 0)
    return is_ended


def main() -> None:
    sys.path[:] = [os.getcwd(), *(each for each in sys.path if each and each != str(Path(__file__).parent))]
    sys.path += sys.argv[1:]  # where torch lies, if not beside pytest
    for name in _LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    say = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
            answer = Path(folder) / "answer.json"
            began = time.monotonic()
            child = os.fork()
            if child == 0:
                try:
                    run(request, answer)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            is_ended = attended(child, request["limit_s"])
            said = json.loads(answer.read_text()) if answer.exists() else {"code": -1, "broken": []}
            journal = answer.with_suffix(".jsonl")
            lines = journal.read_text().splitlines() if journal.exists() else []
            said |= {"results": dict(json.loads(line) for line in lines if line.endswith("]"))}
            said |= {"is_ended": is_ended, "seconds": time.monotonic() - began}
        say.write(json.dumps(said) + "\n")
        say.flush()


if __name__ == "__main__":
    main()
