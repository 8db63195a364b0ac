"""Checks of the machine before training: packages, import, device, arithmetic, memory, ranks, first use.

Together they take under 0.3 s on a CPU without Ray and vllm.
"""

from __future__ import annotations

import platform
import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from trainer import device as devices
from trainer.algorithms.packing import pack
from trainer.models import ops
from trainer.rollouts import collect
from trainer.shards import local
from trainer.stages import arithmetic, packages
from trainer.stages.stage import Stage, StageFailed, announce, run, write

if TYPE_CHECKING:
    from trainer.config import Config
    from trainer.distributed import World
    from trainer.metrics.progress import Progress
    from trainer.metrics.records import Records
    from trainer.trainer import Trainer

# A card's first product or first generation may wait for the compilation of every operator in it.
COMPILING_S = 1800.0
_TRIAL_BYTES = 16 << 20
_EXCHANGED = 1 << 18  # float32 numbers
# Without these training is impossible, or its results mean nothing.
_NEEDED = ("device", "matmul", "decoder")


def ask(trainer: Trainer, config: Config, records: Records, progress: Progress) -> None:
    """Runs every probe and records the results. Raises StageFailed if training would be pointless."""
    device, dtype = trainer.device, config.run.dtype
    if trainer.world.is_first:
        is_wanted = config.run.probe_packages
        if is_wanted and packages.installed():
            announce(records, "packages", may_take_s=packages.LIMIT_S * 2)
        run("packages", partial(packages.probe, device, is_wanted=is_wanted), records)
    write(records, "import", imported(device), progress.seconds.get("import", 0.0))
    if devices.compiles(device):
        announce(records, "compiling", may_take_s=COMPILING_S)
    questions = {
        "device": partial(present, device),
        "matmul": partial(arithmetic.matmul, device, dtype),
        "decoder": partial(arithmetic.decoder, device, dtype),
        "memory": partial(memory, trainer, config),
        "collective": partial(collective, trainer.world, device),
    }
    for name, question in questions.items():
        stage = run(name, question, records)
        if stage.passed is False and name in _NEEDED:
            raise StageFailed(name, stage.reason or "")
    if devices.compiles(device):
        announce(records, "warm-up", may_take_s=COMPILING_S)
    run("warm-up", partial(warm_up, trainer), records)


def imported(device: torch.device) -> Stage:
    """The versions that were imported; the stage's seconds are those of the import."""
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return Stage(True, None, {**versions, **devices.describe(device)} if device.type != "cpu" else versions)


def present(device: torch.device) -> Stage:
    """A tensor goes to the device and comes back as it was."""
    sent = torch.arange(4096, dtype=torch.int32)
    came = sent.to(device).clone().cpu()
    measured = devices.describe(device)
    if torch.equal(sent, came):
        return Stage(True, None, measured)
    return Stage(False, f"a tensor came back from {device} changed", measured)


def memory(trainer: Trainer, config: Config) -> Stage:
    """Free memory against weights, gradients, moments and logits; allocates and frees a block."""
    device = trainer.device
    needed = needed_bytes(trainer, config)
    before = devices.allocated(device)
    block = torch.ones(_TRIAL_BYTES, dtype=torch.uint8, device=device)
    is_whole = int(block[-1]) == 1
    del block
    devices.give_back(device)
    found, after = devices.memory(device), devices.allocated(device)
    free = None if found is None else found.free
    measured = {"needed_bytes": needed, "free_bytes": free, "total_bytes": None if found is None else found.total}
    if not is_whole:
        return Stage(False, "a block of memory does not hold what was written to it", measured)
    if before is not None and after is not None and after > before:
        return Stage(False, f"{after - before} bytes were not given back", measured)
    if free is None:
        return Stage(None, "the system does not say how much memory is free", measured)
    if free < needed:
        return Stage(False, f"the run needs {needed >> 20} MiB and {free >> 20} MiB are free", measured)
    return Stage(True, None, measured)


def needed_bytes(trainer: Trainer, config: Config) -> int:
    """Bytes that a rank has yet to allocate: gradients, and the logits of one pass, learning or sampling.

    Weights, moments, reference and sampler are allocated already. A lower bound: activations inside the model are left
    out, and so are the sampler's keys. In learning, the logits are computed in chunks, see `ops.token_logprobs`; in
    sampling, they are those of the next token of every row, and count only if the engine allocates its memory on
    demand.
    """
    parameters = [each for _, each in trainer.learner.model.named_parameters() if each.requires_grad]
    gradients = sum(local(each).numel() * each.element_size() for each in parameters)
    rollout, vocabulary = config.rollout, trainer.task.tokenizer.vocabulary_size
    sampled = rollout.prompts_per_step * rollout.rollouts_per_prompt // trainer.world.size
    rows = sampled // config.optim.mini_batches
    rows = min(rows, config.optim.micro_batch_rows or rows)
    learning = min(rows * trainer.task.max_new_tokens * vocabulary, ops.LOGITS_AT_ONCE)
    samples_here = rollout.engine in ("builtin", "transformers") and not config.has_generators
    # In float32 logits and their log-softmax; learning also the gradient.
    return gradients + max(3 * 4 * learning, 2 * 4 * sampled * vocabulary if samples_here else 0)


def collective(world: World, device: torch.device) -> Stage:
    """Every rank gives its number, and every rank must get the sum; a megabyte of it, to see the time."""
    if world.size == 1:
        return Stage(None, "one rank: there is nobody to exchange gradients with", {"ranks": 1})
    world.barrier()
    began = time.perf_counter()
    came = world.all_reduce_sum(torch.full((_EXCHANGED,), float(world.rank + 1), device=device))
    devices.synchronize(device)
    measured = {"ranks": world.size, "all_reduce_s": time.perf_counter() - began, "bytes": _EXCHANGED * 4}
    expected = world.size * (world.size + 1) / 2
    if bool((came == expected).all()):
        return Stage(True, None, measured)
    return Stage(False, f"the ranks' sum is {float(came.max()):g} where it should be {expected:g}", measured)


def warm_up(trainer: Trainer) -> Stage:
    """Generates and differentiates once, so that compilation is not counted as training. It leaves no trace."""
    if not devices.compiles(trainer.device):
        return Stage(None, "operators of this device are not compiled at first use")
    return first_use(trainer)


def first_use(trainer: Trainer) -> Stage:
    """One generation, one forward and backward pass; random numbers and gradients are put back."""
    state = trainer.engine.random_state()
    count = trainer.config.rollout.prompts_per_step
    prompts = [trainer.task.train[at % len(trainer.task.train)] for at in range(count)]
    groups = collect(trainer.engine, prompts, trainer.task, trainer.sampling())
    shape = (len(groups), len(groups[0].rollouts))
    batch = pack(groups, torch.zeros(shape, device=trainer.device), pad=trainer.task.tokenizer.pad)
    model = trainer.learner.model
    model.score(batch, temperature=trainer.config.rollout.temperature).logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]
    for _, parameter in model.named_parameters():
        parameter.grad = None
    trainer.engine.restore_random_state(state)
    devices.synchronize(trainer.device)
    return Stage(True, None, {"answers": shape[0] * shape[1]})
