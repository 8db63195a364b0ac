"""Sokoban: rooms made backwards, pushing, and the task made of them."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

import pytest

from trainer.config import BadSetting, parse
from trainer.rollouts import demonstrate
from trainer.tasks.grids import MOVES
from trainer.tasks.sokoban import Layout, Room, generate, task
from trainer.types import Stop

if TYPE_CHECKING:
    from trainer.tasks.base import Task


@lru_cache
def made(*words: str) -> Task:
    return task(parse(words, devices=("cpu",)))


def room(*rows: str) -> Room:
    """A room from its inner rows."""
    places = {(row, column): symbol for row, line in enumerate(rows) for column, symbol in enumerate(line)}

    def where(symbols: str) -> frozenset[tuple[int, int]]:
        return frozenset(place for place, symbol in places.items() if symbol in symbols)

    (player,) = where("PS")
    return Room(Layout(len(rows), where("#"), where("OVS")), player, where("XV"))


def inner(made: Room) -> list[str]:
    return [line[1:-1] for line in made.rows()[1:-1]]


def test_a_room_is_shown_with_its_outer_wall() -> None:
    rows = ("PXO", "S_V", "#__")
    with pytest.raises(ValueError):
        room(*rows)  # two players
    shown = room("PXO", "__V", "#__").rows()
    assert shown == ("#####", "#PXO#", "#__V#", "##__#", "#####")


def test_a_push_onto_the_last_target_finishes_and_off_a_target_costs() -> None:
    played = room("PXO", "___", "___")
    assert (played.move("Right"), played.is_solved) == ((1.1, True), True)
    two = room("P_XO", "____", "_V_O", "____")
    two.layout = Layout(4, frozenset(), frozenset({(0, 3), (2, 1)}))
    assert two.move("Right") == (0.0, False)
    assert two.move("Right") == (1.1, True)
    off = room("PVX", "O__", "O__")
    assert off.move("Right") == (0.0, False)  # two boxes at once do not move
    assert inner(off) == ["PVX", "O__", "O__"]
    away = room("PV_", "O__", "__X")
    assert away.move("Right") == (-0.1, False)
    assert inner(away) == ["_SX", "O__", "__X"]


@pytest.mark.parametrize("name", ["Up", "Left", "Right", "Down"])
def test_walls_stop_the_player_and_a_box(name: str) -> None:
    played = room("P#_", "X_O", "#__")
    assert played.move(name) == (0.0, False)
    assert inner(played) == ["P#_", "X_O", "#__"]


def fewest_moves(start: Room, longest: int) -> int | None:
    """By trying all words of moves: slow and obvious."""
    for length in range(1, longest + 1):
        for names in product(MOVES, repeat=length):
            played = Room(start.layout, start.player, start.boxes)
            if any(played.move(name)[1] for name in names):
                return length
    return None


@pytest.mark.parametrize("seed", range(10))
def test_a_seed_always_makes_the_same_room_and_its_solution_is_shortest(seed: int) -> None:
    first, again = generate(seed, 3, max_moves=5), generate(seed, 3, max_moves=5)
    assert first is not None
    layout, (player, boxes), solution = first
    assert first == again
    assert not boxes & layout.targets
    assert len(solution) == fewest_moves(Room(layout, player, boxes), 5)


@pytest.mark.parametrize("seed", range(4))
def test_larger_rooms_have_two_boxes_and_are_solved_by_their_solution(seed: int) -> None:
    found = generate(seed, 6, max_moves=20)
    assert found is not None
    layout, (player, boxes), solution = found
    played = Room(layout, player, boxes)
    ended = [played.move(name)[1] for name in solution]
    assert (len(boxes), ended.index(True), played.is_solved) == (2, len(solution) - 1, True)


@pytest.mark.slow
def test_no_room_that_is_held_out_is_trained_on() -> None:
    lists = made("max_turns=5")
    plain = str.maketrans("PXVS", "__OO")
    grounds = [{prompt.text.translate(plain) for prompt in part} for part in (lists.train, lists.heldout)]
    assert grounds[0] & grounds[1] == set()
    assert (len(lists.heldout), len(lists.train) > 600, lists.is_disjoint) == (64, True, True)


def test_the_experts_answers_solve_every_held_out_room() -> None:
    lists = made()
    for prompt in lists.heldout:
        shown = demonstrate(prompt, lists)
        assert (shown.reward, shown.stop) == (pytest.approx(1.1), Stop.TERMINATED)
        assert (lists.is_right(prompt, shown), list(prompt.extra["answers"])) == (True, prompt.expected.split())


def test_a_grid_too_small_to_push_in_is_a_bad_setting() -> None:
    with pytest.raises(BadSetting, match="map_size=2"):
        made("map_size=2")


@pytest.mark.parametrize(
    ("size", "known"),
    [
        (
            3,
            {
                0: "#####/#O__#/#_X_#/##P_#/#####",
                1: "#####/#___#/#PX_#/#__O#/#####",
                42: "#####/#___#/#PXO#/#####/#####",
            },
        ),
        (
            4,
            {
                0: "######/#____#/##O_P#/###X_#/###__#/######",
                2: "######/#_#_P#/#_#X_#/#___O#/#____#/######",
                3: "######/######/#O####/#X####/#_P###/######",
            },
        ),
        (
            5,
            {
                0: "#######/#######/#######/#OX_###/#_OX_##/#___P##/#######",
                2: "#######/#_____#/#_____#/#____O#/#_O_XX#/####_P#/#######",
            },
        ),
        (8, {1: "/".join(["#" * 10] * 5 + ["######___#", "#######__#", "#_XO_#___#", "#PX_O____#", "#" * 10])}),
    ],
)
def test_a_seed_makes_the_room_that_roll_makes_of_it(size: int, known: dict[int, str]) -> None:
    """Printed by generate_room of ROLL 8eb27cc2: one box and search_depth 300, from size 5 on two and 10."""
    for seed, theirs in known.items():
        found = generate(seed, size, max_moves=100, maps="roll")
        assert found is not None
        layout, (player, boxes), solution = found
        played = Room(layout, player, boxes)
        assert "/".join(played.rows()) == theirs
        assert [played.move(name)[1] for name in solution] == [False] * (len(solution) - 1) + [True]
        assert generate(seed, size, max_moves=len(solution) - 1, maps="roll") is None


def test_a_seed_of_which_roll_goes_on_with_another_has_no_room() -> None:
    assert generate(3, 8, max_moves=100, maps="roll") is None


@pytest.mark.slow
def test_rolls_rooms_make_a_task() -> None:
    lists = made("maps=roll", "map_size=4", "max_turns=8")
    assert not {prompt.text for prompt in lists.train} & {prompt.text for prompt in lists.heldout}
    assert len(lists.heldout) == 64


def test_gymnasium_has_no_sokoban() -> None:
    with pytest.raises(BadSetting, match="Accepted: own, roll"):
        task(parse(["maps=gymnasium"], devices=("cpu",)))
