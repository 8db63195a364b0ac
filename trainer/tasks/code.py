"""Programming tasks in Python, judged by running the answer in a sandbox.

A row is in verl's layout; its ground truth is JSON of one of three kinds:

- `{"inputs": [text, ...], "outputs": [text, ...]}`: a program that reads stdin and prints (APPS, TACO, CodeContests);
- the same with `"fn_name"`: a function, also of `class Solution`; each input holds the arguments as JSON, one a line,
  or is their list; each output is the value, as JSON or as it is;
- `["assert f(2) == 3", ...]`, or the same as text (MBPP): the expression is evaluated in the sandbox, the comparison
  is made here. Only `assert CALL == LITERAL`, `assert CALL` and `assert not CALL` are accepted: others would have to be
  judged inside, where the answer could cheat.

No expected output enters the sandbox, so printing "passed", leaving early or overriding `==` wins nothing.

Each run in the sandbox is a new process: an isolated interpreter without site-packages, in its own session, with an
empty environment and an empty folder that is removed afterwards. Limited or refused:

- time: killed, with its threads, after `time_s` of wall time, and by a limit of CPU time;
- memory: address space at most `memory_bytes`; threads share it, and other processes cannot be started;
- files: none can be created, written, renamed, removed or changed, and with Landlock (Linux 5.13) only the
  interpreter's library and the system's can be read. Without Landlock, for root, it runs as the user nobody and reads
  what everybody may. If neither is possible nothing is run;
- network and other processes: no sockets of any kind, no signals, no tracing, no other programs (a seccomp filter that
  allows some sixty system calls; x86_64 and aarch64, the latter's table not yet run on such a machine);
- output: at most a mebibyte is read, and more counts as a failure.

Not contained: faults of the kernel or of the interpreter's C code behind the allowed calls; CPU time taken from other
processes until it is stopped; information from timing. A solution that needs numpy, a temporary file or a child process
fails. `require_sandbox` raises if this machine cannot do it.
"""

from __future__ import annotations

import ast
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.launch import exit_code, wait_for_child
from trainer.tasks.data import task_of_texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trainer.config import Config
    from trainer.tasks.base import Task


_FENCE = re.compile(r"```[ \t]*(?:python3?|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Tests:
    """Of a program: its input and expected output. Of a function: expressions and their expected values."""

    given: tuple[str, ...]
    expected: tuple[Any, ...]
    function: str | None  # by name, `given` being lists of arguments; "": `given` are expressions; None: a program


def task(config: Config) -> Task:
    """Questions of `train_files` and `val_files`; exact: 1 if every test passes, partial: the share of them.

    Raises BadSetting for tests that cannot be read and on a machine without a sandbox.
    """
    require_sandbox()
    bounds = Bounds(time_s=min(4.0, config.task.reward_timeout_s))

    @lru_cache(maxsize=1024)
    def score(answer: str, tests: str) -> float:
        found = share(answer, tests, bounds)
        return found if config.task.reward == "partial" else float(found == 1.0)

    made = task_of_texts("code", config, score, max_new_tokens=512)
    for prompt in (*made.train, *made.heldout):
        read_tests(prompt.expected)
    return made


def source_of(answer: str) -> str:
    """The last fenced block of an answer, or all of it. Example: "so\\n```python\\nf()\\n```" -> "f()\\n"."""
    blocks = _FENCE.findall(answer)
    return str(blocks[-1]) if blocks else answer


def share(answer: str, ground_truth: str, bounds: Bounds) -> float:
    """The share of the tests that an answer passes, 0 to 1.

    A program's output counts as right line by line, spaces at line ends and empty lines at the end left out.
    """
    tests, source = read_tests(ground_truth), source_of(answer)
    if tests.function is None:
        passed = [
            _prints(source, given, expected, bounds)
            for given, expected in zip(tests.given, tests.expected, strict=True)
        ]
        return sum(passed) / len(passed)
    calls = tests.given
    if tests.function:
        owner = "Solution()." if re.search(r"^class Solution\b", source, re.MULTILINE) else ""
        calls = tuple(f"{owner}{tests.function}(*{given})" for given in calls)
    found = run_calls(source, calls, bounds)
    right = [place in found and _same(found[place], expected, tests) for place, expected in enumerate(tests.expected)]
    return sum(right) / len(right)


@lru_cache(maxsize=4096)
def read_tests(ground_truth: str) -> Tests:
    """The tests of a row. Raises BadSetting for any other format, or without a test."""
    try:
        given = json.loads(ground_truth)
    except (ValueError, RecursionError):
        given = ground_truth.splitlines()
    if isinstance(given, list) and given and all(isinstance(line, str) for line in given):
        pairs = [_asserted(line) for line in given if line.strip()]
        if pairs:
            return Tests(tuple(call for call, _ in pairs), tuple(expected for _, expected in pairs), "")
    if isinstance(given, dict):
        inputs, outputs, name = given.get("inputs"), given.get("outputs"), given.get("fn_name")
        if isinstance(inputs, list) and isinstance(outputs, list) and len(inputs) == len(outputs) > 0:
            return _named(inputs, outputs, str(name)) if name else _printed(inputs, outputs)
    raise BadSetting(f"the ground truth holds no tests: {ground_truth[:80]!r}; see trainer/tasks/code.py for the kinds")


def _printed(inputs: Sequence[Any], outputs: Sequence[Any]) -> Tests:
    for each in (*inputs, *outputs):
        if not isinstance(each, str):
            raise BadSetting(f"an input or output of a program's tests must be text, not {each!r}")
    return Tests(tuple(inputs), tuple(outputs), None)


def _named(inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> Tests:
    if not name.isidentifier():
        raise BadSetting(f"fn_name {name!r} is no name of a function")
    try:
        arguments = [
            [json.loads(line) for line in each.splitlines()] if isinstance(each, str) else each for each in inputs
        ]
        expected = [json.loads(each) if isinstance(each, str) else each for each in outputs]
    except (ValueError, RecursionError) as error:
        raise BadSetting(f"the tests of {name!r} hold text that is no JSON: {error}") from error
    return Tests(tuple(map(repr, arguments)), tuple(expected), name)


def _asserted(line: str) -> tuple[str, Any]:
    """The expression of an assertion and the value it must have."""
    try:
        (statement,) = ast.parse(line.strip()).body
        if isinstance(statement, ast.Assert):
            return _split(statement.test)
    except (SyntaxError, ValueError):  # more than one statement, or neither side a literal
        pass
    raise BadSetting(f"{line.strip()[:80]!r} is no `assert CALL == LITERAL`, `assert CALL` or `assert not CALL`")


def _split(test: ast.expr) -> tuple[str, Any]:
    if isinstance(test, ast.Compare):
        if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
            raise ValueError("not a single equality")
        try:
            return ast.unparse(test.left), ast.literal_eval(test.comparators[0])
        except ValueError:
            return ast.unparse(test.comparators[0]), ast.literal_eval(test.left)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return f"bool({ast.unparse(test.operand)})", False
    return f"bool({ast.unparse(test)})", True


def _prints(source: str, given: str, expected: str, bounds: Bounds) -> bool:
    ended = run_program(source, given, bounds)
    return ended.end is End.DONE and _output_lines(ended.output) == _output_lines(expected)


def _output_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same(value: Any, expected: Any, tests: Tests) -> bool:
    # JSON has no tuples: a function that returns one is right if the test has a list.
    return bool((_listed(value) if tests.function else value) == expected)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return {key: _listed(each) for key, each in value.items()} if isinstance(value, dict) else value


# The sandbox.

_CHILD = Path(__file__).with_name("sandbox_child.py")
_NO_WALL = 97  # the child's exit code where a wall could not be raised; after `require_sandbox` it means nothing
_MOST_OUTPUT = 1 << 20


class End(Enum):
    """How a run ended."""

    DONE = "done"  # by itself, with exit code 0
    FAILED = "failed"  # an exception, another exit code, a signal, too much output
    TIME = "time"  # it was killed


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one run may take."""

    time_s: float = 4.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """A run's end and what it wrote."""

    end: End
    output: str
    code: int  # below 0: the signal that ended it


def run_program(source: str, stdin: str, bounds: Bounds) -> ProgramResult:
    """Runs a complete program on an input; the output is what it printed."""
    return _run_in_sandbox({"source": source, "stdin": stdin, "calls": None}, bounds)


def run_calls(source: str, calls: Sequence[str], bounds: Bounds) -> Mapping[int, Any]:
    """Runs a source and then expressions in its names; their values by place, none for one that failed.

    Values are read back as literals (`ast.literal_eval`); one that is no literal counts as failed. The source can say
    what values it likes, but it does not know which are wanted.
    """
    ended = _run_in_sandbox({"source": source, "stdin": "", "calls": list(calls)}, bounds)
    found: dict[int, Any] = {}
    for line in ended.output.splitlines():
        found.update(_value_of_call(line))
    return found


def _value_of_call(line: str) -> dict[int, Any]:
    try:
        number, written = json.loads(line)
        return {int(number): literal_eval(written)}
    except (ValueError, TypeError, SyntaxError, ArithmeticError, RecursionError, MemoryError):
        return {}  # untrusted text: what cannot be read is no value


def require_sandbox() -> None:
    """Raises BadSetting where untrusted code cannot be run within bounds."""
    if sys.platform == "linux":
        ended = run_program("print(6 * 7)", "", Bounds(time_s=30.0))
        if (ended.end, ended.output) == (End.DONE, "42\n"):
            return
        why = f"it ended with code {ended.code}" if ended.code != _NO_WALL else "the kernel refuses the walls"
    else:
        why = f"{sys.platform} has none"
    raise BadSetting(
        f"Code answers need a sandbox, and this machine gives none: {why}. It takes Linux on x86_64 or aarch64 with "
        "seccomp, and Landlock or the user root"
    )


def _run_in_sandbox(job: Mapping[str, Any], bounds: Bounds) -> ProgramResult:
    deadline_s = time.monotonic() + bounds.time_s
    text = json.dumps(
        {**job, "no_wall": _NO_WALL, "cpu_s": int(bounds.time_s) + 1, "memory_bytes": bounds.memory_bytes}
    )
    with tempfile.TemporaryDirectory(prefix="answer-") as folder, tempfile.TemporaryFile() as given:
        given.write(text.encode(errors="replace"))
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(_CHILD)],
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={"LANG": "C.UTF-8"},
            start_new_session=True,
            close_fds=True,
        )
        try:
            output, is_late = _read_output(process, deadline_s)
        finally:
            _kill(process)
    if is_late:
        return ProgramResult(End.TIME, output, process.returncode)
    is_done = process.returncode == 0 and len(output) <= _MOST_OUTPUT
    return ProgramResult(End.DONE if is_done else End.FAILED, output, process.returncode)


def _read_output(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[str, bool]:
    """The output until the program ends, writes too much or its time is over, and whether it was stopped."""
    assert process.stdout is not None
    parts, size, is_late = [], 0, False
    with process.stdout as pipe:
        while size <= _MOST_OUTPUT:
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline_s - time.monotonic()))
            if not ready:
                is_late = True
                break
            part = os.read(pipe.fileno(), 1 << 16)
            if not part:
                break
            parts.append(part)
            size += len(part)
        else:
            process.kill()
    if wait_for_child(process, max(0.0, deadline_s - time.monotonic())) is None:
        is_late = True  # it closed its output and went on
    return b"".join(parts).decode(errors="replace"), is_late


def _kill(process: subprocess.Popen[bytes]) -> None:
    if exit_code(process) is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
