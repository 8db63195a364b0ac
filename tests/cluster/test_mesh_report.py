"""A mesh as document, text and page: what is said of culprits, of what is unknown, and of what a sample leaves open."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft202012Validator

import npuenv.report
from npuenv.cluster.mesh import MissingDevice, PingOutcome, Results, full, sampled
from npuenv.cluster.mesh.document import MeshResult, document
from npuenv.core.messages import LANGUAGES, Message
from npuenv.report.mesh import brief, lines, render_html
from tests.cluster.test_localize import FAULTS, hypotheses_of
from tests.cluster.test_mesh_planning import all_pings, cluster
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npuenv.cluster.mesh import Pair, PingPlan

SCHEMA = Path(npuenv.report.__file__).parent / "schemas" / "mesh-1.schema.json"


def finished(plan: PingPlan, outcomes: Callable[[Pair], PingOutcome], **more: Any) -> MeshResult:
    results = Results.empty(plan.devices)
    for pair in all_pings(plan):
        outcome = outcomes(pair)
        results.note(pair, outcome, "" if outcome is PingOutcome.OK else f"line of {pair}", seconds=0.1)
    return MeshResult(plan, results, **more)


def made(outcomes: Mapping[Pair, PingOutcome], shape: list[int], **more: Any) -> dict[str, Any]:
    return document(finished(full(cluster(shape)), lambda pair: outcomes.get(pair, PingOutcome.OK), **more), "en")


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("lang", LANGUAGES)
@pytest.mark.one_in(3)
def test_every_kind_of_culprit_is_said_in_both_languages_and_fits_the_schema(name: str, lang: str) -> None:
    is_broken = FAULTS[name][0]
    plan = full(cluster([4] * 5))
    done = finished(plan, lambda pair: PingOutcome.FAILED if is_broken(pair) else PingOutcome.OK)
    found = document(done, lang)
    Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(found)
    assert found["exit"] == (0 if name == "nothing" else 1)
    assert [each["kind"] for each in found["culprits"]] == [
        each.kind.word for each in sorted(FAULTS[name][1], key=lambda each: -sizes(plan, is_broken, each))
    ]
    text = list(lines(found, lang))
    assert all(f"  {each['says']}" in text for each in found["culprits"])
    page = render_html(found, lang)
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(pictures) > 1 and {ElementTree.fromstring(svg).tag for svg in pictures} == {"svg"}


def sizes(plan: PingPlan, is_broken: Callable[[Pair], bool], hypothesis: Any) -> int:
    from npuenv.cluster.localize import MeshTopology

    topology = MeshTopology(plan.devices, [pair for pair in all_pings(plan) if not is_broken(pair)])
    return sum(is_broken(pair) and hypothesis in hypotheses_of(topology, pair) for pair in all_pings(plan))


def test_a_tie_is_said_as_one() -> None:
    found = made({(0, 1): PingOutcome.FAILED, (1, 0): PingOutcome.FAILED}, [1, 1])
    assert [each["kind"] for each in found["culprits"]] == ["pair"]
    dead = sentence("mesh.kind-card", one="node000 card 0 (10.0.0.1)")
    assert sentence("mesh.or", others=dead) in "\n".join(lines(found, "en"))


def test_pings_that_were_not_made_are_told_by_whose_they_were() -> None:
    devices = cluster([2, 2])
    unmade = {pair: PingOutcome.UNTRIED for pair in all_pings(full(devices)) if pair[0] in (0, 1, 3)}
    del unmade[3, 0]
    found = made(unmade, [2, 2], lost={"node000": Message("mesh.why-nothing")})
    assert found["exit"] == 3 and found["summary"]["unknown"] == 8
    assert sorted(each["says"] for each in found["unknown"]) == [
        sentence("mesh.unmade", name="node000", count=6, total=6),
        sentence("mesh.unmade", name="node001 card 1 (10.0.1.2)", count=2, total=3),
    ]
    assert found["lost"] == [{"node": "node000", "says": sentence("mesh.why-nothing")}]


def test_pings_without_an_answer_that_can_be_read_are_reduced_too() -> None:
    silent = {pair: PingOutcome.SILENT for pair in all_pings(full(cluster([2, 2]))) if 2 in pair}
    found = made(silent, [2, 2])
    assert found["exit"] == 3 and found["culprits"] == []
    assert [(each["kind"], each["about"]["devices"], each["pings"]) for each in found["unknown"]] == [("card", [2], 6)]
    assert {each["outcome"] for each in found["pings"]} == {"silent"} and len(found["pings"]) == 6


def test_a_failed_ping_weighs_more_than_an_unknown_one() -> None:
    assert made({(0, 1): PingOutcome.FAILED, (1, 0): PingOutcome.UNTRIED}, [1, 1, 1])["exit"] == 1


def test_lossy_pings_are_a_warning_and_speak_for_nobody() -> None:
    found = made({(0, 2): PingOutcome.LOSSY}, [2, 2])
    assert found["exit"] == 0 and found["culprits"] == []
    assert [each["kind"] for each in found["lossy"]] == ["one-way"]
    assert list(lines(found, "en"))[-1] == sentence("mesh.verdict-0-lossy")


def test_few_packets_that_come_back_are_as_bad_as_none_and_said_to_be_lost() -> None:
    weak = {pair: PingOutcome.WEAK for pair in all_pings(full(cluster([2, 2]))) if 2 in pair}
    found = made(weak, [2, 2])
    assert found["exit"] == 1 and (found["summary"]["failed"], found["summary"]["lossy"]) == (6, 0)
    card = "node001 card 0 (10.0.1.1)"
    at_it = sentence("mesh.at-card", one=card)
    assert [each["says"] for each in found["culprits"]] == [sentence("mesh.weak", what=at_it, count=6)]
    assert found["matrix"] == ["-owo", "o-wo", "ww-w", "oow-"]
    assert list(lines(found, "en"))[-1] == sentence("mesh.verdict-1")
    Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8"))).validate(found)
    page = render_html(found, "en")
    assert sentence("mesh.legend-w") in page and " style=" not in page  # which the policy of the page forbids
    some = made({**weak, (2, 0): PingOutcome.FAILED}, [2, 2])["culprits"]
    assert [each["says"] for each in some] == [sentence("mesh.partly-weak", what=at_it, count=6)]
    all_lost = made(dict.fromkeys(weak, PingOutcome.FAILED), [2, 2])["culprits"]
    assert says(all_lost[0]["says"], "mesh.kind-card", one=card)


@pytest.mark.parametrize(
    ("is_hit", "where"),
    [
        (lambda pair: 2 in pair, "mesh.at-card"),
        (lambda pair: pair[0] == 2, "mesh.at-sends"),
        (lambda pair: pair[1] == 2, "mesh.at-receives"),
    ],
)
@pytest.mark.parametrize(
    ("outcome", "part", "manner"),
    [
        (PingOutcome.LOSSY, "lossy", "mesh.lossy"),
        (PingOutcome.SILENT, "unknown", "mesh.silent"),
    ],
)
def test_packets_that_are_lost_are_not_said_to_be_a_dead_card(
    is_hit: Callable[[Pair], bool], where: str, outcome: PingOutcome, part: str, manner: str
) -> None:
    hit = {pair: outcome for pair in all_pings(full(cluster([2, 2]))) if is_hit(pair)}
    what = sentence(where, one="node001 card 0 (10.0.1.1)")
    assert [each["says"] for each in made(hit, [2, 2])[part]] == [sentence(manner, what=what, count=len(hit))]


def test_nodes_that_fall_apart_are_named_as_groups() -> None:
    plan = full(cluster([1] * 16))
    found = document(
        finished(plan, lambda pair: PingOutcome.FAILED if (pair[0] < 8) != (pair[1] < 8) else PingOutcome.OK), "en"
    )
    (culprit,) = found["culprits"]
    assert culprit["kind"] == "partition" and culprit["about"] == {"groups": ["node[000-007]", "node[008-015]"]}
    apart = sentence("mesh.kind-partition", groups="node[000-007] | node[008-015]")
    assert culprit["says"] == sentence("mesh.culprit", what=apart, count=128)


@pytest.mark.parametrize(("is_fault", "code"), [(True, 1), (False, 3)])
def test_what_is_missing_is_never_fine(is_fault: bool, code: int) -> None:
    missing = (MissingDevice("node9", 3, Message("mesh.why-no-address"), is_fault=is_fault),)
    found = made({}, [1, 1], missing=missing)
    assert found["exit"] == code
    fault = sentence("mesh.fault", name="node9 card 3", why=sentence("mesh.why-no-address"))
    assert f"  {fault}" in list(lines(found, "en"))


def test_a_mesh_of_nothing_is_not_fine() -> None:
    assert made({}, [1])["exit"] == 3


def test_a_sample_says_what_it_leaves_open_and_more_where_it_is_not_whole() -> None:
    plan = sampled(cluster([3, 3]))
    whole = document(finished(plan, lambda pair: PingOutcome.OK), "en")
    assert whole["exit"] == 0 and whole["limits"][0] == sentence("mesh.limit-sampled")
    first = all_pings(plan)[0]
    gap = document(finished(plan, lambda pair: PingOutcome.UNTRIED if pair == first else PingOutcome.OK), "en")
    unsure = sentence("mesh.limit-sampled-unsure")
    assert gap["exit"] == 3 and unsure == gap["limits"][0]
    missing = (MissingDevice("node9", None, Message("mesh.why-nothing")),)
    assert unsure == document(finished(plan, lambda pair: PingOutcome.OK, missing=missing), "en")["limits"][0]


@pytest.mark.parametrize("shape", [[], [1]])
def test_a_sample_of_nothing_is_certain_of_nothing(shape: list[int]) -> None:
    found = document(finished(sampled(cluster(shape)), lambda pair: PingOutcome.OK), "en")
    assert found["exit"] == 3 and found["limits"][0] == sentence("mesh.limit-sampled-unsure")


def test_a_sample_in_which_a_device_has_nobody_to_ask_is_not_certain() -> None:
    # The two chips of one A3 card alone cannot ping each other.
    plan = sampled(cluster([2], is_a3=True))
    found = document(finished(plan, lambda pair: PingOutcome.OK), "en")
    assert found["summary"]["planned"] == 0 and sentence("mesh.limit-sampled-unsure") in found["limits"]


def test_many_culprits_are_cut_in_the_text_and_counted() -> None:
    plan = full(cluster([1] * 80))
    found = document(
        finished(plan, lambda pair: PingOutcome.FAILED if pair[1] == pair[0] + 1 else PingOutcome.OK), "en"
    )
    assert len(found["culprits"]) == 79
    text = list(lines(found, "en"))
    assert f"  {sentence('mesh.more', count=49)}" in text and len(text) < 40


def test_the_page_of_a_large_sample_stays_small_and_escapes_what_nodes_are_called() -> None:
    plan = sampled(cluster([8] * 64))
    page = render_html(document(finished(plan, lambda pair: PingOutcome.OK), "en"), "en", asked="<b>&")
    assert len(page) < 200_000
    assert page.count('class="ok" fill="var(--tone)"') <= plan.num_pings
    assert "&lt;b&gt;&amp;" in page and "<script" not in page


def test_of_many_culprits_the_page_shows_some_and_folds_the_others() -> None:
    """15 pairs that have nothing in common: each is a culprit by itself, and the matrix is not out of sight."""
    page = render_html(made({(at, (at + 7) % 20): PingOutcome.FAILED for at in range(15)}, [20]), "en")
    before, _, folded = page.partition('<details class="finding fail"><summary>and ')
    assert before.count('<section class="finding fail">') == 10
    assert folded.partition("</details>")[0].count('<section class="finding fail">') == 5


@pytest.mark.parametrize(("cards", "word"), [([None, None], "no-node"), ([None, 3], "none")])
def test_without_any_node_it_is_not_the_cards_that_lack_addresses(cards: list[int | None], word: str) -> None:
    missing = [{"card": card} for card in cards]
    document = {"mode": "full", "rounds": 0, "summary": {"lossy": 0}, "exit": 3, "devices": [], "missing": missing}
    assert brief(document)[1].key == f"mesh.verdict-{word}"
