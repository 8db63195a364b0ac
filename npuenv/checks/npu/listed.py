"""The card table for checks: there, or the verdict in its place. Start from `without_table`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import skip, unsure
from npuenv.facts.base import State

if TYPE_CHECKING:
    from npuenv.checks.base import Context, Verdict

# Known where npu-smi failed, absent where it gave a table: a check that reads this fact is run in both cases.
TABLE = ("npu.smi_trouble",)


def without_table(context: Context) -> Verdict | None:
    """What a check about listed cards comes to where none is listed; None where some are.

    A tool that does not work is told once, by the check about the tool.
    """
    npu = context.facts.npu
    if npu.smi.value is not None and npu.smi.value.cards:
        return None
    if npu.smi_trouble.is_known:
        return unsure("npu.see-npu-smi", *npu.smi_trouble.evidence)
    if npu.smi.state is State.UNKNOWN:
        return unsure("unknown-input", *npu.smi.evidence, facts=("npu.smi",))
    return skip("no-table")
