"""Every verl recipe against the real Hydra configuration of verl's releases: words and YAML must compose, and agree.

Needs a package registry for hydra-core and verl's wheels, without their dependencies: no torch, no verl is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.render.launch.verl import render_verl
from tests.render.conftest import make_stack
from tests.render.verl_jobs import RECIPES, published, words_of

if TYPE_CHECKING:
    from pathlib import Path

RELEASES = ("0.5.0", "0.7.1", "0.8.0", "0.9.1")
NOT_THERE = {
    "grpo-qwen3-8b-sglang": {"0.5.0"},  # that release runs sglang on GPUs alone
    "one-step-off-qwen3-8b": {"0.5.0", "0.7.1"},  # these wheels lack its program
    "ppo-qwen3-8b-1k-2k": {"0.5.0", "0.7.1"},  # its script came later
    "sft-lora-qwen3-8b": {"0.5.0"},  # its trainer came later
}
# One of each kind: composing costs 0.3 s, and the YAML of all the others is compared with the words offline.
YAML_TOO = {"quick-start", "aqn-hbm", "dapo-qwen2.5-7b", "ppo-qwen3-8b", "one-step-off-qwen3-8b", "sft-lora-qwen3-8b",
            "grpo-qwen3-32b", "grpo-qwen3-8b-sglang"}  # fmt: skip

COMPOSE = """
import json, pathlib, sys, tempfile
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

def composed(folder, name, words):
    with initialize_config_dir(str(folder), version_base=None):
        return OmegaConf.to_container(compose(name, overrides=words))

for case in json.load(sys.stdin):
    root = pathlib.Path(case["wheel"]) / "verl"
    base = root / "trainer" / "config"
    own = root / "experimental/one_step_off_policy/config" if case["entry"] == "one-step-off" else base
    name = {"one-step-off": "one_step_off_ppo_trainer", "sft": "sft_trainer_engine"}.get(case["entry"], "ppo_trainer")
    # pkg:// would import verl, and torch with it.
    here = lambda text: text.replace("pkg://verl.trainer.config", f"file://{base}")
    try:
        words = composed(own, name, [here(word) for word in case["words"]])
        said = "ok"
        if case["yaml"]:
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "config.yaml").write_text(here(case["yaml"]), encoding="utf-8")
                search = [] if case["entry"] == "one-step-off" else [f"hydra.searchpath=[file://{base}]"]
                said = "ok" if composed(folder, "config", search) == words else "the YAML says something else"
    except Exception as error:  # Hydra's and OmegaConf's many kinds: each is a refusal, told as it is
        said = f"{type(error).__name__}: {error}"
    print(json.dumps([case["recipe"], said]), flush=True)
"""


def uv(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "uv", "--quiet", *words], check=True, timeout=300)


@pytest.fixture(scope="module")
def hydra(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with hydra-core and nothing else."""
    folder = tmp_path_factory.mktemp("hydra")
    uv("venv", str(folder / "venv"), "--python", sys.executable)
    python = folder / "venv" / "bin" / "python"
    uv("pip", "install", "--python", str(python), "hydra-core")
    return python


def ask(python: Path, cases: list[dict[str, object]]) -> dict[str, str]:
    """Recipe -> "ok", or what Hydra says."""
    ran = subprocess.run(
        [str(python), "-c", COMPOSE], input=json.dumps(cases), capture_output=True, text=True, timeout=300, check=True
    )
    return dict(json.loads(line) for line in ran.stdout.splitlines())


@pytest.fixture
def wheel(tmp_path: Path, hydra: Path, release: str) -> Path:
    uv("pip", "install", "--python", str(hydra), "--no-deps", "--target", str(tmp_path / "verl"), f"verl=={release}")
    return tmp_path / "verl"


@pytest.mark.registry
@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_every_recipe_composes_under_the_real_configuration(release: str, wheel: Path, hydra: Path) -> None:
    cases: list[dict[str, object]] = []
    refused = set()
    for id, row in RECIPES.items():
        job, placement, recipe, paths = published(id, release)
        try:
            files = render_verl(job, placement, recipe, stack=make_stack(), paths=paths)
        except BadInput:
            refused.add(id)
            continue
        yaml = files["config.yaml"] if id in YAML_TOO else ""
        cases.append(
            {"recipe": id, "entry": row.entry, "words": words_of(files["run.sh"]), "yaml": yaml, "wheel": str(wheel)}
        )
    never = {id for id, row in RECIPES.items() if row.refused}
    assert refused == never | {id for id, releases in NOT_THERE.items() if release in releases}
    # Both must be refused, else the verdicts above say nothing: an unknown key, and one that this release renamed.
    quick = next(case for case in cases if case["recipe"] == "quick-start")
    words = quick["words"]
    assert isinstance(words, list)
    moved = "critic.fsdp.param_offload=False" if release < "0.8" else "critic.model.fsdp_config.param_offload=False"
    for name, word in (("unknown", "trainer.noise_injection.enabled=True"), ("moved", moved)):
        cases.append({**quick, "recipe": name, "words": [*words, word], "yaml": ""})
    verdicts = ask(hydra, cases)
    planted = {name: verdicts.pop(name) for name in ("unknown", "moved")}
    assert all("Could not override" in said for said in planted.values()), planted
    assert verdicts == dict.fromkeys(verdicts, "ok")
    assert len(verdicts) == len(RECIPES) - len(refused)
