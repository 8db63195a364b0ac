"""The smoke test on the screen and as JSON: the verdict's first sentence, notes, long stages."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from npuenv.core.finding import Finding, Status
from npuenv.core.messages import Message, say
from npuenv.report.smoke import Where, headline, print_summary, summary_json, verdict, watch, where_of
from npuenv.smoke.judge import cause
from tests.support.sentences import sentence

if TYPE_CHECKING:
    from pathlib import Path


def finding(status: Status, key: str = "lr-zero") -> Finding:
    return Finding("training.x", status, Message(f"smoke.{key}"), (), "records", None)


OK, SKIP = finding(Status.OK, "mask"), finding(Status.SKIP, "one-rank")
FAIL, UNKNOWN = finding(Status.FAIL), finding(Status.UNKNOWN, "no-steps")
LR_ZERO = sentence("smoke.lr-zero")
WHERE = Where("tiny", "npu:0")
IN = {"environment": "tiny", "device": "npu:0"}


def drawn(records: list[dict[str, Any]], *, terminal: bool = False, lang: str = "en") -> str:
    file = io.StringIO()
    console = Console(file=file, width=200, force_terminal=terminal)
    assert list(watch(console, records, lang)) == records
    return file.getvalue()


@pytest.mark.parametrize(
    ("findings", "result", "says"),
    [
        ((OK, SKIP), "pass", sentence("smoke.pass", **IN)),
        ((OK, FAIL, UNKNOWN), "fail", sentence("smoke.fail", **IN, cause=LR_ZERO)),
        ((OK, UNKNOWN), "unknown", sentence("smoke.unknown", **IN, cause=sentence("smoke.no-steps"))),
    ],
)
def test_the_first_sentence_of_the_verdict_names_the_cause(
    findings: tuple[Finding, ...], result: str, says: str
) -> None:
    assert verdict(findings) == result
    assert say(headline(findings, cause(findings), WHERE)) == says
    document = summary_json([], findings, cause=cause(findings), where=WHERE, lang="en", files={}, exit_code=1)
    assert (document["verdict"], document["says"]) == (result, says)
    assert document["cause"] == {"pass": None, "fail": "lr-zero", "unknown": "no-steps"}[result]


def test_nothing_found_is_not_a_pass() -> None:
    assert verdict(()) == "unknown"


def test_the_summary_ends_with_the_cause_in_the_language_asked_for() -> None:
    file = io.StringIO()
    print_summary(Console(file=file, width=200), [], (OK, FAIL), cause=FAIL, where=WHERE, lang="zh", files={})
    lines = [line.strip() for line in file.getvalue().strip().splitlines()]
    assert lines[-2:] == [
        sentence("smoke.fail", "zh", **IN, cause=sentence("smoke.lr-zero", "zh")),
        sentence("smoke.fail-follows", "zh"),
    ]


def test_quietly_only_what_failed_or_is_unknown_is_printed_and_the_verdict(tmp_path: Path) -> None:
    file = io.StringIO()
    records: list[dict[str, Any]] = [{"kind": "end", "wall_s": 1.0, "seconds": {}, "peak_rss_mib": 5}]
    print_summary(
        Console(file=file, width=200),
        records,
        (OK, SKIP, UNKNOWN, FAIL),
        cause=FAIL,
        where=WHERE,
        lang="en",
        files={"records": tmp_path},
        is_quiet=True,
    )
    assert [line.strip() for line in file.getvalue().splitlines()] == [
        f"✘ {LR_ZERO}",
        f"? {sentence('smoke.no-steps')}",
        sentence("smoke.fail", **IN, cause=LR_ZERO),
    ]


@pytest.mark.parametrize("what", ["packages", "compiling", "warm-up"])
@pytest.mark.parametrize("terminal", [False, True])
def test_a_note_is_shown_before_what_it_announces(what: str, terminal: bool) -> None:
    shown = drawn([{"kind": "note", "what": what, "may_take_s": 1800.0}], terminal=terminal)
    assert say(Message(f"smoke.note-{what}"))[:40] in shown


def test_a_note_of_another_trainer_is_shown_with_its_limit() -> None:
    assert drawn([{"kind": "note", "what": "downloading", "may_take_s": 90}]).strip() == (
        sentence("smoke.note-other", what="downloading", seconds=90)
    )


@pytest.mark.parametrize(
    ("stage", "shown"),
    [
        ({"name": "import", "seconds": 31.97}, "import: 32.0 s"),
        ({"name": "import", "seconds": 1.1}, ""),
        ({"name": "generation", "seconds": 60.0}, ""),
        ({"name": "import", "seconds": None}, ""),
    ],
)
def test_a_stage_that_took_long_is_told_and_no_other(stage: dict[str, Any], shown: str) -> None:
    assert drawn([{"kind": "stage", **stage}]).strip() == shown


def test_a_step_is_drawn_from_verls_names() -> None:
    step = {"kind": "step", "step": 1, "critic/score/mean": 0.25, "actor/loss": -0.5, "actor/kl_loss": 0.125}
    shown = drawn([{"kind": "header", "settings": {"steps": 1}}, step])
    assert shown.strip() == "step 1/1  reward 0.250  loss -0.500  KL 0.125"
    del step["actor/kl_loss"]
    assert drawn([{"kind": "header", "settings": {"steps": 1}}, step]).strip().endswith("loss -0.500  KL -")
    step["actor/loss"] = "nan"
    assert "loss nan  KL -" in drawn([{"kind": "header", "settings": {"steps": 1}}, step])


def test_the_document_holds_the_stages(tmp_path: Path) -> None:
    stage = {"kind": "stage", "name": "matmul", "seconds": 0.01, "passed": True}
    document = summary_json(
        [stage], (OK,), cause=None, where=WHERE, lang="en", files={"records": tmp_path}, exit_code=0
    )
    assert json.loads(json.dumps(document))["run"]["stage"] == [stage]


def test_what_is_as_in_verl_though_nobody_gave_it_stands_in_the_summary() -> None:
    file, header = io.StringIO(), {"kind": "header", "settings": {}, "assumed": {"lr": "1e-6", "kl_coef": "0"}}
    print_summary(Console(file=file, width=200), [header], (OK,), cause=None, where=WHERE, lang="en", files={})
    assert f"{sentence('smoke.row-assumed')}  lr=1e-6, kl_coef=0" in file.getvalue()
    print_summary(
        Console(file=file, width=200), [{**header, "assumed": {}}], (OK,), cause=None, where=WHERE, lang="en", files={}
    )
    assert file.getvalue().count(sentence("smoke.row-assumed")) == 1


def test_what_was_given_and_does_not_count_stands_in_the_summary() -> None:
    file, header = io.StringIO(), {"kind": "header", "settings": {}, "warnings": ["first", "second"]}
    print_summary(Console(file=file, width=200), [header], (OK,), cause=None, where=WHERE, lang="en", files={})
    lines = [line for line in file.getvalue().splitlines() if line.startswith(sentence("smoke.row-warning"))]
    assert [line.split()[-1] for line in lines] == ["first", "second"]


@pytest.mark.parametrize(
    ("ray", "key"),
    [
        ({"is_own": True, "others": ""}, "ray-own"),
        ({"is_own": False, "others": ""}, "ray-joined"),
        ({"is_own": False, "others": "job 1: 3 actors"}, "ray-shared"),
    ],
)
def test_whose_ray_a_placed_run_was_in_stands_in_the_summary(ray: dict[str, Any], key: str) -> None:
    file, header = io.StringIO(), {"kind": "header", "settings": {}, "placement": {"ray": {"address": "a:1", **ray}}}
    print_summary(Console(file=file, width=200), [header], (OK,), cause=None, where=WHERE, lang="en", files={})
    said = sentence(f"smoke.{key}", address="a:1", others="job 1: 3 actors")
    (line,) = [line for line in file.getvalue().splitlines() if line.startswith(sentence("smoke.row-ray"))]
    assert line.endswith(f"  {said}")


def test_the_stages_before_training_stand_in_the_summary_with_their_seconds() -> None:
    file = io.StringIO()
    records: list[dict[str, Any]] = [
        {"kind": "stage", "name": "import", "seconds": 1.1},
        {"kind": "stage", "name": "matmul", "seconds": 0.03},
        {"kind": "stage", "name": "packages", "seconds": 0.0001},
        {"kind": "stage", "name": "generation", "seconds": 2.0},
    ]
    print_summary(Console(file=file, width=200), records, (OK,), cause=None, where=WHERE, lang="en", files={})
    assert "import 1.10, matmul 0.03 (s)" in file.getvalue()


@pytest.mark.parametrize(
    ("header", "has_cards", "device", "is_said"),
    [
        ({"device": "cpu"}, True, sentence("smoke.on-cpu"), True),
        ({"device": "cpu"}, False, sentence("smoke.on-cpu"), False),
        ({"device": "npu:0"}, True, "npu:0", False),
        ({"backend": "verl", "settings": {"cards": 2}}, True, sentence("smoke.on-cards", cards=2), False),
        ({}, True, sentence("smoke.on-unknown"), False),
    ],
)
def test_the_verdict_names_environment_and_device_and_before_it_cards_that_were_left_out(
    header: dict[str, Any], has_cards: bool, device: str, is_said: bool
) -> None:
    records = [{"kind": "header", **header}]
    where = where_of("verl-x", records, has_cards=has_cards)
    file = io.StringIO()
    print_summary(Console(file=file, width=400), records, (OK,), cause=None, where=where, lang="en", files={})
    lines = [line.strip() for line in file.getvalue().strip().splitlines()]
    assert lines[-1] == sentence("smoke.pass", environment="verl-x", device=device)
    assert (lines[-2] == sentence("smoke.cards-untested")) is is_said
    document = summary_json(records, (OK,), cause=None, where=where, lang="en", files={}, exit_code=0)
    assert (document["environment"], document["cards_untested"]) == ("verl-x", is_said)
