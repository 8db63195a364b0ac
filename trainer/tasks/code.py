"""Programming tasks in Python, judged by running the answer in `trainer.tasks.sandbox`.

A row is in verl's layout; its ground truth is JSON of one of three kinds:

- `{"inputs": [text, ...], "outputs": [text, ...]}`: a program that reads stdin and prints (APPS, TACO, CodeContests);
- the same with `"fn_name"`: a function, also of `class Solution`; each input holds the arguments as JSON, one a line,
  or is their list; each output is the value, as JSON or as it is;
- `["assert f(2) == 3", ...]`, or the same as text (MBPP): the expression is evaluated in the sandbox, the comparison
  is made here. Only `assert CALL == LITERAL`, `assert CALL` and `assert not CALL` are accepted: others would have to be
  judged inside, where the answer could cheat.

No expected output enters the sandbox, so printing "passed", leaving early or overriding `==` wins nothing.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from trainer.config import BadSetting
from trainer.tasks import sandbox
from trainer.tasks.data import task_of_texts
from trainer.tasks.sandbox import Bounds, End

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    sandbox.require()
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
    found = sandbox.values(source, calls, bounds)
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
    ended = sandbox.program(source, given, bounds)
    return ended.end is End.DONE and _lines(ended.output) == _lines(expected)


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _same(value: Any, expected: Any, tests: Tests) -> bool:
    # JSON has no tuples: a function that returns one is right if the test has a list.
    return bool((_listed(value) if tests.function else value) == expected)


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(each) for each in value]
    return {key: _listed(each) for key, each in value.items()} if isinstance(value, dict) else value
