"""Examining by rules and correcting until none has a correction left: order, one voice a cause, whole problems only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.messages import Message
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.fixing import Fixed, corrected, fix
from npuenv.preflight.launch import Change, Launch, LaunchFinding, launch_finding
from npuenv.preflight.reading import read_file, read_words
from npuenv.preflight.rules import examine
from npuenv.preflight.rules.base import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from npuenv.core.finding import Severity


def nothing(framework: str, release: str) -> Mapping[str, Any]:
    return {}


ASKED = ReadOptions(nothing, "verl", "0.7.1")
VERL = ("python3", "-m", "verl.trainer.main_ppo")


def rule(key: str, wanted: object, *changes: Change, severity: Severity = "error", framework: str = "verl") -> Rule:
    """Complains while the key is written with another value; `changes` mend it, by default the value itself."""

    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        setting = launch.settings.get(key)
        if setting is not None and setting.value != wanted:
            mend = changes or (Change(key, wanted),)
            yield launch_finding(
                f"preflight.{key}", severity, Message("preflight.word", {"word": key}), (setting,), "s", mend
            )

    return Rule(f"preflight.{key}", (framework,), judge)


def test_problems_come_worst_first_then_in_the_order_of_the_text() -> None:
    launch = read_words((*VERL, "n=0", "w=0", "b=0", "a=0"), ASKED).launch
    rules = [
        rule("a", 1),
        rule("b", 1),
        rule("n", 1, severity="note"),
        rule("w", 1, severity="warning"),
        rule("b", 1, framework="roll"),
    ]
    assert [each.check.partition(".")[2] for each in examine(launch, rules)] == ["b", "a", "w", "n"]


def test_a_diff_has_two_lines_around_a_change() -> None:
    fixed = Fixed("a\nb\nc\nd\ne\nf\ng\n", "a\nb\nc\nD\ne\nf\ng\n", (), ())
    assert fixed.diff == ("@@ -2,5 +2,5 @@", " b", " c", "-d", "+D", " e", " f")


def test_the_same_cause_speaks_once_and_refused_words_are_among_them() -> None:
    reading = read_words((*VERL, "a=0", "x=1,2"), ASKED)
    found = examine(reading.launch, [rule("a", 1), rule("a", 1)], refused=reading.refused)
    assert [each.check for each in found] == ["preflight.a", "preflight.hydra-grammar"]


def test_a_rule_that_breaks_is_heard() -> None:
    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        examine(read_words((*VERL, "a=0"), ASKED).launch, [Rule("preflight.x", ("verl",), judge)])


def test_one_correction_can_call_for_the_next() -> None:
    reading = read_words((*VERL, "a=0", "b=5"), ASKED)

    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        if launch.get("a") != launch.get("b"):
            says = Message("preflight.word", {"word": "b"})
            yield launch_finding(
                "preflight.same", "error", says, (launch.settings["b"],), "s", (Change("b", launch.get("a")),)
            )

    fixed = fix(reading, ASKED, [Rule("preflight.same", ("verl",), judge), rule("a", 2)])
    assert fixed.after == "python3 -m verl.trainer.main_ppo a=2 b=2\n"
    assert fixed.left == ()


def test_what_only_the_user_can_decide_is_left() -> None:
    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        yield launch_finding("preflight.you", "error", Message("preflight.word", {"word": 1}), (), "s")

    fixed = fix(read_words((*VERL, "a=0"), ASKED), ASKED, [rule("a", 1), Rule("preflight.you", ("verl",), judge)])
    assert [each.check for each in fixed.left] == ["preflight.you"]
    assert fixed.changes == (Change("a", 1),)


def test_a_problem_is_mended_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text('E="b=0"\npython3 -m verl.trainer.main_ppo a=0 $E\n', encoding="utf-8")
    reading = read_file(path, ASKED)
    fixed = fix(reading, ASKED, [rule("a", 1, Change("a", 1), Change("b", 1))])  # b stands in a variable
    assert fixed.after == fixed.before
    assert [each.check for each in fixed.left] == ["preflight.a"]


def test_rules_that_want_opposite_things_come_to_an_end() -> None:
    fixed = fix(read_words((*VERL, "a=0"), ASKED), ASKED, [rule("a", 1), rule("a", 2)])
    assert fixed.changes == (Change("a", 1), Change("a", 2))
    assert [each.changes for each in fixed.left] == [(Change("a", 1),)]


def test_a_second_wish_for_the_same_key_waits_for_another_look() -> None:
    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        for wanted in (2, 3) if launch.get("a") == 0 else ():
            says = Message("preflight.word", {"word": wanted})
            yield launch_finding("preflight.a", "error", says, (launch.settings["a"],), "s", (Change("a", wanted),))

    fixed = fix(read_words((*VERL, "a=0"), ASKED), ASKED, [Rule("preflight.a", ("verl",), judge)])
    assert fixed.changes == (Change("a", 2),)


@pytest.mark.parametrize("name", ["a.yaml", "run.sh"])
def test_a_corrected_copy_needs_no_second_correction(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    texts = {
        "a.yaml": "pretrain: x # m\nactor_train:\n  a: 0   # one\n  old: 1\n  gone: 2\n",
        "run.sh": "python3 -m verl.trainer.main_ppo actor_train.a=0 \\\n  actor_train.old=1 \\\n  actor_train.gone=2\n",
    }
    path.write_text(texts[name], encoding="utf-8")
    framework = "roll" if name == "a.yaml" else "verl"
    asked = ReadOptions(nothing)
    rules = [
        rule("actor_train.a", 1, framework=framework),
        rule("actor_train.old", None, Change("actor_train.new", 1, renames="actor_train.old"), framework=framework),
        rule("actor_train.gone", None, Change("actor_train.gone", None), framework=framework),
    ]
    fixed = fix(read_file(path, asked), asked, rules)
    wanted = {
        "a.yaml": "pretrain: x # m\nactor_train:\n  a: 1   # one\n  new: 1\n",
        "run.sh": "python3 -m verl.trainer.main_ppo actor_train.a=1 \\\n  ++actor_train.new=1\n",
    }
    assert fixed.after == wanted[name]
    path.write_text(fixed.after, encoding="utf-8")
    again = read_file(path, asked)
    assert examine(again.launch, rules) == ()
    assert fix(again, asked, rules).after == fixed.after


def test_the_corrected_lines_of_a_problem_are_shown_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 -m verl.trainer.main_ppo \\\n  a=0 \\\n  b=0\n", encoding="utf-8")
    reading = read_file(path, ASKED)
    both = examine(reading.launch, [rule("a", 1), rule("b", 1)])
    assert [corrected(reading, ASKED, each) for each in both] == [("a=1",), ("b=1",)]
    words = read_words((*VERL, "a=0", "b=0"), ASKED)
    assert corrected(words, ASKED, examine(words.launch, [rule("b", "x y")])[0]) == ("b=x y",)


def test_a_setting_of_another_file_is_overridden_in_the_file_itself(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("actor_train: {a: 0, b: 1}\n", encoding="utf-8")
    path = tmp_path / "own.yaml"
    path.write_text("defaults: [base]\npretrain: x\n", encoding="utf-8")
    asked = ReadOptions(nothing)
    fixed = fix(read_file(path, asked), asked, [rule("actor_train.a", 1, framework="roll")])
    assert fixed.after == "defaults: [base]\npretrain: x\nactor_train:\n  a: 1\n"
    assert fixed.left == ()


def test_variables_of_a_script_around_a_yaml_are_left_to_the_user(tmp_path: Path) -> None:
    (tmp_path / "lake.yaml").write_text("pretrain: x\n", encoding="utf-8")
    (tmp_path / "run.sh").write_text("export A=1\npython start_x_pipeline.py --config_name lake\n", encoding="utf-8")
    asked = ReadOptions(nothing, folder=tmp_path)

    def judge(launch: Launch) -> Iterator[LaunchFinding]:
        if "A" in launch.environ:
            yield launch_finding(
                "preflight.a", "error", Message("preflight.word", {"word": 1}), (launch.environ["A"],), "s",
                (Change("A", None, is_variable=True),),
            )  # fmt: skip

    rules = [Rule("preflight.a", ("roll",), judge), rule("pretrain", "y", framework="roll")]
    fixed = fix(read_words(("bash", "run.sh"), asked), asked, rules)
    assert fixed.after == "pretrain: y\n"
    assert (fixed.changes, [each.check for each in fixed.left]) == ((Change("pretrain", "y"),), ["preflight.a"])
