"""What verl itself says of launches: Hydra composes its configuration, then its own checks look at the result.

    python tests/contract/verl_verdicts.py TREE < CASES

TREE holds the package `verl`. CASES is JSON: {"programs": module -> its configuration, "launches": [[module, its
arguments], ...]}. Each line of output is a verdict as JSON: null where verl takes the launch, else its error. The
Python that runs this needs torch for the CPU, what verl imports, and hydra-core; where megatron-core is there, it
judges the parallel sizes too.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

SUPERVISED = ("engine", "optim", "checkpoint", "profiler")


def judge(config: Any) -> None:
    """Raises what verl raises before it starts a worker."""
    from omegaconf import OmegaConf
    from verl.utils.config import omega_conf_to_dataclass

    OmegaConf.resolve(config)
    if "actor_rollout_ref" not in config:
        for part in SUPERVISED:
            omega_conf_to_dataclass(config[part])
        return
    if config.data.train_batch_size != 0:  # as the fully asynchronous trainer has it, which validates nothing
        validate(config)
    if "_target_" in config.actor_rollout_ref.rollout:
        omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    load_reward(config)
    if config.actor_rollout_ref.actor.strategy == "megatron":
        with contextlib.suppress(ModuleNotFoundError):
            divide_cards(config)


def validate(config: Any) -> None:
    """The trainer's own validation, which was a method of it until 0.5.0."""
    actor = config.actor_rollout_ref.actor
    wants = {
        "use_reference_policy": bool(actor.use_kl_loss or config.algorithm.use_kl_in_reward),
        "use_critic": config.critic.get("enable")
        if config.critic.get("enable") is not None
        else config.algorithm.adv_estimator == "gae",
    }
    try:
        from verl.utils.config import validate_config
    except ImportError:
        from types import SimpleNamespace

        from verl.trainer.ppo.ray_trainer import RayPPOTrainer

        RayPPOTrainer._validate_config(SimpleNamespace(config=config, **wants))
    else:
        validate_config(config=config, **wants)


def load_reward(config: Any) -> None:
    """A reward function that a path below the tree names is loaded as the trainer does it."""
    try:
        from verl.trainer.ppo.reward import get_custom_reward_fn
    except ImportError:
        return
    place = config.get("reward", config).get("custom_reward_function") or {}
    if place.get("path") and not os.path.isabs(place["path"]):
        get_custom_reward_fn(config)


def divide_cards(config: Any) -> None:
    """Megatron divides the cards; torch's "fake" backend stands for their processes."""
    import torch
    import torch.testing._internal.distributed.fake_pg  # registers the backend
    from megatron.core import parallel_state

    sizes = config.actor_rollout_ref.actor.megatron
    cards = config.trainer.n_gpus_per_node * config.trainer.nnodes
    torch.distributed.init_process_group("fake", rank=0, world_size=cards)
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=sizes.tensor_model_parallel_size,
            pipeline_model_parallel_size=sizes.pipeline_model_parallel_size,
            virtual_pipeline_model_parallel_size=sizes.virtual_pipeline_model_parallel_size,
            context_parallel_size=sizes.context_parallel_size,
            expert_model_parallel_size=sizes.expert_model_parallel_size,
            expert_tensor_parallel_size=sizes.expert_tensor_parallel_size,
            create_gloo_process_groups=False,
        )
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def verdict(module: str, words: list[str], known: dict[str, str], tree: Path) -> str | None:
    import hydra
    from hydra.core.global_hydra import GlobalHydra

    if module not in known:
        return f"No module named {module}"
    folder, _, name = known[module].rpartition("/")
    program = tree.joinpath(*module.split(".")).with_suffix(".py")
    beside = os.path.relpath(tree / folder, program.parent)
    judge.__code__ = judge.__code__.replace(co_filename=str(program))  # from where Hydra looks for relative folders
    GlobalHydra.instance().clear()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        quiet = ("hydra/job_logging=none", "hydra/hydra_logging=none", "hydra.output_subdir=null")
        sys.argv = [module, *words, *quiet, f"hydra.run.dir={scratch}"]
        try:
            hydra.main(version_base=None, config_path=beside, config_name=name)(judge)()
        except (Exception, SystemExit) as error:  # many kinds, of Hydra, OmegaConf and verl: each is a refusal
            return f"{type(error).__name__}: {error}"[:400]
    return None


def main() -> None:
    tree = Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(tree))
    os.environ["HYDRA_FULL_ERROR"] = "1"
    cases = json.load(sys.stdin)
    import transformers

    if not hasattr(transformers, "AutoModelForVision2Seq"):  # the older name, which verl imports until 0.7.0
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText
    with contextlib.suppress(ImportError):
        from verl.workers.config.model import HFModelConfig

        HFModelConfig.__post_init__ = lambda self: None  # it reads the model's files, which are not here
    ranks = types.ModuleType("verl.workers.rollout.vllm_rollout.utils")  # of vLLM, which is not here
    ranks.get_vllm_max_lora_rank = lambda rank: rank  # type: ignore[attr-defined]
    sys.modules[ranks.__name__] = ranks
    for module, words in cases["launches"]:
        print(json.dumps(verdict(module, words, cases["programs"], tree)), flush=True)


if __name__ == "__main__":
    main()
