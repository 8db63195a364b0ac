"""What a correction must not destroy, and what is said aloud where nothing can be judged or read."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.shellwords import open_quote
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.composing import LaunchText, ReadOptions
from npuenv.preflight.fixing import fix
from npuenv.preflight.launch import Machine
from npuenv.preflight.reading import read_text
from npuenv.preflight.rules import examine

VERL = "actor_rollout_ref:\n  rollout:\n    name: vllm\n"
ROLL = "pretrain: X\nactor_train:\n  device_mapping: list(range(0,8))\n"
ASKED = ReadOptions(defaults_of, "verl", "0.7.1")
ASKED_ROLL = ReadOptions(defaults_of, "roll", "0.3.0")
CASES = Path(__file__).parent / "cases"


def read(text: str, asked: ReadOptions = ASKED) -> LaunchText:
    return read_text(text, Path("launch.yaml"), asked)


def sentences(reading: LaunchText) -> dict[str, str]:
    """Rule -> sentence's key and severity."""
    found = examine(reading.launch, refused=reading.refused)
    return {each.check: f"{each.severity} {each.says.key.partition('.')[2]}" for each in found}


def test_a_misspelt_key_does_not_overwrite_the_right_one() -> None:
    text = VERL.replace("    name: vllm\n", "    name: vllm\n  model:\n    path: X\n    pathh: x\n")
    assert sentences(read(text))["preflight.key-unknown"] == "warning key-near-set"
    assert "    path: X\n    pathh: x\n" in fix(read(text), ASKED).after


def test_a_misspelt_key_alone_is_renamed() -> None:
    text = VERL.replace("    name: vllm\n", "    name: vllm\n  model:\n    pathh: x\n")
    assert "    path: x\n" in fix(read(text), ASKED).after


def test_a_variable_for_npus_is_not_overwritten_by_the_one_for_gpus() -> None:
    text = f"{ROLL}system_envs:\n  CUDA_VISIBLE_DEVICES: '0,1'\n  ASCEND_RT_VISIBLE_DEVICES: '4,5'\n"
    after = fix(read(text, ASKED_ROLL), ASKED_ROLL).after
    assert "ASCEND_RT_VISIBLE_DEVICES: '4,5'" in after and "CUDA" not in after


def test_an_interface_for_hccl_is_not_overwritten_by_the_one_for_nccl() -> None:
    text = f"{ROLL}system_envs:\n  NCCL_SOCKET_IFNAME: 'eth0'\n  HCCL_SOCKET_IFNAME: 'eth1'\n"
    after = fix(read(text, ASKED_ROLL), ASKED_ROLL).after
    assert "HCCL_SOCKET_IFNAME: 'eth1'" in after and "NCCL" not in after


@pytest.mark.parametrize("more", ["data:\n  trunc: left\n", "nonsense: 3\n"])
def test_a_key_of_a_yaml_that_nobody_reads_is_told(more: str) -> None:
    assert sentences(read(VERL + more)).get("preflight.key-unknown") == "warning key-unread"


@pytest.mark.parametrize("more", ["mine: 3\ntrainer:\n  project_name: run-${mine}\n", "data:\n  seed: 1\n"])
def test_a_key_that_other_values_point_to_and_a_known_one_are_fine(more: str) -> None:
    assert "preflight.key-unknown" not in sentences(read(VERL + more))


@pytest.mark.parametrize(("memory", "wanted"), [(None, "note memory-unjudged"), (64.0, None)])
def test_memory_that_was_not_judged_is_said(memory: float | None, wanted: str | None) -> None:
    path = CASES / "verl" / "quick_start.sh"
    machine = Machine(hardware="a2", cards_per_node=8, nodes=1, memory_gib=memory)
    asked = ReadOptions(defaults_of, "verl", "0.7.1", machine, {"HOME": "/home/user"}, path.parent)
    found = sentences(read_text(path.read_text(encoding="utf-8"), path, asked))
    assert found.get("preflight.memory-unjudged") == wanted


def test_a_number_among_the_variables_is_put_into_quotes() -> None:
    text = f"{ROLL}system_envs:\n  A: 1\n  B: '1'\n"
    after = fix(read(text, ASKED_ROLL), ASKED_ROLL).after
    assert after.replace('"', "'").endswith("  A: '1'\n  B: '1'\n")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("echo a\necho 'b\necho c\n", 2),
        ('echo "b\n', 1),
        ("echo 'b' \"it's\"\n", 0),
        ("cat <<END\nit's\nEND\n", 0),
        ("echo it\\'s # don't\n", 0),
        ('echo "$(date "+%d")"', 0),
    ],
)
def test_the_line_of_an_open_quote(text: str, line: int) -> None:
    assert open_quote(text) == line


def test_a_script_with_an_open_quote_is_refused() -> None:
    with pytest.raises(BadInput) as raised:
        read_text("python3 -m verl.trainer.main_ppo 'a=1\n  b=2\n", Path("run.sh"), ASKED)
    assert raised.value.message.args == {"path": "run.sh", "line": 1}


def test_a_variable_without_a_reader_is_a_note() -> None:
    text = f"{ROLL}system_envs:\n  NPU_MEMORY_FRACTION: '0.9'\n"
    assert sentences(read(text, ASKED_ROLL))["preflight.no-reader"] == "note no-reader"
