"""What ROLL's own loader says of configurations: Hydra composes them, ROLL's classes take them.

    python tests/contract/roll_verdicts.py TREE < CASES

TREE is a checkout of ROLL. CASES is JSON: [[pipeline, folder below examples, name], ...]. Each line of output is a
verdict as JSON: null where ROLL takes the configuration, else its error. The Python that runs this needs torch, ray and
transformers for the CPU, hydra-core, dacite and what else ROLL's configurations import. It passes for a node of eight
cards: where ROLL asks for cards, a stand-in for torch_npu answers.
"""

from __future__ import annotations

import json
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

CARDS = 8
CLASSES = {
    "rlvr": ("roll.pipeline.rlvr.rlvr_config", "RLVRConfig"),
    "agentic": ("roll.pipeline.agentic.agentic_config", "AgenticConfig"),
}


def pretend_cards() -> None:
    """torch_npu, as far as ROLL's configurations ask it."""
    import torch

    npu = types.ModuleType("torch.npu")
    npu.device_count = lambda: CARDS  # type: ignore[attr-defined]
    npu.is_available = lambda: True  # type: ignore[attr-defined]
    torch.npu = npu  # type: ignore[attr-defined]
    sys.modules["torch_npu"] = types.ModuleType("torch_npu")


def load(tree: Path, pipeline: str, folder: str, name: str) -> Any:
    """The configuration as the pipeline's starter makes it. Raises what ROLL or Hydra raises."""
    from dacite import from_dict
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    module, kind = CLASSES[pipeline]
    with initialize_config_dir(str(tree / "examples" / folder), job_name="app", version_base=None):
        composed = OmegaConf.to_container(compose(config_name=name), resolve=True)
    return from_dict(data_class=getattr(import_module(module), kind), data=composed)


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(tree))
    out, sys.stdout = sys.stdout, sys.stderr  # ROLL prints
    pretend_cards()
    for pipeline, folder, name in json.load(sys.stdin):
        text = None
        try:
            load(tree, pipeline, folder, name)
        except Exception as error:
            text = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        print(json.dumps(text), file=out, flush=True)


if __name__ == "__main__":
    main()
