"""The picture of a run: what it holds, that it is the same each time, and what it does without numbers."""

from __future__ import annotations

import html
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from npuenv.report import plots
from tests.support.sentences import sentence


def step(number: int, **values: Any) -> dict[str, Any]:
    timing = {"gen": 0.5, "old_log_prob": 0.1, "adv": 0.0, "update_actor": 0.3, "update_weights": 0.1}
    return {
        "kind": "step",
        "step": number,
        "critic/score/mean": number / 10,
        "critic/score/std": 0.1,
        "actor/kl_loss": 0.01 * number,
        "actor/entropy": 2.0 / number,
        **{f"response_length/{name}": number for name in ("mean", "max", "min")},
        **{f"timing_s/{name}": seconds for name, seconds in timing.items()},
        "timing_s/step": 1.0,
        **values,
    }


def evaluation(when: str, accuracy: float, at: int = 0) -> dict[str, Any]:
    return {"kind": "eval", "when": when, "step": at, "accuracy": accuracy}


RECORDS = [evaluation("before", 0.1), *[step(number) for number in range(1, 6)], evaluation("after", 0.9)]


def draw(records: list[dict[str, Any]], path: Path) -> str:
    pytest.importorskip("matplotlib", reason="needs matplotlib")
    assert plots.draw(records, path)
    return path.read_text(encoding="utf-8")


@pytest.mark.slow
def test_all_six_panels_are_drawn_and_the_same_records_give_the_same_bytes(tmp_path: Path) -> None:
    text = draw(RECORDS, tmp_path / "a.svg")
    titles = [sentence(f"plots.{name}") for name in ("reward", "accuracy", "kl", "entropy", "lengths")]
    assert all(f">{title}<" in text for title in titles)
    assert html.escape(sentence("plots.time-shares"), quote=False) in text
    assert sentence("plots.nothing") not in text
    assert (tmp_path / "a.svg").read_bytes() == draw(RECORDS, tmp_path / "b.svg").encode()
    assert draw([*RECORDS[:-1], evaluation("after", 0.8)], tmp_path / "c.svg") != text


@pytest.mark.slow
def test_what_was_not_measured_or_is_no_number_is_said_and_left_out(tmp_path: Path) -> None:
    bare = [{"kind": "step", "step": 1, "critic/score/mean": 0.5}, {"kind": "step", "step": 2}]
    assert draw(bare, tmp_path / "a.svg").count(f">{sentence('plots.nothing')}<") == 5
    broken = [step(1), step(2, **{"actor/entropy": "nan", "critic/score/mean": "inf", "timing_s/gen": "nan"})]
    # Only the accuracy: nobody evaluated.
    assert draw(broken, tmp_path / "b.svg").count(f">{sentence('plots.nothing')}<") == 1


def test_time_shares_of_many_steps_are_those_of_neighbours_together() -> None:
    records = [step(number, **{"timing_s/step": 2.0 if number % 2 else 1.0}) for number in range(1, 201)]
    found = plots.time_shares(records)
    assert len(found) == 100
    middle, shares = found[0]
    assert middle == 1.5
    assert shares == pytest.approx({name: each / 1.5 for name, each in (
        ("gen", 0.5), ("old_log_prob", 0.1), ("adv", 0.0), ("update_actor", 0.3), ("update_weights", 0.1)
    )})  # fmt: skip
    assert plots.time_shares([{"kind": "step", "step": 1}]) == []


def test_without_matplotlib_nothing_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plots.draw(RECORDS, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_every_label_is_in_the_catalogue() -> None:
    from npuenv.core.documents import load_toml

    folder = Path(plots.__file__).parent.parent / "core" / "messages"
    named = set(re.findall(r'_label\("([\w-]+)"\)', Path(plots.__file__).read_text(encoding="utf-8")))
    wanted = named | set(plots._PANELS) | {"mean", "max", "min"}
    assert set(load_toml(folder / "plots.toml")) == wanted
