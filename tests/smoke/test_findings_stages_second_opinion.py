"""The findings of the second opinion, from hand-made records."""

from __future__ import annotations

import re

import pytest

from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.smoke.findings import STAGES, WRONG
from npuenv.smoke.judge import CAUSES, cause, judge
from tests.smoke.planted.cases import FAULTS
from tests.smoke.smoke_cases import Record, good_run, not_fine, restaged

# What the trainer writes beside `wrong`; each sentence takes what it needs.
DETAILS = {
    "step": 3, "error": 0.25, "found": 1.5, "expected": 0.5, "tensor": "model.norm.weight", "what": "tokens", "row": 2,
    "when": "between steps", "missing": 8, "twice": 0, "count": 4, "heldout": 30, "norm": 7.5,
}  # fmt: skip


def failed(name: str, wrong: str, device: str = "cpu") -> list[Record]:
    records = restaged(name, passed=False, wrong=wrong, **DETAILS)
    return [{**each, "device": device} if each["kind"] == "header" else each for each in records]


@pytest.mark.parametrize("wrong", WRONG)
def test_each_thing_that_is_wrong_is_the_cause_with_its_evidence(wrong: str) -> None:
    records = failed("recomputed", wrong)
    assert not_fine(records) == {"training.recomputed": (Status.FAIL, wrong)}
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.fix is not None and named.evidence
    for lang in ("en", "zh"):
        assert not re.search(r"\{\w+\}", say(named.says, lang)) and say(named.fix.says, lang)


@pytest.mark.parametrize(
    ("wrong", "device", "fix"),
    [
        ("gradient-wrong", "cpu", "trainer-wrong-fix"),
        ("gradient-wrong", "npu:0", "step-wrong-fix"),  # the code or an operator: neither is proven
        ("prompts-differ", "npu:0", "trainer-wrong-fix"),
    ],
)
def test_only_arithmetic_on_a_device_may_be_the_devices(wrong: str, device: str, fix: str) -> None:
    named = cause(judge(failed("recomputed", wrong, device), exit_code=0))
    assert named is not None and named.fix is not None and named.fix.says.key == f"smoke.{fix}"


@pytest.mark.parametrize("name", STAGES)
def test_what_has_no_second_opinion_is_left_out_and_what_broke_is_unknown(name: str) -> None:
    assert not_fine(restaged(name, passed=None, skipped="the weights are sharded")) == {}
    assert not_fine(restaged(name, passed=None, skipped=None, reason="KeyError: x")) == {
        f"training.{name}": (Status.UNKNOWN, "not-measured")
    }


def test_symptoms_do_not_hide_what_the_second_opinion_found() -> None:
    records = [
        {**each, "training/rollout_logprobs_diff_max": 0.5} if each["kind"] == "step" else each
        for each in failed("batch", "batch-differs")
    ]
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.says.key == "smoke.batch-differs"


def test_every_cause_of_the_trainer_is_known_to_the_judge() -> None:
    pytest.importorskip("torch", reason="the trainer needs torch, which comes with a stack, not with npuenv")
    from trainer.stages.evidence import QUESTIONS

    assert set(QUESTIONS) == set(STAGES)
    assert {wrong for each in QUESTIONS.values() for wrong in each} == set(WRONG) <= set(CAUSES)


def test_every_planted_fault_names_causes_that_exist() -> None:
    assert len({each["id"] for each in FAULTS}) == len(FAULTS) >= 50
    assert not {key for each in FAULTS for key in each["right"]} - set(CAUSES)


def test_a_good_run_has_a_second_opinion_of_everything() -> None:
    found = {each.check: each.status for each in judge(good_run(), exit_code=0)}
    assert {found[f"training.{name}"] for name in STAGES} == {Status.OK}
