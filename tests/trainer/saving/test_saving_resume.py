"""Going on from a checkpoint: the same bits as without a stop, from any step, and no setting changed on the way."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.rank_processes import run_ranks
from tests.trainer.trainer_cases import CPU, TINY, changed, only, read, watched
from trainer import __main__ as entry
from trainer import saving
from trainer.config import BadSetting, Config
from trainer.launch import Interrupt, Interrupted
from trainer.metrics.records import FILE, Records
from trainer.run_state import restore, state_of
from trainer.saving.checkpoint import difference, load
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.distributed import World
    from trainer.trainer import Trainer

SMALL = changed(TINY, layers=1)
# What a clock or the size of a process decides.
TIMED = ("timing_", "perf/", "wall_s")
KINDS: dict[str, dict[str, Any]] = {
    "mini batches": {"mini_batches": 3, "lr_schedule": "cosine", "warmup_steps": 3},
    "adaptive KL": {"kl_in": "reward", "kl_controller": "adaptive", "kl_horizon": 20, "kl_coef": 0.05, "kl": "k1"},
    "noise": {"noise_stages": 3, "noise_start": 0.2, "noise_end": 0.05, "validate_every": 2},
    "dynamic sampling": {"dynamic_sampling": True, "max_generations": 3, "reward": "exact", "rollouts_per_prompt": 2},
    "a critic": {"estimator": "gae", "lam": 0.9},
    "adapters": {"lora_rank": 2, "correction": "token"},
    "bfloat16": {"dtype": "bfloat16", "micro_batch_rows": 5, "prompts_per_step": 2},
    "epochs": {"epochs": 9, "distractors": 0, "prompts_per_step": 4, "mini_batches": 1},
    "episodes": {"task": "frozen_lake", "map_size": 2, "max_turns": 2},
}
# Every kind of state that a step leaves behind, in a few runs.
TOGETHER: dict[str, dict[str, Any]] = {
    name: {key: value for kind in name.split(", ") for key, value in KINDS[kind].items()}
    for name in ("mini batches, adaptive KL, noise", "dynamic sampling, adapters", "a critic, bfloat16", "episodes")
}
QUICK = ("mini batches, adaptive KL, noise",)


@dataclass(slots=True)
class After(Interrupt):
    """An interrupt in the middle of a step."""

    step: int = 0
    count: int = field(default=0)

    def requested(self, world: World) -> str | None:
        self.count += 1
        return "SIGTERM" if self.count == self.step else None


def go(out: Path, config: Config, *, stop: int = 0, is_resumed: bool = False) -> Trainer:
    """A run, or the rest of one; stopped after so many steps of its own."""
    trainer, num_validated = build_trainer(config, CPU, seed=config.run.seed), None
    if is_resumed:
        step = restore(trainer, load(out / saving.CHECKPOINT, CPU))
        num_validated = saving.continue_records(out, step).num_validated
    with Records(out, append=is_resumed) as records:
        try:
            interrupt = After(step=stop) if stop else None
            watched(trainer, config, out, records, interrupt=interrupt, num_validated=num_validated)
        except Interrupted as left:
            assert left.step == trainer.learner.global_step
    return trainer


def told(out: Path) -> list[dict[str, Any]]:
    """Steps and evaluations, without what a clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith(TIMED)}
        for record in read(out)
        if record["kind"] in ("step", "eval")
    ]


@pytest.mark.parametrize(
    "kind",
    [*QUICK, *(pytest.param(kind, marks=pytest.mark.slow) for kind in {**TOGETHER, **KINDS} if kind not in QUICK)],
)
def test_a_run_that_is_stopped_twice_ends_with_the_bits_and_numbers_of_one_that_is_not(
    tmp_path: Path, kind: str
) -> None:
    kinds = {**KINDS, **TOGETHER}
    first = 1 + list(kinds).index(kind) % 2
    steps = first + 2
    config = changed(SMALL, steps=steps, **kinds[kind])
    whole = go(tmp_path / "whole", config)
    go(tmp_path / "parts", config, stop=first)
    go(tmp_path / "parts", config, stop=1, is_resumed=True)
    last = go(tmp_path / "parts", config, is_resumed=True)
    assert difference(state_of(whole, steps), state_of(last, steps)) is None
    assert told(tmp_path / "parts") == told(tmp_path / "whole")
    assert len([each for each in told(tmp_path / "parts") if each["kind"] == "step"]) == steps
    assert only(read(tmp_path / "parts"), kind="stage", name="validation")["passed"] is True
    assert only(read(tmp_path / "parts"), kind="stage", name="checkpoint")["passed"] is True


@pytest.mark.slow
def test_the_first_step_and_the_last_are_places_to_go_on_from(tmp_path: Path) -> None:
    config = changed(SMALL, steps=3)
    whole = go(tmp_path / "whole", config)
    for stop in (1, 3):
        out = tmp_path / str(stop)
        assert go(out, config, stop=stop).learner.global_step == stop
        last = go(out, config, is_resumed=True)
        assert difference(state_of(whole, 3), state_of(last, 3)) is None, stop
        assert told(out) == told(tmp_path / "whole"), stop


TINY_WORDS = ["layers=1", "hidden=16", "intermediate=24", "prompts_per_step=2", "rollouts_per_prompt=2"]
WORDS = [*TINY_WORDS, "device=cpu", "steps=4", "save_every=1", "mini_batches=1"]


@pytest.mark.slow
def test_a_killed_process_goes_on_behind_its_last_checkpoint_and_drops_what_it_wrote_later(tmp_path: Path) -> None:
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert entry.main(["--out", str(whole), *WORDS]) == 0
    assert entry.main(["--out", str(out), *WORDS, "steps=2"]) == 0
    lines = (out / FILE).read_bytes().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if b'"when": "after"' in line)
    # As a process leaves it that was killed in its third step, while it wrote.
    (out / FILE).write_bytes(b"".join([*lines[:at], b'{"kind": "step", "step": 3}\n', b'{"kind": "st']))
    assert entry.main(["--out", str(out), *WORDS, "resume=true", "validate_every=0"]) == 0
    # The rate falls over the whole run, so the first two steps were those of a shorter one.
    assert [each["step"] for each in told(out) if each["kind"] == "step"] == [1, 2, 3, 4]
    record = only(read(out), kind="resumed")
    assert (record["step"], record["dropped_records"], record["ended"]) == (2, 2, None)
    assert record["changed"] == {"steps": [2, 4]}
    assert read(out)[0]["kind"] == "header"
    assert only(read(out), kind="end")["status"] == "completed"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run that was asked for by a command."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert entry.main(["--out", str(out), *WORDS]) == 0
    return out


@pytest.fixture
def out(finished: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(finished, tmp_path / "out")


@pytest.mark.slow
def test_settings_that_must_stay_are_refused_by_name_and_nothing_is_touched(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (out / FILE).read_bytes()
    assert entry.main(["--out", str(out), *WORDS, "resume=true", "lr=0.5", "seed=3", "steps=9"]) == 2
    complained = capsys.readouterr().err
    assert re.fullmatch(r"trainer: resume=true: .* lr=0\.5 \(was 0\.0012\), seed=3 \(was 0\)\n", complained)
    assert entry.main(["--out", str(out), *WORDS, "resume=true", "steps=2"]) == 2
    assert re.search(r"\b4 steps.*\bsteps=2\b", capsys.readouterr().err)
    assert entry.main(["sft", "--out", str(out), *WORDS, "resume=true", "train_files=x.jsonl"]) == 2
    assert re.search(rf"{out}.* another kind", capsys.readouterr().err)
    assert (out / FILE).read_bytes() == before


def test_without_a_checkpoint_true_is_an_error_and_auto_a_start(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match=f"resume=true: .*{tmp_path}"):
        saving.find_resume_point(tmp_path, changed(Config(), resume="true"))
    assert saving.find_resume_point(tmp_path, changed(Config(), resume="auto")) is None
    assert saving.find_resume_point(tmp_path, Config()) is None


def test_a_damaged_checkpoint_is_named_and_nothing_else_is_taken(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = saving.read_manifest(out / saving.CHECKPOINT)
    assert saved is not None and saved.step == 4
    path = out / saving.CHECKPOINT / saved.file
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    assert entry.main(["--out", str(out), *WORDS, "resume=auto", "steps=9"]) == 2
    said = capsys.readouterr().err
    assert re.search(rf"{saved.file}.*{saved.sha256[:16]}", said)
    assert [line for line in said.splitlines() if not line.startswith("trainer: warning: ")] == said.splitlines()[-1:]
    (out / saving.CHECKPOINT / saving.MANIFEST).write_text("{")
    assert entry.main(["--out", str(out), *WORDS, "resume=auto"]) == 2
    assert re.search(rf"{saving.MANIFEST} .*no manifest", capsys.readouterr().err)


def test_a_new_run_in_an_old_folder_cannot_be_taken_for_the_old_one(out: Path) -> None:
    saving.set_manifest_aside(out)
    assert saving.saved_step(out) is None
    with pytest.raises(BadSetting, match=f"resume=auto: .*{out}"):
        saving.find_resume_point(out, changed(Config(), resume="auto"))


def test_records_are_cut_behind_the_step_and_its_evaluation(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"kind": "header"},
        {"kind": "eval", "when": "before", "step": 0, "num_prompts": 7},
        {"kind": "step", "step": 1},
        {"kind": "eval", "when": "during", "step": 1},
        {"kind": "step", "step": 2},
        {"kind": "end", "status": "interrupted", "reason": "SIGINT"},
    ]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = saving.continue_records(tmp_path, 1)
    assert (found.num_dropped, found.num_validated) == (2, 7)
    assert found.ended == {"status": "interrupted", "reason": "SIGINT"}
    assert read(tmp_path) == lines[:4]
    assert saving.continue_records(tmp_path / "nowhere", 1).num_dropped == 0


def test_a_record_nested_too_deep_is_no_record(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("[" * 100_000 + "\n")
    assert saving.continue_records(tmp_path, 1).num_dropped == 1


def test_the_last_evaluation_is_made_again_by_whoever_goes_on(tmp_path: Path) -> None:
    """As a process leaves it that was killed while it saved for the last time."""
    lines = [{"kind": "step", "step": 2}, {"kind": "eval", "when": "after", "step": 0}, {"kind": "stage", "name": "x"}]
    (tmp_path / FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert saving.continue_records(tmp_path, 2).num_dropped == 2
    assert read(tmp_path) == lines[:1]


@pytest.mark.slow
def test_two_ranks_go_on_with_the_same_bits(tmp_path: Path) -> None:
    words = ["prompts_per_step=4", "rollouts_per_prompt=2", "save_every=1", "lr_schedule=constant"]
    run_ranks(tmp_path / "whole", *words, "steps=4")
    run_ranks(tmp_path / "parts", *words, "steps=2")
    run_ranks(tmp_path / "parts", *words, "steps=4", "resume=true")
    whole, parts = (load(tmp_path / name / saving.CHECKPOINT, CPU) for name in ("whole", "parts"))
    assert difference(whole, parts) is None
    steps = [[each for each in told(tmp_path / name) if each["kind"] == "step"] for name in ("whole", "parts")]
    assert steps[0] == steps[1]
    assert set(whole["sampler_random"]) == {"0", "1"}
