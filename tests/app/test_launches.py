"""Launch files as a Python program gets them: which release and stack they are for, and what is written."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.app import LaunchOptions, render_launch, write_launch
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.render.launch.verl_job import check_recipe
from npuenv.resolve.types import Request

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.preflight.memory.types import Layout

pytestmark = pytest.mark.usefixtures("home")
VERL, ROLL = "verl-0.7.1-cann8.5.0", "roll-cann9.1.0"


@pytest.mark.parametrize(
    ("request_", "release", "named"),
    [
        (Request(VERL, "verl==0.9.1"), "", "0.9.1"),
        (Request(VERL), "0.9.1", "0.9.1"),
        (Request("roll-deepspeed-cann8.5.1"), "0.3.0", "0.3.0"),
        (Request(ROLL, "verl"), "", "verl"),
        (Request(framework="verl==0.7.1"), "0.9.1", "0.9.1"),
    ],
)
def test_a_stack_and_another_release_contradict_each_other(request_: Request, release: str, named: str) -> None:
    with pytest.raises(BadInput) as raised:
        render_launch(request_, LaunchOptions(release=release))
    assert named in say(raised.value.message)


@pytest.mark.parametrize(("request_", "release"), [(Request(VERL, "verl==0.7.1"), "0.7.1"), (Request(ROLL), "0.3.0")])
def test_a_stack_and_its_own_release_go_together(request_: Request, release: str) -> None:
    made = render_launch(request_, LaunchOptions(release="" if request_.framework else release))
    assert (made.stack.name, made.options.release) == (request_.stack, release)


def test_what_nobody_named_is_in_the_result() -> None:
    made = render_launch(Request(framework="roll"))
    assert (made.stack.framework, made.options.recipe) == ("roll", "agentic-frozen-lake")
    assert made.options.release and made.fits


A3 = Request(framework="verl", hardware="a3", cann="8.5.0", arch="aarch64")
MICRO_BATCH = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"


def test_cards_that_the_recipe_leaves_idle_are_told_with_the_words_that_use_them() -> None:
    words = f"--cards-per-node 16 {MICRO_BATCH}=10"
    args = {"cards": 8, "hardware": "a3", "usual": 16, "words": words}
    assert render_launch(A3, LaunchOptions(nodes=2)).notes == (Message("launch_roll.idle-cards", args),)
    made = render_launch(A3, LaunchOptions(nodes=2, cards_per_node=16, overrides={MICRO_BATCH: "10"}))
    assert (made.job.cards.count, made.notes) == (32, ())


@pytest.mark.parametrize(("hardware", "each"), [("a3", 8), ("a2", None)])
def test_cards_that_were_asked_for_or_are_usual_get_no_note(hardware: str, each: int | None) -> None:
    assert render_launch(replace(A3, hardware=hardware), LaunchOptions(cards_per_node=each)).notes == ()


@pytest.mark.parametrize("options", [LaunchOptions(layout="split"), LaunchOptions(train="0-3", infer="4-7")])
def test_a_split_of_a_colocated_recipe_is_refused_as_one_however_it_is_asked_for(options: LaunchOptions) -> None:
    with pytest.raises(BadInput) as raised:
        render_launch(A3, replace(options, nodes=2))
    args = {"recipe": "quick-start", "other": "one-step-off-qwen3-8b", "since": "0.8.0"}
    assert raised.value.message == Message("launch.split-in-main", args)
    assert raised.value.hint == Message("launch.split-in-main-hint", args)


APART = LaunchOptions(recipe="one-step-off-qwen3-8b", release="0.8.0", nodes=2)


@pytest.mark.parametrize("layout", [None, "split"])
@pytest.mark.parametrize("each", [16, 8])
def test_a_recipe_for_separate_cards_splits_every_node(each: int, layout: Layout | None) -> None:
    placed = render_launch(A3, replace(APART, cards_per_node=each, layout=layout)).placement
    assert placed.train == tuple(card for card in range(2 * each) if card % each < each // 2)
    assert placed.infer == tuple(card for card in range(2 * each) if card % each >= each // 2)


def test_one_card_per_node_is_too_few_for_separate_cards() -> None:
    with pytest.raises(BadInput, match=r"placement\.too-few-cards"):
        render_launch(A3, replace(APART, cards_per_node=1))


def test_a_recipe_that_ends_with_a_release_says_so() -> None:
    row = replace(load_matrix().launch_recipes[0], since="0.5.0", until="0.7.0")
    with pytest.raises(BadInput, match=r"launch\.not-in-release-until") as raised:
        check_recipe(row, "0.7.1")
    assert raised.value.hint is not None and "0.7.0" in say(raised.value.hint)


def test_files_are_written_once_and_others_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "run.sh").write_text("mine", encoding="utf-8")
    for name in ("network.sh", "ray_head.sh"):
        (out / name).write_text("#!/bin/sh\n# npuenv 1: verl\n", encoding="utf-8")
    (out / "ray_worker.sh").write_text("#!/bin/sh\n", encoding="utf-8")
    files = {"run.sh": "#!/bin/sh\n", "config.yaml": "a: 1\n"}
    with pytest.raises(BadInput, match=r"render\.exists"):
        write_launch(files, out)
    assert not (out / "config.yaml").exists()
    written = write_launch(files, out, is_forced=True)
    assert (written.files, written.removed) == (("run.sh", "config.yaml"), ("network.sh", "ray_head.sh"))
    assert {path.name for path in out.iterdir()} == {"run.sh", "config.yaml", "ray_worker.sh"}
    assert (out / "run.sh").stat().st_mode & 0o111 and not (out / "config.yaml").stat().st_mode & 0o111
    assert write_launch(files, out).files == ()
