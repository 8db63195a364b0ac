"""Programming tasks: which tests are read, and that only right values score."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import files, row, said, settings
from trainer import tasks
from trainer.config import BadSetting
from trainer.tasks import code
from trainer.tasks.code import Bounds, read_tests, share, source_of

if TYPE_CHECKING:
    from pathlib import Path

try:
    code.require_sandbox()
    WHY_NOT = ""
except BadSetting as error:
    WHY_NOT = str(error)

boxed = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "there is a sandbox")
ROOMY = Bounds(time_s=30.0)
PRINTED = json.dumps({"inputs": ["1\n", "2\n"], "outputs": ["2\n", "4\n"]})
NAMED = json.dumps({"fn_name": "pair", "inputs": ["1\n[2]", [3, []]], "outputs": ["[1, [2]]", [3, []]]})
ASSERTED = json.dumps(["assert double(2) == 4", "assert [2] == double([1, 2])[2:3]", "assert not double(0)"])


@pytest.mark.parametrize(
    ("answer", "source"),
    [
        ("print(1)", "print(1)"),
        ("so\n```python\nprint(1)\n```\ndone", "print(1)\n"),
        ("```py\na\n```\nbetter:\n```\nb\n```", "b\n"),
        ("```Python\na\n", "```Python\na\n"),
    ],
)
def test_the_source_is_the_last_fenced_block(answer: str, source: str) -> None:
    assert source_of(answer) == source


def test_the_tests_of_each_kind_are_read() -> None:
    assert read_tests(PRINTED).expected == ("2\n", "4\n")
    assert (read_tests(NAMED).given, read_tests(NAMED).expected) == (("[1, [2]]", "[3, []]"), ([1, [2]], [3, []]))
    asserted = read_tests(ASSERTED)
    assert asserted.given == ("double(2)", "double([1, 2])[2:3]", "bool(double(0))")
    assert asserted.expected == (4, [2], False)
    assert read_tests("assert f(1) == {'a': (1,)}\n\nassert f(2)\n").expected == ({"a": (1,)}, True)


@pytest.mark.parametrize(
    ("truth", "problem"),
    [
        ("", "no tests"),
        ("[]", "no tests"),
        ("{}", "no tests"),
        ('{"inputs": ["1"], "outputs": []}', "no tests"),
        ('{"inputs": [1], "outputs": ["2"]}', "text, not 1"),
        ('{"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}', "no JSON"),
        ('{"inputs": ["' + "[" * 100_000 + '"], "outputs": ["1"], "fn_name": "f"}', "no JSON"),
        ('{"inputs": [[1]], "outputs": [1], "fn_name": "f(1);g"}', r"f\(1\);g' .*name"),
        ("assert f(1) == g(1)", "is no `assert CALL == LITERAL`"),
        ("assert f(1) < 3", "is no `assert CALL == LITERAL`"),
        ("import os", "is no `assert CALL == LITERAL`"),
        ("assert f(1) == 1; import os", "is no `assert CALL == LITERAL`"),
    ],
)
def test_tests_that_cannot_be_judged_outside_are_refused(truth: str, problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        read_tests(truth)


@boxed
@pytest.mark.parametrize(
    ("answer", "truth", "passed"),
    [
        ("print(2 * int(input()))", PRINTED, 1.0),
        ("print(2 * int(input()), '')\nprint()", PRINTED, 1.0),
        ("print(2)", PRINTED, 0.5),
        ("print(2 * int(input()))\n1 / 0", PRINTED, 0.0),
        ("print('passed')", PRINTED, 0.0),
        ("def pair(a, b): return (a, b)", NAMED, 1.0),
        ("class Solution:\n    def pair(self, a, b): return [a, b]", NAMED, 1.0),
        ("def pair(a, b): return [a, [2]]", NAMED, 0.5),
        ("def double(x): return x * 2", ASSERTED, 2 / 3),
        ("def double(x): return x * 2 if x == 2 else x and [0, 0, 2]", ASSERTED, 1.0),
        ("syntax error", ASSERTED, 0.0),
    ],
)
@pytest.mark.one_in(3)
def test_the_share_of_tests_that_pass(answer: str, truth: str, passed: float) -> None:
    assert share(answer, truth, ROOMY) == pytest.approx(passed)


HOSTILE = {
    "leaves before the tests": "print('passed', flush=True)\nimport os\nos._exit(0)",
    "leaves with 0": "import sys\nsys.exit(0)",
    "is equal to everything": "class Any:\n    def __eq__(self, other): return True\ndef double(x): return Any()",
    "overrides the comparison": "import builtins\nbuiltins.bool = lambda x: None\ndef double(x): return None",
    "says so on every descriptor": (
        "import os\nfor n in range(1, 20):\n    try: os.write(n, b'passed\\n[0, true]\\n')\n    except OSError: pass\n"
    ),
    "looks for the tests": (
        "import gc, sys\nseen = [o for o in gc.get_objects() if isinstance(o, dict) and 'wanted' in o]\n"
        "def double(x): return seen[0]['wanted']"
    ),
}


@boxed
@pytest.mark.parametrize("source", HOSTILE.values(), ids=HOSTILE)
def test_cheating_scores_nothing(source: str) -> None:
    assert share(source, json.dumps(["assert double(2) == 4", "assert double(3) == 6"]), ROOMY) == 0.0


@boxed
@pytest.mark.slow
def test_the_reward_setting_pays_for_all_tests_or_for_each(tmp_path: Path) -> None:
    named = files(tmp_path, [row("double", PRINTED)], [row("pair", NAMED)])
    half = said("```python\nprint(2)\n```")
    for reward, paid in (("exact", 0.0), ("partial", 0.5)):
        task = tasks.choose(settings("task=code", f"reward={reward}", *named))
        assert task.reward(task.train[0], half) == paid
        assert not task.is_right(task.train[0], half)
        assert task.is_right(task.train[0], said("print(2 * int(input()))"))


@boxed
def test_a_row_without_tests_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="ground truth"):
        tasks.choose(settings("task=code", *files(tmp_path, [row("double", "4")], [row("pair", NAMED)])))
