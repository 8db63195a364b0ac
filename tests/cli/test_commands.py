"""The commands as a user runs them, offline."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from npuenv.cli import main
from tests.support.sentences import says

pytestmark = pytest.mark.usefixtures("home")

COMMANDS = ["up", "doctor", "install", "render-docker", "smoke-train", "resolve", "lock"]
NPU_STACKS = [
    "verl-0.7.0-cann8.3.RC1",
    "verl-qwen3.5-cann8.5.0",
    "verl-0.7.1-cann8.5.0",
    "verl-cann9.1.0",
    "roll-cann9.1.0",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Usage: npuenv {command}")
    assert "--lang" in said


def test_top_level_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert [command for command in COMMANDS if f"\n  {command} " not in said] == []
    assert "Exit codes" in said


def test_importing_the_command_line_stays_light() -> None:
    """Counts modules, not milliseconds: nothing heavy is imported before a command needs it."""
    program = "import sys, npuenv.cli.app; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    loaded = ran.stdout.split()
    heavy = {"rich", "jinja2", "psutil", "uv", "pip_api", "packaging", "npuenv.matrix", "asyncio"}
    assert heavy & set(loaded) == set()
    assert len(loaded) < 330


@pytest.mark.parametrize("stack", ["cpu", *NPU_STACKS])
def test_resolve_gives_every_pin_a_reason_and_a_source(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", stack, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "npuenv.stack/1"
    assert document["pins"]
    for pin in document["pins"]:
        assert pin["because"]["says"] and pin["why_not_newer"]["says"]
        assert pin["because"]["sources"] or pin["because"]["rules"], pin["name"]


def test_a_conflict_names_both_sides_and_a_way_out_that_resolves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resolve", "verl-0.7.1-cann8.5.0", "--pin", "torch==2.9.0", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "npuenv.conflict/1"
    assert len(document["clashes"]) >= 2
    assert all(clash["source"] for clash in document["clashes"])
    for way in document["ways_out"]:
        assert way["command"][0] == "npuenv"
        assert main([*way["command"][1:], "--json"]) == 0
        capsys.readouterr()
    assert document["ways_out"]


# triton-ascend of CANN 9.1.0 has hashes on an index of its own only.
WITHOUT_ALL_HASHES = {"verl-cann9.1.0", "roll-cann9.1.0"}


@pytest.mark.parametrize("stack", NPU_STACKS)
def test_dry_run_prints_the_order_that_matters(stack: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["install", stack, "--dry-run", "--arch", "aarch64", "--hardware", "a2", "--target", "/opt/x", "--json"]
    code = main(words)
    document = json.loads(capsys.readouterr().out)
    lacks = stack in WITHOUT_ALL_HASHES
    assert (code, document["exit"], len(document["lacks"])) == ((4, 4, 1) if lacks else (0, 0, 0))
    steps = [step["id"] for step in document["steps"]]
    assert steps[0] == "venv"
    assert steps[-1] == "finish"
    joined = " ".join(steps)
    assert joined.index("vllm") < joined.index("vllm-ascend") < joined.rindex("triton-ascend")
    own = [step for step in steps if step not in ("activate", "verify", "finish")]
    assert own[-1].startswith("triton-ascend")
    removal = next(index for index, step in enumerate(steps) if "triton" in step and "ascend" not in step)
    assert removal < steps.index(own[-1])


@pytest.mark.parametrize("form", ["", "--json"])
def test_a_dry_run_for_this_machine_names_the_parts_of_cann_that_it_lacks(
    form: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["install", "verl-0.7.1-cann8.5.0", "--hardware", "a2", "--arch", platform.machine(), "--dry-run"]
    main([*words, "--target", str(home / "x"), *filter(None, [form])])
    said = capsys.readouterr().err
    for part in ("toolkit", "910b-ops", "nnal"):
        assert says(said, "plan.cann-missing", file=f"Ascend-cann-{part}_8.5.0_linux-{platform.machine()}.run")


def test_a_dry_run_says_first_what_would_end_the_installation_and_ends_as_it_would(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    words = ["install", "verl-cann9.1.0", "--hardware", "a2", "--target", str(home / "x")]
    assert main([*words, "--yes"]) == 4
    real = capsys.readouterr().err.splitlines()[:2]
    assert main([*words, "--dry-run"]) == 4
    shown = capsys.readouterr().err.splitlines()[:2]
    assert says(shown[0], "lock.partial", stack="verl-cann9.1.0") and says(real[0], "lock.partial")
    assert shown[1] == real[1]


@pytest.mark.parametrize("stack", NPU_STACKS)
def test_script_is_valid_shell_and_names_no_secret(
    stack: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://someone:hunter2@mirror.example/simple")
    words = ["install", stack, "--script", "--arch", "aarch64", "--hardware", "a3", "--target", "/opt/x"]
    code = main(words)
    script, err = capsys.readouterr()
    assert "hunter2" not in err
    if stack in WITHOUT_ALL_HASHES:
        assert (code, script) == (4, "") and "--fill" in err
        return
    assert code == 0 and script.startswith("#!/bin/sh\n")
    assert "hunter2" not in script
    subprocess.run(["sh", "-n"], input=script, text=True, check=True, timeout=300)


def test_rendered_folder_is_the_committed_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["render-docker", "roll-cann9.1.0", "--hardware", "a3", "-o", str(home / "out"), "--lang", "en"]
    assert main(words) == 0
    assert "rendered" in capsys.readouterr().out
    golden = Path(__file__).parent.parent.parent / "dockerfiles" / "roll-cann9.1.0.a3.ubuntu22.04"
    made = home / "out" / golden.name
    assert {p.name for p in made.iterdir()} == {p.name for p in golden.iterdir()}
    same = [p for p in golden.iterdir() if p.suffix != ".pyz"]  # the doctor's bytes stand in for real ones there
    assert all((made / p.name).read_text() == p.read_text() for p in same)
    assert main(words) == 0
    assert says(capsys.readouterr().out, "cli.was-rendered", path=str(made))


@pytest.mark.slow
def test_doctor_without_cards_says_so_and_points_to_the_trial(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if any(Path("/dev").glob("davinci[0-9]*")):
        pytest.skip("this machine has cards")
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "npuenv up --for cpu" in said
    assert "/dev" in said  # what was looked at


def test_doctor_for_cpu_does_not_ask_for_cards(bare_python: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["doctor", "--for", "cpu", "--python", bare_python, "--json"])
    document = json.loads(capsys.readouterr().out)
    found = {finding["check"]: finding["status"] for finding in document["findings"]}
    assert found["cards.present"] == "skip"


def test_a_saved_capture_gives_the_same_findings(
    home: Path, bare_python: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capture = home / "host.json"
    first_code = main(["doctor", "--python", bare_python, "--json", "--save", str(capture)])
    first = json.loads(capsys.readouterr().out)
    assert main(["doctor", "--json", "--from", str(capture)]) == first_code
    assert json.loads(capsys.readouterr().out) == first


def test_lock_prints_the_committed_lock(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["lock", "verl-0.7.1-cann8.5.0", "--arch", "aarch64"])
    said = capsys.readouterr().out
    name = "verl-0.7.1-cann8.5.0.aarch64-cp311-glibc2.28.toml"
    committed = (Path(__file__).parent.parent.parent / "lockfiles" / name).read_text()
    assert said == committed
    assert code == (0 if 'status = "complete"' in committed else 3)


def test_the_plan_names_a_configured_place_that_does_not_exist(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(home / "gone"))
    assert main(["install", "verl-0.7.1-cann8.5.0", "--arch", "aarch64", "--hardware", "a2", "--dry-run"]) == 0
    assert str(home / "gone") in capsys.readouterr().err
