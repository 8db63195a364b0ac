"""Scripts as people write them, which are files: what is found in them, and that bash takes every corrected copy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.errors import BadInput
from npuenv.core.messages import say
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.fixing import fix, fix_all
from npuenv.preflight.launch import Machine, find_call
from npuenv.preflight.reading import all_of, read_file, read_text
from npuenv.preflight.rules import examine
from tests.preflight import case_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npuenv.preflight.composing import LaunchText

PATH = case_files.CASES / "verl" / "script.sh"
RIGHT = (
    "algorithm.adv_estimator=grpo",
    "data.train_batch_size=128",
    "data.max_prompt_length=512",
    "data.max_response_length=1024",
    "actor_rollout_ref.model.path=Qwen/Qwen2.5-7B-Instruct",
    "actor_rollout_ref.model.use_remove_padding=True",
    "actor_rollout_ref.actor.ppo_mini_batch_size=64",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.actor.use_kl_loss=True",
    "actor_rollout_ref.actor.fsdp_config.param_offload=True",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload=True",
    "actor_rollout_ref.rollout.name=vllm",
    "actor_rollout_ref.rollout.n=8",
    "actor_rollout_ref.rollout.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.gpu_memory_utilization=0.6",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.ref.fsdp_config.param_offload=True",
    "trainer.n_gpus_per_node=8",
    "trainer.nnodes=1",
    "trainer.total_epochs=1",
)
_PLACES = {
    "@LINES@": " \\\n    ".join(RIGHT),
    "@ITEMS@": "\n    ".join(RIGHT),
    "@WORDS@": " ".join(RIGHT),
    "@BLANK@": " ",
    "@CR@": "\r",
}


@dataclass(frozen=True)
class Case:
    """A script. `line`, `says`: of the first problem; `later`: rules that speak of the launches behind the first."""

    id: str
    text: str
    found: list[str]
    release: str = "0.7.1"
    after: tuple[str, ...] = ()
    later: tuple[str, ...] = ()
    kept: bool = False
    line: int = 0
    says: str = ""


CASES = [Case(**row) for row in load_toml(case_files.CASES / "scripts.toml")["case"]]


def text_of(case: Case) -> str:
    text = f"#!/bin/bash\n{case.text.strip()}\n" if not case.text.startswith("\n") else f"#!/bin/bash{case.text}"
    for place, words in _PLACES.items():
        text = text.replace(place, words)
    return text


def asked(case: Case, parses: Callable[[str], bool] | None = None) -> ReadOptions:
    machine = Machine("a2", 8, 1, 64.0)
    known = ReadOptions(defaults_of, "verl", case.release, machine, {"HOME": "/root"}, PATH.parent)
    return known if parses is None else replace(known, parses=parses)


def read(case: Case) -> LaunchText:
    return read_text(text_of(case), PATH, asked(case))


def alarms(reading: LaunchText) -> list[Any]:
    return [each for each in examine(reading.launch, refused=reading.refused) if each.severity != "note"]


@pytest.mark.parametrize("sign", [":-", "-"])
def test_the_default_of_a_variable_is_split_into_words(sign: str) -> None:
    text = f"python3 -m verl.trainer.main_ppo ${{EXTRA{sign}data.a=1 data.b=2}}\n"
    assert [*read_text(text, PATH, asked(CASES[0])).launch.settings] == ["data.a", "data.b"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_script_has_the_problems_that_it_has_and_no_other(case: Case) -> None:
    first, *rest = all_of(read(case), asked(case))
    found = alarms(first)
    assert {each.check for each in found} == set(case.found), [say(each.says) for each in found]
    assert [each.check for reading in rest for each in alarms(reading)] == list(case.later)
    if case.line:
        assert (found[0].settings[0].place.line, found[0].says.key) == (case.line, f"preflight_rules.{case.says}")
        assert say(found[0].says, "zh") != say(found[0].says, "en")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_correction_touches_only_what_was_judged_and_bash_takes_the_copy(case: Case) -> None:
    fixed = fix_all(all_of(read(case), asked(case)), asked(case))
    assert [text for text in case.after if text not in fixed.after] == []
    if case.kept:
        assert (fixed.after, fixed.changes) == (fixed.before, ())
    assert case_files.bash_takes(fixed.before)
    assert fixed.after == fixed.before or case_files.bash_takes(fixed.after)


def test_what_the_shell_refuses_is_not_written() -> None:
    case = next(case for case in CASES if case.id == "the-only-line-of-a-decided-branch")
    picky = asked(case, parses=lambda text: "\n  :\n" not in text)
    fixed = fix(read_text(text_of(case), PATH, picky), picky)
    assert (fixed.after, fixed.changes) == (fixed.before, ())
    assert [each.check for each in fixed.left] == ["preflight.nccl"]


@pytest.mark.parametrize(
    ("id", "says"),
    [
        ("a-value-from-outside", "undecided"),
        ("exports-of-a-branch-for-gpus", "undecided"),
        ("words-from-outside", "undecided-keys"),
        ("a-configuration-that-is-elsewhere", "undecided-keys"),
        ("keys-of-a-recipe", "keys-unjudged"),
    ],
)
def test_what_was_not_judged_is_said_once_as_a_note(id: str, says: str) -> None:
    reading = read(next(case for case in CASES if case.id == id))
    notes = [each.says for each in examine(reading.launch) if each.severity == "note"]
    assert [each.key for each in notes].count(f"preflight_rules.{says}") == 1
    assert all(say(each, "zh") != say(each, "en") for each in notes)


@pytest.mark.parametrize(
    ("line", "named"),
    [("source ./gone.env", ["./gone.env"]), ("bash ./gone.sh a.b=1", ["./gone.sh"]), ("bash ./prepare.sh --fast", [])],
)
def test_a_file_that_is_not_beside_the_script_is_named_where_settings_may_stand(line: str, named: list[str]) -> None:
    text = f"{line}\nsource /usr/local/Ascend/set_env.sh\npython3 -m verl.trainer.main_ppo a=1\n"
    notes = read_text(text, PATH, ReadOptions(defaults_of)).notes
    assert [(each.key, each.args["line"], each.args["file"]) for each in notes] == [
        ("preflight.not-read", 1, name) for name in named
    ]


def test_a_script_that_another_one_calls_is_read_and_its_launch_stands_in_the_line_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "inner.sh").write_text('export CUDA_VISIBLE_DEVICES=0\npython3 -m verl.trainer.main_ppo "$@"\n')
    outer = tmp_path / "outer.sh"
    outer.write_text("set -x\n\nA=1 bash -x ./inner.sh trainer.save_freq=often actor_rollout_ref.rollout.n=2\n")
    known = replace(asked(CASES[0]), folder=tmp_path)
    reading = read_file(outer, known)
    assert (reading.launch.program, reading.launch.settings["trainer.save_freq"].place.line) == (
        "verl.trainer.main_ppo",
        3,
    )
    assert {"preflight.visibility", "preflight.number"} <= {each.check for each in alarms(reading)}
    assert fix(reading, known).after == fix(reading, known).before


def test_a_script_that_calls_itself_ends(tmp_path: Path) -> None:
    script = tmp_path / "self.sh"
    script.write_text("bash self.sh a.b=1\npython3 -m verl.trainer.main_ppo a.c=1\n")
    assert read_file(script, ReadOptions(defaults_of, folder=tmp_path)).count > 1


@pytest.mark.parametrize("program", ["$DIR/other.sh", "python3 $X/main_eval.py", "python3 $X/start_rlvr_pipeline.py"])
def test_what_only_the_running_script_knows_is_shown_as_an_ellipsis(program: str, tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(f"{program} actor_rollout_ref.rollout.n=2 x.y=1\n")
    with pytest.raises(BadInput) as error:
        read_file(script, ReadOptions(defaults_of, folder=tmp_path))
    assert "\x01" not in say(error.value.message)


def test_a_program_that_is_not_known_is_shown_with_an_ellipsis() -> None:
    text = "python3 -m $X.main_mine --config-name=mine actor_rollout_ref.nobodys=2\n"
    launch = read_text(text, PATH, ReadOptions(defaults_of, "verl", "0.9.0")).launch
    shown = [say(each.says) for each in examine(launch)]
    assert any("…" in each for each in shown) and not any("\x01" in each for each in shown)


def test_the_server_that_generates_is_not_judged_as_a_trainer() -> None:
    for program in ("main_generation_server", "main_eval", "sft_trainer"):
        assert find_call(["python3", "-m", f"verl.trainer.{program}", "actor_rollout_ref.rollout.n=2"]) is None


@pytest.mark.parametrize(("cards", "severity"), [("0,1,2,3,4,5,6,7", "warning"), ("0,1,2,3", "error")])
def test_a_variable_for_gpus_that_hides_no_card_ends_no_launch(cards: str, severity: str) -> None:
    text = f"export CUDA_VISIBLE_DEVICES={cards}\npython3 -m verl.trainer.main_ppo {' '.join(RIGHT)}\n"
    found = alarms(read_text(text, PATH, asked(CASES[0])))
    assert [(each.check, each.severity) for each in found] == [("preflight.visibility", severity)]


@pytest.mark.parametrize(
    ("release", "word", "severity"),
    [
        ("0.7.1", "model_engine=megatron", "error"),
        ("0.8.0.dev0", "model_engine=megatron", None),  # came with 0.8.0
        ("0.8.0.dev0", "model_engine=nobody", "error"),  # neither neighbour has it
        ("0.99.0", "model_engine=nobody", "warning"),  # nobody knows what comes
        ("0.9.1", "+trainer.nnodes=2", "error"),
        ("0.99.0", "+trainer.nnodes=2", "warning"),
        ("0.7.1", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7", "error"),
        ("0.8.0.dev0", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7", "warning"),
    ],
)
def test_what_no_recorded_release_decides_is_no_error(release: str, word: str, severity: str | None) -> None:
    known = replace(asked(CASES[0]), release=release)
    reading = read_text(f"python3 -m verl.trainer.main_ppo {' '.join(RIGHT)} {word}\n", PATH, known)
    rules = ("preflight.choice", "preflight.key-exists", "preflight.micro-batch")
    assert [each.severity for each in alarms(reading) if each.check in rules] == ([severity] if severity else [])


def test_a_search_path_that_names_verls_own_folder_brings_no_keys() -> None:
    words = "+trainer.nnodes=2 \"hydra.searchpath=['pkg://verl.trainer.config']\""
    text = f"python3 -m verl.trainer.main_ppo {' '.join(RIGHT[:-2])} {words}\n"
    assert "preflight.key-exists" in {each.check for each in alarms(read_text(text, PATH, asked(CASES[0])))}


@pytest.mark.parametrize("samples", [True, False])
def test_validation_that_samples_needs_a_temperature(samples: bool) -> None:
    words = f"actor_rollout_ref.rollout.temperature=0 actor_rollout_ref.rollout.val_kwargs.do_sample={samples}"
    reading = read_text(f"python3 -m verl.trainer.main_ppo {' '.join(RIGHT)} {words}\n", PATH, asked(CASES[0]))
    assert ("preflight.number" in {each.check for each in alarms(reading)}) is samples
