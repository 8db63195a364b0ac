"""Errors after which a run went on, errors that a sentence only mentions, and the order of lines by their clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import Verdict
from npuenv.diagnose.log_prefixes import bare
from npuenv.diagnose.match import Ground
from npuenv.diagnose.outcome import recovery
from npuenv.diagnose.quoted import unmentioned
from npuenv.diagnose.search import Text, is_supposed
from npuenv.diagnose.timestamps import late_ranks, moment, stands_before
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis
    from npuenv.host.report import Line

OOM = "RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB"
STEPS = "step 1/9 loss 2.31 lr 1e-5\nstep 2/9 loss 2.30 lr 1e-5"


def lines_of(report: str) -> tuple[Line, ...]:
    return bare(read_paste(report.encode()).lines)


def recovered(report: str) -> set[int]:
    return {*recovery(Text(lines_of(report))).lines}


def test_an_error_that_was_caught_before_steps_is_recovered() -> None:
    assert recovered(f"caught: {OOM}\nretrying with batch 4\n{STEPS}") == {1}


def test_one_step_after_an_error_that_nobody_handled_is_not_enough() -> None:
    assert recovered(f"{OOM}\nstep 1/9 loss 2.31 lr 1e-5") == set()
    assert recovered(f"{OOM}\n{STEPS}") == {1}


@pytest.mark.parametrize(
    "between",
    ["```\n```", "With batch 4:", "## One card", "node 2:", "root@host1:~# python small.py", "\nThis one works:"],
)
def test_what_another_run_could_do_recovers_nothing(between: str) -> None:
    assert recovered(f"{OOM}\n{between}\n{STEPS}") == set()


def test_an_error_that_comes_back_for_good_counts(diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(f"caught: {OOM}\nretrying with batch 4\n{STEPS}\n{OOM}")
    assert found.verdict is Verdict.CAUSE
    assert found.causes[0].id == "memory-oom-config"
    assert found.causes[0].line.number == 5


def test_steps_that_the_clock_puts_before_the_error_recover_nothing() -> None:
    late = "2026-01-01 10:00:09 caught NPU out of memory, retrying"
    early = "2026-01-01 10:00:0{} step {}/9 loss 2.3"
    assert recovered("\n".join((late, early.format(1, 1), early.format(2, 2)))) == set()


def test_a_run_that_does_not_get_ready_is_no_progress() -> None:
    assert recovered(f"{OOM}\nretrying\nserver is not ready\nthe engine never started") == set()


@pytest.mark.parametrize(
    "sentence",
    [
        "It would help if `NPU out of memory` came with a hint.",
        "Users of our cluster see `NPU out of memory` and give up.",
        "建议把“NPU out of memory”之类的提示写得更清楚一些",
        '"NPU out of memory" and other errors like "EI0006" need a page of their own, for example in the FAQ.',
    ],
)
def test_an_error_in_a_wish_or_an_example_is_blanked_out(sentence: str) -> None:
    assert "NPU out of memory" not in unmentioned(lines_of(sentence))[0].text


@pytest.mark.parametrize(
    "sentence",
    [
        "Training stops with `NPU out of memory`, although it should fit.",
        "What does `NPU out of memory` mean on a card that is free?",
        "跑两步就报 `NPU out of memory`，应该怎么办",
        'RuntimeError: call failed, for example "NPU out of memory"',
    ],
)
def test_an_error_that_someone_saw_stays(sentence: str) -> None:
    assert "NPU out of memory" in unmentioned(lines_of(sentence))[0].text


def test_what_was_typed_at_a_prompt_is_no_wish() -> None:
    sentence = "It would help if `NPU out of memory` came with a hint."
    assert unmentioned(lines_of(f"$ {sentence}"))[0].text == f"$ {sentence}"


@pytest.mark.parametrize("typed", ["export HINT='{}'", "ENV HINT {}", "-e HINT='{}'", "$ echo {}"])
def test_what_is_set_or_typed_is_said_by_nobody(typed: str) -> None:
    def said(report: str) -> int | None:
        line = Ground(Text(lines_of(report)), {}, {}).said("NPU out of memory")
        return line.number if line is not None else None

    line = typed.format("NPU out of memory")
    assert said(line) is None
    assert said(f"{line}\n{OOM}") == 2


def test_a_code_or_a_sign_is_found_by_its_own_table_and_not_as_a_text() -> None:
    (line,) = lines_of("[ERROR] RUNTIME EI0006: notify wait timeout")
    ground = Ground(Text((line,)), signs={"late": line}, codes={"EI0006": line})
    for find in (ground.find, ground.said, ground.stopped):
        assert [find(wanted) for wanted in ("#EI0006", "@late", "notify wait")] == [line, line, line]
        assert [find(wanted) for wanted in ("#EI0004", "@early", "#notify wait")] == [None, None, None]


def test_a_version_in_a_wish_stays() -> None:
    sentence = "[Feature]: please build `torch-npu==2.7.1` for us as well"
    assert unmentioned(lines_of(sentence))[0].text == sentence


def test_a_question_after_the_error_does_not_make_it_supposed() -> None:
    text = "Import ends in `libatb.so: cannot open`. Should I install nnal?"
    assert is_supposed(text)
    assert not is_supposed(text, "libatb.so: cannot open")
    assert is_supposed("Should I add libatb.so: cannot open to the page?", "libatb.so")


def test_lines_are_ordered_by_their_clocks_where_both_have_one() -> None:
    first, second, plain = lines_of("2026-01-01 10:00:09 a\n[ERROR] HCCL(1,p):2026-01-01-09:00:00.100 b\nc")
    assert moment(first) == "20260101100009"
    assert moment(plain) == ""
    assert stands_before(second, first)
    assert not stands_before(first, second)
    assert stands_before(first, plain)


def test_a_rank_that_comes_after_another_gave_up_is_late() -> None:
    gave_up = "2026-01-01 10:02:00 rank 0 EI0006 Getting socket times out"
    came = "2026-01-01 10:{}:00 rank {} enters init_process_group"
    late = Text(lines_of("\n".join((came.format("00", 0), gave_up, came.format("03", 8)))))
    assert [(name, line.number) for name, line in late_ranks(late)] == [("late-rank", 3)]
    again = Text(lines_of("\n".join((came.format("00", 0), gave_up, came.format("03", 0)))))
    assert list(late_ranks(again)) == []


STEP = "step:2 - actor/pg_loss:0.1 - actor/grad_norm:0.3"
ANSWERED = 'INFO:     192.0.2.1:1 - "POST /v1/completions HTTP/1.1" 200 OK'
PAIRS = "torch==2.7.1\ntorch-npu==2.7.1\nvllm==0.11.0\nvllm-ascend==0.11.0rc1\nCANN 8.3.RC1"
DEATHS = [
    "Killed",
    "run.sh: line 41: 3977 Killed  python3 -m verl.trainer.main_ppo",
    "[1]+  已杀死               python3 train.py",
    "command terminated with exit code 137",
    "Reason: OOMKilled",
    "(raylet) 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
    "failed (exitcode: -9) local_rank: 0 (pid: 1) of binary: python",
    "[rank3]:[E1122 10:00:00.1 ProcessGroupHCCL.cpp:500] Watchdog caught collective operation timeout",
    "Bus error",
    "Terminated",
    "段错误 (核心已转储)",
    "Worker exit type: SYSTEM_ERROR Worker exit detail: x",
    "ERROR something failed",
    "2026-11-22 10:00:00,123 - trainer - ERROR - something failed",
    'INFO:     192.0.2.1:1 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error',
    "跑到这里就一直没有输出",
    "step:3 - actor/pg_loss:nan - actor/grad_norm:nan",
    "step:3 - actor/pg_loss:np.float64(nan) - actor/grad_norm:0.2",
    "{'loss': nan, 'grad_norm': 0.2, 'learning_rate': 1e-05}",
]


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("before", [STEP, ANSWERED, PAIRS], ids=["steps", "requests", "versions that pair up"])
def test_a_run_that_died_is_no_success(before: str, death: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(f"{before}\n{death}").verdict is not Verdict.NOT_ENVIRONMENT


@pytest.mark.parametrize(
    "line",
    [
        "INFO Killed 0 stale workers",
        "INFO:     Shutting down",
        "INFO: exit code 0",
        "What does ERROR in the log mean?",
        "WARNING x failed",
        "step:3 - actor/pg_loss:0.1 - actor/grad_norm:inf",
        "step:3 - actor/pg_loss:0.1 - critic/vf_explained_var:nan",
    ],
)
def test_a_run_that_ended_well_stays_a_success(line: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(f"{STEP}\n{line}").verdict is Verdict.NOT_ENVIRONMENT


def test_a_run_that_went_on_after_a_death_is_a_success(diagnosed: Callable[[str], Diagnosis]) -> None:
    assert diagnosed(f"Killed\n{STEP}").verdict is Verdict.NOT_ENVIRONMENT


def test_a_run_that_was_killed_may_have_lacked_memory(diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(f"{STEP}\nKilled")
    assert found.verdict is Verdict.CANNOT_TELL
    assert [cause.id for cause in found.causes] == ["host-out-of-memory"]


@pytest.mark.parametrize(
    "line", ["Reason: OOMKilled", "2 Workers (tasks / actors) killed due to memory pressure (OOM)"]
)
def test_a_known_cause_below_the_last_success_is_the_cause(line: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found = diagnosed(f"{STEP}\n{line}")
    assert (found.verdict, found.causes[0].id) == (Verdict.CAUSE, "host-out-of-memory")
