"""The verdict, from hand-made records: each question can be answered with yes, no and unknown, and has its cause."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

import pytest

from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.smoke.findings import gain_by_chance
from npuenv.smoke.judge import CAUSES, cause, judge
from npuenv.smoke.run import parse_record
from tests.smoke.smoke_cases import STAGES, Record, changed, good_run, not_fine, reset, restaged, states, without
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from collections.abc import Sequence

FAIL, UNKNOWN = Status.FAIL, Status.UNKNOWN
REWARD, UPDATE, GENERATION = "training.reward", "training.weights-move", "training.generation-ends"


def test_a_good_run_passes_every_question() -> None:
    found = judge(good_run(), exit_code=0)
    assert not_fine(good_run()) == {}
    assert len(found) == len({each.check for each in found}) == 30
    skipped = {each.check for each in found if each.status is Status.SKIP}
    assert skipped == {"training.packages", "training.collective", "training.first-use", "training.ranks-agree"}
    assert cause(found) is None


@pytest.mark.parametrize(
    ("records", "check", "key"),
    [
        (changed("step", **{"actor/loss": "nan"}), "training.losses-finite", "not-finite"),
        (changed("step", **{"actor/pg_loss": "inf"}), "training.losses-finite", "not-finite"),
        (changed("step", **{"actor/kl_loss": None}), "training.losses-finite", "not-finite"),
        (changed("step", **{"actor/entropy": "nan"}), "training.losses-finite", "not-finite"),
        (changed("step", **{"critic/score/mean": "nan"}), "training.losses-finite", "not-finite"),
        (changed("step", **{"actor/grad_norm": float("inf")}), "training.losses-finite", "nan-gradient"),
        (changed("step", **{"actor/pg_loss": 0.0}), "training.advantages", "zero-advantage"),
        (
            changed("step", **{"training/rollout_logprobs_diff_max": 0.5}),
            "training.logprobs-agree", "logprobs-differ",
        ),
        (
            changed("step", **{"training/rollout_logprobs_diff_mean": 0.5}),
            "training.logprobs-agree", "logprobs-differ",
        ),
        (
            changed("step", **{"training/rollout_logprobs_diff_max": None}),
            "training.logprobs-agree", "logprobs-differ",
        ),
        (restaged("packages", passed=False, reason="ray: x"), "training.packages", "packages-failed"),
        (restaged("import", passed=False), "training.imports", "import-failed"),
        (restaged("device", passed=False), "training.device", "device-failed"),
        (restaged("matmul", passed=False), "training.arithmetic", "arithmetic-wrong"),
        (restaged("matmul", errors={"float32": 0.01}), "training.arithmetic", "arithmetic-wrong"),
        (restaged("matmul", errors={"float32": "nan"}), "training.arithmetic", "arithmetic-wrong"),
        (restaged("matmul", errors={}), "training.arithmetic", "arithmetic-wrong"),
        (restaged("decoder", passed=False), "training.gradients", "decoder-wrong"),
        (restaged("memory", passed=False), "training.memory", "memory-short"),
        (restaged("memory", passed=False, cause="out-of-memory"), "training.memory", "out-of-memory"),
        (restaged("collective", passed=False), "training.collective", "collective-failed"),
        (restaged("warm-up", passed=False), "training.first-use", "first-use-failed"),
        (restaged("generation", end_token=None), GENERATION, "no-end-token"),
        (restaged("generation", ended=0), GENERATION, "no-answer-ends"),
        (restaged("generation", groups_of_one_text=10), GENERATION, "same-answers"),
        (restaged("generation", cause="broken", passed=False), GENERATION, "stage-broken"),
        (restaged("reward", not_finite=1), REWARD, "reward-not-finite"),
        (restaged("reward", is_reordered=True, differ=5), REWARD, "shuffled-reward"),
        (restaged("reward", lowest=1.0), REWARD, "constant-reward"),
        (restaged("reward", groups_with_signal=0), REWARD, "no-signal"),
        (restaged("reward", lost=1), REWARD, "rewards-lost"),
        (restaged("reward", cause="reward-raises", passed=False), REWARD, "reward-raises"),
        (restaged("reward", cause="reward-hangs", passed=False), REWARD, "reward-hangs"),
        (restaged("update", lr_highest=0.0), UPDATE, "lr-zero"),
        (restaged("update", not_finite=3), UPDATE, "steps-left-out"),
        (restaged("update", moved=0.0), UPDATE, "weights-still"),
        (restaged("update", moved="nan"), UPDATE, "weights-still"),
        (restaged("update", tensors=26, still=["a", "b"]), UPDATE, "tensors-still"),
        (restaged("update", cause="broken", passed=False), UPDATE, "stage-broken"),
        (
            restaged("validation", passed=False, samples_checked=10, samples_differ=4),
            "training.validated", "validation-differs",
        ),
        (restaged("mask", passed=False), "training.mask-exact", "mask-failed"),
        (restaged("sampler-weights", passed=False), "training.weights-published", "sampler-weights-failed"),
        (restaged("checkpoint", passed=False), "training.checkpoint-exact", "checkpoint-failed"),
        (restaged("checkpoint", passed=False, cause="full-disk"), "training.checkpoint-exact", "full-disk"),
        (restaged("checkpoint", passed=False, cause="cannot-save"), "training.checkpoint-exact", "cannot-save"),
        (changed("end", status="failed", reason="broken"), "training.completed", "not-completed"),
        (without("end"), "training.completed", "cut-off"),
    ],
)  # fmt: skip
def test_one_fault_changes_one_finding_and_is_the_cause(records: list[Record], check: str, key: str) -> None:
    assert not_fine(records) == {check: (FAIL, key)}
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.says.key == f"smoke.{key}"
    assert named.fix is not None
    for lang in ("en", "zh"):
        assert say(named.says, lang) and say(named.fix.says, lang)


def test_a_run_without_a_reference_policy_has_no_divergence_and_is_fine() -> None:
    name = "actor/kl_loss"
    lacking = [{key: value for key, value in each.items() if key != name} for each in good_run()]
    missed = {"training.losses-finite": (FAIL, "not-finite")}
    assert not_fine(reset(lacking, kl_coef=0.0)) == {}
    assert not_fine(reset(changed("step", **{name: 0.0}), kl_coef=0.0)) == {}  # as runs once wrote it
    assert not_fine(reset(changed("step", **{name: "nan"}), kl_coef=0.0)) == missed
    assert not_fine(reset(lacking, kl_coef=0.001)) == not_fine(lacking) == missed


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_without_a_record_is_unknown_and_not_fine(name: str) -> None:
    found = not_fine(without("stage", name=name))
    if name == "validation":  # the evaluations themselves tell
        assert found == {}
    else:
        assert list(found.values()) == [(UNKNOWN, "not-measured")]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            without("eval", when="after"),
            {"training.accuracy-rises": (UNKNOWN, "no-evaluation"), "training.validated": (FAIL, "no-validation")},
        ),
        (
            without("eval", when="before"),
            {"training.accuracy-rises": (UNKNOWN, "no-evaluation"), "training.validated": (FAIL, "no-validation")},
        ),
        (changed("header", schema="npuenv.metrics/9"), {"training.completed": (UNKNOWN, "other-schema")}),
    ],
)
def test_what_was_not_evaluated_is_a_failure_and_what_cannot_be_read_is_unknown(
    records: list[Record], expected: dict[str, tuple[Status, str]]
) -> None:
    assert not_fine(records) == expected


def test_a_run_that_broke_before_its_last_evaluation_did_not_skip_it() -> None:
    records = [
        {**r, "status": "failed", "reason": "x"} if r["kind"] == "end" else r for r in without("eval", when="after")
    ]
    assert not_fine(records, exit_code=1)["training.validated"] == (UNKNOWN, "not-measured")


@pytest.mark.parametrize(
    ("when", "moment"), [(("after",), "after"), (("before",), "before"), (("before", "after"), "both")]
)
def test_the_moment_of_the_missing_validation_is_named(when: tuple[str, ...], moment: str) -> None:
    records = [r for r in good_run() if r.get("when") not in when]
    named = cause(judge(records, exit_code=0))
    assert named is not None
    assert say(named.says) == sentence("smoke.no-validation", when=sentence(f"smoke.moment-{moment}"))


@pytest.mark.parametrize("name", ["mask", "sampler-weights", "checkpoint"])
@pytest.mark.parametrize("passed", [False, 1, "yes"])
def test_a_measurement_passes_only_when_it_says_true(name: str, passed: object) -> None:
    assert [status for status, _ in not_fine(restaged(name, passed=passed)).values()] == [FAIL]


@pytest.mark.parametrize("name", ["mask", "sampler-weights", "checkpoint"])
def test_a_measurement_that_could_not_be_made_is_unknown(name: str) -> None:
    assert list(not_fine(restaged(name, passed=None, reason="no room")).values()) == [(UNKNOWN, "not-measured")]


def test_a_run_that_went_on_after_its_last_step_has_measured_nothing() -> None:
    """No answers, no rewards, no steps: nothing of that is a failure."""
    none: Record = {"passed": None, "reason": "no step was taken"}
    nothing: dict[str, Record] = {
        "generation": {**none, "end_token": 18, "answers": 0, "ended": 0, "groups": 0, "groups_of_one_text": 0},
        "reward": {**none, "answers": 0, "lowest": None, "highest": None, "groups_with_signal": 0, "lost": 0},
        "update": {**none, "steps": 0, "lr_highest": None, "not_finite": 0, "moved": 0.0},
        "mask": none, "sampler-weights": none, "checkpoint": {"passed": None, "reason": None},
        "ranks-agree": {"passed": False, "steps": 0, "ranks": [], "first_step": None},
    }  # fmt: skip
    stages = [{"kind": "stage", "name": name, **said} for name, said in nothing.items()]
    kept = [each for each in good_run() if each.get("name") not in nothing]
    found = not_fine(reset([*kept, *stages], ranks=2))
    assert set(found.values()) == {(UNKNOWN, "not-measured")}
    assert set(found) == {
        GENERATION, REWARD, UPDATE, "training.mask-exact", "training.weights-published", "training.ranks-agree",
        "training.checkpoint-exact",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["import", "device", "decoder"])
def test_a_question_that_must_be_answered_is_unknown_when_it_is_not(name: str) -> None:
    assert list(not_fine(restaged(name, passed=None)).values()) == [(UNKNOWN, "not-measured")]


def test_one_failed_measurement_among_passed_ones_fails() -> None:
    records = [*good_run(), {"kind": "stage", "name": "mask", "passed": False}, *restaged("mask")[-6:]]
    assert not_fine(records)["training.mask-exact"] == (FAIL, "mask-failed")


@pytest.mark.parametrize(("group_of_one", "key"), [("zero", "group-of-one"), ("reward", "group-of-one-raw")])
@pytest.mark.parametrize("estimator", ["grpo", "rloo", "opo", "reinforce_plus_plus_baseline"])
def test_a_group_of_one_is_named_by_its_convention(group_of_one: str, key: str, estimator: str) -> None:
    records = reset(restaged("reward", groups_with_signal=0), rollouts_per_prompt=1, estimator=estimator)
    records[0] = {**records[0], "convention": {"group_of_one": group_of_one}}
    assert not_fine(records) == {REWARD: (FAIL, key)}


@pytest.mark.parametrize("estimator", ["reinforce", "reinforce_plus_plus", "gae"])
def test_an_estimator_without_groups_may_have_one_answer_to_each_prompt(estimator: str) -> None:
    silent = [{**r, "groups_with_signal": 0} if r["kind"] == "step" else r for r in good_run()]
    records = [
        {**r, "groups_with_signal": 0, "groups_of_one_text": 0} if r.get("name") in ("reward", "generation") else r
        for r in silent
    ]
    assert not_fine(reset(records, rollouts_per_prompt=1, estimator=estimator)) == {}


def test_rewards_that_could_not_be_had_are_a_warning() -> None:
    records = restaged("reward", errors=2, first_error="the reward raised KeyError")
    assert not_fine(records)[REWARD] == (Status.WARN, "reward-errors")
    assert not_fine(restaged("reward", errors=0, first_error=None)) == {}


def test_a_reward_that_changes_its_mind_is_a_warning() -> None:
    assert not_fine(restaged("reward", differ=4)) == {REWARD: (Status.WARN, "reward-not-repeatable")}


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "bfloat16"}, {"matmul_precision": "medium"}, {"matmul_precision": "high"}, {"engine": "vllm"}],
)
def test_rounding_is_allowed_where_the_settings_say_that_there_is_some(settings: dict[str, str]) -> None:
    far, mean = "training/rollout_logprobs_diff_max", "training/rollout_logprobs_diff_mean"
    assert not_fine(reset(changed("step", **{far: 1.5, mean: 0.01}), **settings)) == {}
    beyond = reset(changed("step", **{far: 1.5, mean: 0.2}), **settings)
    assert not_fine(beyond) == {"training.logprobs-agree": (FAIL, "logprobs-differ")}


def test_noise_on_the_sampler_is_no_disagreement() -> None:
    records = reset(changed("step", **{"training/rollout_logprobs_diff_max": 2.0}), noise_stages=10)
    assert not_fine(records) == {}


def test_products_that_may_round_are_held_against_a_wider_limit() -> None:
    wide = {"float32": 2e-2}
    assert not_fine(restaged("matmul", errors=wide, precision="medium")) == {}
    assert "training.arithmetic" in not_fine(restaged("matmul", errors=wide, precision="highest"))


def test_ranks_that_differ_and_a_rank_that_died_are_named() -> None:
    apart = [*good_run(), {"kind": "stage", "name": "ranks-agree", "passed": False, "ranks": [1], "first_step": 2}]
    assert not_fine(reset(apart, ranks=2)) == {"training.ranks-agree": (FAIL, "ranks-differ")}
    agree = [*good_run(), {"kind": "stage", "name": "ranks-agree", "passed": True}]
    assert not_fine(reset(agree, ranks=2)) == {}
    assert not_fine(reset(good_run(), ranks=2)) == {"training.ranks-agree": (UNKNOWN, "not-measured")}
    dead = [*good_run(), {"kind": "ranks", "passed": False, "rank": 1, "code": -9, "reason": "rank 1: SIGKILL"}]
    assert not_fine(dead, exit_code=1) == {"training.completed": (FAIL, "rank-died")}


def test_a_run_that_dies_is_a_failure_even_with_good_records() -> None:
    assert not_fine(good_run(), exit_code=-9) == {"training.completed": (FAIL, "killed")}


def test_a_disk_that_has_no_room_for_the_records_either_is_named_from_the_log() -> None:
    tail = "trainer: OSError: [Errno 28] No space left on device"
    named = cause(judge(good_run()[:4], exit_code=1, log_tail=tail))
    assert named is not None and named.says.key == "smoke.full-disk"


def test_a_run_that_ends_without_a_word_is_told_from_one_that_gave_a_reason() -> None:
    assert not_fine(without("end"), exit_code=3)["training.completed"] == (FAIL, "ended-in-silence")
    assert not_fine(without("end"), exit_code=3, log_tail="x")["training.completed"] == (FAIL, "not-completed")


def test_steps_without_a_signal_say_nothing_of_the_advantages() -> None:
    silent = changed("step", groups_with_signal=0, **{"actor/pg_loss": 0.0})
    assert not_fine(silent) == {"training.advantages": (UNKNOWN, "no-useful-steps")}
    one_useful = [{**r, "groups_with_signal": 4, "actor/pg_loss": 0.1} if r.get("step") == 2 else r for r in silent]
    assert not_fine(one_useful) == {}


def test_an_evaluation_of_no_prompts_is_none() -> None:
    records = [{**r, "num_prompts": 0} if r["kind"] == "eval" else r for r in good_run()]
    assert not_fine(records) == {"training.validated": (FAIL, "no-validation")}


def test_a_difference_of_exactly_the_limit_is_allowed() -> None:
    far = "training/rollout_logprobs_diff_max"
    assert not_fine(changed("step", **{far: 1e-3})) == {}
    assert list(not_fine(changed("step", **{far: 1.01e-3}))) == ["training.logprobs-agree"]


def test_no_records_at_all_pass_nothing() -> None:
    found = dict(states(judge([], exit_code=1, log_tail="ImportError: libhccl.so")))
    assert found.pop("training.completed") is FAIL
    assert found.pop("training.ranks-agree") is Status.SKIP
    assert set(found.values()) == {UNKNOWN}


def test_the_cause_comes_before_its_symptoms() -> None:
    """A stale sampler's answers have other log-probabilities, its checkpoint goes on otherwise, and it learns less."""
    records = [
        {**r, "passed": False} if r.get("name") in ("sampler-weights", "checkpoint") else r
        for r in changed("step", **{"training/rollout_logprobs_diff_max": 0.5})
    ]
    records = [{**r, "correct": [0] * 30} if r["kind"] == "eval" else r for r in records]
    assert len(not_fine(records)) == 4
    named = cause(judge(records, exit_code=0))
    assert named is not None and named.says.key == "smoke.sampler-weights-failed"


def _failing_keys(sequence: Sequence[str]) -> list[str]:
    return [key for key in CAUSES if key in sequence]


def test_the_order_of_causes_holds_each_once_and_learning_last() -> None:
    assert len(set(CAUSES)) == len(CAUSES)
    assert CAUSES[-1] == "accuracy-does-not-rise"
    assert _failing_keys(["weights-still", "lr-zero"]) == ["lr-zero", "weights-still"]
    assert _failing_keys(["logprobs-differ", "mask-failed"]) == ["mask-failed", "logprobs-differ"]
    assert _failing_keys(["not-completed", "arithmetic-wrong"]) == ["arithmetic-wrong", "not-completed"]


def test_without_a_failure_the_first_unknown_is_the_cause() -> None:
    named = cause(judge(without("stage", name="mask"), exit_code=0))
    assert named is not None and named.check == "training.mask-exact"


def test_accuracy_that_does_not_change_fails() -> None:
    expected = {"training.accuracy-rises": (FAIL, "accuracy-does-not-rise")}
    assert not_fine(changed("eval", correct=[0] * 30)) == expected
    assert not_fine(changed("eval", correct=[1] * 30)) == expected


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
    with pytest.raises(ValueError, match=r"\b1\b.*\b2\b"):
        gain_by_chance([0], [1, 1])


@pytest.mark.parametrize("line", ["", "{", "[1]", '"x"', "\x00"])
def test_a_broken_line_becomes_an_unreadable_record(line: str) -> None:
    assert parse_record(line)["kind"] == "unreadable"


def test_a_record_line_is_read_as_written() -> None:
    record = {"kind": "step", "step": 1}
    assert parse_record(json.dumps(record)) == record


@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 1e-3), ("bfloat16", 6e-2), ("float16", 2e-2), ("float64", 1e-9)]
)
def test_an_error_of_exactly_the_limit_is_allowed_and_a_larger_one_is_not(dtype: str, limit: float) -> None:
    assert not_fine(restaged("matmul", errors={dtype: limit})) == {}
    assert list(not_fine(restaged("matmul", errors={dtype: limit * 1.01}))) == ["training.arithmetic"]


def test_the_sentence_of_the_cpu_says_cores_and_precision_and_that_of_products_their_errors() -> None:
    said = {each.check: say(each.says) for each in judge(good_run(), exit_code=0)}
    assert said["training.device"] == sentence("smoke.device-cpu", threads=1, cores=2, precision="highest")
    assert "float32 3.0e-06, bfloat16 1.0e-02" in said["training.arithmetic"]


@pytest.mark.parametrize("correct", [None, "1", [2] * 30, [0.5] * 30])
def test_answers_that_cannot_be_read_are_unknown(correct: object) -> None:
    assert not_fine(changed("eval", correct=correct)) == {"training.accuracy-rises": (UNKNOWN, "no-evaluation")}


def test_packages_that_were_not_tried_are_skipped_by_name_and_never_fine() -> None:
    found = judge(restaged("packages", passed=None, skipped=["ray", "vllm"]), exit_code=0)
    (packages,) = [each for each in found if each.check == "training.packages"]
    assert (packages.status, packages.says.key) == (Status.SKIP, "smoke.packages-skipped")
    assert say(packages.says) == sentence("smoke.packages-skipped", names="ray, vllm")
    assert "ray, vllm" in say(packages.says, "zh")
