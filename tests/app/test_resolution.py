"""What this machine decides of a request: architecture, Python, and the cards that are in it."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from npuenv.app.resolution import DECIDED, assumption_notes, basis_of, for_this_host, for_this_machine
from npuenv.cli import main
from npuenv.core.documents import load_toml
from npuenv.core.errors import CannotTell
from npuenv.host import local
from npuenv.host.recorded import load_capture
from npuenv.lock.store import shipped_folder
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.sentences import says

pytestmark = pytest.mark.usefixtures("home")
CASES = Path(__file__).parents[1] / "facts" / "cases" / "smi"
HOSTS = Path(__file__).parents[1] / "support" / "hosts"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
ON_PATH = os.environ["PATH"]


def cards(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """An `npu-smi` on PATH that prints a text."""
    folder.mkdir(exist_ok=True)
    (folder / "said.txt").write_text(text)
    (folder / "npu-smi").write_text(f"#!/bin/sh\ncat '{folder}/said.txt'\n")
    (folder / "npu-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{ON_PATH}")


def said(case: str) -> str:
    return str(load_toml(CASES / f"{case}.toml")["output"])


def stack_of(request: Request) -> Stack:
    stack = resolve(request, load_matrix())
    assert isinstance(stack, Stack)
    return stack


@pytest.mark.parametrize(
    ("case", "hardware", "soc"),
    [("info_A3_25.5.0", "a3", "ascend910_9392"), ("info_910B2C_24.1.0", "a2", "ascend910b1")],
)
def test_an_npu_stack_is_made_for_the_cards_that_are_here(
    case: str, hardware: str, soc: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(home / "bin", monkeypatch, said(case))
    for wanted in (Request(stack="verl-0.7.1-cann8.5.0"), Request(framework="verl", python="3.11")):
        request = for_this_machine(wanted)
        assert request.hardware == hardware
        assert assumption_notes(stack_of(request)) == ()
    assert stack_of(for_this_machine(Request(stack="verl-0.7.1-cann8.5.0"))).soc_version == soc


def test_what_was_said_and_what_is_for_another_machine_stands(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, said("info_A3_25.5.0"))
    assert for_this_machine(Request(framework="verl", hardware="a2")).hardware == "a2"
    assert for_this_machine(Request(framework="verl", arch=OTHER)).hardware is None
    of_capture = Request(framework="verl", arch=platform.machine(), origins={"arch": "uname -m: here"})
    assert for_this_machine(of_capture).hardware is None
    assert for_this_machine(Request(framework="cpu")).hardware is None


def test_without_cards_what_is_assumed_is_said(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, "dcmi module initialize failed. ret is -8005")
    request = for_this_machine(Request(framework="verl"))
    assert request.hardware is None
    assert [note.args["hardware"] for note in assumption_notes(stack_of(request))] == ["a2"]


def test_cards_of_two_generations_have_to_be_chosen_from(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(home / "bin", monkeypatch, said("info_910B2C_24.1.0").replace("910B2C", "310P3 ", 1))
    with pytest.raises(CannotTell, match=r"resolve\.host-mixed"):
        for_this_machine(Request(framework="verl"))


def capture_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine is what a capture says."""
    host = load_capture(HOSTS / f"{name}.json")
    monkeypatch.setattr(local, "LocalHost", lambda: host)
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")


def test_a_host_with_cards_decides_what_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_of("a2_healthy", monkeypatch)
    found = for_this_host(Request(framework="verl"))
    assert (found.hardware, found.os, found.cann, found.arch) == ("a2", "ubuntu22.04", "8.5.0", "aarch64")
    assert found.driver is not None and set(found.origins) == DECIDED


@pytest.mark.parametrize(
    "request_", [Request(framework="verl", hardware="a3"), Request(framework="verl", arch="x86_64"), Request("cpu")]
)
def test_what_is_about_another_machine_or_no_card_is_left_alone(
    request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture_of("a2_healthy", monkeypatch)
    assert for_this_host(request_) is request_


def test_a_machine_without_cards_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_of("no_card", monkeypatch)
    assert for_this_host(Request(framework="verl")) == Request(framework="verl")


def test_a_named_stack_keeps_its_own_cann_and_what_was_said_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    capture_of("a2_healthy", monkeypatch)
    named = for_this_host(Request(stack="verl-cann9.1.0"))
    assert (named.hardware, named.cann, named.driver) == ("a2", None, None)
    assert for_this_host(Request(framework="verl", cann="9.0.0")).cann == "9.0.0"


@pytest.mark.parametrize("command", [["resolve"], ["render-launch", "-o", "out"]])
def test_a_command_about_this_host_says_first_what_it_took_from_it(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capture_of("a2_healthy", monkeypatch)
    assert main([*command, "--for", "verl"]) == 0
    first = capfd.readouterr().err.splitlines()[0]
    assert says(first, "resolve.host-taken") and "hardware a2" in first and "cann 8.5.0" in first


@pytest.mark.parametrize(
    ("here", "per_node", "because"), [(4, 4, "host-fewer"), (8, 8, "published"), (16, 8, "host-more")]
)
def test_launch_files_are_for_no_more_cards_than_the_session_has(
    here: int,
    per_node: int,
    because: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The recipe was published for 8; the host of 8 hides four by a variable, or is one of 16."""
    capture = HOSTS / ("a3_healthy.json" if here == 16 else "a2_healthy.json")
    document = json.loads(capture.read_text(encoding="utf-8"))
    if here == 4:
        document["environ"]["ASCEND_RT_VISIBLE_DEVICES"] = "0,1,2,3"
    changed = tmp_path / "host.json"
    changed.write_text(json.dumps(document), encoding="utf-8")
    capture_of(str(changed.with_suffix("")), monkeypatch)
    for number, host in enumerate(([], ["--host", str(changed)])):
        words = ["render-launch", "--for", "verl", "-o", str(tmp_path / str(number)), "--json", *host]
        assert main(words) == 0
        cards = json.loads(capsys.readouterr().out)["cards"]
        assert cards == {"per_node": per_node, "nodes": 1, "because": f"launch_roll.cards-{because}"}
        assert f"trainer.n_gpus_per_node={per_node} " in (tmp_path / str(number) / "run.sh").read_text()
    assert main([*words, "--cards-per-node", "2", "--force"]) == 0
    assert json.loads(capsys.readouterr().out)["cards"]["per_node"] == 2


@pytest.mark.slow
def test_the_readmes_example_leads_one_a2_from_doctor_to_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What each of its commands needs from the one before is what that one makes."""
    shown = []
    for name in ("README.md", "README.zh.md"):
        text = (shipped_folder().parent / name).read_text(encoding="utf-8")
        block = text.partition("<!-- a2 -->\n```sh\n")[2].partition("```\n")[0]
        shown.append([line.partition(" #")[0].rstrip() for line in block.splitlines()])
    assert shown[0] == shown[1]
    resolve_, install, activate, data, render, check = (
        next(line for line in shown[0] if word in line)
        for word in ("resolve", "install --for", "activate.sh", "gsm8k.py", "render-launch", "preflight")
    )
    assert resolve_.split()[2:] == install.split()[2:]
    monkeypatch.chdir(tmp_path)
    capture_of("a2_healthy", monkeypatch)
    assert main(["resolve", "--json", *resolve_.split()[2:]]) == 0
    stack = json.loads(capfd.readouterr().out)["name"]
    assert activate == f". ~/.local/share/npuenv/envs/{stack}/current/activate.sh"
    assert main(render.split()[1:]) == main(check.split()[1:]) == 0
    assert f"data.train_files={data.split()[-1]}/train.parquet " in Path("launch/run.sh").read_text(encoding="utf-8")


def test_an_architecture_that_nobody_named_is_said() -> None:
    asked = Request(framework="verl")
    x86 = replace(asked, arch="x86_64")
    for request in (asked, x86):
        stack = stack_of(request)
        notes = {note.key: note for note in basis_of(request, stack, asked)}
        assert notes["resolve.note-assumed-arch"].args["arch"] == stack.platform.arch
    arm = replace(asked, arch="aarch64")
    for request, named in ((x86, x86), (arm, arm), (arm, asked)):
        assert "resolve.note-assumed-arch" not in {note.key for note in basis_of(request, stack_of(request), named)}
