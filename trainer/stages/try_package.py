"""`python -m trainer.stages.try_package ray|vllm TYPE COUNT`: tries a package on COUNT devices, prints JSON.

A separate program, because Ray starts processes and registers exit handlers, and vllm may crash. vllm's model has two
layers and random weights, which it creates from the configuration written here: nothing is downloaded. Without a card
vllm has no engine to try, and only the import is reported.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from trainer.device import RAY_RESOURCES
from trainer.metrics.records import one_line

# The smallest Qwen2 that the attention kernels of both platforms take: heads of 64.
_CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


def try_ray(kind: str, count: int) -> dict[str, Any]:
    """Starts Ray, passes a TensorDict through an actor: seconds, resources; a `problem` where something is missing."""
    import ray

    began = time.perf_counter()
    ray.init(address="local", num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        found: dict[str, Any] = {"version": ray.__version__, "start_s": time.perf_counter() - began}
        resource = RAY_RESOURCES.get(kind)
        if resource is not None:
            seen = float(ray.cluster_resources().get(resource, 0.0))
            found |= {"resource": resource, "seen": seen, "expected": count}
            if seen != count:
                found["problem"] = f"it sees {seen:g} {resource} where torch sees {count}"
        if importlib.util.find_spec("tensordict") is not None:
            found |= through_an_actor()
        return found
    finally:
        ray.shutdown()


def through_an_actor() -> dict[str, Any]:
    """A TensorDict is sent to an actor and comes back doubled."""
    import ray
    import tensordict
    import torch

    @ray.remote(num_cpus=1)
    class Doubling:
        def double(self, sent: Any) -> Any:
            return sent.apply(lambda tensor: tensor * 2)

    began = time.perf_counter()
    sent = tensordict.TensorDict({"tokens": torch.arange(12).reshape(3, 4), "rewards": torch.ones(3)}, batch_size=[3])
    actor: Any = Doubling  # the decorator adds `remote`, which no annotation shows
    came = ray.get(actor.remote().double.remote(sent))
    is_right = torch.equal(came["tokens"], sent["tokens"] * 2) and torch.equal(came["rewards"], sent["rewards"] * 2)
    answer: dict[str, Any] = {"tensordict": tensordict.__version__, "actor_s": time.perf_counter() - began}
    return answer if is_right else {**answer, "problem": "a TensorDict came back from an actor changed"}


def try_vllm(kind: str) -> dict[str, Any]:
    """Imports vllm, generates a token on a card: version, platform, seconds.

    A `problem` if the platform is not the device's or no token was generated.
    """
    began = time.perf_counter()
    import vllm
    from vllm.platforms import current_platform

    found: dict[str, Any] = {
        "version": vllm.__version__,
        "import_s": time.perf_counter() - began,
        "platform": type(current_platform).__name__,
        "generated": None,
    }
    if kind == "cpu":
        return found
    # A plugin that does not fit this vllm is left out with a line in the log, and the platform is unspecified.
    if current_platform.device_type != kind:
        return {**found, "problem": f"its platform is {found['platform']}, which is none for {kind}"}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_CONFIG), encoding="utf-8")
        engine = vllm.LLM(
            model=folder,
            skip_tokenizer_init=True,
            load_format="dummy",
            enforce_eager=True,
            max_model_len=64,
            max_num_seqs=1,
            gpu_memory_utilization=0.1,
        )
        sampling = vllm.SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        answers = engine.generate([{"prompt_token_ids": [1, 2, 3]}], sampling, use_tqdm=False)
    tokens = list(answers[0].outputs[0].token_ids)
    found |= {"generated": tokens, "generate_s": time.perf_counter() - began}
    return found if len(tokens) == 1 else {**found, "problem": f"{len(tokens)} tokens came where one was asked for"}


def main(package: str, kind: str, count: int) -> dict[str, Any]:
    """What was found; any failure is a `problem`."""
    try:
        return try_ray(kind, count) if package == "ray" else try_vllm(kind)
    except Exception as error:  # any failure of a package is the result
        return {"problem": one_line(error, longest=500)}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
