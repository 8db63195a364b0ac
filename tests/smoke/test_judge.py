"""The verdict, from hand-made records: each question can be answered with yes, no and unknown."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import Finding, Status
from npuenv.smoke import gain_by_chance, judge, parse_record

if TYPE_CHECKING:
    from collections.abc import Mapping

Record = dict[str, Any]


def good_run(num_steps: int = 3) -> list[Record]:
    """The records of a run with nothing wrong: 30 held-out prompts, none right before, all right after."""
    step = {
        "kind": "step", "loss": 0.1, "policy_loss": 0.1, "kl": 0.01, "entropy": 1.0, "grad_norm": 0.5,
        "reward_mean": 0.5, "sampler_learner_logprob_diff_max": 1e-6,
    }  # fmt: skip
    return [
        {"kind": "header", "schema": "npuenv.metrics/1", "settings": {"steps": num_steps, "task": "successor"}},
        {"kind": "eval", "when": "before", "split": "heldout", "correct": [0] * 30},
        *({**step, "step": index} for index in range(1, num_steps + 1)),
        {"kind": "eval", "when": "after", "split": "heldout", "correct": [1] * 30},
        *({"kind": "check", "name": name, "passed": True} for name in ("mask", "sampler-weights", "checkpoint")),
        {"kind": "end", "status": "completed", "wall_s": 3.0, "steps_done": num_steps},
    ]


def states(findings: tuple[Finding, ...]) -> Mapping[str, Status]:
    return {finding.check: finding.status for finding in findings}


def only_changed(records: list[Record], *, exit_code: int | None = 0) -> dict[str, Status]:
    """The checks whose status is not ok."""
    found = states(judge(records, exit_code=exit_code))
    return {check: status for check, status in found.items() if status is not Status.OK}


def changed(kind: str, **values: object) -> list[Record]:
    """The good run with one field of every record of a kind replaced."""
    return [{**record, **values} if record["kind"] == kind else record for record in good_run()]


def without(kind: str, **having: object) -> list[Record]:
    return [r for r in good_run() if not (r["kind"] == kind and all(r.get(k) == v for k, v in having.items()))]


def test_a_good_run_passes_every_question() -> None:
    assert set(states(judge(good_run(), exit_code=0)).values()) == {Status.OK}
    assert len(judge(good_run(), exit_code=0)) == 7


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (changed("step", loss="nan"), {"training.losses-finite": Status.FAIL}),
        (changed("step", grad_norm=float("inf")), {"training.losses-finite": Status.FAIL}),
        (changed("step", kl=None), {"training.losses-finite": Status.FAIL}),
        (changed("step", sampler_learner_logprob_diff_max=0.5), {"training.logprobs-agree": Status.FAIL}),
        (changed("step", sampler_learner_logprob_diff_max=None), {"training.logprobs-agree": Status.FAIL}),
        (changed("header", schema="npuenv.metrics/9"), {"training.completed": Status.UNKNOWN}),
        (without("eval", when="after"), {"training.accuracy-rises": Status.UNKNOWN}),
        (without("eval", when="before"), {"training.accuracy-rises": Status.UNKNOWN}),
        (without("check", name="mask"), {"training.mask-exact": Status.UNKNOWN}),
        (without("check", name="sampler-weights"), {"training.weights-published": Status.UNKNOWN}),
        (without("check", name="checkpoint"), {"training.checkpoint-exact": Status.UNKNOWN}),
        (without("end"), {"training.completed": Status.FAIL}),
        (changed("end", status="failed", reason="disk full"), {"training.completed": Status.FAIL}),
    ],
)
def test_one_fault_changes_one_finding(records: list[Record], expected: dict[str, Status]) -> None:
    assert only_changed(records) == expected


@pytest.mark.parametrize("name", ["mask", "sampler-weights", "checkpoint"])
@pytest.mark.parametrize("passed", [False, None, 1, "yes"])
def test_a_measurement_passes_only_when_it_says_true(name: str, passed: object) -> None:
    records = [{**r, "passed": passed} if r.get("name") == name else r for r in good_run()]
    assert list(only_changed(records).values()) == [Status.FAIL]


def test_one_failed_measurement_among_passed_ones_fails() -> None:
    records = [*good_run(), {"kind": "check", "name": "mask", "passed": False}]
    assert only_changed(records) == {"training.mask-exact": Status.FAIL}


def test_a_run_that_dies_is_a_failure_even_with_good_records() -> None:
    assert only_changed(good_run(), exit_code=-9) == {"training.completed": Status.FAIL}


def test_no_records_at_all_pass_nothing() -> None:
    found = states(judge([], exit_code=1, log_tail="ImportError: libhccl.so"))
    assert found.pop("training.completed") is Status.FAIL
    assert set(found.values()) == {Status.UNKNOWN}


def test_accuracy_that_does_not_change_fails() -> None:
    assert only_changed(changed("eval", correct=[0] * 30)) == {"training.accuracy-rises": Status.FAIL}
    assert only_changed(changed("eval", correct=[1] * 30)) == {"training.accuracy-rises": Status.FAIL}


def test_nine_of_ten_gains_are_not_enough_and_ten_are() -> None:
    assert gain_by_chance([0] * 10, [1] * 9 + [0]) == pytest.approx(2**-9)
    assert gain_by_chance([0] * 10, [1] * 10) == pytest.approx(2**-10)
    assert 2**-9 > 1e-3 > 2**-10


def test_chance_agrees_with_counting_all_coin_tosses() -> None:
    """Slow and obvious: toss a coin for every answer that changed, count the outcomes at least as good."""
    before, after = [0, 0, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1, 1]
    gains, changes = 4, 5
    outcomes = [sum(tosses) for tosses in itertools.product((0, 1), repeat=changes)]
    expected = sum(1 for outcome in outcomes if outcome >= gains) / len(outcomes)
    assert gain_by_chance(before, after) == pytest.approx(expected)


def test_losses_are_never_called_a_gain() -> None:
    assert gain_by_chance([1] * 20, [0] * 20) == 1.0
    assert gain_by_chance([1, 0], [1, 0]) == 1.0


def test_answers_to_different_prompts_are_refused() -> None:
    with pytest.raises(ValueError, match="not the same prompts"):
        gain_by_chance([0], [1, 1])


@pytest.mark.parametrize("line", ["", "{", "[1]", '"x"', "\x00"])
def test_a_broken_line_becomes_an_unreadable_record(line: str) -> None:
    assert parse_record(line)["kind"] == "unreadable"


def test_a_record_line_is_read_as_written() -> None:
    record = {"kind": "step", "step": 1}
    assert parse_record(json.dumps(record)) == record
