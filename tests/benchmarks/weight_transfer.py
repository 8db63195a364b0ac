"""Weights to generators in MB/s beside a copy in memory: `python -m tests.benchmarks.weight_transfer [--rounds N]`.

One publishing is: pack into buckets with a checksum, put them into Ray's store, every generator checks them, copies the
weights into its engine and compares what that holds with what was sent. Both sides run on one thread and take turns.
Needs Ray, and writes the generators' logs to a temporary folder.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from tests.trainer.placement.ray_cases import places_of
from trainer.config import Config
from trainer.engines import remote
from trainer.engines.generator_client import EngineSpec
from trainer.models import build
from trainer.placement.rank import Place, RayGenerator
from trainer.tasks import choose

DEVICE = torch.device("cpu")
SIZES = {"9 M": (6, 384, 1024), "91 M": (12, 768, 2688)}


def config(layers: int, hidden: int, intermediate: int, generators: int, bucket_mib: int) -> Config:
    plain = Config()
    model = replace(plain.model, layers=layers, hidden=hidden, heads=6, kv_heads=2, intermediate=intermediate)
    rollout = replace(plain.rollout, generators=generators, bucket_mib=bucket_mib)
    return replace(plain, model=model, rollout=rollout)


def measure(made: Config, places: list[Place], rounds: int) -> tuple[int, list[float], list[float]]:
    """Bytes of the weights; seconds of each publishing, and of each copy of as many bytes."""
    task = choose(made)
    order = EngineSpec.of(made, task, seed=0)
    pool = remote.Pool(lambda slot: RayGenerator(places[slot], order), made.rollout.generators, timeout_s=600)
    engine = remote.over(pool, order, seed=0)
    weights = dict(build(made, task.tokenizer.vocabulary_size, seed=1, device=DEVICE).named_parameters())
    source = torch.cat([each.detach().reshape(-1) for each in weights.values()])
    target = torch.empty_like(source)
    published, copied = [], []
    try:
        for _ in range(rounds + 2):
            began = time.perf_counter()
            engine.load_weights(weights)
            published.append(time.perf_counter() - began)
            began = time.perf_counter()
            target.copy_(source)
            copied.append(time.perf_counter() - began)
    finally:
        engine.end()
    return source.numel() * source.element_size(), published[2:], copied[2:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    print("model   generators  bucket     MB   publish s  MB/s each  MB/s of all   copy MB/s   copy / each")
    with tempfile.TemporaryDirectory() as folder, places_of(config(1, 6, 6, 2, 1), Path(folder)) as places:
        for name, sizes in SIZES.items():
            for generators, bucket_mib in ((1, 256), (1, 16), (2, 256)):
                size, published, copied = measure(config(*sizes, generators, bucket_mib), places, rounds)
                each, copy = (size / 1e6 / statistics.median(values) for values in (published, copied))
                print(
                    f"{name:<8}{generators:>10}{bucket_mib:>5} MiB{size / 1e6:>8.1f}"
                    f"{statistics.median(published):>11.4f}{each:>11.0f}{each * generators:>13.0f}{copy:>12.0f}"
                    f"{copy / each:>14.1f}"
                )


if __name__ == "__main__":
    main()
