"""The trainer as npuenv starts it: a process in an empty folder with nothing but the package on its path."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_cases import only, read

from trainer.metrics.records import FILE, SCHEMA

ROOT = Path(__file__).parent.parent.parent
# -P is new in 3.11; before that the empty folder does its work.
ISOLATED = ["-P"] if sys.version_info >= (3, 11) else []


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """`path` with the trainer alone, `work` with nothing."""
    (tmp_path / "path").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "path" / "trainer").symlink_to(ROOT / "trainer", target_is_directory=True)
    return tmp_path


def environment(scene: Path) -> dict[str, str]:
    """Torch's own folder is on the path too: it may have been lent to this interpreter by the path alone."""
    # One cache for all processes of a test session: without one each of them compiles torch anew, 2 s.
    bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(scene.parent / "bytecode")}
    path = os.pathsep.join([str(scene / "path"), str(Path(torch.__file__).parent.parent)])
    return {**os.environ, **bytecode, "PYTHONPATH": path}


def start(scene: Path, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *ISOLATED, "-m", "trainer", *words],
        cwd=scene / "work",
        env=environment(scene),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_five_steps_end_with_every_record_and_nothing_printed(scene: Path) -> None:
    out = scene / "out"
    assert finish(start(scene, "--out", str(out), "steps=5", "seed=3", "device=cpu")) == (0, "", "")
    records = read(out)
    kinds = [record["kind"] for record in records]
    assert kinds == ["header", "eval", *["step"] * 5, "eval", *["check"] * 4, "end"]
    header, end = records[0], records[-1]
    assert (header["schema"], header["device"], header["seed"]) == (SCHEMA, "cpu", 3)
    assert header["settings"]["steps"] == 5
    assert header["convention"]["name"] == "verl"
    assert header["torch"] == torch.__version__
    assert header["num_threads"] == header["settings"]["num_threads"]
    assert 0 < header["startup_s"] < end["wall_s"]
    assert (end["status"], end["reason"], end["steps_done"]) == ("completed", None, 5)
    assert set(end["seconds"]) == {"import", "eval", "generate", "train", "checkpoint"}
    assert sum(end["seconds"].values()) <= end["wall_s"]
    assert 50 < end["peak_rss_mib"] < 1024
    assert (out / "checkpoint" / "manifest.json").exists()
    assert list((scene / "work").iterdir()) == []


def test_the_compiler_and_its_algebra_are_never_imported(scene: Path) -> None:
    """They cost more than the whole run: see algorithms/adamw.py."""
    code = (
        "import sys; from trainer.__main__ import main; code = main(sys.argv[1:]);"
        "print(code, *sorted({'torch._dynamo', 'torch._inductor', 'sympy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--out", str(scene / "out"), "steps=2", "device=cpu"],
        capture_output=True, text=True, timeout=60, env=environment(scene), cwd=scene / "work", check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("0", "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_with_130(scene: Path, number: signal.Signals) -> None:
    out = scene / "out"
    process = start(scene, "--out", str(out), "steps=100000", "device=cpu")
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline and not _has_steps(out):
        time.sleep(0.05)
    process.send_signal(number)
    assert finish(process) == (130, "", "")
    end = read(out)[-1]
    assert (end["kind"], end["status"], end["reason"]) == ("end", "interrupted", number.name)
    assert end["steps_done"] == sum(record["kind"] == "step" for record in read(out))


def _has_steps(out: Path) -> bool:
    return (out / FILE).exists() and '"step"' in (out / FILE).read_text()


def test_an_interrupt_while_torch_is_imported_is_an_end_too(scene: Path) -> None:
    out = scene / "out"
    process = start(scene, "--out", str(out), "device=cpu")
    while not (out / FILE).exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    code, printed, said = finish(process)
    assert (code, printed) == (130, "")
    assert "Traceback" not in said
    assert only(read(out), kind="end")["status"] == "interrupted"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepz=5"], "There is no setting 'stepz'. Did you mean steps? Accepted: task,"),
        (["steps=none"], "steps=none is not accepted"),
        (["--steps", "5"], "unrecognized arguments: --steps"),
    ],
)
def test_a_bad_setting_is_refused_before_torch_is_imported(scene: Path, words: list[str], says: str) -> None:
    began = time.monotonic()
    code, printed, said = finish(start(scene, "--out", str(scene / "out"), *words))
    assert (code, printed) == (2, "")
    assert said.startswith("trainer: ")
    assert says in said
    assert said.count("\n") == 1
    assert not (scene / "out").exists()
    assert time.monotonic() - began < 10


def test_without_a_folder_it_says_that_one_is_needed(scene: Path) -> None:
    code, _, said = finish(start(scene, "steps=5"))
    assert (code, said) == (2, "trainer: the following arguments are required: --out\n")


def test_a_folder_that_cannot_be_made_is_one_clear_line(scene: Path) -> None:
    (scene / "file").write_text("")
    code, printed, said = finish(start(scene, "--out", str(scene / "file" / "out")))
    assert (code, printed) == (2, "")
    assert said.startswith("trainer: --out cannot be used: NotADirectoryError")
    assert said.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_run_with_one_line(scene: Path) -> None:
    (scene / "out").mkdir()
    (scene / "out" / FILE).symlink_to("/dev/full")
    code, printed, said = finish(start(scene, "--out", str(scene / "out"), "steps=2", "device=cpu"))
    assert (code, printed) == (1, "")
    assert "No space left on device" in said
    assert "Traceback" not in said


def test_a_run_that_breaks_leaves_the_reason_in_its_last_record(scene: Path) -> None:
    (scene / "out").mkdir()
    (scene / "out" / "checkpoint").write_text("a file where the folder should go")
    code, printed, said = finish(start(scene, "--out", str(scene / "out"), "steps=2", "device=cpu"))
    end: dict[str, Any] = read(scene / "out")[-1]
    assert (code, printed, end["status"], end["steps_done"]) == (1, "", "failed", 1)
    assert end["reason"].startswith("FileExistsError")
    assert said == f"trainer: {end['reason']}\n"
    assert any(place.startswith("loop.py:") for place in end["where"])


def test_a_device_that_is_not_there_is_a_bad_setting(scene: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA card here")
    code, _, said = finish(start(scene, "--out", str(scene / "out"), "device=cuda"))
    assert (code, said) == (2, "trainer: device=cuda: torch sees no CUDA card\n")
    assert json.loads((scene / "out" / FILE).read_text())["status"] == "failed"
