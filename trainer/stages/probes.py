"""Checks of the machine before training: packages, import, device, arithmetic, memory, ranks, first use.

Each is a stage: `run_probe` times it and writes its record. The arithmetic of products and of a small decoder is held
against float64 on the CPU: a device whose operators do nothing, or round wrongly, returns tensors of the right shape.
Ray, tensordict and vllm, if they are installed, are tried each in its own process and process group, with a time limit:
such a package may hang or crash the process. Together they take under 0.3 s on a CPU without Ray and vllm.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from trainer import device as devices
from trainer import models
from trainer.algorithms.packing import make_batch
from trainer.config import Config
from trainer.distributed import local
from trainer.metrics.records import one_line
from trainer.models import ops
from trainer.rollouts import collect
from trainer.sections import Model, Run
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

    from trainer.distributed import World
    from trainer.metrics.records import Progress, Records
    from trainer.trainer import Trainer
    from trainer.types import Batch

# A card's first product or first generation may wait for the compilation of every operator in it.
COMPILING_S = 1800.0
_TRIAL_BYTES = 16 << 20
_EXCHANGED = 1 << 18  # float32 numbers
# Without these training is impossible, or its results mean nothing.
_NEEDED = ("device", "matmul", "decoder")


def run_probes(trainer: Trainer, config: Config, records: Records, progress: Progress) -> None:
    """Runs every probe and records the results. Raises StageFailed if training would be pointless."""
    device, dtype = trainer.device, config.run.dtype
    if trainer.world.is_first:
        is_wanted = config.run.probe_packages
        if is_wanted and installed_packages():
            announce(records, "packages", may_take_s=PACKAGE_LIMIT_S * 2)
        run_probe("packages", partial(packages, device, is_wanted=is_wanted), records)
    write_stage(records, "import", imported(device), progress.seconds.get("import", 0.0))
    if devices.compiles(device):
        announce(records, "compiling", may_take_s=COMPILING_S)
    questions = {
        "device": partial(present, device),
        "matmul": partial(matmul, device, dtype),
        "decoder": partial(decoder, device, dtype),
        "memory": partial(memory, trainer, config),
        "collective": partial(collective, trainer.world, device),
    }
    for name, question in questions.items():
        stage = run_probe(name, question, records)
        if stage.passed is False and name in _NEEDED:
            raise StageFailed(name, stage.reason or "")
    if devices.compiles(device):
        announce(records, "warm-up", may_take_s=COMPILING_S)
    run_probe("warm-up", partial(warm_up, trainer), records)


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

    Weights, moments, reference and engine are allocated already. A lower bound: activations inside the model are left
    out, and so are the engine's keys. In learning, the logits are computed in chunks, see `ops.token_logprobs`; in
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
    batch = make_batch(groups, torch.zeros(shape, device=trainer.device), pad=trainer.task.tokenizer.pad)
    model = trainer.learner.model
    model.token_logprobs(batch, temperature=trainer.config.rollout.temperature).logprobs_BT.sum().backward()  # type: ignore[no-untyped-call]
    for _, parameter in model.named_parameters():
        parameter.grad = None
    trainer.engine.restore_random_state(state)
    devices.synchronize(trainer.device)
    return Stage(True, None, {"answers": shape[0] * shape[1]})


class StageFailed(RuntimeError):
    """A stage after which the run cannot continue; its record has been written. `name` is the stage's."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name}: {reason}")
        self.name = name


@dataclass(frozen=True, slots=True)
class Stage:
    """One answer of the machine or of the run."""

    passed: bool | None  # None: unknown, or does not apply; the reason says which
    reason: str | None = None  # None: nothing beyond the measurements
    measured: Mapping[str, Any] = field(default_factory=dict)


def run_probe(name: str, probe: Callable[[], Stage], records: Records) -> Stage:
    """Runs a probe, times it and records the result; an exception means that it did not pass."""
    began = time.perf_counter()
    try:
        stage = probe()
    except Exception as error:  # a missing or failing operator is a result of the probe
        stage = Stage(False, one_line(error))
    write_stage(records, name, stage, time.perf_counter() - began)
    return stage


def write_stage(records: Records, name: str, stage: Stage, seconds: float) -> None:
    """One `stage` record."""
    records.write("stage", name=name, seconds=seconds, passed=stage.passed, reason=stage.reason, **dict(stage.measured))


def announce(records: Records, what: str, *, may_take_s: float) -> None:
    """Writes a `note` that a long phase begins, with the number of seconds for which silence is normal."""
    records.write("note", what=what, may_take_s=may_take_s)


# Rows, inner size, columns: one row (decoding), odd sizes (tails of tiles), a square of several tiles.
SHAPES = ((1, 64, 64), (33, 127, 65), (128, 256, 192))
# Largest error of a product of normal numbers, in units of its own deviation (the root of the inner size). Rounding
# gives 1e-6 in float32, 4e-3 in bfloat16 for its results and 1e-2 where its inputs are rounded too; nonsense gives 1.
TOLERANCES: Mapping[tuple[str, str], float] = {
    ("float64", "highest"): 1e-12,
    ("float32", "highest"): 2e-5,
    ("float32", "high"): 2e-2,
    ("float32", "medium"): 6e-2,
    ("float16", "highest"): 1e-2,
    ("bfloat16", "highest"): 4e-2,
}
# Of the decoder: log-probabilities in nats, and the gradient's distance over its length.
_DECODER_TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "bfloat16": 0.15}
_DECODER = Config(model=Model(layers=1, hidden=32, heads=4, kv_heads=2, intermediate=48), run=Run(dtype="float64"))
_VOCABULARY = 19


def tolerance(dtype: str, precision: str) -> float:
    """The tolerance for a product of this dtype, at the precision that is allowed for float32 products."""
    return TOLERANCES[dtype, precision if dtype == "float32" else "highest"]


def matmul(device: torch.device, dtype: str) -> Stage:
    """Products of several shapes in float32, in bfloat16 and in the run's dtype."""
    precision = torch.get_float32_matmul_precision()
    errors: dict[str, float] = {}
    wrong = ""
    for kind in dict.fromkeys(("float32", "bfloat16", dtype)):
        errors[kind] = max((product_error(device, kind, shape) for shape in SHAPES), key=_badness)
        if not errors[kind] <= tolerance(kind, precision):
            wrong = (
                wrong or f"products in {kind} are off by {errors[kind]:.1e}, allowed are {tolerance(kind, precision):g}"
            )
    measured = {"device": str(device), "precision": precision, "errors": errors, "shapes": [list(s) for s in SHAPES]}
    return Stage(not wrong, wrong or None, measured)


def product_error(device: torch.device, dtype: str, shape: tuple[int, int, int]) -> float:
    """The largest error of one product on the device, over the root of its inner size; NaN for a NaN in it."""
    rows, inner, columns = shape
    generator = torch.Generator().manual_seed(rows)
    # Inputs are rounded first, so that the comparison excludes their rounding.
    left, right = (
        torch.randn(size, generator=generator).to(getattr(torch, dtype)) for size in ((rows, inner), (inner, columns))
    )
    found = torch.matmul(left.to(device), right.to(device)).cpu().double()
    return float((found - torch.matmul(left.double(), right.double())).abs().max() / inner**0.5)


def decoder(device: torch.device, dtype: str) -> Stage:
    """Log-probabilities and gradient of a tiny decoder, in the run's dtype there and in float64 on the CPU."""
    expected, gradient = _score(torch.device("cpu"), "float64")
    found, found_gradient = _score(device, dtype)
    far = float((found - expected).abs().max())
    apart = float((found_gradient - gradient).norm() / gradient.norm())
    limit = _DECODER_TOLERANCES[dtype]
    if dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
        limit = _DECODER_TOLERANCES["bfloat16"]
    measured = {"logprob_error": far, "gradient_error": apart, "limit": limit}
    if far <= limit and apart <= limit:
        return Stage(True, None, measured)
    return Stage(False, f"a tiny decoder errs by {far:.1e} nats and by {apart:.1e} of its gradient", measured)


def _score(device: torch.device, dtype: str) -> tuple[Tensor, Tensor]:
    """Log-probabilities and the flat gradient of their mean, both as float64 on the CPU."""
    made = models.build(_DECODER, _VOCABULARY, seed=0, device=torch.device("cpu"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():  # larger than the start of training: small weights hide errors
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype) * 0.2)
    made = made.to(getattr(torch, dtype)).to(device)
    batch = _questions(device, torch.promote_types(getattr(torch, dtype), torch.float32))
    logprobs_BT = made.token_logprobs(batch, temperature=1.0).logprobs_BT
    logprobs_BT.mean().backward()  # type: ignore[no-untyped-call]
    flat = [each.grad.reshape(-1).cpu().double() for each in made.parameters() if each.grad is not None]
    return logprobs_BT.detach().cpu().double(), torch.cat(flat)


def _questions(device: torch.device, dtype: torch.dtype) -> Batch:
    """Two prompts with two answers each, all of different lengths."""
    answers = (((1, 2, 18), (3, 18)), ((4, 5, 6, 18), (7,)))
    prompts = ((0, 11, 5), (9, 2, 4, 11, 8))
    groups = [
        Group(Prompt("", tokens, ""), tuple(Rollout(each, (0.0,) * len(each), Stop.END) for each in said))
        for tokens, said in zip(prompts, answers, strict=True)
    ]
    return make_batch(groups, torch.zeros(2, 2, dtype=dtype, device=device), pad=17)


def _badness(error: float) -> float:
    """Orders errors with NaN as the worst."""
    return error if error == error else float("inf")


# Ray starts in 3 to 8 s on two cores; vllm's import takes up to a minute, its first token on a card several.
PACKAGE_LIMIT_S = 600.0


def installed_packages() -> list[str]:
    """The packages that there is a question for."""
    names = ("ray", "vllm")
    return [name for name in names if importlib.util.find_spec(name) is not None]


def packages(device: torch.device, *, is_wanted: bool = True, limit_s: float = PACKAGE_LIMIT_S) -> Stage:
    """Passes a TensorDict through a Ray actor; imports vllm and, if there is a card, generates a token.

    If not requested, nothing is started; `skipped` lists what was left out.
    """
    names = installed_packages()
    if not names:
        return Stage(None, "neither ray nor vllm is installed, and this run needs neither")
    if not is_wanted:
        return Stage(None, f"probe_packages=false: {' and '.join(names)} skipped", {"skipped": names})
    measured: dict[str, Any] = {}
    problems = []
    for name in names:
        answer = try_package(name, [device.type, str(devices.count(device))], limit_s=limit_s)
        measured[name] = answer
        if answer.get("problem"):
            problems.append(f"{name}: {answer['problem']}")
    return Stage(not problems, "; ".join(problems) or None, measured)


def try_package(package: str, words: list[str], *, limit_s: float) -> dict[str, Any]:
    """The child's result: one JSON object, the last line of its output; with a `problem` if there is none."""
    # `-P` and the empty working folder are inherited through PYTHONSAFEPATH where npuenv set it.
    argv = [sys.executable, "-m", "trainer.stages.try_package", package, *words]
    environ = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0"}
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
    ) as child:
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
            return {"problem": f"no answer within {limit_s:g} s"}
        except BaseException:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    return _answer(out, err, child.returncode)


def _answer(out: str, err: str, code: int) -> dict[str, Any]:
    lines = out.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else None
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        return answer
    said = err.strip().splitlines()
    return {"problem": f"ended with {code}: {said[-1] if said else 'it said nothing'}"}
