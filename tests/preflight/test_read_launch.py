"""Commands, scripts and YAML files as a Launch: keys, values, places, variables, files of `defaults`, pointers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.composing import LaunchText, ReadOptions
from npuenv.preflight.launch import Machine
from npuenv.preflight.reading import read_file, read_text, read_words

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULTS = {"actor_rollout_ref.rollout.n": 1, "data.prompt": 512, "data.both": "${data.prompt}"}
VERL = ("python3", "-m", "verl.trainer.main_ppo")


def no_defaults(framework: str, release: str) -> Mapping[str, Any]:
    return {}


def own_defaults(framework: str, release: str) -> Mapping[str, Any]:
    return DEFAULTS if (framework, release) == ("verl", "0.7.1") else {}


ASKED = ReadOptions(no_defaults)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="")
    return path


def values(reading: LaunchText) -> dict[str, Any]:
    return {key: setting.value for key, setting in reading.launch.settings.items()}


# --- commands


def test_a_command_gives_its_overrides_with_the_position_of_each_word() -> None:
    words = (*VERL, "a.b=1", "+c.d=[x,y]", "++e=null", "~f", "--cfg", "job", "hydra.run.dir=/tmp")
    launch = read_words(words, ASKED).launch
    assert (launch.framework, launch.source, launch.release) == ("verl", "command", None)
    assert {key: (each.mark, each.value, each.place.word) for key, each in launch.settings.items()} == {
        "a.b": ("", 1, 4),
        "c.d": ("+", ["x", "y"], 5),
        "e": ("++", None, 6),
        "f": ("~", None, 7),
    }


def test_the_last_word_of_a_key_counts_and_dictionaries_become_leaves() -> None:
    reading = read_words((*VERL, "a=1", "b={c:{d:2},e:x}", "a=3"), ASKED)
    assert values(reading) == {"b.c.d": 2, "b.e": "x", "a": 3}


def test_variables_in_front_of_a_command_reach_the_launch() -> None:
    launch = read_words(("env", "HCCL_X=1", "B=a=b", *VERL, "x=HCCL_Y=1"), ASKED).launch
    assert {name: (each.value, each.place.word) for name, each in launch.environ.items()} == {
        "HCCL_X": ("1", 2),
        "B": ("a=b", 3),
    }


def test_words_that_hydra_refuses_are_problems_and_no_settings() -> None:
    reading = read_words((*VERL, "a=1,2", "b", "c=~/x", "d=1"), ASKED)
    assert values(reading) == {"d": 1}
    assert [(each.says.key, each.settings[0].place.word) for each in reading.refused] == [
        ("preflight.refused-sweep", 4),
        ("preflight.refused-no-value", 5),
        ("preflight.refused-character", 6),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("python3", "-m", "verl.trainer.main_ppo", "a=1"),
        ("ray", "job", "submit", "--", "python", "-m", "recipe.dapo.main_dapo", "a=1"),
        ("python3", "verl/trainer/main_ppo.py", "a=1", "actor_rollout_ref.rollout.n=5"),
        ("torchrun", "own_entry.py", "a=1", "+actor_rollout_ref.rollout.n=5"),
    ],
)
def test_a_run_is_known_by_its_module_its_file_or_its_keys(words: tuple[str, ...]) -> None:
    assert read_words(words, ASKED).launch.settings["a"].value == 1


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "-l"),
        ("python3", "own.py", "--like", "verl.trainer.main_eval"),
        ("echo", "actor_rollout_ref.x=1"),
        ("bash", "-c", "x"),
    ],
)
def test_what_starts_no_training_run_is_bad_input(words: tuple[str, ...]) -> None:
    with pytest.raises(BadInput) as caught:
        read_words(words, ASKED)
    assert caught.value.message.key == "preflight.no-launch-words"


def test_the_configuration_a_command_names_lies_under_its_words(tmp_path: Path) -> None:
    write(tmp_path, "conf/mine.yaml", "defaults:\n  - ppo_trainer\n  - _self_\na: 1\nb: {c: 2}\n")
    asked = replace(ASKED, folder=tmp_path)
    reading = read_words((*VERL, "--config-dir", "conf", "--config-name=mine", "a=5"), asked)
    assert values(reading) == {"b.c": 2, "a": 5}
    assert reading.launch.missing_files == ()
    assert reading.launch.settings["b.c"].place.path.endswith("conf/mine.yaml")
    lost = read_words((*VERL, "--config-name=mine", "a=5"), asked)
    assert lost.launch.missing_files == ("mine.yaml",)


def test_the_megatron_configuration_of_verl_sets_the_strategy() -> None:
    plain = read_words((*VERL, "--config-name=ppo_trainer", "a=5"), ASKED)
    assert values(plain) == {"a": 5}
    for name in ("ppo_megatron_trainer.yaml", "ppo_megatron_trainer"):
        megatron = read_words((*VERL, f"--config-name={name}", "a=5"), ASKED)
        assert megatron.launch.get("actor_rollout_ref.actor.strategy") == "megatron"
    assert values(megatron) == {"a": 5}


# --- scripts

SCRIPT = """\
#!/bin/bash
set -x
# python3 -m verl.trainer.main_ppo not=me
export HCCL_X=1 NAME="a b"
export LATER
LATER=7
export AGAIN=1
AGAIN=2
N=${N:-8}
MODEL=Qwen/Qwen2.5
DATA=(
   data.a=1   # data.a=2
   "data.files=[$MODEL]"
)
DATA+=( data.z=$HOME )
if [ "$1" = x ]; then
  export BRANCH=1
fi
EXTRA="x.y=1 z.w=2"
VLLM_USE_V1=1 python3 -m verl.trainer.main_ppo \\
    data.size=128 actor_rollout_ref.model.path="$MODEL" \\
    trainer.n=${N} 'trainer.logger=["console","wandb"]' \\
    "${DATA[@]}" $EXTRA trainer.x=$UNSET \\
    "$@" 2>&1 | tee log
python3 -m verl.trainer.main_ppo second=1
"""


def test_a_script_is_read_as_the_program_would_get_it(tmp_path: Path) -> None:
    reading = read_file(write(tmp_path, "run.sh", SCRIPT), ASKED)
    assert values(reading) == {
        "data.size": 128,
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5",
        "trainer.n": 8,
        "trainer.logger": ["console", "wandb"],
        "data.a": 1,
        "data.files": ["Qwen/Qwen2.5"],
        "data.z": "$HOME",
        "x.y": 1,
        "z.w": 2,
        "trainer.x": "$UNSET",
    }
    assert [key for key, each in reading.launch.settings.items() if each.is_open] == ["data.z", "trainer.x"]
    lines = {key: each.place.line for key, each in reading.launch.settings.items()}
    assert (lines["data.size"], lines["trainer.n"], lines["data.a"], lines["x.y"]) == (21, 22, 12, 23)
    assert [each.says.args["name"] for each in reading.refused] == ["UNSET"]
    assert [note.args["lines"] for note in reading.notes] == [("20", "25")]


SUMS = """\
export LEN=$((1024 * 2))
max=$((LEN + 1))
half=$(( (max + ${LEN}) / 2 ))
HOMES=${HOMES:-"${HOME}/verl"}
MODEL=${MODEL:-"${HOMES}/models/Qwen3"}
NODES=${NODES:-"4"}
KIND=${KIND:-plain}
python3 -m verl.trainer.main_ppo a=$max b=${half} c=$((NODES * 2)) d=$((LEN ** 2)) e=$((NOT + 1)) \\
    f=${MODEL} g=${G:-$((1 + 1))} h=${KIND} i=$((-7 / 2)) j=$((-7 % 2)) k=$((1 / 0)) l="x$((1+1))y" m=$(date)
"""


def test_sums_and_nested_defaults_of_a_script_are_worked_out(tmp_path: Path) -> None:
    path = write(tmp_path, "run.sh", SUMS)
    found = read_file(path, replace(ASKED, environ={"HOME": "/root"})).launch.settings
    assert {key: each.value for key, each in found.items() if not each.is_open} == {
        "a": 2049, "b": 2048, "c": 8, "f": "/root/verl/models/Qwen3", "g": 2, "h": "plain", "i": -3, "j": -1,
        "l": "x2y",
    }  # fmt: skip
    assert {key: each.value for key, each in found.items() if each.is_open} == {
        "d": "$((LEN ** 2))", "e": "$((NOT + 1))", "k": "$((1 / 0))", "m": "$(date)",
    }  # fmt: skip


def test_exported_variables_count_and_a_branch_leaves_them_open(tmp_path: Path) -> None:
    environ = read_file(write(tmp_path, "run.sh", SCRIPT), ASKED).launch.environ
    assert {name: (each.value, each.is_open, each.place.line) for name, each in environ.items()} == {
        "HCCL_X": ("1", False, 4),
        "NAME": ("a b", False, 4),
        "LATER": ("7", False, 5),
        "AGAIN": ("2", False, 7),
        "BRANCH": ("1", True, 17),
        "VLLM_USE_V1": ("1", False, 20),
    }


def test_arguments_of_a_script_take_their_places(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", 'python3 -m verl.trainer.main_ppo a=$1 b=$2 "$@"\n')
    reading = read_words(("bash", "-x", "run.sh", "c=3"), replace(ASKED, folder=tmp_path))
    assert values(reading) == {"a": "$1", "b": "$2", "c": 3}


def test_home_is_known_only_where_the_launch_runs_here(tmp_path: Path) -> None:
    path = write(tmp_path, "run.sh", "python3 -m verl.trainer.main_ppo a=$HOME/x\n")
    assert read_file(path, ASKED).launch.settings["a"].is_open
    assert values(read_file(path, replace(ASKED, environ={"HOME": "/root"}))) == {"a": "/root/x"}


def test_a_script_without_a_run_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        read_file(write(tmp_path, "run.sh", "#!/bin/bash\necho hi\n"), ASKED)
    assert caught.value.message.key == "preflight.no-launch"


# --- YAML

ROLL = """\
defaults:
  - ../config/zero@_here_
  - ../config/lost@_here_
hydra: {run: {dir: .}}
exp_name: "lake"
system_envs:
  HCCL_X: '1'
pretrain: Qwen/X
reward_pretrain: ${pretrain}
output: /data/${exp_name}/${seed}
seed: 42
actor_train:
  lr: 1.0e-6
  same: ${.lr}
  up: ${..seed}
  config: ${zero3}
  gone: ${zero9}
  home: ${oc.env:NOWHERE,/root}
  open: ${oc.env:NOWHERE}
  code: ${oc.eval:1}
  mapping: list(range(0,4))
  kept: 1
  escaped: '\\${pretrain}'
"""
ZERO = "zero3:\n  stage: 3\n  offload: {device: cpu}\nseed: 1\n"


@pytest.fixture
def roll(tmp_path: Path) -> LaunchText:
    write(tmp_path, "config/zero.yaml", ZERO)
    return read_file(write(tmp_path, "ex/lake.yaml", ROLL), ASKED)


def test_a_roll_yaml_has_its_defaults_from_beside_it(roll: LaunchText, tmp_path: Path) -> None:
    launch = roll.launch
    assert (launch.framework, launch.source) == ("roll", "roll-yaml")
    assert launch.settings["zero3.stage"].value == 3
    assert launch.settings["zero3.stage"].place.path == str(tmp_path / "config" / "zero.yaml")
    assert launch.missing_files == ("../config/lost.yaml",)
    assert launch.settings["seed"].value == 42  # the file itself comes last
    assert not [key for key in launch.settings if key.startswith(("hydra", "defaults", "system_envs"))]


def test_interpolations_are_filled_in_and_the_rest_is_open(roll: LaunchText) -> None:
    found = roll.launch.settings
    assert found["reward_pretrain"].value == "Qwen/X"
    assert found["output"].value == "/data/lake/42"
    assert (found["actor_train.same"].value, found["actor_train.up"].value) == (1e-6, 42)
    assert found["actor_train.config"].value == {"stage": 3, "offload": {"device": "cpu"}}
    assert found["actor_train.home"].value == "/root"
    assert found["actor_train.escaped"].value == "\\${pretrain}"
    assert found["actor_train.mapping"].value == "list(range(0,4))"
    opened = [key for key, each in found.items() if each.is_open]
    assert opened == ["actor_train.gone", "actor_train.open", "actor_train.code"]
    assert found["actor_train.gone"].value == "${zero9}"


def test_system_envs_are_the_variables_of_a_roll_launch(roll: LaunchText) -> None:
    assert {name: (each.value, each.place.line) for name, each in roll.launch.environ.items()} == {"HCCL_X": ("1", 7)}


def test_circles_of_interpolations_are_open(tmp_path: Path) -> None:
    path = write(tmp_path, "a.yaml", "pretrain: ${b}\nb: ${c}\nc: ${pretrain}\nd: ${d}\n")
    assert [each.is_open for each in read_file(path, ASKED).launch.settings.values()] == [True] * 4


def test_self_decides_who_wins(tmp_path: Path) -> None:
    write(tmp_path, "base.yaml", "pretrain: base\nx: {y: 1, z: 2}\n")
    first = write(tmp_path, "first.yaml", "defaults: [_self_, base]\npretrain: own\nx: {y: 5}\n")
    last = write(tmp_path, "last.yaml", "defaults: [base, _self_]\npretrain: own\nx: {y: 5}\n")
    assert values(read_file(first, ASKED)) == {"pretrain": "base", "x.y": 1, "x.z": 2}
    assert values(read_file(last, ASKED)) == {"pretrain": "own", "x.y": 5, "x.z": 2}


def test_files_that_name_each_other_end(tmp_path: Path) -> None:
    write(tmp_path, "b.yaml", "defaults: [a]\nb: 1\n")
    path = write(tmp_path, "a.yaml", "defaults: [b]\npretrain: x\n")
    assert values(read_file(path, ASKED))["b"] == 1


def test_a_verl_yaml_starts_from_the_release(tmp_path: Path) -> None:
    text = "hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults:\n  - ppo_megatron_trainer\n  - _self_\n"
    path = write(tmp_path, "mine.yaml", text + "data: {size: 64, all: '${data.both}'}\n")
    launch = read_file(path, ReadOptions(own_defaults, "verl", "0.7.1")).launch
    assert (launch.framework, launch.source, launch.missing_files) == ("verl", "verl-yaml", ())
    assert launch.get("actor_rollout_ref.actor.strategy") == "megatron"
    assert launch.settings["data.all"].value == 512
    assert (launch.get("actor_rollout_ref.rollout.n"), launch.get("data.size")) == (1, 64)


def test_a_command_of_roll_leads_to_its_yaml(tmp_path: Path) -> None:
    write(tmp_path, "examples/ascend/lake.yaml", "pretrain: X\nsystem_envs: {A: '1'}\n")
    write(
        tmp_path,
        "run.sh",
        "export B=2\npython examples/start_rlvr_pipeline.py --config_path ascend --config_name lake\n",
    )
    reading = read_words(("bash", "run.sh"), replace(ASKED, folder=tmp_path))
    assert values(reading) == {"pretrain": "X"}
    assert {name: each.value for name, each in reading.launch.environ.items()} == {"B": "2", "A": "1"}
    with pytest.raises(BadInput) as caught:
        read_words(
            ("python", "examples/start_rlvr_pipeline.py", "--config_name", "nope"), replace(ASKED, folder=tmp_path)
        )
    assert caught.value.message.key == "preflight.no-config"


# --- what is asked about, and what cannot be read


def test_a_configuration_folder_that_the_script_computes_is_its_own(tmp_path: Path) -> None:
    write(tmp_path, "ex/lake.yaml", "pretrain: X\n")
    text = "P=$(basename $(dirname $0))\npython examples/start_rlvr_pipeline.py --config_path $P --config_name lake\n"
    assert values(read_file(write(tmp_path, "ex/run.sh", text), ASKED)) == {"pretrain": "X"}


def test_the_release_comes_from_the_word_or_from_the_packages() -> None:
    machine = Machine(packages={"verl": "0.7.1"})
    of_packages = read_words((*VERL, "a=1"), ReadOptions(own_defaults, machine=machine)).launch
    assert (of_packages.release, of_packages.defaults) == ("0.7.1", DEFAULTS)
    assert read_words((*VERL, "a=1"), ReadOptions(own_defaults, "verl", "0.5.0", machine)).launch.release == "0.5.0"


def test_a_launch_of_the_other_framework_is_refused() -> None:
    with pytest.raises(BadInput) as caught:
        read_words((*VERL, "a=1"), ReadOptions(no_defaults, "roll"))
    assert caught.value.message.args == {"found": "verl", "asked": "roll"}


@pytest.mark.parametrize(
    ("name", "content", "key"),
    [
        ("a.yaml", b"", "empty"),
        ("a.yaml", b" \n", "empty"),
        ("a.yaml", b"\x00\x01", "not-text"),
        ("a.yaml", b"\xff\xfe\x80", "not-text"),
        ("a.yaml", b"model: x\n", "no-framework"),
        ("a.yaml", b"a: [", "bad-yaml"),
        ("a.bin", b"\x7fELF\xff", "not-text"),
    ],
)
def test_a_file_that_holds_no_launch_is_bad_input(tmp_path: Path, name: str, content: bytes, key: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput) as caught:
        read_file(tmp_path / name, ASKED)
    assert caught.value.message.key == f"preflight.{key}"


def test_a_folder_and_a_missing_file_are_bad_input(tmp_path: Path) -> None:
    for path, key in ((tmp_path, "folder"), (tmp_path / "none.yaml", "no-file")):
        with pytest.raises(BadInput) as caught:
            read_file(path, ASKED)
        assert caught.value.message.key == f"preflight.{key}"


def test_a_rendered_folder_names_its_script(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "")
    with pytest.raises(BadInput, match=r"preflight\.folder") as caught:
        read_file(tmp_path, ASKED)
    assert caught.value.hint == Message("preflight.folder-hint", {"path": f"{tmp_path}/run.sh"})


def test_a_byte_order_mark_does_not_hurt(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfpretrain: x\n")
    assert values(read_file(tmp_path / "a.yaml", ASKED)) == {"pretrain": "x"}


@pytest.mark.parametrize(
    ("head", "release"),
    [
        ("# npuenv 0.1.0: verl 0.7.1, recipe quick-start, model M, stack S", "0.7.1"),
        ("# npuenv 0.1.0：verl 0.7.1，配方 quick-start，模型 M，软件栈 S", "0.7.1"),
        ("# made by hand for verl 0.7.1, recipe mine", None),
    ],
)
def test_a_file_that_npuenv_rendered_says_for_which_release(head: str, release: str | None) -> None:
    text = f"#!/bin/sh\n{head}\npython3 -m verl.trainer.main_ppo trainer.nnodes=1\n"
    assert read_text(text, Path("run.sh"), ASKED).launch.release == release
    named = read_text(text, Path("run.sh"), ReadOptions(no_defaults, "verl", "0.8.0"))
    assert named.launch.release == "0.8.0"
