"""Rewards of the user's own: how they are called, and how one that breaks is named."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.trainer.tasks.text_cases import WORDS, files, row, said, settings
from trainer import tasks
from trainer.config import BadSetting
from trainer.tasks.base import RewardBroken, RewardHung
from trainer.tasks.digits import prompt
from trainer.tasks.text import CustomReward
from trainer.types import Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ASKED = Prompt("2+3?", (), "5", {"data_source": "tests", "extra_info": {"index": 7}})


def reward_of(folder: Path, source: str, *words: str) -> Callable[[Prompt, Rollout], float]:
    (folder / "mine.py").write_text(source)
    return CustomReward(settings(f"reward_function={folder / 'mine.py'}:score", *words).task, WORDS)


def paid(folder: Path, source: str, answer: str = "5", *words: str) -> float:
    return reward_of(folder, source, *words)(ASKED, said(answer))


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (
            "def score(data_source, solution_str, ground_truth, extra_info):\n    return solution_str == ground_truth",
            1.0,
        ),
        ("def score(data_source, solution_str, ground_truth, extra_info=None):\n    return extra_info['index']", 7.0),
        ("def score(**named):\n    return {'score': len(named['data_source']), 'acc': 1}", 5.0),
        ("def score(prompt, answer):\n    return len(prompt) * 10 + len(answer)", 41.0),
        ("async def score(**named):\n    return 0.25", 0.25),
        ("def score(**named):\n    print('noise')\n    return 1", 1.0),
        ("import os\ndef score(**named):\n    os.write(1, b'noise')\n    return 1", 1.0),
        ("import beside\ndef score(**named):\n    return beside.VALUE", 3.0),
    ],
    ids=["verl", "extra_info", "dict", "ours", "async", "print", "write", "beside"],
)
def test_the_function_is_called_as_it_wants_to_be(tmp_path: Path, source: str, value: float) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 3")
    assert paid(tmp_path, source) == value


@pytest.mark.parametrize(
    ("source", "said_of_it"),
    [
        (
            "def score(**named):\n    return inner(0)\n\ndef inner(x):\n    return 1 / x",
            "raised ZeroDivisionError: division by zero at mine.py:5 in inner",
        ),
        (
            "import json\ndef score(**named):\n    return json.loads('{')",
            "raised JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
            "at mine.py:3 in score",
        ),
        (
            "def score(**named):\n    return None",
            "'score', not None",
        ),
        ("def score(**named):\n    return '1'", "'score', not '1'"),
        ("def score(**named):\n    return float('nan')", "finite, not nan"),
        ("import sys\ndef score(**named):\n    sys.exit(3)", "raised SystemExit: 3 at mine.py:3 in score"),
        ("import os\ndef score(**named):\n    os._exit(3)", "process (exit code 3)"),
        ("import ctypes\ndef score(**named):\n    ctypes.string_at(0)", "process (SIGSEGV)"),
    ],
)
def test_a_function_that_breaks_is_named_with_its_innermost_line(tmp_path: Path, source: str, said_of_it: str) -> None:
    with pytest.raises(RewardBroken) as caught:
        paid(tmp_path, source)
    assert type(caught.value) is RewardBroken
    assert str(caught.value).startswith(f"reward_function={tmp_path / 'mine.py'}:score ")
    assert said_of_it in str(caught.value)


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("while True:\n        pass", "in score"),
        ("return sum(itertools.repeat(1))", "mine.py:4 in score"),
        ("return time.sleep(600)", "mine.py:4 in score"),
    ],
    ids=["Python", "C", "sleep"],
)
def test_a_function_that_hangs_is_stopped_and_named(tmp_path: Path, body: str, line: str) -> None:
    source = f"import itertools\nimport time\ndef score(**named):\n    {body}\n"
    started_s = time.monotonic()
    with pytest.raises(RewardHung, match=r"\b0\.3 s at mine\.py:") as caught:
        paid(tmp_path, source, "5", "reward_timeout_s=0.3")
    assert line in str(caught.value)
    assert time.monotonic() - started_s < 300


def test_a_process_that_cannot_say_at_once_where_it_hangs_is_asked_again(tmp_path: Path) -> None:
    """On a busy machine it may not have had its turn: here it hears nothing for the first half second."""
    source = (
        "import signal, time\n"
        "def score(**named):\n"
        "    heard = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
        "    time.sleep(0.8)\n"
        "    signal.pthread_sigmask(signal.SIG_SETMASK, heard)\n"
        "    time.sleep(600)\n"
    )
    with pytest.raises(RewardBroken, match=r"\b0\.3 s at mine\.py:[56] in score"):
        paid(tmp_path, source, "5", "reward_timeout_s=0.3")


@pytest.mark.slow
def test_after_a_hang_the_next_call_works(tmp_path: Path) -> None:
    source = "import time\ndef score(prompt, answer):\n    return time.sleep(600) if answer == 'slow' else 1.0"
    reward = reward_of(tmp_path, source, "reward_timeout_s=3")
    with pytest.raises(RewardBroken, match=r"\b3 s at mine\.py:"):
        reward(ASKED, said("slow"))
    assert reward(ASKED, said("fast")) == 1.0


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("mine.py", "Accepted: FILE.py:NAME"),
        ("none.py:score", "Accepted: FILE.py:NAME"),
        ("mine.py:a b", "Accepted: FILE.py:NAME"),
        ("mine.py:other", "no function 'other' in mine.py; it has score"),
        ("half.py:score", "raised SyntaxError: .* at half.py:2"),
        ("raises.py:score", "raised ModuleNotFoundError: .*nowhere.* at raises.py:1 in <module>"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def score(**named): return 1")
    Path("half.py").write_text("\ndef score(:")
    Path("raises.py").write_text("import nowhere_to_be_found")
    with pytest.raises(BadSetting, match=problem):
        CustomReward(settings(f"reward_function={given}").task, WORDS)


def test_the_file_task_is_judged_by_the_function(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(solution_str, **named):\n    return len(solution_str) / 4")
    named = files(tmp_path, [row("a", "1")], [row("b", "2")])
    task = tasks.choose(settings("task=file", f"reward_function={tmp_path / 'mine.py'}:score", *named))
    assert (task.name, task.train[0].text, task.heldout[0].expected) == ("file", "a", "2")
    assert task.reward(task.train[0], said("ab")) == 0.5
    assert not task.is_right(task.train[0], said("ab"))
    assert task.is_right(task.train[0], said("abcd"))


def test_the_file_task_wants_a_function(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=r"task=file needs reward_function=FILE\.py:NAME"):
        tasks.choose(settings("task=file", *files(tmp_path, [row()], [row()])))


def test_another_task_keeps_what_is_right_and_takes_the_function_as_its_reward(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def score(ground_truth, **named):\n    return 10 * int(ground_truth)")
    task = tasks.choose(settings("task=addition", f"reward_function={tmp_path / 'mine.py'}:score"))
    asked = prompt("2+3=", "5", task.tokenizer)
    wrong = Rollout((6, 18), (-1.0, -1.0), Stop.END)
    assert task.reward(asked, wrong) == 50.0
    assert not task.is_right(asked, wrong)
