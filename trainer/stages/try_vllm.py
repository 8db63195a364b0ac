"""`python -m trainer.stages.try_vllm TYPE COUNT`: imports vllm, generates one token on a card, prints JSON.

The model has two layers and random weights, which vllm creates from the configuration written here: nothing is
downloaded. Without a card vllm has no engine to try, and only the import is reported.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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


def main(kind: str) -> dict[str, Any]:
    """Version, platform and seconds; a `problem` if the platform is not the device's or no token was generated."""
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


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1])
    except Exception as error:  # any failure of vllm is the result
        answer = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    print(json.dumps(answer))
