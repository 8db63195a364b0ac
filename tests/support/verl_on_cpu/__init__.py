"""An environment with the real verl in which it trains a tiny model on a CPU, and what it needs for that.

`shim.py` goes into the environment and adapts verl and torch when they are imported there; npuenv is not adapted.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.stub_cann.target import find_links, run_uv

_HERE = Path(__file__).parent
RELEASE = "0.5.0"
# The versions with which that release was seen to train.
_PACKAGES = (
    "torch==2.13.0+cpu",
    "ray[default]==2.60.0",
    "accelerate==1.15.0",
    "codetiming==1.4.0",
    "datasets==4.8.5",
    "dill==0.4.1",
    "hydra-core==1.3.8",
    "numpy==2.4.6",
    "pandas==3.1.1",
    "peft==0.21.2",
    "pyarrow==25.0.1",
    "pylatexenc==2.11",
    "tensorboard==2.21.0",
    "tensordict==0.15.3",
    "torchdata==0.11.0",
    "transformers==4.57.6",
)


def make(folder: Path) -> Path:
    """A virtual environment with verl and the shim; its Python. Raises NotToBeHad."""
    run_uv("venv", "--python", "3.11", str(folder))
    python = folder / "bin" / "python"
    run_uv("pip", "install", "--python", str(python), *find_links(), *_PACKAGES)
    # verl's own requirements are left out: wandb is not needed, and its tensordict is one for an older torch.
    run_uv("pip", "install", "--python", str(python), "--no-deps", f"verl=={RELEASE}")
    site = next((folder / "lib").glob("python3.*")) / "site-packages"
    shutil.copyfile(_HERE / "shim.py", site / "verl_on_cpu.py")
    (site / "verl_on_cpu.pth").write_text("import verl_on_cpu\n")
    shutil.copyfile(_HERE / "one_card.py", site / "acl.py")
    return python


def make_model(python: Path, folder: Path) -> None:
    """Writes a model of two layers with a tokenizer of bytes, with the environment's transformers."""
    subprocess.run([str(python), str(_HERE / "tiny_model.py"), str(folder)], check=True, capture_output=True)


def settings() -> list[str]:
    """The settings of a run: generation by transformers, since there is no vllm, short answers, and a reward that a
    model without training gets now and then.
    """
    return [
        "actor_rollout_ref.rollout.name=hf",
        "+actor_rollout_ref.model.override_config._attn_implementation=eager",
        "actor_rollout_ref.actor.optim.lr=1e-2",
        "data.max_response_length=16",
        "data.dataloader_num_workers=0",
        f"custom_reward_function.path={_HERE / 'reward.py'}",
    ]
