"""Runs the engine on an installed vllm without a device, and says what it saw. Run with that vllm's interpreter.

`python vllm_child.py FOLDER PATH`: a model is written to FOLDER, what was seen to PATH as JSON. Everything is vLLM's
own (its `LLM`, its configuration, its requests and outputs, its model and the loader that fills it, its executor's
sleeping) but two things: the engine's core, which needs compiled kernels to run the model and here draws tokens of its
own, and the worker, which holds the model on the CPU.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import sys
import tempfile
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

os.environ |= {"VLLM_CONFIGURE_LOGGING": "0", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
logging.disable(logging.WARNING)
torch.set_num_threads(1)
# vLLM's loader empties the allocator of a device, of which there is none.
torch.accelerator.empty_cache = lambda: None

import vllm.platforms  # noqa: E402

# An empty build names no platform; the CPU's configures itself without compiled parts.
vllm.platforms.builtin_platform_plugins["cpu"] = lambda: "vllm.platforms.cpu.CpuPlatform"

from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.distributed import init_distributed_environment, initialize_model_parallel  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.model_executor.model_loader import get_model  # noqa: E402
from vllm.model_executor.models import ModelRegistry  # noqa: E402
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM  # noqa: E402
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM  # noqa: E402
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason  # noqa: E402
from vllm.v1.engine.core_client import EngineCoreClient, InprocClient  # noqa: E402
from vllm.v1.executor.abstract import Executor  # noqa: E402
from vllm.v1.outputs import LogprobsTensors  # noqa: E402
from vllm.v1.worker.gpu_model_runner import GPUModelRunner  # noqa: E402
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402

try:
    from vllm.v1.serial_utils import run_method
except ImportError:
    from vllm.utils import run_method

from trainer import models  # noqa: E402
from trainer.config import parse  # noqa: E402
from trainer.engines import vllm as engine_module  # noqa: E402
from trainer.engines.engine import Sampling  # noqa: E402
from trainer.engines.generator_client import EngineSpec  # noqa: E402
from trainer.engines.vllm import Vllm, arguments, start  # noqa: E402
from trainer.models.decoder import Decoder, Shape  # noqa: E402
from trainer.tasks.base import Task  # noqa: E402
from trainer.tasks.tokenizers import Characters  # noqa: E402

# As a class vLLM need not look at it in a process of its own first.
ModelRegistry.register_model("Qwen2ForCausalLM", Qwen2ForCausalLM)
ModelRegistry.register_model("Qwen3ForCausalLM", Qwen3ForCausalLM)

END = Characters().end
TASK = Task("none", Characters(), (), (), 3, reward=lambda *_: 0.0, is_right=lambda *_: False)


class Held(Worker):  # type: ignore[misc]
    """vLLM's worker with a model on the CPU; asleep at level 2 the model's weights are lost."""

    def __init__(self, vllm_config: Any) -> None:
        self.calls: list[Any] = []
        self.vllm_config = vllm_config
        if not torch.distributed.is_initialized():
            place = tempfile.mkdtemp()
            with set_current_vllm_config(vllm_config):
                init_distributed_environment(1, 0, f"file://{place}/store", 0, "gloo")
                initialize_model_parallel(1, 1)
        with set_current_vllm_config(vllm_config):
            model = get_model(vllm_config=vllm_config)
        self.model_runner = GPUModelRunner.__new__(GPUModelRunner)
        self.model_runner.model = model
        self.model_runner.vllm_config = vllm_config
        self.model_runner.model_config = vllm_config.model_config
        self.model_runner.load_config = vllm_config.load_config
        self.model_runner.lora_config = None
        self.model_runner.sampler = SimpleNamespace(topk_topp_sampler=SimpleNamespace())
        self.model_runner.reset_mm_cache = self.model_runner.reset_encoder_cache = lambda: None  # of pictures

    def sleep(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(Worker.sleep).bind(self, *args, **kwargs).arguments
        self.calls.append(["sleep", given["level"]])
        with torch.no_grad():
            for parameter in self.get_model().parameters():
                parameter.fill_(float("nan"))

    def wake_up(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(Worker.wake_up).bind(self, *args, **kwargs).arguments
        self.calls.append(["wake_up", given["tags"]])


@dataclass
class Sleeper:
    """What vLLM's executor keeps of a sleep. Later versions derive `is_sleeping`, which earlier ones set too."""

    collective_rpc: Any
    sleeping_tags: set[str] = field(default_factory=set)
    is_sleeping = property(lambda self: bool(self.sleeping_tags), lambda self, value: None)


@dataclass
class Core(EngineCoreClient):  # type: ignore[misc]
    """Takes vLLM's own requests; each draws tokens of 5, 6 and the end with its seed, of log-probability -token/10."""

    worker: Held
    is_elsewhere: bool
    waiting: list[Any] = field(default_factory=list)
    seen: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.executor = Sleeper(self.collective_rpc)
        self.engine_core = SimpleNamespace(model_executor=self.executor)

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def shutdown(self, *args: Any, **kwargs: Any) -> None:
        self.waiting.clear()

    def dp_engines_running(self) -> bool:
        return False

    def reset_mm_cache(self) -> None:
        """There is none."""

    def abort_requests(self, request_ids: list[str]) -> None:
        self.waiting = [each for each in self.waiting if each[0].request_id not in request_ids]

    def add_request(self, request: Any) -> None:
        self.waiting.append((request, torch.Generator().manual_seed(request.sampling_params.seed), []))
        self.seen.append(request)

    def get_output(self) -> Any:
        made = [self.drawn(*each) for each in self.waiting]
        self.waiting = [each for each, output in zip(self.waiting, made, strict=True) if output.finish_reason is None]
        return EngineCoreOutputs(outputs=made)

    def drawn(self, request: Any, generator: torch.Generator, tokens: list[int]) -> Any:
        params = request.sampling_params
        tokens.append([5, 6, END][int(torch.randint(3, (), generator=generator))])
        has_ended = tokens[-1] in params.all_stop_token_ids
        reason = FinishReason.STOP if has_ended else FinishReason.LENGTH if len(tokens) == params.max_tokens else None
        logprobs = LogprobsTensors(
            torch.tensor([[tokens[-1]]]), torch.tensor([[-tokens[-1] / 10]]), torch.tensor([1])
        ).tolists()
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=[tokens[-1]],
            new_logprobs=logprobs,
            finish_reason=reason,
            stop_reason=tokens[-1] if has_ended else None,
        )

    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> list[Any]:
        return [run_method(self.worker, method, args, kwargs or {})]

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        inspect.signature(InprocClient.reset_prefix_cache).bind(self, *args, **kwargs)
        self.worker.calls.append(["reset_prefix_cache", None])
        return True

    def sleep(self, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(InprocClient.sleep).bind(self, *args, **kwargs).arguments
        Executor.sleep(self.executor, given["level"])

    def wake_up(self, *args: Any, **kwargs: Any) -> bool:
        given = inspect.signature(InprocClient.wake_up).bind(self, *args, **kwargs).arguments
        Executor.wake_up(self.executor, given["tags"])
        return not self.executor.is_sleeping


def started(folder: Path, *words: str) -> tuple[Vllm, Core]:
    made: list[Core] = []

    def client(**given: Any) -> Core:
        made.append(Core(Held(given["vllm_config"]), is_elsewhere=given["multiprocess_mode"]))
        return made[0]

    EngineCoreClient.make_client = staticmethod(client)
    settings = ["engine=vllm", f"path={folder}", "enforce_eager=true", "max_prompt_tokens=20", *words]
    engine = start(EngineSpec.of(parse(settings, devices=("cpu",)), TASK, seed=0), seed=3)
    return engine, made[0]


def written(folder: Path, *, is_qwen3: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights of the model in the folder, and new ones for it."""
    shape = Shape(64, 32, 2, 4, 2, 8, 48, is_tied=False, is_qwen3=is_qwen3)
    decoder = Decoder(shape)
    models.fill(decoder, seed=0)
    models.save(decoder, folder)
    old = {name: weight.detach() for name, weight in decoder.named_parameters()}
    generator = torch.Generator().manual_seed(1)
    return old, {name: torch.randn(weight.shape, generator=generator) for name, weight in old.items()}


def same(held: Any, sent: dict[str, torch.Tensor]) -> list[str]:
    """Names of the weights that were read back, bit for bit what was sent."""
    return sorted(name for name, weight in sent.items() if name in held and torch.equal(held[name], weight))


def generating(folder: Path) -> dict[str, Any]:
    written(folder, is_qwen3=False)
    engine, core = started(folder)
    groups = engine.generate([(1, 2), (3,), (4, 4)], Sampling(4, 3, 0.7))
    greedy = engine.generate([(1, 2)], Sampling(1, 3, 0.7, is_greedy=True))
    config = engine._llm.llm_engine.vllm_config
    return {
        "groups": [[[list(each.tokens), list(each.logprobs), each.stop.name] for each in group] for group in groups],
        "greedy": [len(greedy), len(greedy[0])],
        "prompts": sorted({tuple(request.prompt_token_ids) for request in core.seen}),
        "seeds": len({request.sampling_params.seed for request in core.seen}),
        "params": [
            {
                name: getattr(request.sampling_params, name)
                for name in ("n", "temperature", "top_p", "max_tokens", "logprobs", "ignore_eos", "detokenize")
            }
            | {"stops": sorted(request.sampling_params.all_stop_token_ids)}
            for request in (core.seen[0], core.seen[-1])
        ],
        "is_elsewhere": core.is_elsewhere,
        "config": {
            "logprobs_mode": str(
                getattr(config.model_config.logprobs_mode, "value", config.model_config.logprobs_mode)
            ),
            "max_model_len": config.model_config.max_model_len,
            "enforce_eager": config.model_config.enforce_eager,
            "seed": config.model_config.seed,
            "generation_config": config.model_config.generation_config,
            "memory": config.cache_config.gpu_memory_utilization,
        },
    }


def handing_over(folder: Path, *words: str, is_qwen3: bool = False, is_plain: bool = False) -> dict[str, Any]:
    """What came back of weights that were received, before and after a sleep; plain: of a runner that cannot reload."""
    old, new = written(folder, is_qwen3=is_qwen3)
    engine, core = started(folder, *words)
    if is_plain:
        core.worker.model_runner = SimpleNamespace(get_model=partial(getattr, core.worker.model_runner, "model"))
    engine.load_weights(new)
    seen: dict[str, Any] = {"names": sorted(new), "received": same(engine.weights(), new)}
    engine._can_sleep = True  # the platform here cannot, so that a configuration with it would be refused
    core.worker.calls.clear()
    engine.sleep()
    lost = engine.weights()
    seen["lost"] = sorted(name for name in lost if bool(lost[name].isnan().all()))
    engine.wake()
    engine.load_weights(old)
    seen["after"] = same(engine.weights(), old)
    seen["whole"] = not any(bool(each.isnan().any()) for each in core.worker.get_model().parameters())
    seen["calls"] = core.worker.calls
    seen["is_sleeping"] = core.executor.is_sleeping
    return seen


def transport(folder: Path) -> dict[str, Any]:
    """That what goes to workers can be sent there, and that the arguments for several of them exist."""
    sent = [partial(engine_module.load, [("x", torch.zeros(2))]), partial(engine_module.read, {"x": (2,)})]
    sent += [partial(engine_module.reload), partial(engine_module.process_logprobs)]
    words = ["tensor_parallel=2", "sleep=true", "memory_fraction=0.3", f"path={folder}", "engine=vllm"]
    args = EngineArgs(**arguments(EngineSpec.of(parse(words, devices=("cpu",)), TASK, seed=0), folder, seed=0))
    return {
        "sent": [pickle.loads(pickle.dumps(each)).func.__name__ for each in sent],
        "args": [args.tensor_parallel_size, args.enable_sleep_mode, args.gpu_memory_utilization],
        "backend": args.distributed_executor_backend,
    }


def main(folder: Path, path: Path) -> None:
    seen = {
        "versions": {name: version(name) for name in ("vllm", "torch")},
        "generating": generating(folder / "a"),
        "in_place": handing_over(folder / "b"),
        "in_place_qwen3": handing_over(folder / "c", is_qwen3=True),
        "reload": handing_over(folder / "d", "weight_sync=reload"),
        "transport": transport(folder / "a"),
    }
    if version("vllm").startswith("0.11.0"):
        seen["reload_plain"] = handing_over(folder / "e", "weight_sync=reload", is_plain=True)
    path.write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
