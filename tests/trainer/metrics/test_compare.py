"""Two runs against each other: the formula, the limits, the exit codes, what is said."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trainer.metrics import compare
from trainer.metrics.records import Records

ROOT = Path(__file__).parents[3]


def record(folder: Path, losses: list[float], rewards: list[float] | None = None, **settings: Any) -> Path:
    with Records(folder) as records:
        records.write("header", settings={"lr": 0.1, "seed": 0, **settings}, device="cpu", dtype="float32")
        for number, loss in enumerate(losses, start=1):
            reward = {} if rewards is None else {"critic/rewards/mean": rewards[number - 1]}
            records.write("step", step=number, wall_s=number * 1.5, **{"actor/loss": loss, "perf/x": number, **reward})
        records.write("end", status="completed")
    return folder


def asked(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, str, str]:
    code = compare.main([str(each) for each in argv])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_difference_is_the_mean_of_the_steps_shares() -> None:
    pairs: list[tuple[dict[str, float], dict[str, float]]] = [({"x": 2}, {"x": 2.2}), ({"x": -4}, {"x": -3})]
    found = compare.difference("x", pairs)
    assert found is not None
    assert found.relative == pytest.approx((0.1 + 0.25) / 2)
    assert found.of_sums == pytest.approx(1.2 / 6)
    assert (found.largest, found.mean_a, found.mean_b) == (1.0, -1.0, pytest.approx(-0.4))


@pytest.mark.parametrize(
    ("a", "b", "relative"),
    [(0.0, 0.0, 0.0), (0.0, 0.1, math.inf), (1.0, "nan", math.inf), ("nan", "nan", math.inf), (1.0, "inf", math.inf)],
)
def test_what_has_no_share_is_beyond_every_limit(a: object, b: object, relative: float) -> None:
    found = compare.difference("x", [({"x": a}, {"x": b})])
    assert found is not None
    assert found.relative == relative


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.019, 0), (0.981, 0), (1.021, 1), (0.97, 1)])
def test_two_percent_of_the_loss_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], factor: float, code: int
) -> None:
    a = record(tmp_path / "a", [1.0, 0.5, 2.0])
    b = record(tmp_path / "b", [factor * loss for loss in (1.0, 0.5, 2.0)])
    found, text, _ = asked(capsys, a, b)
    assert found == code
    assert ("within the limit: actor/loss" in text) == (code == 0)
    assert ("BEYOND the limit: actor/loss" in text) == (code == 1)


def test_four_percent_of_the_reward_decide_too_and_limits_can_be_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = record(tmp_path / "a", [1.0], [0.5]), record(tmp_path / "b", [1.0], [0.53])
    assert asked(capsys, a, b)[0] == 1
    assert asked(capsys, a, b, "--reward-limit", "0.07")[0] == 0
    assert asked(capsys, a, b, "--reward-limit", "0.07", "--loss-limit", "0")[0] == 0


def test_different_settings_and_missing_steps_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = record(tmp_path / "a", [1.0, 1.0, 1.0]), record(tmp_path / "b", [1.0], lr=0.2, extra=3)
    code, text, _ = asked(capsys, a, b / "metrics.jsonl")
    assert code == 0
    assert re.search(r"\b1 steps.*\b2 only in A\b", text)
    assert "setting lr: 0.1 / 0.2" in text
    assert "setting extra: - / 3" in text
    assert "seed" not in text
    assert len(text.splitlines()) < 40


def test_clocks_are_not_compared_and_the_json_holds_everything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = record(tmp_path / "a", [1.0]), record(tmp_path / "b", [math.nan], lr=0.2)
    code, text, _ = asked(capsys, a, b, "--json")
    found = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert code == found["exit"] == 1
    assert [each["name"] for each in found["differences"]] == ["actor/loss"]
    assert found["rules"] == [{"name": "actor/loss", "relative": "inf", "limit": 0.02, "is_kept": False}]
    assert found["settings"] == {"lr": [0.1, 0.2]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "be read"),
        ("", "no step"),
        ('{"kind": "step", "step": 9, "actor/loss": 1}', "in common"),
        ('{"kind": "step", "step": 1, "x": 1}', "nor a reward"),
        ('no json\n{"kind": "end"}', "line 1 "),
        ("[1]\n", "line 1 "),
        pytest.param("[" * 100_000 + "\n[1]\n", "line 1 ", id="deep"),
    ],
)
def test_what_is_no_run_is_unusable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str | None, says: str
) -> None:
    a, b = record(tmp_path / "a", [1.0]), tmp_path / "b.jsonl"
    if text is not None:
        b.write_text(text, encoding="utf-8")
    code, out, err = asked(capsys, a, b)
    assert (code, out) == (2, "")
    assert says in err
    assert len(err.splitlines()) == 1


def test_a_run_that_is_still_going_may_have_half_a_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = record(tmp_path / "a", [1.0]), tmp_path / "b.jsonl"
    b.write_text('{"kind": "step", "step": 1, "actor/loss": 1}\n{"kind": "st', encoding="utf-8")
    code, text, _ = asked(capsys, a, b)
    assert code == 0
    assert "run status: completed / not ended" in text


@pytest.mark.parametrize("argv", [[], ["a"], ["a", "b", "c"], ["a", "b", "--loss-limit", "-1"], ["a", "b", "--lim"]])
def test_wrong_usage_is_two(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert asked(capsys, *argv)[0] == 2


def test_it_needs_no_torch() -> None:
    code = "import sys; from trainer.metrics import compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
