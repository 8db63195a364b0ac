"""Which cards train, which generate and which hold the reference, and whether a run fits into their memory.

Everything is computed from the model's shape and the job's sizes; nothing is measured, and no card is looked at.
A card's global number is node x cards per node + its number on the node.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npuenv.core import versions
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.preflight.memory.feasibility import advice, judge, parallel_fits_cards, tensor_parallel_fits
from npuenv.preflight.memory.types import Estimate, Placement, find_model, model_from, written_cards

if TYPE_CHECKING:
    from npuenv.preflight.memory.types import Job, Layout

__all__ = ["estimate", "find_model", "model_from", "plan"]

_ROLL_COLOCATES = "0.3.0"  # before, its guide forbids that training and generation share NPUs


def estimate(job: Job, placement: Placement) -> Estimate:
    """How full the fullest card gets, whether that fits, and what to change where it does not.

    Raises: BadInput for a job without cards, or cards that the job does not have.
    """
    _check(job, placement)
    found = judge(job, placement)
    return replace(found, advice=advice(job, placement, found))


def plan(job: Job, *, layout: Layout | None = None) -> Placement:
    """The cards of each role.

    `layout` None: the first that the framework's release allows and that fits, else the first that it allows. verl
    shares all cards unless `split` is asked for; ROLL splits them below 0.3.0, and prefers to share from then on.
    Raises: BadInput for a layout that the release does not allow, too few cards, or a tensor-parallel size that does
    not divide heads and cards.
    """
    _check_sizes(job)
    placements = [_laid_out(job, each) for each in _layouts(job, layout)]
    return next((each for each in placements if judge(job, each).verdict in ("feasible", "tight")), placements[0])


def _layouts(job: Job, requested: Layout | None) -> tuple[Layout, ...]:
    """The layouts that the release allows, the preferred one first; of them the one that is asked for."""
    allowed: tuple[Layout, ...] = ("colocated",)
    if job.framework == "roll":
        shares = versions.python_version(job.release) >= versions.python_version(_ROLL_COLOCATES)
        allowed = ("colocated", "split") if shares else ("split",)
    elif requested == "split":
        allowed = ("split",)  # verl has a trainer of its own for that
    elif job.framework != "verl":
        raise BadInput(Message("placement.framework", {"value": job.framework}))
    if requested is not None and requested not in allowed:
        args = {"release": job.release, "since": _ROLL_COLOCATES}
        raise BadInput(Message("placement.no-sharing", args), Message("placement.hint-no-sharing"))
    return (requested,) if requested else allowed


def _laid_out(job: Job, layout: Layout) -> Placement:
    """The cards of each role. The reference goes with generation in ROLL, with training in verl."""
    every = tuple(range(job.cards.count))
    if job.cards.count < (1 if layout == "colocated" else 2):
        raise BadInput(Message("placement.too-few-cards", {"cards": job.cards.count}))
    if layout == "colocated":
        train = infer = every
    else:
        train, infer = _parts(job)
    reference = infer if job.framework == "roll" else train
    placement = Placement(train, infer, reference if job.has_reference else ())
    if job.model.layers and not parallel_fits_cards(job, placement, job.tensor_parallel):
        raise _no_parallel(job, placement)
    return placement


def _parts(job: Job) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Training and generating cards of a split run.

    One node: the first half trains (0-3 of 8, 0-7 of 16). Several nodes: the first half of the nodes, one more where
    their number is odd. Where half a node is no multiple of the tensor-parallel size, generation gets the largest
    multiple below it, at least one engine, and training the rest.
    """
    cards, size = job.cards, job.tensor_parallel
    if cards.nodes > 1:
        first = -(-cards.nodes // 2) * cards.per_node
        return tuple(range(first)), tuple(range(first, cards.count))
    generating = max(size, cards.per_node // 2 // size * size)
    if generating >= cards.per_node:
        raise BadInput(Message("placement.no-half", {"size": size, "cards": cards.per_node}))
    numbers = range(cards.count)
    return tuple(numbers[: cards.count - generating]), tuple(numbers[cards.count - generating :])


def _no_parallel(job: Job, placement: Placement) -> BadInput:
    sizes = [n for n in range(1, len(placement.infer) + 1) if parallel_fits_cards(job, placement, n)]
    key = "placement.parallel-cards" if tensor_parallel_fits(job, job.tensor_parallel) else "placement.heads"
    args = {
        "size": job.tensor_parallel,
        "cards": written_cards(sorted(placement.infer), ", "),
        "heads": job.model.heads,
        "kv_heads": job.model.kv_heads,
    }
    return BadInput(Message(key, args), Message("placement.hint-parallel", {"sizes": tuple(map(str, sizes))}))


def _check(job: Job, placement: Placement) -> None:
    """Raises: BadInput where the placement is not one of the job's cards, or a size cannot be."""
    _check_sizes(job, generates=bool(placement.infer))
    every = (*placement.train, *placement.infer, *placement.reference)
    foreign = sorted({card for card in every if not 0 <= card < job.cards.count})
    if foreign or not every:
        what = written_cards(foreign, ", ") or "-"
        raise BadInput(Message("placement.no-such-card", {"cards": what, "count": job.cards.count}))


def _check_sizes(job: Job, *, generates: bool = True) -> None:
    """Raises: BadInput for a size of nothing or less, or a share above 1; without an engine its share may be 0."""
    sizes = job.sizes
    numbers = {
        "prompt_length": sizes.prompt_length,
        "response_length": sizes.response_length,
        "micro_batch": sizes.micro_batch,
        "log_prob_micro_batch": sizes.log_prob_micro_batch,
        "rollouts": sizes.rollouts,
        "mini_batch": sizes.mini_batch,
        "tensor_parallel": job.tensor_parallel,
        "sequence_parallel": job.sequence_parallel,
        "memory_gib": job.cards.memory_gib,
        "gpu_memory_utilization": job.gpu_memory_utilization,
    }
    if not generates and job.gpu_memory_utilization == 0:
        del numbers["gpu_memory_utilization"]
    wrong = next((name for name, value in numbers.items() if value <= 0), None)
    if wrong is not None or job.gpu_memory_utilization > 1:
        name = wrong or "gpu_memory_utilization"
        key = "placement.share" if name == "gpu_memory_utilization" else "placement.number"
        raise BadInput(Message(key, {"name": name, "value": f"{numbers[name]:g}"}))
