"""Sampling with vLLM, on CUDA or, through vllm-ascend, on NPUs.

Uses the API that vllm 0.11.0 to 0.33.0 and vllm-ascend 0.11.0 to 0.30.0rc2 have in common;
`tests/trainer/engines/vllm_signatures.toml` has its names with their parameters. vLLM is imported when an engine
starts, never before. Each request has its own seed, drawn from a generator whose state a checkpoint can hold; the
engine's own seed would tie the samples to the number of requests since its start.
"""

from __future__ import annotations

import copy
import os
import shutil
import tempfile
import weakref
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer.config import BadSetting
from trainer.engines.engine import LocalEngine, new_seeds
from trainer.types import Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor, nn

    from trainer.engines.engine import Sampling, Tokens
    from trainer.engines.generator_client import EngineSpec

_BUCKET_BYTES = 1 << 28  # of weights handed over at once; with tensor parallelism each bucket is copied to every worker

# What vLLM makes one parameter of, and which of the learner's, in this order.
_PARTS = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_STACKED = {part: (stack, parts) for stack, parts in _PARTS.items() for part in parts}
_LOGPROBS_MODE = "processed_logprobs"
_STOPS = {"stop": Stop.END, "length": Stop.LENGTH}  # by vLLM's finish_reason
# Set before vllm is imported, unless the user has set them. Without multiprocessing the weights are handed over by
# reference. vllm-ascend keeps weights in the NZ layout otherwise: new ones cannot be loaded into it, and waking fails.
# It reads its variable up to 0.26.0rc1. A forked worker cannot use a card that this process has opened, of which vLLM
# knows for CUDA alone (vllm/utils, _maybe_force_spawn; vllm-ascend 0.30.0rc2, feature_guide/rl.md).
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ASCEND_ENABLE_NZ": "0",
}
# The same as arguments: `weight_nz_mode` is known from 0.20.2rc1 on, `rl_config` from 0.27.1rc1 on, which rejects
# unknown keys; older releases ignore them, and vLLM itself reads neither. `rl_config` sets `weight_nz_mode` to 0, takes
# expandable segments out of the allocator's settings, which a sleeping engine cannot use, and from 0.28.0rc1 on keeps
# the storage of parameters that are loaded again. Its other fields stay off: `sleep_mode_extra_cleanup` captures every
# graph again after each sleep, `enable_training_consistency` needs the package flash_attn_npu_v3, and
# `enable_batch_invariant` gives the same answers in any batch, more slowly.
# Source: sdists of vllm-ascend 0.26.0rc1, 0.27.1rc1, 0.28.0rc1 and 0.30.0rc2: vllm_ascend/ascend_config.py, envs.py,
# utils.py (is_rl_weight_update_enabled), docs/source/user_guide/configuration/additional_config.md,
# feature_guide/rl.md and sleep_mode.md.
FOR_ASCEND = {"rl_config": {"enabled": True}, "weight_nz_mode": 0}


@dataclass(frozen=True, slots=True)
class Package:
    """The parts of vllm that are used; a test puts others in their place."""

    LLM: Any
    EngineArgs: Any
    SamplingParams: Any
    TokensPrompt: Any


class Vllm(LocalEngine):
    """An `LLM`, the shapes of the weights it was last given, and the random numbers that seed its requests."""

    def __init__(
        self,
        llm: Any,
        package: Package,
        *,
        end: int | None,
        seed: int,
        folder: Path | None = None,
        can_sleep: bool = False,
        is_parallel: bool = False,
    ) -> None:
        self._llm = llm
        self._package = package
        self._end = end
        self._folder = folder  # weights go through this one, which is the engine's own; None: in place
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._can_sleep = can_sleep
        self._is_parallel = is_parallel  # over processes, which a tensor of one card cannot be sent to
        self._generator = torch.Generator().manual_seed(seed)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._is_cache_asleep = False

    def generate(self, prompts: Sequence[Tokens], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        """Log-probabilities are vLLM's processed ones, after the temperature and `top_p`; of greedy ones those at 1."""
        seeds = sampling.seeds or new_seeds(len(prompts), self._generator)
        results = self._llm.generate(
            [self._package.TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts],
            [self._params(sampling, seed) for seed in seeds],
            use_tqdm=False,
        )
        return [tuple(_rollout(output) for output in result.outputs) for result in results]

    def _params(self, sampling: Sampling, seed: int) -> Any:
        is_cut = not sampling.is_greedy and (sampling.top_p < 1 or sampling.top_k > 0)
        # Every end token but ours is ignored: a model's folder may name more of them than the tokenizer has.
        return self._package.SamplingParams(
            n=sampling.rollouts_per_prompt,
            temperature=0.0 if sampling.is_greedy else sampling.temperature,
            max_tokens=sampling.max_new_tokens,
            logprobs=0,  # the drawn token's alone
            ignore_eos=True,
            stop_token_ids=[] if self._end is None else [self._end],
            seed=seed,
            detokenize=False,
            **({"top_p": sampling.top_p, "top_k": sampling.top_k or -1} if is_cut else {}),
        )

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Loads the weights, in place or through the folder; clears the caches of the old ones."""
        if self._folder is not None:
            _write(self._folder, weights)
            self._llm.collective_rpc(reload)
        else:
            for bucket in _buckets(weights):
                sent = [(name, weight.cpu()) for name, weight in bucket] if self._is_parallel else bucket
                self._llm.apply_model(partial(load, sent))
        self._shapes = {name: tuple(weight.shape) for name, weight in weights.items()}
        if self._is_cache_asleep:
            self._llm.wake_up(tags=["kv_cache"])
            self._is_cache_asleep = False
        self._llm.reset_prefix_cache()

    def weights(self) -> Mapping[str, Tensor]:
        """The weights read back from the first worker, on the CPU: those that it holds unsharded."""
        held: dict[str, Tensor] = self._llm.apply_model(partial(read, self._shapes))[0]
        return held

    def sleep(self) -> None:
        """Level 2: weights and cache are dropped, since new weights come after `wake`."""
        if self._can_sleep:
            self._llm.sleep(level=2)

    def wake(self) -> None:
        """Room for the weights only; that for the cache is taken when they have come, so both never peak together."""
        if self._can_sleep:
            self._llm.wake_up(tags=["weights"])
            self._is_cache_asleep = True


def _rollout(output: Any) -> Rollout:
    # Others are abort, and in later versions error and repetition: no answer of the policy, or not all of one.
    if output.finish_reason not in _STOPS:
        raise RuntimeError(f"vllm ended an answer with {output.finish_reason}, after {len(output.token_ids)} tokens")
    tokens = tuple(output.token_ids)
    logprobs = tuple(float(each[token].logprob) for each, token in zip(output.logprobs, tokens, strict=True))
    return Rollout(tokens, logprobs, _STOPS[output.finish_reason])


def _buckets(weights: Mapping[str, Tensor]) -> Iterator[list[tuple[str, Tensor]]]:
    bucket: list[tuple[str, Tensor]] = []
    size = 0
    for name, weight in weights.items():
        num_bytes = weight.numel() * weight.element_size()
        if bucket and size + num_bytes > _BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, weight.detach()))
        size += num_bytes
    if bucket:
        yield bucket


# The next four run in vLLM's worker processes, hence no closures.


def process_logprobs(worker: Any) -> None:
    """Makes the log-probabilities those after the temperature, `top_k` and `top_p`, as `logprobs_mode` says.

    vLLM's own runners and the second one of vllm-ascend follow the argument; the first one makes its sampler without
    it, so that it returns those before the temperature.
    Source: sdists of vllm-ascend 0.11.0, 0.18.0, 0.23.0 and 0.30.0rc2: vllm_ascend/worker/model_runner_v1.py
    (`AscendSampler()`), sample/sampler.py; vllm/v1/sample/sampler.py.
    """
    sampler = worker.model_runner.sampler
    sampler.logprobs_mode = _LOGPROBS_MODE
    if hasattr(sampler, "topk_topp_sampler"):  # reads the mode itself
        sampler.topk_topp_sampler.logprobs_mode = _LOGPROBS_MODE


def load(weights: Sequence[tuple[str, Tensor]], model: nn.Module) -> None:
    """Copies weights under transformers' names into vLLM's model, which stacks and shards them itself."""
    loader: Callable[[Sequence[tuple[str, Tensor]]], object] = model.load_weights  # type: ignore[assignment]
    loader(weights)


def reload(worker: Any) -> None:
    """Reloads the model's folder through the runner: vllm-ascend's worker has no method for it before 0.24.

    Under the worker's configuration, as in vLLM's own worker: layers that are recreated need it.
    """
    from vllm.config import set_current_vllm_config

    config = worker.vllm_config
    if hasattr(worker.model_runner, "reload_weights"):
        with set_current_vllm_config(config):
            worker.model_runner.reload_weights()
        return
    from vllm.model_executor.model_loader import get_model_loader

    # The runner of vllm-ascend 0.11.0 has none either; this is what vLLM's own of that version does.
    with set_current_vllm_config(config):
        get_model_loader(config.load_config).load_weights(worker.get_model(), model_config=config.model_config)


def read(shapes: Mapping[str, tuple[int, ...]], model: nn.Module) -> dict[str, Tensor]:
    """The weights of those names that are held unsharded, cut out of the stacked or padded tensors."""
    own = dict(model.named_parameters())
    found = {name: _cut_out(name, shapes, own) for name in shapes}
    return {name: weight.cpu().clone() for name, weight in found.items() if weight is not None}


def _cut_out(name: str, shapes: Mapping[str, tuple[int, ...]], own: Mapping[str, Tensor]) -> Tensor | None:
    shape, offset, home = shapes[name], 0, name
    total = shape[0]
    part = next((part for part in name.split(".") if part in _STACKED), None)
    if name not in own and part is not None:
        stack, members = _STACKED[part]
        heights = {member: shapes[name.replace(part, member)][0] for member in members}
        home, total = name.replace(part, stack), sum(heights.values())
        offset = sum(heights[member] for member in members[: members.index(part)])
    held = own.get(home)
    # A vocabulary is padded below; fewer rows than expected, or other columns, are a shard.
    if held is None or held.shape[0] < total or held.shape[1:] != torch.Size(shape[1:]):
        return None
    return held.detach()[offset : offset + shape[0]]


def start(order: EngineSpec, *, seed: int) -> Vllm:
    """The engine of the model in the folder `path`.

    Raises BadSetting if the folder or the package is missing, or if the package is too old.

    The weights are read from the folder; the first `load_weights` replaces them.
    """
    config = order.config
    if not config.model.path:
        raise BadSetting("engine=vllm needs path=FOLDER: it cannot run the built-in decoder from a random start")
    source, folder = Path(config.model.path), None
    if config.rollout.weight_sync == "reload":
        folder = source = _linked(source)
    with ExitStack() as stack:
        if folder is not None:
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
        package = _package()
        given = arguments(order, source, seed=seed)
        unknown = sorted(given.keys() - {each.name for each in fields(package.EngineArgs)})
        if unknown:
            raise BadSetting(
                "engine=vllm is written for vllm 0.11.0 to 0.33.0: the installed one does not take "
                f"{', '.join(unknown)}"
            )
        llm = package.LLM(**given)
        llm.collective_rpc(process_logprobs)
        stack.pop_all()  # from now on the engine removes the folder
    return Vllm(
        llm,
        package,
        end=order.tokenizer.end,
        seed=seed,
        folder=folder,
        can_sleep=config.rollout.sleep,
        is_parallel=config.rollout.tensor_parallel > 1,
    )


def arguments(order: EngineSpec, folder: Path, *, seed: int) -> dict[str, Any]:
    """What `LLM` is started with."""
    config, rollout = order.config, order.config.rollout
    chosen: dict[str, Any] = {
        "model": str(folder),
        "skip_tokenizer_init": True,  # tokens go in and come out
        "generation_config": "vllm",  # not the folder's: a repetition penalty there would make another policy
        "dtype": config.run.dtype,
        "seed": seed % 2**32,
        "load_format": "auto",
        "enforce_eager": rollout.enforce_eager,
        "gpu_memory_utilization": rollout.memory_fraction,
        "tensor_parallel_size": rollout.tensor_parallel,
        "enable_sleep_mode": rollout.sleep,
        "logprobs_mode": _LOGPROBS_MODE,
        "additional_config": copy.deepcopy(FOR_ASCEND),
    }
    if rollout.tensor_parallel > 1:
        # Within a placement group of Ray vllm would take Ray for its workers too, one bundle each: ours hold all cards.
        chosen["distributed_executor_backend"] = "mp"
    if not order.has_environment:
        chosen["max_model_len"] = config.task.max_prompt_tokens + order.max_new_tokens
    return chosen


def _package() -> Package:
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import vllm
        from vllm.inputs import TokensPrompt
    except ImportError as error:
        raise BadSetting(f"engine=vllm needs the package vllm (on NPUs vllm-ascend too): {error}") from error
    return Package(vllm.LLM, vllm.EngineArgs, vllm.SamplingParams, TokensPrompt)


def _linked(source: Path) -> Path:
    """A new folder with links to the model's files.

    Every version of vLLM can read its own folder again; only later ones another.
    """
    if not source.is_dir():
        raise BadSetting(f"path={source} is no folder")
    folder = Path(tempfile.mkdtemp(prefix="trainer-weights-"))
    for file in source.iterdir():
        (folder / file.name).symlink_to(file.resolve())
    return folder


def _write(folder: Path, weights: Mapping[str, Tensor]) -> None:
    """Replaces the links to the model's weights by one file."""
    from trainer.models.pretrained import write_weights

    for old in [*folder.glob("*.safetensors"), *folder.glob("*.safetensors.index.json"), *folder.glob("*.bin")]:
        old.unlink()
    write_weights(folder / "model.safetensors", weights)
