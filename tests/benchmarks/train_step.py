"""Seconds and memory of a GRPO step, ours beside TRL's GRPOTrainer: `python -m tests.benchmarks.train_step [ROW ...]`.

Needs trl, transformers, datasets and tokenizers. Each side runs in a process of its own, on one thread, with the same
start weights, prompts and numbers of tokens; no answer ends early. The two take turns, step by step, so that what else
the machine does meets both. A step is: generate, reward (random), advantages, forward, backward, clip, AdamW.
The limit is the time of a step's matrix products alone, at the rate of the best square product measured before.
TRL runs with its own generate, num_iterations 1, beta 0, and without gradient checkpointing.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VOCABULARY = 19  # the token after it stands for end and pad, so no model can say it
SEED = 0
# What TRL's step does too: one optimizer step per batch, no reference policy, no entropy bonus.
OF_TRL = ("mini_batches=1", "kl_coef=0", "entropy_coef=0", "lr=0.0001", "lr_schedule=constant", "convention=trl")


@dataclass(frozen=True)
class Row:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    prompt: int
    new: int
    prompts: int
    group: int
    dtype: str
    target: float  # TRL's seconds over ours

    @property
    def name(self) -> str:
        return f"{self.layers}/{self.hidden} {self.prompt}+{self.new} {self.prompts}x{self.group} {self.dtype}"


ROWS = (
    Row(2, 128, 4, 2, 512, 6, 8, 16, 8, "float32", 2.0),
    Row(2, 128, 4, 2, 512, 64, 16, 16, 8, "float32", 3.5),
    Row(6, 384, 6, 2, 1024, 32, 16, 16, 8, "float32", 2.4),
    Row(6, 384, 6, 2, 1024, 32, 16, 16, 8, "bfloat16", 2.4),
    Row(6, 384, 6, 2, 1024, 128, 32, 8, 8, "float32", 3.5),
    Row(6, 384, 6, 2, 1024, 128, 32, 8, 8, "bfloat16", 3.5),
    Row(4, 256, 4, 2, 1024, 48, 64, 8, 16, "float32", 2.5),
    Row(4, 256, 4, 2, 1024, 48, 64, 8, 16, "bfloat16", 3.5),
    Row(12, 512, 8, 2, 1408, 96, 48, 4, 8, "float32", 2.5),
    Row(12, 512, 8, 2, 1408, 96, 48, 4, 8, "bfloat16", 3.5),
)


def rss_mib() -> float:
    return float(_status("VmRSS:"))


def peak_mib() -> float:
    return float(_status("VmHWM:"))


def _status(field: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def prompts_of(row: Row, step: int) -> list[list[int]]:
    import torch

    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(VOCABULARY, (row.prompts, row.prompt), generator=generator).tolist()


def config_of(row: Row) -> Any:
    from trainer.config import parse

    names = ("layers", "hidden", "heads", "kv_heads", "intermediate", "dtype")
    sizes = [f"{name}={getattr(row, name)}" for name in names]
    return parse(
        [*sizes, f"prompts_per_step={row.prompts}", f"rollouts_per_prompt={row.group}", *OF_TRL], devices=("cpu",)
    )


def limit_s(row: Row) -> float:
    """Seconds that a step of ours takes at least: its operations at the peak measured here, on the threads set."""
    import torch

    from trainer.metrics import meter
    from trainer.models import build
    from trainer.types import Group, Prompt, Rollout, Stop

    config, device = config_of(row), torch.device("cpu")
    sizes = meter.sizes(build(config, VOCABULARY, seed=SEED, device=device))
    assert sizes is not None
    answer = Rollout((1,) * row.new, (-1.0,) * row.new, Stop.LENGTH)
    group = Group(Prompt("", (1,) * row.prompt, ""), (answer,) * row.group)
    phases = meter.of_phases(sizes, meter.work([group] * row.prompts), config)
    return sum(phases.values()) / (meter.peak(config, device).tflops * 1e12)


def ours(row: Row) -> Iterator[Callable[[], None]]:
    """Steps of ours; the first thing given back is a function to call once what is imported stands."""
    import torch

    from trainer.algorithms.packing import make_batch
    from trainer.engines.engine import BuiltinEngine, Sampling
    from trainer.learner import Learner
    from trainer.loop import update_policy
    from trainer.models import build
    from trainer.models.decoder import Decoder
    from trainer.types import Group, Prompt

    torch.set_num_threads(1)
    print(f"LIMIT {limit_s(row)}", flush=True)
    yield lambda: None
    config, device = config_of(row), torch.device("cpu")
    learner = Learner(build(config, VOCABULARY, seed=SEED, device=device), None, config, seed=SEED)
    sampled = build(config, VOCABULARY, seed=SEED, device=device)
    assert isinstance(sampled, Decoder)
    sampler = BuiltinEngine(sampled, end=None, seed=SEED)
    sampling = Sampling(row.group, row.new, 1.0)
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        prompts = prompts_of(row, number)
        answers = sampler.generate([tuple(prompt) for prompt in prompts], sampling)
        groups = [Group(Prompt("", tuple(p), ""), found) for p, found in zip(prompts, answers, strict=True)]
        batch = make_batch(groups, torch.rand(row.prompts, row.group), pad=0)
        known = learner.compute_logprobs(batch)
        update_policy(learner, batch, known, learner.compute_advantages(batch, known))
        sampler.load_weights(learner.weights())

    while True:
        yield step


def trl(row: Row) -> None:
    """Runs TRL's own training loop; it asks before each step and tells after it."""
    import tempfile

    import torch
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from trainer.models import build

    torch.set_num_threads(1)
    stand()
    words = {f"w{token}": token for token in range(VOCABULARY)} | {"<end>": VOCABULARY}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=row.hidden,
        intermediate_size=row.intermediate,
        num_hidden_layers=row.layers,
        num_attention_heads=row.heads,
        num_key_value_heads=row.kv_heads,
        rope_theta=10_000.0,
        tie_word_embeddings=True,
        pad_token_id=None,
        eos_token_id=None,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config).to(getattr(torch, row.dtype))
    weights = build(config_of(row), VOCABULARY, seed=SEED, device=torch.device("cpu")).state_dict()
    model.load_state_dict(weights, strict=False)
    steps = 400
    texts = [" ".join(f"w{token}" for token in prompt) for at in range(40) for prompt in prompts_of(row, at)]

    class Turns(TrainerCallback):  # type: ignore[misc]
        began = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            wait()
            self.began = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            say(time.perf_counter() - self.began)

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=row.prompts * row.group,
            num_generations=row.group,
            max_completion_length=row.new,
            max_steps=steps,
            num_iterations=1,
            beta=0.0,
            learning_rate=1e-4,
            temperature=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
        )
        GRPOTrainer(
            model=model,
            reward_funcs=lambda completions, **_: torch.rand(len(completions)).tolist(),
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": texts}),
            processing_class=wrapped,
            callbacks=[Turns()],
        ).train()


_base_mib = 0.0


def stand() -> None:
    """What is in memory now does not count."""
    global _base_mib
    _base_mib = rss_mib()
    forget_peak()


def wait() -> None:
    """Until the parent asks for a step; leaves when it asks no more."""
    if not sys.stdin.readline():
        sys.stderr.flush()
        os._exit(0)


def say(seconds: float) -> None:
    print(f"STEP {seconds} {peak_mib() - _base_mib}", flush=True)


def child(side: str, row: Row) -> None:
    if side == "trl":
        trl(row)
        return
    steps = ours(row)
    next(steps)
    stand()
    for step in steps:
        wait()
        began = time.perf_counter()
        step()
        say(time.perf_counter() - began)


class Side:
    """A child process that takes a step when asked."""

    def __init__(self, side: str, number: int, interpreter: str) -> None:
        root = Path(__file__).resolve().parents[2]
        environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        command = [interpreter, __file__, "--side", side, str(number)]
        self.limit_s = 0.0  # told by ours
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            text=True,
        )

    def step(self) -> tuple[float, float]:
        """Seconds, and the peak above the import baseline so far, in MiB."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("LIMIT"):
                self.limit_s = float(line.split()[1])
            if line.startswith("STEP"):
                _, seconds, mib = line.split()
                return float(seconds), float(mib)
        raise SystemExit(f"a side ended early, with {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)


def compare(number: int, *, steps: int, interpreter: str) -> None:
    row = ROWS[number]
    sides = [Side(side, number, interpreter) for side in ("ours", "trl")]
    seconds: list[list[float]] = [[], []]
    peaks = [0.0, 0.0]
    for at in range(steps + 3):  # the first three warm up
        for index, side in enumerate(sides):
            taken, peaks[index] = side.step()
            if at >= 3:
                seconds[index].append(taken)
    for side in sides:
        side.close()
    middle = [statistics.median(each) for each in seconds]
    least = [min(each) for each in seconds]
    print(
        f"| {row.name} | {middle[0]:.4f} ({least[0]:.4f}) | {middle[1]:.4f} ({least[1]:.4f}) "
        f"| {middle[1] / middle[0]:.2f} | {row.target} | {sides[0].limit_s / middle[0]:.0%} "
        f"| {peaks[0]:.0f} | {peaks[1]:.0f} | {peaks[0] / peaks[1]:.0%} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", nargs="*", type=int, help=f"numbers of rows, 0 to {len(ROWS) - 1}; none: all")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--interpreter", default=sys.executable)
    parser.add_argument("--side", choices=("ours", "trl"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        child(given.side, ROWS[given.rows[0]])
        return
    print("| row | ours s, median (least) | TRL s | ratio | target | of limit | ours MiB | TRL | share |")
    print("|---|---|---|---|---|---|---|---|---|")
    for number in given.rows or range(len(ROWS)):
        compare(number, steps=given.steps, interpreter=given.interpreter)


if __name__ == "__main__":
    main()
