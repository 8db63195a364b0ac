"""Times of rendering: all images in one process, and single commands, start included.

    python -m tests.benchmarks.render_times

The commands are measured in turn with the import of the two libraries that any such program loads, so that a busy
machine shows in both. Modules are compiled before, as an installation has them. Nothing is asserted: machines differ.
"""

from __future__ import annotations

import functools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from npuenv.lock.file import read_lock
from npuenv.matrix import load_matrix
from npuenv.render.docker import render_docker
from npuenv.resolve import resolve
from npuenv.resolve.types import Stack
from tests.support.image_combinations import combinations

ROOT = Path(__file__).resolve().parent.parent.parent

REPEAT = 7
COMMANDS = (
    ("-c", "import click, jinja2"),
    ("-m", "npuenv", "--version"),
    ("-m", "npuenv", "render-docker", "verl-cann9.1.0", "--hardware", "a2", "--os", "ubuntu22.04", "-o", "{folder}"),
    ("-m", "npuenv", "render-docker", "vllm-ascend-0.18.0", "--hardware", "a2", "-o", "{folder}"),
    ("-m", "npuenv", "render-launch", "--for", "verl", "--recipe", "grpo-qwen2.5-7b", "-o", "{folder}/run"),
    ("-m", "npuenv", "resolve", "verl-cann9.1.0", "--hardware", "a2", "--json"),
    ("-m", "npuenv", "install", "cpu", "--dry-run"),
    ("-m", "npuenv", "lock", "--help"),
)


def all_combinations() -> int:
    """Renders everything for both architectures; the number of combinations."""
    matrix, num = load_matrix(), 0
    indexes = {row.label: row for row in matrix.indexes}
    read = functools.cache(read_lock)
    for request in combinations(matrix):
        found = {arch: resolve(replace(request, arch=arch), matrix) for arch in ("x86_64", "aarch64")}
        stacks = {arch: stack for arch, stack in found.items() if isinstance(stack, Stack)}
        if len(stacks) == len(found):
            names = {arch: f"{stack.name}.{stack.platform.tag}.toml" for arch, stack in stacks.items()}
            render_docker(stacks, {arch: read(ROOT / "lockfiles" / names[arch]) for arch in names}, indexes=indexes)
            num += 1
    return num


def one(command: tuple[str, ...], compiled: str) -> tuple[float, float]:
    """Wall seconds and seconds of the processor of one command, from start to exit."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": compiled}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        words = [word.replace("{folder}", folder) for word in command]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, env=env, capture_output=True)
        wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    num = all_combinations()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"all {num} combinations: {wall:.1f} s wall, {cpu:.1f} s of the processor")
    with tempfile.TemporaryDirectory() as compiled:
        rounds = [[one(command, compiled) for command in COMMANDS] for _ in range(REPEAT + 1)][1:]
    for command, times in zip(COMMANDS, zip(*rounds, strict=True), strict=True):
        wall, cpu = (statistics.median(each) for each in zip(*times, strict=True))
        print(f"{cpu:.2f} s of the processor, {wall:.2f} s wall: python {' '.join(command)}")


if __name__ == "__main__":
    main()
