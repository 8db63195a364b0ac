"""How long a run may be silent: as long as the last note said, and no longer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import StepFailed
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.smoke.findings import brief
from npuenv.smoke.judge import cause, judge
from npuenv.smoke.run import LONGEST_SILENCE_S, METRICS, _announced_s, follow
from tests.smoke.smoke_cases import Record, changed, not_fine, reset, restaged, without
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from pathlib import Path


class Quiet:
    """A process that writes nothing more and ends after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def wait(self, timeout_s: float) -> int | None:
        import time

        time.sleep(0.02)
        self.looks -= 1
        return 0 if self.looks <= 0 else None


def written(out: Path, *records: dict[str, object]) -> Path:
    (out / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return out


NOTE: dict[str, object] = {"kind": "note", "what": "compiling", "may_take_s": 60.0}


def test_silence_after_a_note_is_no_hang(tmp_path: Path) -> None:
    found = list(follow(Quiet(20), written(tmp_path, NOTE), silence_limit_s=0.1))  # type: ignore[arg-type]
    assert [record["kind"] for record in found] == ["note"]


def test_the_next_record_ends_what_the_note_allowed(tmp_path: Path) -> None:
    out = written(tmp_path, NOTE, {"kind": "stage", "name": "matmul"})
    with pytest.raises(StepFailed):
        list(follow(Quiet(200), out, silence_limit_s=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (NOTE, 60.0),
        ({**NOTE, "may_take_s": 1e9}, LONGEST_SILENCE_S),
        ({**NOTE, "may_take_s": "nan"}, 0.0),
        ({**NOTE, "may_take_s": float("nan")}, 0.0),
        ({"kind": "note", "what": "x"}, 0.0),
        ({"kind": "step", "may_take_s": 60.0}, 0.0),
    ],
)
def test_only_a_note_with_a_number_lifts_the_limit(record: dict[str, object], seconds: float) -> None:
    assert _announced_s(record) == seconds


# What follows from another failure is not called one, and reasons are short; from hand-made records.

FAIL, UNKNOWN = Status.FAIL, Status.UNKNOWN

GLOO = (
    "[/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:52942: Connection "
    "reset by peer. This is typically caused by a remote worker hanging or bugs in the application. Check the logs of "
    "the remote worker before reporting an error. GLHF! \U0001f3d6\ufe0f"
)


def lost_rank(**ranks: object) -> list[Record]:
    """Rank 0 saw only that the others were gone."""
    broken = {"kind": "stage", "name": "collective", "passed": False, "cause": "broken", "reason": GLOO}
    end = {"kind": "end", "status": "failed", "reason": f"RuntimeError: {GLOO}"}
    return [*without("end"), broken, end, {"kind": "ranks", "passed": False, **ranks}]


@pytest.mark.parametrize(
    ("rank", "code", "key", "args"),
    [
        (1, -9, "rank-killed", {"signal": "SIGKILL"}),
        (0, -11, "rank-killed", {"signal": "SIGSEGV"}),
        (1, 3, "rank-ended", {"code": 3}),
    ],
)
def test_a_dead_rank_explains_the_broken_exchange_of_the_others(
    rank: int, code: int, key: str, args: dict[str, Any]
) -> None:
    found = judge(lost_rank(rank=rank, code=code, reason="x"), exit_code=1)
    named = cause(found)
    assert named is not None
    for lang in ("en", "zh"):
        how = sentence(f"smoke.{key}", lang, **args)
        assert say(named.says, lang) == sentence("smoke.rank-died", lang, rank=rank, how=how)
    said = {each.check: say(each.says) for each in found}
    short = "Read error [127.0.0.1]:52942: Connection reset by peer"
    assert said["training.collective"] == sentence("smoke.collective-broken", reason=short)


def test_a_lost_node_explains_the_broken_exchange_of_the_others() -> None:
    lost = "node 10.0.0.2 was lost, and with it rank 1; then train_cards=0-1: no node has room"
    named = cause(judge(lost_rank(reason=lost), exit_code=1))
    assert named is not None and say(named.says) == sentence("smoke.part-lost", code=1, reason=lost)


def test_an_error_of_rank_0_itself_is_told_by_its_last_record() -> None:
    found = not_fine(lost_rank(rank=0, code=1, reason="rank 0 ended with 1"), exit_code=1)
    assert found["training.completed"] == (FAIL, "not-completed")


def test_a_wrong_sum_comes_before_the_rank_that_ended_over_it() -> None:
    dead = {"kind": "ranks", "passed": False, "rank": 1, "code": 1, "reason": "rank 1 ended with 1"}
    named = cause(judge([*restaged("collective", passed=False, reason="3, not 4"), dead], exit_code=1))
    assert named is not None and say(named.says) == sentence("smoke.collective-failed", reason="3, not 4")


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (GLOO, "Read error [127.0.0.1]:52942: Connection reset by peer"),
        ("[Errno 28] No space left on device. Full.", "[Errno 28] No space left on device. Full."),
        ("文件太大 \u2744", "文件太大"),
        ("x" * 121, "x" * 119 + "…"),
        ("x" * 120, "x" * 120),
        ("torch.float32 " + "y" * 120, "torch.float32 " + "y" * 105 + "…"),
        (None, None),
    ],
)
def test_a_reason_in_a_sentence_is_short_and_plain(reason: object, said: object) -> None:
    assert brief(reason) == said


def test_the_evidence_keeps_the_whole_reason() -> None:
    found = judge(changed("end", status="failed", reason=GLOO), exit_code=1)
    assert GLOO[:150] in found[0].evidence[0].line
    assert "GLHF" not in say(found[0].says)


def diverged(**others: object) -> list[Record]:
    told = {"passed": False, "restored_equal": True, "next_step_equal": False, "next_step_first_different": "head"}
    return [{**r, "passed": False} if r.get("name") in others else r for r in restaged("checkpoint", **told)]


def test_a_checkpoint_that_came_back_is_not_called_corrupt() -> None:
    assert not_fine(diverged()) == {"training.checkpoint-exact": (FAIL, "next-step-differs")}
    named = cause(judge(diverged(), exit_code=0))
    assert named is not None and named.fix is not None
    assert (named.says.key, named.says.args) == ("smoke.next-step-differs", {"name": "head"})
    assert named.fix.says.key == "smoke.next-step-differs-fix"
    not_back = restaged("checkpoint", passed=False, restored_equal=False, next_step_equal=None)
    assert not_fine(not_back) == {"training.checkpoint-exact": (FAIL, "checkpoint-failed")}


def test_the_next_step_differs_because_of_the_sampler_or_the_ranks_and_is_no_second_failure() -> None:
    found = not_fine(diverged(**{"sampler-weights": False}))
    assert found["training.checkpoint-exact"] == (UNKNOWN, "next-step-after-sampler-weights")
    apart = [*diverged(), {"kind": "stage", "name": "ranks-agree", "passed": False, "ranks": [1], "first_step": 2}]
    assert not_fine(reset(apart, ranks=2)) == {
        "training.ranks-agree": (FAIL, "ranks-differ"),
        "training.checkpoint-exact": (UNKNOWN, "next-step-after-ranks-agree"),
    }
    for each in judge(reset(apart, ranks=2), exit_code=0):
        assert say(each.says) and say(each.says, "zh")


def test_answers_from_a_script_have_no_log_probabilities_to_compare() -> None:
    records = reset(changed("step", **{"training/rollout_logprobs_diff_max": 9.0}), engine="scripted")
    found = {each.check: each for each in judge(records, exit_code=0)}["training.logprobs-agree"]
    assert found.status is Status.SKIP
    assert found.says.key == "smoke.logprobs-scripted"
