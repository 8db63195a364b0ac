"""The forms a request can have: releases, days, the newest, further packages, places of origin, whole hosts."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.core.messages import Message, say
from npuenv.facts.collect import Facts, collect
from npuenv.facts.machine import OperatingSystem
from npuenv.facts.npu.driver import VersionInfo
from npuenv.host.recorded import load_capture
from npuenv.report.resolution import as_json, show
from npuenv.resolve import resolve
from npuenv.resolve.request import filled_from_host
from npuenv.resolve.types import Conflict, Request, Stack
from tests.support.tables import MATRIX

if TYPE_CHECKING:
    from npuenv.facts.npu.smi import SmiTable

HOSTS = Path(__file__).resolve().parents[1] / "support" / "hosts"


def stack_of(request: Request) -> Stack:
    stack = resolve(request, MATRIX)
    assert isinstance(stack, Stack), stack
    return stack


def refusal_of(request: Request) -> BadInput:
    with pytest.raises(BadInput) as refused:
        resolve(request, MATRIX)
    return refused.value


@pytest.mark.parametrize("text", ["verl==0.7.1", "verl == 0.7.1", "VERL==v0.7.1", "verl==0.7.1.0"])
def test_release_stands_behind_the_framework_in_any_spelling(text: str) -> None:
    stack = stack_of(Request(framework=text, cann="8.5.0"))
    assert stack.name == "verl-0.7.1-cann8.5.0"


def test_release_of_a_field_of_its_own_says_the_same() -> None:
    of_field = stack_of(Request(framework="vllm-ascend", release="0.13.0"))
    assert of_field == stack_of(Request(framework="vllm-ascend==0.13.0"))
    pin = of_field.pin("vllm-ascend")
    assert pin is not None
    assert pin.version == "0.13.0"


def test_unknown_release_is_refused_with_the_nearest() -> None:
    refusal = refusal_of(Request(framework="vllm-ascend==0.18.1"))
    assert refusal.message.key == "resolve.unknown"
    assert refusal.hint is not None
    assert refusal.hint.args["near"] in ("0.18.0", "0.19.1rc1", "0.10.1rc1")
    assert "0.18.1" in say(refusal.message, "en")


def test_release_of_no_framework_is_refused() -> None:
    assert refusal_of(Request(release="0.7.1", hardware="a2")).message.key == "resolve.release-of-nothing"


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "2026-02-30", "26-01-01", ""])
def test_text_that_is_no_day_is_refused(text: str) -> None:
    refusal = refusal_of(Request(framework="verl", as_of=text))
    assert refusal.message.key == "resolve.not-a-day"
    assert refusal.hint is not None


def test_day_picks_what_was_published_by_then() -> None:
    found = {day: stack_of(Request(framework="vllm-ascend", as_of=day)) for day in ("2026-02-06", "2025-12-31")}
    assert [stack.name for stack in found.values()] == ["vllm-ascend-0.13.0", "vllm-ascend-0.11.0"]
    assert all(stack.date <= day for day, stack in found.items())
    assert stack_of(Request(framework="verl", as_of="2026-02-01")).name == "verl-0.7.0-cann8.3.RC1"


def test_newest_prefers_the_youngest_on_the_newest_cann_over_the_best_attested() -> None:
    attested, newest = (stack_of(Request(framework="vllm-ascend", is_newest=flag)) for flag in (False, True))
    assert "rc" not in attested.name
    assert newest.date > attested.date
    on_old_cann = stack_of(Request(framework="vllm-ascend", cann="8.5.1", is_newest=True))
    pin = on_old_cann.pin("cann")
    assert pin is not None
    assert pin.version == "8.5.1"
    assert on_old_cann.date > stack_of(Request(framework="vllm-ascend==0.16.0rc1")).date


def test_package_that_no_stack_speaks_of_is_one_more() -> None:
    stack = stack_of(Request(stack="verl-cann9.1.0", pins={"Black": "25.1.0"}))
    pin = stack.pin("black")
    assert pin is not None
    assert (pin.version, pin.strength, pin.index, pin.is_python) == ("25.1.0", "request", None, True)
    assert pin.because.sources == ("--pin black==25.1.0",)
    assert stack.verified_by == "satisfiable"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("tensordct", "tensordict"),
        ("transfomers", "transformers"),
        ("torch-npv", "torch-npu"),
        ("nunpy", "numpy"),
    ],
)
def test_misspelt_package_is_refused_with_the_right_one(name: str, near: str) -> None:
    refusal = refusal_of(Request(stack="verl-cann9.1.0", pins={name: "1.0"}))
    assert refusal.hint is not None
    assert refusal.hint.args["near"] == near


def test_conflict_shows_where_each_pin_stands() -> None:
    origins = {"torch": "requirements.txt:1", "torch-npu": "constraints.txt:7"}
    pins = {"torch": "2.9.0", "torch-npu": "2.8.0.post2"}
    conflict = resolve(Request(framework="torch-npu", pins=pins, origins=origins), MATRIX)
    assert isinstance(conflict, Conflict)
    console = Console(file=io.StringIO(), width=200)
    show(conflict, console, "en")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    document = as_json(conflict)
    for place in origins.values():
        assert place in text
        assert place in [clash["source"] for clash in document["clashes"]]


def what(note: Message) -> str:
    about = note.args["what"]
    assert isinstance(about, Message)
    return about.key


def host_facts(name: str) -> Facts:
    return collect(load_capture(HOSTS / f"{name}.json"))


@pytest.mark.parametrize(
    ("name", "expected", "untold"),
    [
        ("a2_healthy", ("aarch64", "a2", "ubuntu22.04", "25.5.1", "8.5.0"), ()),
        ("a3_healthy", ("aarch64", "a3", "ubuntu22.04", "25.3.rc1", "8.5.0"), ()),
        ("container_8020", ("aarch64", None, "ubuntu22.04", "25.5.1", "8.5.0"), ("hardware",)),
        ("no_card", ("x86_64", None, "ubuntu22.04", None, None), ("hardware", "driver", "cann")),
    ],
)
def test_host_fills_what_it_tells_and_says_what_it_does_not(
    name: str, expected: tuple[str | None, ...], untold: tuple[str, ...]
) -> None:
    request, notes = filled_from_host(Request(framework="verl"), host_facts(name), MATRIX)
    fields = ("arch", "hardware", "os", "driver", "cann")
    assert tuple(getattr(request, field) for field in fields) == expected
    assert set(request.origins) == {field for field in fields if getattr(request, field)}
    assert all(": " in line for line in request.origins.values())
    assert [what(note) for note in notes] == [f"resolve.what-{field}" for field in untold]
    assert stack_of(request).platform.arch == expected[0]


def test_what_the_user_said_stands_over_the_host() -> None:
    said = Request(framework="verl", hardware="a3", cann="9.0.0")
    request, notes = filled_from_host(said, host_facts("a2_healthy"), MATRIX)
    assert (request.hardware, request.cann, notes) == ("a3", "9.0.0", ())
    assert not {"hardware", "cann"} & set(request.origins)


def test_cpu_stack_takes_only_the_architecture_from_a_host() -> None:
    request, notes = filled_from_host(Request(framework="cpu"), host_facts("a2_healthy"), MATRIX)
    assert request == Request(framework="cpu", arch="aarch64", origins=request.origins)
    assert notes == ()


_PLACE = Evidence("npu-smi info", "a line")


def with_facts(**changed: Fact[Any]) -> Facts:
    """The healthy host with other facts, named by their last word."""
    facts = host_facts("a2_healthy")
    for name, fact in changed.items():
        group = next(field.name for field in dataclasses.fields(facts) if hasattr(getattr(facts, field.name), name))
        facts = dataclasses.replace(facts, **{group: dataclasses.replace(getattr(facts, group), **{name: fact})})
    return facts


def with_cards(*names: str | None) -> Fact[SmiTable]:
    table = host_facts("a2_healthy").npu.smi.value
    assert table is not None
    cards = tuple(dataclasses.replace(table.cards[0], npu=at, name=name) for at, name in enumerate(names))
    return known(table._replace(cards=cards), _PLACE)


def test_cards_of_several_generations_are_a_question_for_the_user() -> None:
    facts = with_facts(smi=with_cards("910B3", "310P3"))
    with pytest.raises(CannotTell) as refused:
        filled_from_host(Request(framework="vllm-ascend"), facts, MATRIX)
    assert refused.value.message.args["names"] == ("310P3", "910B3")
    said, _ = filled_from_host(Request(framework="vllm-ascend", hardware="a2"), facts, MATRIX)
    assert said.hardware == "a2"


def test_cards_of_one_generation_may_differ_in_name() -> None:
    facts = with_facts(smi=with_cards("910B3", "910B2C", None))
    request, _ = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.hardware == "a2"


@pytest.mark.parametrize("smi", [unknown(_PLACE), absent(_PLACE), with_cards("Ascend999"), with_cards()])
def test_card_that_cannot_be_told_is_left_open_and_said(smi: Fact[SmiTable]) -> None:
    facts = with_facts(smi=smi)
    request, notes = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.hardware is None
    assert [note.args["line"] for note in notes] == ["npu-smi info: a line"]


def test_driver_is_read_from_the_tool_where_its_file_is_missing() -> None:
    facts = with_facts(driver=absent(Evidence("version.info", "absent")))
    request, _ = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.driver == "25.5.1"
    assert request.origins["driver"].startswith("npu-smi info")


@pytest.mark.parametrize("version", ["8.5.7", "main-build"])
def test_cann_that_no_row_has_is_left_open_and_said(version: str) -> None:
    facts = host_facts("a2_healthy")
    assert facts.cann.toolkit.value is not None
    cann = facts.cann.toolkit.value._replace(version=version)
    facts = with_facts(toolkit=known(cann, Evidence("install.info", version)))
    request, notes = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.cann is None
    assert [note.args["line"] for note in notes] == [f"install.info: {version}"]


@pytest.mark.parametrize("system", [OperatingSystem("arch", "", "Arch"), OperatingSystem("fedora", "41", "Fedora 41")])
def test_system_that_no_row_has_is_left_open_and_said(system: OperatingSystem) -> None:
    facts = with_facts(system=known(system, Evidence("/etc/os-release", "x")))
    request, notes = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.os is None
    assert [what(note) for note in notes] == ["resolve.what-os"]


def test_system_names_are_matched_without_case_and_service_pack() -> None:
    system = OperatingSystem("openEuler", "24.03 (LTS-SP2)", "openEuler 24.03")
    facts = with_facts(system=known(system))
    request, _ = filled_from_host(Request(framework="verl"), facts, MATRIX)
    assert request.os == "openeuler24.03"
    assert request.origins["os"] == "-"


def test_driver_that_is_too_old_for_the_hosts_cann_names_the_lines_it_was_read_from() -> None:
    driver = VersionInfo("24.1.rc3", "/usr/local/Ascend/driver/version.info", "")
    place = Evidence(driver.path, "Version=24.1.rc3")
    facts = with_facts(driver=known(driver, place))
    assert facts.npu.driver.state is State.KNOWN
    request, _ = filled_from_host(Request(framework="verl"), facts, MATRIX)
    conflict = resolve(request, MATRIX)
    assert isinstance(conflict, Conflict)
    sources = {clash.source for clash in conflict.clashes if clash.rule == "request"}
    assert f"{driver.path}: Version=24.1.rc3" in sources
    assert "cann.8.5.0" in {clash.rule for clash in conflict.clashes}


def test_any_text_in_any_field_ends_in_an_answer_or_a_refusal() -> None:
    hypothesis = pytest.importorskip("hypothesis", reason="hypothesis makes the texts")
    from hypothesis import strategies

    word = strategies.sampled_from(
        (
            "verl",
            "roll==",
            "verl==0.7.1",
            "vllm-ascend==9",
            "a2",
            "910B3",
            "8.5.0",
            "9.1.0-beta.1",
            "25.0",
            "3.11",
            "3.",
        )
    )
    text = strategies.one_of(strategies.none(), word, strategies.text(max_size=12))
    pins = strategies.dictionaries(
        strategies.sampled_from(("torch", "numpy", "torch-npu", "vllm", "cann", "python", "", "-", "Flask")),
        strategies.one_of(
            strategies.sampled_from(("2.8.0", "1.26.4", "2.8.0.post2", "1!0", "")), strategies.text(max_size=6)
        ),
        max_size=2,
    )
    names = ("stack", "framework", "hardware", "os", "arch", "python", "cann", "driver", "release", "as_of")

    fields = strategies.fixed_dictionaries({}, optional=dict.fromkeys(names, text))

    @hypothesis.settings(deadline=None, database=None, max_examples=25)
    @hypothesis.given(fields, pins, strategies.booleans())
    def ends_well(said: dict[str, Any], asked: dict[str, str], newest: bool) -> None:
        try:
            answer = resolve(Request(pins=asked, is_newest=newest, **said), MATRIX)
            assert isinstance(answer, (Stack, Conflict))
        except (BadInput, CannotTell) as refused:
            assert say(refused.message, "en")
            assert say(refused.message, "zh")

    ends_well()


def test_day_before_everything_is_answered_with_the_first_day_that_has_something() -> None:
    conflict = resolve(Request(framework="verl", as_of="2020-01-01"), MATRIX)
    assert isinstance(conflict, Conflict)
    assert [clash.source for clash in conflict.clashes] == ["--as-of 2020-01-01"]
    first = min(recipe.date for recipe in MATRIX.recipes if recipe.framework == "verl" and not recipe.lacks)
    assert conflict.ways_out[0].request.as_of == first


def test_pin_that_was_all_there_was_to_go_by_is_answered_with_a_framework() -> None:
    conflict = resolve(Request(pins={"torch-npu": "2.14.0"}), MATRIX)
    assert isinstance(conflict, Conflict)
    first = conflict.ways_out[0].request
    assert first.framework is not None
    assert first.pins == {}


@pytest.mark.parametrize("arch", ["aarch64", "x86_64"])
def test_torch_from_2_11_on_comes_from_the_cpu_index_on_both_architectures(arch: str) -> None:
    stack = stack_of(Request(stack="torch-npu-2.12.0", arch=arch))
    torch = stack.pin("torch")
    assert torch is not None
    assert (torch.version, torch.index) == ("2.12.0+cpu", "pytorch-cpu")
