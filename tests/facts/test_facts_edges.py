"""Facts at the edge of what counts: names that only begin right, numbers exactly at a limit, answers of few words."""

from __future__ import annotations

import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from npuenv.facts import cann
from npuenv.facts.hccn.parsers import Optical
from npuenv.facts.network.interfaces import PortRange, number_of
from tests.support.scripted_host import ScriptedHost

TARGET = Path(__file__).parents[2] / "npuenv/facts/target"


def functions_of(program: str) -> Any:
    """What a program for another machine is made of, without running it."""
    source = (TARGET / program).read_text(encoding="utf-8")
    assert source.endswith("\n\nmain()\n")
    module = ModuleType(program)
    exec(compile(source.removesuffix("main()\n"), program, "exec"), module.__dict__)
    return module


def test_a_folder_whose_name_only_begins_like_a_chips_holds_no_kernels() -> None:
    host = ScriptedHost()
    folder = f"/opp/built-in/{cann.TBE}/kernel"
    host.folder(folder, "ascend910b", "ascend910b.old", "config")
    for name in ("ascend910b", "ascend910b.old"):
        host.folder(f"{folder}/{name}", "ops_nn")
    found = cann.kernels(host, "/opp").value
    assert found is not None and found.chips == ("ascend910b",)


def test_a_reading_exactly_at_a_limit_of_its_module_is_within_it() -> None:
    limits = {"Temp High Thres": "70 C", "Temp Low Thres": "0 C"}
    for reading, found in (("70 C", ()), ("0 C", ()), ("71 C", ("temperature 71 C",)), ("-1 C", ("temperature -1 C",))):
        assert Optical(is_present=True, values={"temperature": reading, **limits}).outside_limits == found


@pytest.mark.parametrize(
    ("address", "number"),
    [("10.0.0.1", 0x0A000001), ("10.0.0.256", None), ("10.0.0.x", None), ("10.0.0", None), ("fe80::1", None)],
)
def test_only_a_whole_ipv4_address_has_a_number(address: str, number: int | None) -> None:
    assert number_of(address) == number


def test_the_first_and_the_last_port_of_a_range_are_given_out_and_reserved_ones_are_not() -> None:
    ports = PortRange(32768, 60999, reserved=((40000, 40001),))
    given = [port for port in (32767, 32768, 39999, 40000, 40001, 40002, 60999, 61000) if ports.gives_out(port)]
    assert given == [32768, 39999, 40002, 60999]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), {"node9": []}),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), {}),
    ],
)
def test_a_name_that_nobody_knows_is_told_from_one_that_nobody_answers_for(
    monkeypatch: pytest.MonkeyPatch, error: OSError, found: dict[str, list[str]]
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    into: dict[str, list[str]] = {}
    functions_of("node.py").look_up("node9", into)
    assert into == found


@pytest.mark.parametrize(("environ", "is_without"), [("PATH=/bin", True), ("PATH=/bin\0ASCEND_HOME_PATH=/c", False)])
def test_a_raylet_beside_cards_is_known_by_its_environment(
    monkeypatch: pytest.MonkeyPatch, environ: str, is_without: bool
) -> None:
    ray_node = functions_of("ray_node.py")
    monkeypatch.setattr(ray_node, "processes", lambda: {77: (1, 77, 0, "raylet")})
    monkeypatch.setattr(ray_node, "ours", lambda *_: [77])
    monkeypatch.setattr(ray_node, "devices_here", lambda: 8)
    monkeypatch.setattr(ray_node, "text_of", lambda path: environ if path == "/proc/77/environ" else "")
    assert ray_node.alive({}) == {"running": ["raylet"], "stopped": [], "without_cann": is_without}
