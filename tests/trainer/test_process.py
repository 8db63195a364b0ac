"""The trainer as npuenv starts it: a process in an empty folder with nothing but the package on its path."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.plain_run import environment, finish, scene_in, start
from tests.trainer.shared import LIMIT_S, forks
from tests.trainer.trainer_cases import only, read
from trainer import __main__ as entry
from trainer import saving
from trainer.config import Config
from trainer.launch import SIGNALS, Interrupt
from trainer.metrics.records import FILE, SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.trainer.plain_run import PlainRun
    from tests.trainer.shared import Forked

MAIN = "import sys; from trainer import __main__, launch; launch.leave(__main__.main(sys.argv[1:]))"


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """`path` with the trainer alone, `work` with nothing."""
    return scene_in(tmp_path)


def forked(scene: Path, *words: str, text: str = MAIN) -> Forked:
    """The trainer in the empty folder, in a process that begins with torch and its own modules imported."""
    return forks().start(text, *words, folder=scene, work=scene / "work", environ=environment(scene))


def test_five_steps_end_with_every_record_and_nothing_printed(plain_run: PlainRun) -> None:
    assert (plain_run.code, plain_run.stdout, plain_run.stderr) == (0, "", "")
    records = plain_run.records
    # What is worth advice depends on how busy the machine is.
    kinds = [record["kind"] for record in records if record["kind"] != "advice"]
    stages = ["stage"] * 9  # of the second opinion
    assert kinds == [
        "header", *["stage"] * 8, "eval", *["step"] * 5, *stages, "eval", *["stage"] * 8, "published", "end"
    ]  # fmt: skip
    header, end = records[0], records[-1]
    assert (header["schema"], header["device"], header["seed"]) == (SCHEMA, "cpu", 3)
    assert header["settings"]["steps"] == 5
    assert header["convention"]["name"] == "verl"
    assert header["torch"] == torch.__version__
    assert header["num_threads"] == header["settings"]["num_threads"]
    assert 0 < header["startup_s"] < end["wall_s"]
    assert (end["status"], end["reason"], end["steps_done"]) == ("completed", None, 5)
    assert set(end["seconds"]) == {
        "import", "testing", "gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights",
        "save_checkpoint", "try_checkpoint",
    }  # fmt: skip
    assert sum(end["seconds"].values()) <= end["wall_s"]
    assert 50 < end["peak_rss_mib"] < 1024
    assert {"checkpoint/manifest.json", "model/config.json", "model/model.safetensors"} <= set(plain_run.files)
    assert plain_run.work == []


def test_the_compiler_and_its_algebra_are_never_imported(plain_run: PlainRun) -> None:
    """They cost more than the whole run: see algorithms/optimizer.py."""
    assert "trainer.algorithms.optimizer" in plain_run.imported
    assert {"torch._dynamo", "torch._inductor", "sympy"} & set(plain_run.imported) == set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so_and_leaves_with_130(scene: Path, number: signal.Signals) -> None:
    out = scene / "out"
    process = forked(scene, "--out", str(out), "steps=2", "steps=10000", "device=cpu", "warmup_steps=30000", "lam=0.5")
    wait_for(lambda: _has_steps(out))
    process.send_signal(number)
    code, printed, complaints = process.end()
    assert (code, printed) == (130, "")
    warnings = read(out)[0]["warnings"]  # in the records and, one a line, where errors go
    assert complaints == "".join(f"trainer: warning: {each}\n" for each in warnings)
    assert ["steps" in warnings[0], "lam" in warnings[1], "warmup_steps" in warnings[2]] == [True] * len(warnings)
    end = read(out)[-1]
    assert (end["kind"], end["status"], end["reason"]) == ("end", "interrupted", number.name)
    done = sum(record["kind"] == "step" for record in read(out))
    assert end["steps_done"] == done
    assert re.search(rf"resume=true .* {done}$", end["resume"])
    saved = saving.read_manifest(out / "checkpoint")
    assert saved is not None
    assert saved.step == done


@pytest.mark.slow
def test_at_the_second_signal_it_leaves_at_once_and_the_earlier_checkpoint_stays(scene: Path) -> None:
    """The reward function hangs in the third step, so that the first signal has no step to wait for."""
    (scene / "work" / "slow.py").write_text(
        "import time\nasked = []\n"
        "def reward(*_, **__):\n    asked.append(1)\n    if len(asked) > 8:\n"
        f"        open({str(scene / 'hangs')!r}, 'w').close()\n        time.sleep(900)\n    return 1.0\n"
    )
    out, words = scene / "out", ["steps=9", "device=cpu", "prompts_per_step=2", "rollouts_per_prompt=2", "save_every=1"]
    process = forked(scene, "--out", str(out), *words, "reward_function=slow.py:reward", "reward_timeout_s=900")
    wait_for((scene / "hangs").exists)
    process.send_signal(signal.SIGINT)
    time.sleep(1.0)  # two that are heard within half a second count as one
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    code, printed, _ = process.end()  # long before the reward comes back
    assert (code, printed) == (130, "")
    assert read(out)[-1]["status"] == "interrupted"
    saved = saving.read_manifest(out / "checkpoint")
    assert saved is not None
    assert saved.step == 2


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def _has_steps(out: Path) -> bool:
    return (out / FILE).exists() and '"kind": "step"' in (out / FILE).read_text()


@pytest.mark.slow
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


INTERRUPTED_IN_A_CALLBACK = """
import os, signal, sys

class Cleaned:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

class Finder:
    def find_spec(name, path=None, target=None):
        if name == "trainer.distributed":  # beside torch, which is there already
            Cleaned()

from trainer.__main__ import main
sys.modules.pop("trainer.distributed", None)
sys.meta_path.insert(0, Finder)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_an_interrupt_that_an_import_would_lose_ends_the_run_all_the_same(scene: Path) -> None:
    """What is raised where Python cleans up reaches nobody: it is printed, and the program goes on."""
    out = scene / "out"
    words = ["--out", str(out), "device=cpu", "steps=1"]
    assert forked(scene, *words, text=INTERRUPTED_IN_A_CALLBACK).end() == (130, "", "")
    (end,) = read(out)
    assert (end["kind"], end["status"], end["reason"]) == ("end", "interrupted", "SIGINT")


def test_an_interrupt_between_the_opening_of_the_records_and_the_run_stands_in_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "set_manifest_aside", lambda out: signal.raise_signal(signal.SIGTERM))
    assert entry.main(["--out", str(tmp_path / "out"), "device=cpu", "steps=1"]) == 130
    (end,) = read(tmp_path / "out")
    assert (end["status"], end["reason"]) == ("interrupted", "SIGTERM")


@pytest.mark.slow
def test_a_caller_of_the_trainer_has_its_handlers_of_signals_back(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    assert entry.main(["--out", str(tmp_path), "no-such-setting=1"]) == 2
    assert entry.main(["--out", str(tmp_path / "run"), "steps=1"]) == 0
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_signal_that_was_put_off_is_heard_in_the_end_and_a_second_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt, heard = Interrupt(), []
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"), interrupt.put_off():
        interrupt.on_signal(signal.SIGTERM)
        heard.append(interrupt.name)
    assert heard == ["SIGTERM"]
    interrupt = Interrupt()
    with interrupt.put_off():
        heard.append("nothing")
    with pytest.raises(KeyboardInterrupt, match="SIGINT"):
        interrupt.on_signal(signal.SIGINT)
    interrupt = Interrupt()
    later = time.monotonic() + 60
    with pytest.raises(KeyboardInterrupt, match="SIGINT"), interrupt.put_off():
        interrupt.on_signal(signal.SIGTERM)
        monkeypatch.setattr(time, "monotonic", lambda: later)
        interrupt.on_signal(signal.SIGINT)


class Dying:
    """Sends a signal where Python prints what is raised, and goes on."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_would_be_lost_where_python_tidies_up_is_heard_a_moment_later() -> None:
    Interrupt().install()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        Dying()
        time.sleep(60)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepz=5"], r"'stepz'.* steps\? `python -m trainer --help`"),
        (["steps=none"], "steps=none "),
        (["--steps", "5"], "arguments: --steps"),
    ],
)
def test_a_bad_setting_is_refused_before_torch_is_imported(scene: Path, words: list[str], says: str) -> None:
    (scene / "path" / "torch.py").write_text("raise AssertionError('torch was imported')\n")
    code, printed, said = finish(start(scene, "--out", str(scene / "out"), *words))
    assert (code, printed) == (2, "")
    assert said.startswith("trainer: ")
    assert re.search(says, said)
    assert said.count("\n") == 1
    assert not (scene / "out").exists()


def test_help_lists_every_setting_with_its_limits_and_imports_no_torch(scene: Path) -> None:
    (scene / "path" / "torch.py").write_text("raise AssertionError('torch was imported')\n")
    code, printed, said = finish(start(scene, "--help"))
    assert (code, said) == (0, "")
    assert " compare A B" in printed
    assert "optim: How the weights move." in printed
    assert "  lr=0.0012  (0 to 10)\n      the highest\n" in printed
    assert all(f"\n  {name}=" in printed for name in Config().flat())


@pytest.mark.slow
def test_a_run_on_verls_words_says_in_its_header_what_became_of_each(scene: Path) -> None:
    out = scene / "out"
    words = ["data.train_batch_size=4", "actor_rollout_ref.actor.ppo_mini_batch_size=2", "trainer.nnodes=1"]
    words += ["actor_rollout_ref.rollout.n=2", "trainer.total_training_steps=2", "device=cpu", "+data.seed=5"]
    assert entry.main(["--out", str(out), *words]) == 0
    header = read(out)[0]
    assert header["translated"]["actor_rollout_ref.actor.ppo_mini_batch_size=2"] == "mini_batches=2 (4 / 2)"
    assert list(header["ignored"]) == ["trainer.nnodes=1"]
    assert all(name in header["ignored"]["trainer.nnodes=1"] for name in ("train_cards", "infer_cards", "nodes=N"))
    settings = {name: header["settings"][name] for name in ("prompts_per_step", "rollouts_per_prompt", "steps", "seed")}
    assert settings == {"prompts_per_step": 4, "rollouts_per_prompt": 2, "steps": 2, "seed": 5}
    assert header["assumed"]["lr"] == "1e-6"
    assert (header["ranks"], header["sharding"]) == (1, "none")
    assert header["settings"]["lr"] == 1e-6


def test_fine_tuning_is_a_run_too(scene: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, file = scene / "out", scene / "work" / "train.jsonl"
    messages = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    file.write_text((json.dumps({"messages": messages}) + "\n") * 3)
    words = ["sft", "--out", str(out), f"train_files={file}", "epochs=4", "prompts_per_step=3", "device=cpu"]
    assert entry.main(words) == 0
    records = read(out)
    assert [each["step"] for each in records if each["kind"] == "step"] == [1, 2, 3, 4]
    assert (records[0]["command"], records[0]["settings"]["steps"]) == ("sft", 4)
    assert only(records, kind="published")["folders"] == [str(out / "model")]
    assert sorted(path.name for path in (out / "model").iterdir()) == ["config.json", "model.safetensors"]
    assert capsys.readouterr() == ("", "")
    assert entry.main(["sft", "--out", str(out), "device=cpu"]) == 2
    assert capsys.readouterr().err.startswith("trainer: sft needs train_files=")


@pytest.mark.slow
def test_of_epochs_and_steps_the_fewer_end_a_run_which_does_not_go_on_behind_its_end(
    scene: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = scene / "out"
    words = ["--out", str(out), "epochs=2", "distractors=0", "prompts_per_step=4", "mini_batches=1", "device=cpu"]
    words += ["probe_packages=false"]
    assert entry.main([*words, "steps=3"]) == 0
    assert read(out)[-1]["steps_done"] == read(out)[0]["settings"]["steps"] == 3
    assert entry.main([*words, "resume=true"]) == 0
    assert [each["step"] for each in read(out) if each["kind"] == "step"] == [1, 2, 3, 4]
    assert entry.main([*words, "steps=3", "resume=true"]) == 2
    assert re.match(r"trainer: resume=true: 4 .* 3\n", capsys.readouterr().err)


def test_without_a_folder_it_says_that_one_is_needed(scene: Path) -> None:
    code, _, said = finish(start(scene, "steps=5"))
    assert (code, said) == (2, "trainer: the following arguments are required: --out\n")


@pytest.mark.parametrize(
    ("words", "option", "says"),
    [
        (["--out", "file"], "--out {scene}/file", "{scene}/file is a file, not a folder"),
        (["--out", "file/out"], "--out {scene}/file/out", "{scene}/file is a file, not a folder"),
        (["--out", "file/out", "ranks=2"], "--out {scene}/file/out", "{scene}/file is a file, not a folder"),
        (["--out", "nowhere"], "--out {scene}/nowhere", "{scene}/nowhere is a link to nothing, not a folder"),
        (["--out", "taken"], "--out {scene}/taken", "Is a directory ({scene}/taken/metrics.jsonl)"),
        (["--out", "out", "--cwd", "gone"], "--cwd gone", "No such file or directory"),
        (["--out", "out", "--cwd", "file"], "--cwd file", "file is a file, not a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_folder_that_cannot_be_used_is_one_clear_sentence_and_a_bad_setting(
    words: list[str],
    option: str,
    says: str,
    scene: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (scene / "file").write_text("")
    (scene / "nowhere").symlink_to("nothing")
    (scene / "taken" / FILE).mkdir(parents=True)
    monkeypatch.chdir(scene)
    assert entry.main([*words, "steps=2", "device=cpu"]) == 2
    said = f"trainer: {option} cannot be used: {says}\n".format(scene=scene)
    assert capsys.readouterr() == ("", said)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_ends_the_run_with_one_line(scene: Path) -> None:
    (scene / "out").mkdir()
    (scene / "out" / FILE).symlink_to("/dev/full")
    code, printed, said = forked(scene, "--out", str(scene / "out"), "steps=2", "device=cpu").end()
    assert (code, printed) == (1, "")
    assert re.fullmatch(rf"trainer: [^\n]*: \[Errno 28\] {os.strerror(errno.ENOSPC)}\n", said)


@pytest.mark.slow
def test_a_run_that_breaks_leaves_the_reason_in_its_last_record(scene: Path) -> None:
    (scene / "out").mkdir()
    (scene / "out" / "checkpoint").write_text("a file where the folder should go")
    code, printed, said = forked(scene, "--out", str(scene / "out"), "steps=2", "device=cpu").end()
    end: dict[str, Any] = read(scene / "out")[-1]
    assert (code, printed, end["status"], end["steps_done"]) == (1, "", "failed", 1)
    assert end["reason"].startswith("FileExistsError")
    assert said == f"trainer: {end['reason']}\n"
    assert any(place.startswith("watch.py:") for place in end["where"])


def test_a_device_that_is_not_there_is_a_bad_setting(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA card here")
    assert entry.main(["--out", str(tmp_path / "out"), "device=cuda"]) == 2
    printed, said = capsys.readouterr()
    assert (printed, said.count("\n")) == ("", 1)
    assert said.startswith("trainer: device=cuda: ")
    assert json.loads((tmp_path / "out" / FILE).read_text())["status"] == "failed"
