"""Hand-made records of a run with nothing wrong, and ways to change them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.core.finding import Finding, Status
from npuenv.smoke.findings import STAGES as SECOND_OPINION
from npuenv.smoke.judge import judge

if TYPE_CHECKING:
    from collections.abc import Mapping

Record = dict[str, Any]

STEP: Record = {
    "kind": "step", "actor/loss": 0.1, "actor/pg_loss": 0.1, "actor/kl_loss": 0.01, "actor/entropy": 1.0,
    "actor/grad_norm": 0.5, "critic/score/mean": 0.5, "groups_with_signal": 4,
    "training/rollout_logprobs_diff_max": 1e-6, "training/rollout_logprobs_diff_mean": 1e-7,
    "training/rollout_kl": 0.0,
}  # fmt: skip
SETTINGS: Record = {
    "task": "successor", "rollouts_per_prompt": 8, "estimator": "grpo", "dtype": "float32", "engine": "builtin",
    "matmul_precision": "highest", "noise_stages": 0, "ranks": 1,
}  # fmt: skip
STAGES: dict[str, Record] = {
    "packages": {"passed": None},
    "import": {"passed": True, "torch": "2.13.0", "seconds": 1.1},
    "device": {"passed": True, "type": "cpu", "num_threads": 1, "cores": 2, "matmul_precision": "highest"},
    "matmul": {"passed": True, "device": "cpu", "precision": "highest", "errors": {"float32": 3e-6, "bfloat16": 1e-2}},
    "decoder": {"passed": True, "logprob_error": 1e-6, "gradient_error": 1e-6},
    "memory": {"passed": True, "needed_bytes": 1 << 20, "free_bytes": 1 << 30},
    "collective": {"passed": None},
    "warm-up": {"passed": None},
    "generation": {
        "passed": True, "end_token": 18, "answers": 100, "ended": 60, "groups": 10, "groups_of_one_text": 3,
    },
    "reward": {
        "passed": True, "answers": 100, "not_finite": 0, "lowest": 0.0, "highest": 1.0, "groups": 10,
        "groups_with_signal": 7, "judged_again": 100, "differ": 0, "is_reordered": False, "lost": 0,
    },
    "update": {"passed": True, "steps": 3, "lr_highest": 1e-3, "not_finite": 0, "moved": 0.1},
    "mask": {"passed": True},
    **{name: {"passed": True, "steps": 3} for name in SECOND_OPINION},
    "sampler-weights": {"passed": True},
    "validation": {"passed": True},
    "checkpoint": {"passed": True},
}  # fmt: skip


def good_run(num_steps: int = 3) -> list[Record]:
    """30 held-out prompts, none right before, all right after, and every stage as it should be.

    As long as the default run, of whose 200 steps only some have a record here.
    """
    evaluation = {"kind": "eval", "split": "heldout", "num_prompts": 30}
    return [
        {
            "kind": "header", "schema": "npuenv.metrics/1", "settings": {**SETTINGS, "steps": 200},
            "convention": {"name": "verl", "group_of_one": "reward"},
        },
        {**evaluation, "when": "before", "correct": [0] * 30},
        *({**STEP, "step": index} for index in range(1, num_steps + 1)),
        {**evaluation, "when": "after", "correct": [1] * 30},
        *({"kind": "stage", "name": name, "seconds": 0.1, "reason": None, **said} for name, said in STAGES.items()),
        {"kind": "end", "status": "completed", "wall_s": 3.0, "steps_done": 200},
    ]  # fmt: skip


def states(findings: tuple[Finding, ...]) -> Mapping[str, Status]:
    return {finding.check: finding.status for finding in findings}


def not_fine(records: list[Record], *, exit_code: int | None = 0, log_tail: str = "") -> dict[str, tuple[Status, str]]:
    """Status and key of the findings that are neither ok nor left out."""
    found = judge(records, exit_code=exit_code, log_tail=log_tail)
    return {
        each.check: (each.status, each.says.key.partition(".")[2])
        for each in found
        if each.status not in (Status.OK, Status.SKIP)
    }


def changed(kind: str, **values: object) -> list[Record]:
    """The good run with some fields of every record of a kind replaced."""
    return [{**record, **values} if record["kind"] == kind else record for record in good_run()]


def restaged(name: str, **values: object) -> list[Record]:
    """The good run with some fields of one stage replaced."""
    return [{**record, **values} if record.get("name") == name else record for record in good_run()]


def reset(records: list[Record], **settings: object) -> list[Record]:
    """The records with other settings in their header."""
    return [{**r, "settings": {**r["settings"], **settings}} if r["kind"] == "header" else r for r in records]


def without(kind: str, **having: object) -> list[Record]:
    return [r for r in good_run() if not (r["kind"] == kind and all(r.get(k) == v for k, v in having.items()))]
