"""FrozenLake: its maps, its rules, how it is asked and answered, and the task made of it."""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import product
from typing import TYPE_CHECKING

import pytest

from trainer.config import BadSetting, parse
from trainer.engines.engine import Sampling
from trainer.rollouts import collect, demonstrate
from trainer.tasks.grids import (
    LAKE_RULES,
    MOVES,
    ActionFormat,
    Lake,
    Level,
    Player,
    assemble,
    frozen_lake,
    generate_lake,
    observation_format,
    solve_lake,
)
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from trainer.tasks.base import Task

MAP = ("P_O", "__G", "O__")


@lru_cache
def made(*words: str) -> Task:
    return frozen_lake(parse(words, devices=("cpu",)))


def shortest(rows: tuple[str, ...], longest: int) -> int | None:
    """The fewest moves to the goal by trying all words of moves: slow and obvious."""
    for length in range(1, longest + 1):
        for names in product(MOVES, repeat=length):
            lake = Lake.start(rows)
            for name in names:
                if lake.move(name)[1]:
                    break
            if lake.is_solved:
                return length
    return None


def test_moves_stop_at_the_edge_a_hole_pays_nothing_and_the_goal_one() -> None:
    lake = Lake.start(MAP)
    assert (lake.move("Up"), lake.move("Left"), lake.rows()) == ((0.0, False), (0.0, False), MAP)
    assert (lake.move("Right"), lake.rows()) == ((0.0, False), ("_PO", "__G", "O__"))
    assert (lake.move("Right"), lake.is_solved) == ((0.0, True), False)
    lake = Lake.start(MAP)
    assert [lake.move(name) for name in ("Down", "Right", "Right")] == [(0.0, False), (0.0, False), (1.0, True)]
    assert (lake.is_solved, lake.rows()) == (True, ("__O", "__P", "O__"))


@pytest.mark.parametrize("seed", range(12))
def test_a_seed_always_makes_the_same_solvable_map(seed: int) -> None:
    first, again = generate_lake(seed, 3, max_moves=5), generate_lake(seed, 3, max_moves=5)
    assert first is not None
    rows, solution = first
    assert first == again
    assert [sum(line.count(symbol) for line in rows) for symbol in "PG"] == [1, 1]
    assert len(solution) == shortest(rows, 5)


def test_known_seeds_keep_their_maps() -> None:
    """Held-out lists must not change with a version of Python or of this file."""
    assert [generate_lake(seed, 3, max_moves=5) for seed in (1, 7)] == [
        (("PO_", "___", "_G_"), ("Down", "Down", "Right")),
        (("___", "PG_", "___"), ("Right",)),
    ]


@pytest.mark.parametrize(
    ("maps", "size", "known"),
    [
        ("gymnasium", 3, {0: "SFF/FHH/FFG", 1: "SFF/FFF/FFG", 42: "SFH/FFH/FFG"}),
        (
            "gymnasium",
            4,
            {0: "SFFF/HHFF/FHHF/HFFG", 1: "SHFH/FFHF/FFFF/FFFG", 42: "SFHF/FHFF/FFFH/FHFG"},
        ),
        (
            "gymnasium",
            8,
            {0: "SFFFHHFF/FHHFHFFF/HFFFFFFF/FFHHFFFF/FFFFFHHF/FFFFFHFF/FHFFHFFF/FFFFFFFG"},
        ),
        ("roll", 3, {0: "FFG/FHS/FFF", 1: "GFS/FFF/FFF", 42: "FFH/FGH/FSF"}),
        ("roll", 4, {0: "FFGS/HHFF/FHHF/HFFF", 1: "FHFH/FGHF/FFFF/SFFF", 42: "FFSF/FHFF/FFFH/GHFF"}),
    ],
)
def test_a_seed_makes_the_map_that_gymnasium_or_roll_makes_of_it(maps: str, size: int, known: dict[int, str]) -> None:
    """Printed by gymnasium 1.4.0 with numpy 2.4.6, and by ROLL's generate_random_map over them."""
    for seed, theirs in known.items():
        found = generate_lake(seed, size, max_moves=100, maps=maps)
        assert found is not None
        rows, solution = found
        assert "/".join(rows).translate(str.maketrans("P_O", "SFH")) == theirs
        shorter = generate_lake(seed, size, max_moves=len(solution) - 1, maps=maps)
        assert shorter is None  # and never the map of another draw


@pytest.mark.slow
@pytest.mark.parametrize("maps", ["gymnasium", "roll"])
def test_their_maps_make_a_task(maps: str) -> None:
    lists = made(f"maps={maps}", "map_size=3")
    grounds = [{prompt.text.replace("P", "_") for prompt in part} for part in (lists.train, lists.heldout)]
    assert grounds[0] & grounds[1] == set()
    assert {len(prompt.extra["answers"]) <= 5 for part in (lists.train, lists.heldout) for prompt in part} == {True}


def test_turns_that_solve_no_map_are_refused() -> None:
    config = parse(["map_size=4"], devices=("cpu",))
    for levels in ({}, {0: Level(partial(Lake.start, MAP), ("Down", "Right", "Right"), "x")}):
        with pytest.raises(BadSetting, match=rf"^max_turns=5 .* {len(levels)} maps of map_size=4 "):
            assemble("lake", config, *observation_format(config, "P_OG", LAKE_RULES), levels)


def test_a_lake_without_a_way_has_no_solution() -> None:
    assert solve_lake(("PO", "OG")) is None
    assert solve_lake(("P_", "_G")) == ("Down", "Right")


def test_maps_that_need_more_turns_than_there_are_are_not_asked() -> None:
    assert max(len(prompt.extra["answers"]) for prompt in made("map_size=4", "max_turns=3").train) == 3


def test_no_lake_that_is_held_out_is_trained_on_from_any_start() -> None:
    lists = made()
    grounds = [{prompt.text.replace("P", "_") for prompt in part} for part in (lists.train, lists.heldout)]
    assert grounds[0] & grounds[1] == set()
    assert (len(lists.heldout), len(lists.train) > 1500, lists.is_disjoint) == (64, True, True)
    assert [prompt.extra["seed"] for prompt in lists.heldout] == [
        prompt.extra["seed"] for prompt in made("seed=5").heldout
    ]


def test_the_smallest_grid_has_both_lists() -> None:
    lists = made("map_size=2")
    assert (len(lists.heldout) >= 4, len(lists.train) >= 16, lists.is_disjoint) == (True, True, True)


def test_the_experts_answers_solve_every_held_out_map() -> None:
    lists = made()
    for prompt in lists.heldout:
        shown = demonstrate(prompt, lists)
        assert (shown.reward, shown.stop, lists.is_right(prompt, shown)) == (1.0, Stop.TERMINATED, True)
        assert list(prompt.extra["answers"]) == prompt.expected.split()


def test_a_shown_episode_has_the_map_after_each_move() -> None:
    lists = made()
    prompt = next(each for each in lists.train if each.text == "PO_/___/_G_=")
    shown = demonstrate(prompt, lists)
    assert lists.tokenizer.decode(shown.tokens) == "D_O_/P__/_G_=D_O_/___/PG_=R"
    actions = [token for token, response_mask in zip(shown.tokens, shown.response_mask, strict=True) if response_mask]
    assert lists.tokenizer.decode(actions) == "DDR"
    assert len(actions) == 6  # the end token of each turn is the model's too


@pytest.mark.parametrize("answer", ["", "DD", "d", "Down", "_"])
def test_an_answer_that_is_no_single_letter_costs_the_penalty_and_the_turn(answer: str) -> None:
    player = Player(Lake.start(MAP), ActionFormat(is_short=True), -0.25)
    said = player.step(answer)
    assert (said.reward, said.is_done, said.is_valid, said.text) == (-0.25, False, False, "P_O/__G/O__=")


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("<answer>Right</answer>", "Right"),
        ("well <Answer> dOWN\n</ANSWER> or <answer>Up</answer>", "Down"),
        ("<answer>R</answer>", None),
        ("<answer></answer>", None),
        ("<answer>sideways</answer> <answer>Up</answer>", None),
        ("Right", None),
    ],
)
def test_in_words_the_first_marked_action_counts_in_any_case(answer: str, name: str | None) -> None:
    assert ActionFormat(is_short=False).read(answer) == name


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        ("<think>a\nwall</think>\n<answer>right</answer>", "Right"),
        ("<think></think><answer>Up</answer> <think>no</think><answer>Down</answer>", "Up"),
        ("<answer>Right</answer>", None),
        ("<think>a</think> so <answer>Right</answer>", None),
        ("<answer>Up</answer><think>a</think><answer>Down</answer>", "Down"),
        ("<think>a<answer>Right</answer>", None),
    ],
)
def test_with_thinking_an_action_counts_right_after_it_alone(answer: str, name: str | None) -> None:
    form = ActionFormat(is_short=False, thinks=True)
    assert form.read(answer) == name
    assert form.read(form.write("Left")) == "Left"
    assert form.read(form.show(MAP)) == "Right"


def test_in_words_the_rules_are_said_once_and_a_wrong_answer_is_told() -> None:
    form = ActionFormat(is_short=False, rules=LAKE_RULES)
    player = Player(Lake.start(MAP), form, -0.25)
    assert form.ask(MAP).startswith(LAKE_RULES)
    assert "P_O\n__G\nO__" in form.ask(MAP)
    said = player.step("Right")
    assert not said.is_valid and not said.text.startswith(form.show(MAP)) and said.text.endswith(form.show(MAP))
    assert LAKE_RULES not in said.text
    assert "_PO\n__G\nO__" in player.step("<answer>Right</answer>").text


class Walker:
    """Says the prepared letters, one for each turn."""

    def __init__(self, lists: Task, letters: str) -> None:
        self.lists, self.letters = lists, list(letters)

    def generate(self, prompts: list[tuple[int, ...]], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        tokens = (*self.lists.tokenizer.encode(self.letters.pop(0)), self.lists.tokenizer.end)
        return [(Rollout(tokens, (-0.1, -0.2), Stop.END),) for _ in prompts]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("letters", "reward", "stop", "is_right"),
    [("=DDR", 0.99, Stop.TERMINATED, True), ("R", 0.0, Stop.TERMINATED, False), ("U=LUU", -0.01, Stop.LENGTH, False)],
)
def test_an_episode_is_paid_for_the_goal_less_the_penalties(
    letters: str, reward: float, stop: Stop, is_right: bool
) -> None:
    lists = made()
    prompt = next(each for each in lists.train if each.text == "PO_/___/_G_=")
    (group,) = collect(Walker(lists, letters), [prompt], lists, Sampling(1, 2, 1.0))  # type: ignore[arg-type]
    rollout = group.rollouts[0]
    assert (rollout.reward, rollout.stop) == (pytest.approx(reward), stop)
    assert rollout.is_valid == tuple(letter in "LDRU" for letter in letters[: len(rollout.is_valid)])
    assert len(rollout.is_valid) == min(len(letters), 5)
    assert (lists.reward(prompt, rollout), lists.is_right(prompt, rollout)) == (pytest.approx(reward), is_right)
