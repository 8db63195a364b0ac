"""A mesh at its edges: nodes that fail now and then, lines that are nobody's, times, few pings, foreign states."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cluster.inventory import Node
from npuenv.cluster.localize import Hypothesis, Kind, localize_faults
from npuenv.cluster.mesh import NodeOutput, PingOutcome, Results, full, running
from npuenv.cluster.mesh.running import Line, MeshRun, SshRunner, ping_outcome, survey
from npuenv.cluster.parallel_ssh import Transport
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.host import Ran
from tests.cluster.test_mesh_planning import all_pings, cluster
from tests.cluster.test_mesh_running import GOOD, Nodes, kept, run_of
from tests.cluster.test_parallel_ssh import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


class NowAndThen:
    """All nodes make two pings in a batch, but for one that comes to nothing every second time."""

    def __init__(self, node: str) -> None:
        self.node, self.turns = node, 0

    def __call__(
        self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        assert on_line
        self.turns += 1
        for node, question in questions.items():
            if node == self.node and self.turns % 2:
                yield node, NodeOutput((), Message("mesh.why-nothing"))
                continue
            for number, (_, ip) in enumerate(question["jobs"][:2]):
                out = GOOD.replace("10.0.0.21", ip)
                on_line(node, {"job": number, "code": 0, "out": out, "err": "", "late": False, "s": 0.5})
            yield node, NodeOutput(({"end": True},))


def test_a_node_that_comes_to_nothing_now_and_then_is_not_left_out() -> None:
    plan, nodes = full(cluster([3, 3])), NowAndThen("node001")
    run = MeshRun(plan, Results.empty(plan.devices), nodes)
    list(run.run_remaining())
    assert run.lost == {}
    assert nodes.turns > 4
    assert run.results.counts(all_pings(plan))[PingOutcome.OK] == 30


class Lines:
    """Gives every node the same lines, and remembers the limit."""

    def __init__(self, *lines: dict[str, Any]) -> None:
        self.lines, self.limit_s = lines, 0.0

    def __call__(
        self, questions: Mapping[str, Line], *, limit_s: float, on_line: Callable[[str, Line], object] | None = None
    ) -> Iterator[tuple[str, NodeOutput]]:
        self.limit_s = limit_s
        for node in questions:
            for line in self.lines:
                if on_line:
                    on_line(node, line)
            yield node, NodeOutput(self.lines)


@pytest.mark.parametrize("number", [-1, 10**6, "0", None])
def test_a_line_of_a_ping_that_nobody_asked_for_is_noted_nowhere(number: object) -> None:
    devices = cluster([2, 2])
    plan = full(devices)
    line = {"job": number, "code": 0, "out": GOOD, "err": "", "late": False, "s": 0.5}
    run = MeshRun(plan, Results.empty(plan.devices), Lines(line, {"tool": "/bin/hccn_tool"}))
    assert run.measure() is None
    assert run.results.counts(all_pings(plan))[PingOutcome.PENDING] == plan.num_pings == 12


def test_after_it_was_measured_pings_go_out_for_half_a_minute_at_a_time() -> None:
    devices = cluster([4, 4])
    run = run_of(devices, Nodes(devices))
    assert run.measure() == 0.5
    assert len(run.plan.rounds) == 28
    # 24 rounds are left, and 60 of 0.5 s fit.
    assert list(run.run_remaining()) == [0]


@pytest.mark.parametrize(("shape", "seconds"), [([4], 12 * 2.0 + 0.33), ([4, 4], 28 * 2.0 + 2 * 0.36)])
def test_a_plan_takes_its_rounds_and_the_start_of_every_batch(shape: list[int], seconds: float) -> None:
    plan = full(cluster(shape))
    run = MeshRun(plan, Results.empty(plan.devices), Lines())
    run.results.note((0, 1), PingOutcome.OK, seconds=2.0)
    assert run.expected_s(plan) == pytest.approx(seconds)


@pytest.mark.parametrize(("cards", "limit_s"), [([2], 60 + 20 + 2 * 15), ([2, 8], 200), ([2, None], 320), ([], 80)])
def test_a_survey_may_take_as_long_as_the_most_cards_of_a_node_do(cards: list[int | None], limit_s: float) -> None:
    runner = Lines()
    survey([Node(f"n{at}", f"n{at}", cards=count) for at, count in enumerate(cards)], runner)
    assert runner.limit_s == limit_s


def test_what_a_login_shell_says_is_no_line_of_the_program(tmp_path: Path) -> None:
    texts = ("Welcome", "2026", "[1]", "{}", '{"job": 0}', '{"cut', '{"end": true}')
    way = client(tmp_path, "".join(f"echo '{text}'; " for text in texts))
    heard: list[Line] = []
    runner = SshRunner({"a": Node("a", "a")}, Transport(client=way))
    found = dict(runner({"a": {}}, limit_s=60, on_line=lambda _, line: heard.append(line)))
    assert found["a"] == NodeOutput(({"job": 0}, {"end": True}))
    assert heard == [{"job": 0}, {"end": True}]


def test_a_program_that_ends_too_early_is_told_by_its_last_words(tmp_path: Path) -> None:
    runner = SshRunner({"a": Node("a", "a")}, Transport(client=client(tmp_path, "echo one >&2; echo two >&2; exit 3")))
    found = dict(runner({"a": {}}, limit_s=60))
    assert found["a"] == NodeOutput((), Message("mesh.why-died", {"code": 3, "line": "two"}))
    refused = SshRunner(
        {"a": Node("a", "a")}, Transport(client=client(tmp_path, 'echo \'{"refused": "no-tool"}\'; exit 3'))
    )
    assert dict(refused({"a": {}}, limit_s=60))["a"].why == Message("mesh.why-no-tool")


def test_a_card_that_does_not_answer_is_untried_and_one_that_was_ended_is_unknown() -> None:
    text = "Get device health status failed!\n"
    ended = Ran(("hccn_tool",), None, "", text, timed_out=True)
    assert ping_outcome(replace(ended, code=3, timed_out=False), "10.0.0.21")[0] is PingOutcome.UNTRIED
    assert ping_outcome(ended, "10.0.0.21")[0] is PingOutcome.SILENT


# Culprits.


def test_of_two_culprits_the_one_that_explains_more_comes_first() -> None:
    devices = cluster([4] * 3)
    pairs = all_pings(full(devices))
    broken = [pair for pair in pairs if {*pair} == {0, 5} or 9 in pair]
    found = localize_faults(devices, broken, [pair for pair in pairs if pair not in broken])
    assert [each.hypothesis for each in found] == [Hypothesis(Kind.CARD, (9,)), Hypothesis(Kind.PAIR, (0, 5))]
    assert [len(each.explains) for each in found] == [22, 2]


def test_two_pings_of_one_pair_accuse_the_pair_where_little_was_tried() -> None:
    (culprit,) = localize_faults(cluster([2, 2, 1]), [(2, 1), (1, 2)], [(3, 4)])
    assert culprit.hypothesis == Hypothesis(Kind.PAIR, (1, 2))
    assert {Hypothesis(Kind.CARD, (1,)), Hypothesis(Kind.CARD, (2,))} < set(culprit.alternatives)


def test_a_pair_that_breaks_all_that_a_card_alone_explains_could_stand_in_its_place() -> None:
    failing, working = [(2, 3), (0, 1), (1, 0), (2, 0)], [(3, 2), (1, 3)]
    card, sends = localize_faults(cluster([2, 1, 1]), failing, working)
    assert (card.hypothesis, card.explains) == (Hypothesis(Kind.CARD, (0,)), ((0, 1), (1, 0), (2, 0)))
    assert (sends.hypothesis, sends.explains) == (Hypothesis(Kind.SENDS, (2,)), ((2, 0), (2, 3)))
    # Of what was tried, all to the node of the card failed.
    assert card.alternatives == (Hypothesis(Kind.PAIR, (0, 1)), Hypothesis(Kind.NODE_RECEIVES, ("node000",)))


# The file.


def test_why_a_ping_could_not_be_tried_is_not_kept(tmp_path: Path) -> None:
    devices = tuple(cluster([2, 1]))
    results = Results.empty(devices)
    results.note((0, 2), PingOutcome.UNTRIED, "hccn_tool is busy")
    results.note((2, 0), PingOutcome.LOSSY, "one of three")
    running.save_results(tmp_path / "state", results, "sampled")
    found, mode = running.load_results(tmp_path / "state")
    assert (found.notes, found.of((0, 2)), mode) == ({(2, 0): "one of three"}, PingOutcome.PENDING, "sampled")


def refused(path: Path) -> str:
    with pytest.raises(BadInput) as caught:
        running.load_results(path)
    return caught.value.message.key


def test_a_file_that_bars_a_pair_which_can_reach_each_other_is_refused(tmp_path: Path) -> None:
    path, _ = kept(tmp_path)
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["rows"][0] == "-.f"
    path.write_text(json.dumps({**document, "rows": ["--f", *document["rows"][1:]]}), encoding="utf-8")
    assert refused(path) == "mesh.bad-state"


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = kept(tmp_path)
    monkeypatch.setattr(running, "_MOST_BYTES", path.stat().st_size)
    running.load_results(path)
    monkeypatch.setattr(running, "_MOST_BYTES", path.stat().st_size - 1)
    assert refused(path) == "mesh.bad-state"


def test_another_address_is_refused(tmp_path: Path) -> None:
    path, devices = kept(tmp_path)
    moved = [*devices[:2], replace(devices[2], ip="10.9.9.9")]
    for nodes in (["node000", "node001"], ["node000"]):
        with pytest.raises(BadInput) as caught:
            running.require_same_devices(devices, moved, nodes, path)
        assert caught.value.message.key == "mesh.other-devices"
