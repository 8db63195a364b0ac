"""Every ROLL recipe composed by the real Hydra, started by its own run.sh, in a tree with stand-ins for ROLL's files.

Needs a package registry for hydra-core: no torch and no ROLL. The stand-ins hold what the recipes take from ROLL's
`examples/config`: the names and the shape of its fragments, and a starter that composes and prints.
So this shows that the files compose, not that ROLL accepts them: its own starter, loader and fragments are not here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import main
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = ("5d1e3c3d", "0.3.0", "8eb27cc2")
RECIPES = [row.id for row in load_matrix().roll_recipes]
STARTER = """
import argparse, json
from hydra import compose, initialize
from omegaconf import OmegaConf
words = argparse.ArgumentParser()
words.add_argument("--config_path")
words.add_argument("--config_name")
asked = words.parse_args()
initialize(config_path=asked.config_path, job_name="app", version_base=None)
tree = OmegaConf.to_container(compose(config_name=asked.config_name), resolve=True)
for role in ("actor_train", "actor_infer", "reference"):
    tree[role]["device_mapping"] = eval(tree[role]["device_mapping"])
print(json.dumps(tree))
"""
ENVIRONMENTS = """
max_tokens_per_step: 128
custom_env:
  SimpleSokoban: {env_type: sokoban}
  LargerSokoban: {env_type: sokoban}
  SokobanDifferentGridVocab: {env_type: sokoban}
  FrozenLake: {env_type: frozen_lake, max_tokens_per_step: "${max_tokens_per_step}"}
  FrozenLakeThink: {env_type: frozen_lake}
"""
STAGES = {"deepspeed_zero": 1, "deepspeed_zero2": 2, "deepspeed_zero3": 3, "deepspeed_zero3_cpuoffload": 3}


@pytest.fixture(scope="module")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an interpreter with hydra-core and nothing else."""
    folder = tmp_path_factory.mktemp("hydra") / "venv"
    for words in (
        ("venv", str(folder), "--python", sys.executable),
        ("pip", "install", "--python", str(folder / "bin" / "python"), "hydra-core"),
    ):
        subprocess.run([sys.executable, "-m", "uv", "--quiet", *words], check=True, timeout=300)
    return folder / "bin"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree as ROLL's: starters below examples, fragments in examples/config."""
    root = tmp_path_factory.mktemp("roll")
    (root / "examples" / "config").mkdir(parents=True)
    (root / "roll").mkdir()
    for name in ("start_agentic_pipeline.py", "start_rlvr_pipeline.py"):
        (root / "examples" / name).write_text(STARTER, encoding="utf-8")
    (root / "examples" / "config" / "traj_envs.yaml").write_text(ENVIRONMENTS, encoding="utf-8")
    for name, stage in STAGES.items():
        text = f"{name}:\n  zero_optimization:\n    stage: {stage}\n"
        (root / "examples" / "config" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return root


def started(folder: Path, hydra: Path, tree: Path) -> dict[str, Any]:
    """What the starter composed, when the run is started by its own script on the first node."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HYDRA"))}
    environ |= {"PATH": f"{hydra}:{os.environ['PATH']}", "ROLL_ROOT": str(tree)}
    environ |= {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "HOME": str(folder)}
    done = subprocess.run(
        ["sh", str(folder / "run.sh")], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.registry
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.one_in(3)
def test_every_roll_recipe_composes_and_its_cards_are_those_of_the_placement(
    recipe: str, release: str, hydra: Path, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--for", "roll", "--release", release, "--recipe", recipe, "-o", str(tmp_path), "--json"]
    assert main(["render-launch", *words]) == 0
    placed = json.loads(capsys.readouterr().out)["placement"]
    made = started(tmp_path, hydra, tree)
    mapped = {role: made[key]["device_mapping"] for role, key in (("train", "actor_train"), ("infer", "actor_infer"))}
    assert mapped == {role: placed[role] for role in mapped}
    assert made["reference"]["device_mapping"] == placed["reference"]
    assert {type(value) for value in made["system_envs"].values()} == {str}
    strategy = made["actor_train"]["strategy_args"]
    if strategy["strategy_name"] == "deepspeed_train":
        assert strategy["strategy_config"]["zero_optimization"]["stage"] == 3
    else:
        assert strategy["strategy_config"]["fsdp_size"] == len(placed["train"])
    assert made["actor_infer"]["strategy_args"]["strategy_config"]["max_model_len"] > 0
