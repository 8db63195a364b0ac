"""Several launches in one script, launches inside of a text for another shell, and programs that no rule is about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import LaunchText, ReadOptions
from npuenv.preflight.fixing import corrected, fix, fix_all
from npuenv.preflight.reading import all_of, read_file, read_words

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PPO = "python3 -m verl.trainer.main_ppo"
NAME = "actor_rollout_ref.rollout.name"


def no_defaults(framework: str, release: str) -> Mapping[str, Any]:
    return {}


ASKED = ReadOptions(no_defaults)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def values(reading: LaunchText) -> dict[str, Any]:
    return {key: setting.value for key, setting in reading.launch.settings.items()}


def environ(reading: LaunchText) -> dict[str, Any]:
    return {name: setting.value for name, setting in reading.launch.environ.items()}


def test_all_launches_of_a_script_are_read_each_with_what_is_exported_by_then(tmp_path: Path) -> None:
    text = f"export A=1\n{PPO} a=1\nexport B=2\n{PPO} a=2\n"
    readings = all_of(read_file(write(tmp_path, "run.sh", text), ASKED), ASKED)
    assert [values(each) for each in readings] == [{"a": 1}, {"a": 2}]
    assert [environ(each) for each in readings] == [{"A": "1"}, {"A": "1", "B": "2"}]
    assert [each.launch.settings["a"].place.line for each in readings] == [2, 4]
    assert [[note.args["lines"] for note in each.notes] for each in readings] == [[("2", "4")], []]


def test_two_runs_of_roll_lead_to_two_files(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path, f"{name}.yaml", f"pretrain: {name}\n")
    start = "python start_rlvr_pipeline.py --config_name"
    path = write(tmp_path, "run.sh", f"{start} one\n{start} two\n")
    readings = all_of(read_file(path, ASKED), ASKED)
    assert [each.path for each in readings] == [str(tmp_path / "one.yaml"), str(tmp_path / "two.yaml")]
    assert [values(each)["pretrain"] for each in readings] == ["one", "two"]


def test_the_yaml_of_a_rendered_script_is_found_beside_it(tmp_path: Path) -> None:
    """Such a script copies it into ROLL's tree, and names it as it lies there."""
    write(tmp_path, "own.yaml", "pretrain: x\n")
    text = 'cp -- "$here/own.yaml" "$tree/examples/npuenv/own.yaml"\ncd -- "$tree"\n'
    text += "exec python examples/start_rlvr_pipeline.py --config_path npuenv --config_name own\n"
    assert read_file(write(tmp_path, "run.sh", text), ASKED).path == str(tmp_path / "own.yaml")


@pytest.mark.parametrize(("arguments", "engine"), [((), "vllm"), (("sglang", "x=1"), "sglang"), (("", "x=1"), "vllm")])
def test_an_argument_with_a_default_is_known(tmp_path: Path, arguments: tuple[str, ...], engine: str) -> None:
    """The first lines of most of verl's own examples."""
    path = write(tmp_path, "run.sh", f"ENGINE=${{1:-vllm}}\nN=$2\n{PPO} {NAME}=$ENGINE a=$N\n")
    settings = read_file(path, ASKED, arguments).launch.settings
    assert (settings[NAME].value, settings[NAME].is_open) == (engine, False)
    assert settings["a"].is_open


def test_every_launch_of_a_script_is_corrected_in_one_copy(tmp_path: Path) -> None:
    wrong = f"{PPO} {NAME}=trtllm trainer.device=cuda\n"
    asked = ReadOptions(defaults_of, "verl", "0.6.1")
    readings = all_of(read_file(write(tmp_path, "run.sh", f"{wrong}sleep 5\n{wrong}"), asked), asked)
    fixed = fix_all(readings, asked)
    assert f"sleep 5\n{PPO} {NAME}=vllm trainer.device=npu\n" not in fixed.before
    first, pause, second = fixed.after.splitlines()
    assert (first.split()[:5], pause) == ([*PPO.split(), f"{NAME}=vllm", "trainer.device=npu"], "sleep 5")
    assert second.split()[:5] == first.split()[:5]
    assert [problem.check for problem in fixed.left if problem.check == "preflight.engine"] == []


@pytest.mark.parametrize(
    "command",
    [
        ["bash", "-c", f"export A=1; {PPO} a=1"],
        ["docker", "exec", "-it", "c1", "bash", "-lc", f"cd /x && export A=1 && {PPO} a=1"],
        ["sudo", "sh", "-ec", f"A=1 {PPO} a=1 2>&1 | tee log"],
    ],
)
def test_a_launch_inside_of_a_text_for_a_shell_is_seen(command: list[str]) -> None:
    reading = read_words(command, ASKED)
    assert (values(reading), environ(reading)) == ({"a": 1}, {"A": "1"})


def test_the_arguments_behind_the_text_of_a_shell_are_its_own() -> None:
    assert values(read_words(["bash", "-c", f'{PPO} a=1 "$@"', "run", "b=2"], ASKED)) == {"a": 1, "b": 2}


def test_a_launch_inside_of_a_text_is_corrected_as_the_command_that_it_comes_to() -> None:
    asked = ReadOptions(defaults_of, "verl", "0.7.1")
    reading = read_words(["bash", "-c", f"export A=1; {PPO} {NAME}=trtllm"], asked)
    assert fix(reading, asked).after.startswith(f"A=1 {PPO} {NAME}=vllm")
    unknown = read_words(["bash", "-c", f"{PPO} {NAME}=trtllm a=$MODEL"], asked)
    assert unknown.launch.settings["a"].is_open
    assert fix(unknown, asked).changes == ()


def test_a_script_may_hold_its_launch_in_a_text(tmp_path: Path) -> None:
    text = f'#!/bin/bash\nexport A=1\nN=3\nssh node2 bash -c "export B=2\n{PPO} {NAME}=trtllm a=$N"\n'
    asked = ReadOptions(defaults_of, "verl", "0.7.1")
    reading = read_file(write(tmp_path, "run.sh", text), asked)
    assert (values(reading), environ(reading)) == ({NAME: "trtllm", "a": 3}, {"A": "1", "B": "2"})
    assert reading.launch.settings["a"].place.line == 5
    fixed = fix(reading, asked)
    assert (fixed.after, fixed.changes) == (text, ())
    assert "preflight.engine" in [problem.check for problem in fixed.left]
    assert corrected(reading, asked, fixed.left[0]) == ()


@pytest.mark.parametrize(
    "command",
    [
        f"torchrun --nproc_per_node=8 -m verl.trainer.{'fsdp_'}sft_trainer data.x=1",
        "python3 -m verl.trainer.sft_trainer_ray data.x=1",
        "python -m verl.trainer.main_eval data.x=1",
        "torchrun --nnodes=1 verl/trainer/fsdp_sft_trainer.py data.x=1",
    ],
)
def test_a_program_without_rules_is_named_and_not_judged(tmp_path: Path, command: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_file(write(tmp_path, "sft.sh", f"{command}\n"), ASKED)
    program = command.split()[-2]
    assert caught.value.message == Message("preflight.only-unjudged", {"program": program})
    with pytest.raises(BadInput) as caught:
        read_words(command.split(), ASKED)
    assert caught.value.message.key == "preflight.only-unjudged"
    reading = read_file(write(tmp_path, "both.sh", f"{command}\n{PPO} a=1\n"), ASKED)
    assert values(reading) == {"a": 1}
    assert [(note.key, note.args["line"], note.args["program"]) for note in reading.notes] == [
        ("preflight.unjudged", 1, program)
    ]


@pytest.mark.parametrize(
    ("front", "says"),
    [
        ("torchrun --nproc_per_node=8 -m", "torchrun"),
        ("python3 -m torch.distributed.run -m", "torch.distributed.run"),
        ("accelerate launch -m", "accelerate"),
        ("python3 -m", None),
        ("ray job submit -- python3 -m", None),
    ],
)
def test_a_driver_is_started_once(front: str, says: str | None) -> None:
    reading = read_words([*front.split(), "verl.trainer.main_ppo", "a=1"], ASKED)
    assert [problem.says.args["launcher"] for problem in reading.refused] == ([says] if says else [])
    own = read_words(["torchrun", "own_entry.py", "+actor_rollout_ref.rollout.n=5"], ASKED)
    assert own.refused == ()


def test_packages_for_gpus_that_a_script_installs_are_named(tmp_path: Path) -> None:
    text = f"python -m pip install -U 'flash_attn>=2' numpy\nbash -c 'pip3 install xformers'\n{PPO} a=1\n"
    reading = read_file(write(tmp_path, "run.sh", text), ASKED)
    found = [(problem.says.args["name"], problem.settings[0].place.line) for problem in reading.refused]
    assert found == [("flash-attn", 1), ("xformers", 2)]


def test_what_a_called_script_installs_stands_in_the_line_that_calls_it(tmp_path: Path) -> None:
    write(tmp_path, "inner.sh", f"set -x\n\npip install flash_attn\n{PPO} a=1\n")
    reading = read_file(write(tmp_path, "outer.sh", "set -x\nbash ./inner.sh\n"), ASKED)
    assert [problem.settings[0].place.line for problem in reading.refused] == [2]


def test_a_relative_search_path_is_tried_from_the_folders_above_the_file(tmp_path: Path) -> None:
    """Hydra starts it from where the run starts: the top of the tree, which need not be where this is asked."""
    write(tmp_path, "tree/shared/config/base.yaml", "pretrain: base\nx: 1\n")
    text = "hydra:\n  searchpath: [file://shared/config]\ndefaults: [base, _self_]\npretrain: own\n"
    path = write(tmp_path, "tree/examples/mine/own.yaml", text)
    for folder in (tmp_path / "tree", tmp_path):
        launch = read_file(path, replace(ASKED, folder=folder)).launch
        assert (launch.missing_files, launch.settings["x"].value) == ((), 1)
