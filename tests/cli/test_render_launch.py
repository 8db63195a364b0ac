"""`npuenv render-launch` from the command line to files, sentences, JSON and exit codes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import main

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["render-launch", *words, "-o", str(tmp_path / "out"), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_roll_gets_its_yaml_script_placement_and_estimate(render: Any, tmp_path: Path) -> None:
    code, document = render("--for", "roll", "--release", "0.3.0")
    assert code == document["exit"] == 0
    assert document["written"] == document["files"] == ["agentic-frozen-lake.yaml", "run.sh"]
    assert document["placement"]["train"] == [0, 1, 2, 3]
    assert document["placement"]["layout"] == "split"
    assert document["estimate"]["verdict"] in ("feasible", "tight")
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o111
    again = render("--for", "roll", "--release", "0.3.0")[1]
    assert again["written"] == []


@pytest.mark.parametrize("release", ["5d1e3c3d", "0.3.0", "8eb27cc2"])
@pytest.mark.parametrize(
    "recipe", ["agentic-frozen-lake", "rlvr-math-qwen3-8b", "rlvr-qwen2.5-7b-2x8", "rlvr-qwen2.5-7b-2x8-spread"]
)
def test_every_published_sample_fits(render: Any, recipe: str, release: str) -> None:
    code, document = render("--for", "roll", "--recipe", recipe, "--release", release)
    assert (code, document["estimate"]["verdict"] in ("feasible", "tight")) == (0, True)


def test_two_nodes_get_the_scripts_of_ray_too(render: Any) -> None:
    _, document = render("--for", "roll", "--recipe", "rlvr-qwen2.5-7b-2x8", "--head", "10.0.0.1")
    assert {"ray_auto.sh", "ray_head.sh", "ray_worker.sh", "network.sh"} < set(document["files"])


def test_what_does_not_fit_is_written_only_with_force(render: Any, tmp_path: Path) -> None:
    wide = ("--for", "roll", "--release", "0.3.0", "--recipe", "rlvr-qwen2.5-7b-2x8", "reference.infer_batch_size=64")
    code, document = render(*wide)
    assert (code, document["written"], document["estimate"]["verdict"]) == (1, [], "infeasible")
    assert document["estimate"]["advice"]
    assert not (tmp_path / "out").exists()
    code, document = render(*wide, "--force")
    assert (code, "run.sh" in document["written"]) == (0, True)


def test_an_own_file_is_not_overwritten_without_force(render: Any, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.sh").write_text("mine", encoding="utf-8")
    code, document = render("--for", "roll")
    assert (code, "run.sh" in document["error"]["message"]) == (2, True)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run.sh"]
    assert render("--for", "roll", "--force")[0] == 0
    assert (tmp_path / "out" / "run.sh").read_text(encoding="utf-8").startswith("#!/bin/sh")


def test_cards_and_layout_decide_the_placement(render: Any) -> None:
    _, split = render("--for", "roll", "--train-cards", "0-1", "--infer-cards", "2-7")
    assert (split["placement"]["train"], split["placement"]["reference"]) == ([0, 1], [2, 3, 4, 5, 6, 7])
    _, shared = render("--for", "roll", "--layout", "colocated", "--force")
    assert (shared["placement"]["layout"], shared["placement"]["infer"]) == ("colocated", list(range(8)))
    code, old = render("--for", "roll", "--layout", "colocated", "--release", "5d1e3c3d")
    assert (code, old["error"]["kind"]) == (2, "bad-input")
    _, planned = render("--for", "roll", "--cards-per-node", "4", "--layout", "split", "--force")
    assert (planned["placement"]["train"], planned["placement"]["infer"]) == ([0, 1], [2, 3])


def test_a_setting_reaches_the_file_even_as_the_first_word(render: Any, tmp_path: Path) -> None:
    code, _ = render("max_steps=7", "--for", "roll", "--model", "/data/models/mine")
    text = (tmp_path / "out" / "agentic-frozen-lake.yaml").read_text(encoding="utf-8")
    assert (code, "\nmax_steps: 7\n" in text, "\npretrain: /data/models/mine\n" in text) == (0, True, True)


def test_verl_gets_its_command_and_yaml(render: Any, tmp_path: Path) -> None:
    code, document = render("--for", "verl==0.7.1", "trainer.total_epochs=3")
    assert (code, document["files"], document["release"]) == (0, ["config.yaml", "run.sh"], "0.7.1")
    assert "trainer.total_epochs=3" in (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("--for", "roll", "--recipe", "agentic-frozen"), "agentic-frozen-lake"),
        (("--for", "rol"), "roll"),
        (("--for", "verl", "--recipe", "quick-strat"), "quick-start"),
        (("roll-cann9.1",), "roll-cann9.1.0"),
        (("--for", "roll", "max_stesp=3"), "max_steps"),
        (("--for", "verl", "trainer.total_epoch=3"), "trainer.total_epochs"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(render: Any, words: tuple[str, ...], near: str) -> None:
    code, document = render(*words)
    assert (code, document["exit"]) == (2, 2)
    assert near in document["error"]["hint"]


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "roll", "--train-cards", "0-9"),
        ("--for", "roll", "--card-memory", "nan"),
        ("--for", "roll", "--nodes", "0"),
        ("--for", "roll", "exp_name=$(id)"),
        ("--for", "roll", "plainword=1", "word"),
        ("--for", "roll", "--release", "banana"),
        (),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(render: Any, words: tuple[str, ...]) -> None:
    code, document = render(*words)
    assert (code, document["schema"]) == (2, "npuenv.error/1")


@pytest.mark.parametrize(("framework", "recipe"), [("roll", "rlvr-math-qwen3-8b"), ("verl", "quick-start")])
def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str], framework: str, recipe: str) -> None:
    assert main(["render-launch", "--for", framework, "--list"]) == 0
    assert any(line.startswith(f"{recipe}: ") for line in capsys.readouterr().out.splitlines())
