"""A run that did not learn: a failure where it should have, else unknown; from hand-made records."""

from __future__ import annotations

import pytest

from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.smoke.findings import CALIBRATED, CALIBRATED_STEPS
from npuenv.smoke.judge import cause, judge
from tests.smoke.smoke_cases import Record, good_run, not_fine, reset
from tests.support.sentences import says, sentence
from trainer.config import Config

FAIL, UNKNOWN = Status.FAIL, Status.UNKNOWN


def flat(steps: int = 200, **settings: object) -> list[Record]:
    """The good run, not learning: 2 of 30 before, 3 after."""
    records = reset(good_run(), **settings)
    answers = {"before": [1] * 2 + [0] * 28, "after": [1] * 3 + [0] * 27}
    records = [{**r, "correct": answers[r["when"]]} if r["kind"] == "eval" else r for r in records]
    return [{**r, "steps_done": steps} if r["kind"] == "end" else r for r in records]


@pytest.mark.parametrize(
    ("steps", "settings", "key"),
    [
        (199, {}, "too-little"),
        (4, {"reward": "exact"}, "too-little"),
        (500, {"path": "/models/x"}, "too-little"),
        (500, {"hidden": 128}, "too-little"),
        (200, {"rollouts_per_prompt": 4}, "too-little"),
        (500, {"task": "gsm8k"}, "too-little-task"),
    ],
)
def test_where_nobody_knows_that_the_run_should_have_learnt_it_is_unknown(
    steps: int, settings: dict[str, object], key: str
) -> None:
    records = flat(steps, **settings)
    assert not_fine(records) == {"training.accuracy-rises": (UNKNOWN, key)}
    named = cause(judge(records, exit_code=0))
    assert named is not None and "2/30" in say(named.says, "zh")
    assert says(say(named.says), f"smoke.{key}", before="2/30", after="3/30", steps=steps)


@pytest.mark.parametrize("settings", [{}, {"lr": 1e-9}, {"seed": 7}])
def test_the_default_run_that_does_not_learn_fails(settings: dict[str, object]) -> None:
    assert not_fine(flat(200, **settings)) == {"training.accuracy-rises": (FAIL, "accuracy-does-not-rise")}


def test_a_run_on_verls_learning_rate_need_not_have_learnt_the_default_task() -> None:
    records = [{**r, "assumed": {"lr": "1e-6"}} if r["kind"] == "header" else r for r in flat(200)]
    assert not_fine(records) == {"training.accuracy-rises": (UNKNOWN, "too-little")}
    records = [{**r, "assumed": {}} if r["kind"] == "header" else r for r in flat(200)]
    assert not_fine(records) == {"training.accuracy-rises": (FAIL, "accuracy-does-not-rise")}


def test_a_short_run_with_another_failure_keeps_that_as_its_cause() -> None:
    records = [{**r, "is_reordered": True} if r.get("name") == "reward" else r for r in flat(4)]
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.says.key == "smoke.shuffled-reward"


def test_accuracy_that_fell_fails_however_short_the_run() -> None:
    answers = {"before": [1] * 30, "after": [1] * 20 + [0] * 10}
    records = [{**r, "correct": answers[r["when"]]} if r["kind"] == "eval" else r for r in flat(4)]
    assert not_fine(records) == {"training.accuracy-rises": (FAIL, "accuracy-falls")}
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.fix is not None
    args = {"before": "30/30", "after": "20/30", "chance": "9.8e-04", "limit": "0.001"}
    assert say(named.says) == sentence("smoke.accuracy-falls", **args)


def test_what_counts_as_the_default_run_is_the_trainers_default() -> None:
    defaults = Config().flat()
    assert {name: defaults[name] for name in CALIBRATED} == dict(CALIBRATED)
    assert defaults["steps"] == CALIBRATED_STEPS
