"""`npuenv smoke-train --backend`: stand-in frameworks that print what the real ones print, and the verdict on each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from npuenv.cli import main
from tests.smoke.backend_cases import AFTER, BEFORE, GOOD, PENDING, make_target, roll_step, verl_step
from tests.support.own_signals import as_from_a_terminal
from tests.support.sentences import part, says, sentence
from tests.support.waiting import is_gone, until

pytestmark = pytest.mark.slow


def smoke(
    capsys: pytest.CaptureFixture[str], target: Path, backend: str, *settings: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """The document of a run of two steps, and the status of each finding."""
    out = target / "out"
    words = ["--backend", backend, "--target", str(target), "-o", str(out), "--json", "steps=2", *settings]
    code = main(["smoke-train", *words])
    document = json.loads(capsys.readouterr().out)
    assert document["exit"] == code
    return document, {finding["check"]: finding["status"] for finding in document["findings"]}


def test_a_good_run_of_verl_passes_and_says_what_was_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", "verl", GOOD)
    document, found = smoke(capsys, target, "verl")
    assert (document["exit"], document["verdict"]) == (0, "pass")
    looked_at = {"training.completed", "training.losses-finite", "training.reward", "training.validated"}
    assert {check for check, status in found.items() if status == "ok"} == looked_at
    assert {status for check, status in found.items() if check not in looked_at} == {"skip"}
    assert "training.mask-exact" in found and "training.weights-published" in found
    assert [each["val-core/openai/gsm8k/acc/mean@1"] for each in document["run"]["eval"]] == [0.125, 0.25]
    records = [json.loads(line) for line in (target / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == [1, 2]
    assert records[0]["release"] == "0.7.1" and records[-1]["code"] == 0


def test_verl_gets_the_rendered_configuration_with_data_and_a_ray_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("TMPDIR", "/tmp")
    monkeypatch.setattr("tempfile.tempdir", None)
    target = make_target(tmp_path / "target", "verl", GOOD)
    smoke(capsys, target, "verl", "trainer.experiment_name=mine")
    said = json.loads((target / "argv.json").read_text())
    values = dict(word.split("=", 1) for word in said["argv"])
    address, folder = said["ray"]
    assert address is None and len(folder) < 60 and not Path(folder).exists()
    assert values["trainer.total_training_steps"] == "2"
    assert (values["trainer.n_gpus_per_node"], values["trainer.nnodes"]) == ("2", "1")
    assert values["actor_rollout_ref.model.use_remove_padding"] == "False"
    assert values["trainer.experiment_name"] == "mine"
    rows = json.loads(Path(values["data.train_files"]).read_text())
    assert len(rows) == 2 * int(values["data.train_batch_size"])
    assert isinstance(rows[0]["reward_model"]["ground_truth"], str)


def test_a_good_run_of_roll_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target(tmp_path / "target", "roll", (*roll_step(0), *roll_step(1)))
    document, found = smoke(capsys, target, "roll")
    assert (document["verdict"], found["training.validated"], found["training.reward"]) == ("pass", "ok", "ok")
    said = json.loads((target / "argv.json").read_text())
    assert said["argv"] == ["--config_path", "npuenv", "--config_name", "agentic-frozen-lake"]


def test_steps_in_the_log_of_rolls_driver_are_counted_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (*roll_step(0), *roll_step(1))
    place = tmp_path / "target" / "out" / "scene" / "data" / "logs"
    after = f"""
    place = pathlib.Path({str(place)!r}); place.mkdir(parents=True)
    (place / "log_rank_DRIVER_0_1.log").write_text("\\n".join({list(lines)!r}) + "\\n")
    """
    document, _ = smoke(capsys, make_target(tmp_path / "target", "roll", lines[:3], after=after), "roll")
    assert document["verdict"] == "pass"
    records = [json.loads(line) for line in (tmp_path / "target/out/metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "step"] == [1, 2]


def test_the_log_of_an_earlier_run_is_not_read_as_this_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = make_target(tmp_path / "target", "roll", roll_step(0))
    logs = target / "out" / "scene" / "data" / "logs"
    logs.mkdir(parents=True)
    (logs / "log_rank_DRIVER_0_1.log").write_text("\n".join((*roll_step(0), *roll_step(1))) + "\n")
    document, _ = smoke(capsys, target, "roll")
    assert (document["verdict"], document["cause"]) == ("fail", "backend-steps-missing")


OOM = (
    "\x1b[36m(WorkerDict pid=4735)\x1b[0m RuntimeError: NPU out of memory. Tried to allocate 20.00 GiB "
    "(NPU 0; 60.97 GiB total capacity; 55.10 GiB already allocated; 55.20 GiB current active; 3.21 GiB free; "
    "56.00 GiB reserved in total by PyTorch)"
)
HCCL = (
    "\x1b[36m(WorkerDict pid=4735)\x1b[0m [ERROR] 2026-05-01-10:00:00 (PID:4735, Device:0, RankID:0) ERR02200 "
    "DIST call hccl api failed.",
    "EI0006: [PID: 4735] 2026-05-01-10:00:00.000.001 Getting socket times out. Reason: 1. The remote does not "
    "initiate a connect request. some NPUs in the cluster are abnormal.",
    "HCCL_CONNECT_TIMEOUT is set to 120s, connect timeout",
)


@pytest.mark.parametrize(
    ("lines", "after", "cause", "words"),
    [
        ((BEFORE, verl_step(1), OOM), "sys.exit(1)", "backend-cause", "memory"),
        ((BEFORE, *HCCL), "sys.exit(1)", "backend-perhaps", "connect timeout"),
        ((BEFORE, "ValueError: something new"), "sys.exit(1)", "not-completed", "something new"),
        ((BEFORE,), "os.kill(os.getpid(), signal.SIGKILL)", "killed", "signal 9"),
        ((BEFORE, verl_step(1)), "", "backend-steps-missing", "1 of 2 steps"),
        ((BEFORE, verl_step(1, loss="nan"), AFTER), "", "not-finite", "nan in step 1"),
        # What the log says is judged by test_backend_reading.py and test_judge.py too, without a run.
        pytest.param(
            (BEFORE, verl_step(1, norm="inf"), AFTER),
            "",
            "not-finite",
            "actor/grad_norm is inf",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            (BEFORE, *(verl_step(step, low="0.0", high="0.0") for step in (1, 2))),
            "",
            "backend-constant-reward",
            sentence("smoke.backend-constant-reward", low=0),
            marks=pytest.mark.slow,
        ),
        ((verl_step(1), verl_step(2)), "", "backend-no-accuracy", "no held-out accuracy"),
    ],
    ids=["memory", "hccl", "crash", "killed", "too few steps", "nan", "inf", "constant reward", "no accuracy"],
)
def test_a_broken_run_fails_and_names_its_cause(
    lines: tuple[str, ...], after: str, cause: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document, _ = smoke(capsys, make_target(tmp_path / "target", "verl", lines, after=after), "verl")
    assert (document["exit"], document["verdict"], document["cause"]) == (1, "fail", cause)
    assert document["says"].startswith("FAIL, ") and words in document["says"]


def test_a_run_that_waits_for_cards_is_ended_and_the_demand_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Ray says it again and again: that is no sign of life.
    after = f"while True:\n    print({PENDING!r}, flush=True)\n    time.sleep(0.2)\n"
    target = make_target(tmp_path / "target", "verl", (), after=after)
    document, found = smoke(capsys, target, "verl", "pending_limit_s=1")
    assert (document["verdict"], document["cause"]) == ("fail", "backend-pending")
    assert "{'NPU': 1.0}" in document["says"]
    assert found["training.losses-finite"] == "unknown"


@pytest.mark.slow
def test_a_demand_that_is_met_later_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Met well within the limit, and at work for longer than that.
    after = f"time.sleep(0.3)\nfor line in {list(GOOD)!r}:\n    print(line, flush=True)\n    time.sleep(0.9)\n"
    target = make_target(tmp_path / "target", "verl", (PENDING,), after=after)
    document, _ = smoke(capsys, target, "verl", "pending_limit_s=2")
    assert document["verdict"] == "pass"


@pytest.mark.slow
def test_a_silent_run_is_ended_with_everything_it_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # A daemon in a group of its own whose parent is gone, as Ray's are after a crash of the driver.
    after = """
    import subprocess
    place = here / "pid"
    code = f"import os, time; os.setpgid(0, 0); open({str(place)!r}, 'w').write(str(os.getpid())); time.sleep(900)"
    subprocess.run(["sh", "-c", '"$0" -c "$1" & :', sys.executable, code])
    while not (place.is_file() and place.read_text()):
        print(LAST, flush=True)
        time.sleep(0.1)
    print(LAST, flush=True)
    time.sleep(900)
    """
    after = f"LAST = {verl_step(1)!r}\n{textwrap.dedent(after)}"
    target = make_target(tmp_path / "target", "verl", (BEFORE, verl_step(1)), after=after)
    document, _ = smoke(capsys, target, "verl", "silence_limit_s=4")
    assert (document["exit"], document["cause"]) == (1, "backend-silent")
    assert says(document["says"], "smoke.backend-silent", backend="verl", seconds=4, reason=part("step:1"))
    daemon = int((target / "pid").read_text())
    assert until(lambda: is_gone(daemon))


@pytest.mark.slow
def test_an_interrupt_ends_the_run_and_leaves_the_daemons_of_others(tmp_path: Path) -> None:
    target = make_target(
        tmp_path / "target", "verl", (BEFORE,), after="(here / 'pid').write_text(str(os.getpid()))\ntime.sleep(900)"
    )
    words = ["smoke-train", "--backend", "verl", "--target", str(target), "-o", str(target / "out"), "--quiet"]
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(900)"], start_new_session=True)
    command = subprocess.Popen(
        [sys.executable, "-m", "npuenv", *words],
        env={**os.environ},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=as_from_a_terminal,
    )
    try:
        deadline = time.monotonic() + 240
        while not ((target / "pid").exists() and (target / "pid").read_text()) and time.monotonic() < deadline:
            time.sleep(0.1)
        trains = int((target / "pid").read_text())
        command.send_signal(signal.SIGINT)
        assert command.wait(240) == 130
        assert until(lambda: is_gone(trains))
        assert other.poll() is None
    finally:
        for each in (command, other):
            each.kill()
            each.wait()


@pytest.mark.parametrize(
    ("backend", "installed", "cards", "code", "key"),
    [
        ("verl", "roll", 2, 2, "backend-absent"),
        ("roll", "verl", 2, 2, "backend-absent"),
        ("verl", "verl", 0, 3, "backend-no-cards"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(
    backend: str, installed: str, cards: int, code: int, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", installed, (), cards=cards)
    assert main(["smoke-train", "--backend", backend, "--target", str(target), "-o", str(tmp_path / "out")]) == code
    assert says(capsys.readouterr().err, f"smoke.{key}", backend=backend)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--backend", "verl", "cards=9"), sentence("smoke.backend-too-few", cards=9, seen=2)),
        (("--backend", "verl", "steps=many"), sentence("smoke.backend-bad-number", name="steps", value="many")),
        (("--backend", "verl", "actor.lr=1"), "actor.lr"),
        (("--model", "/m"), sentence("smoke.backend-model-alone")),
    ],
)
def test_bad_words_are_refused_before_anything_starts(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = make_target(tmp_path / "target", "verl", GOOD)
    assert main(["smoke-train", "--target", str(target), "-o", str(tmp_path / "out"), *words]) == 2
    assert said in capsys.readouterr().err
    assert not (target / "argv.json").exists()
