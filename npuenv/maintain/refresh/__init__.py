"""Compares the matrix with the package indexes or upstream's repositories, and proposes rows. It changes nothing.

`propose` reads the versions, wheels and sdists of torch-npu, triton-ascend, vllm-ascend and vllm; `propose_from_tree` a
checkout or an archive of vllm-ascend or verl; `as_diff` puts proposals into one text. What only the vendor's documents
say, such as the CANN a torch_npu is recommended for, neither knows: such fields of a new row stay empty.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message
from npuenv.index.pages import Indexes
from npuenv.maintain.refresh.from_files import propose_from_tree
from npuenv.maintain.refresh.proposal import Proposal, Refresh, as_diff
from npuenv.maintain.refresh.tables import torch_npu, triton_ascend, vllm, vllm_ascend

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from npuenv.facts.pip import PipSettings
    from npuenv.matrix.tables import Matrix


__all__ = ["Proposal", "as_diff", "propose", "propose_from_tree"]

NAMES = ("torch-npu", "triton-ascend", "vllm-ascend", "vllm")


def propose(
    matrix: Matrix,
    settings: PipSettings,
    names: Collection[str],
    on_step: Callable[[Message], None],
    *,
    is_thorough: bool = False,
    today: str = "",
) -> tuple[Proposal, ...]:
    """The changes that would bring the matrix level with the indexes pip is set up with. Nothing is changed.

    `names`: packages out of NAMES; empty: all. `vllm` stands for the vllm version of every vllm-ascend row; the
    partners of proposed rows are read with `vllm-ascend` in any case. `on_step` gets what is being read, what was
    skipped and which sources contradict each other. `is_thorough`: files that are older than the day their row was
    read are read again too (0.5 GB of sdists). `today`: YYYY-MM-DD, the date of new rows; "": this day.
    Raises: BadInput for a name that is none of NAMES, or without `pypi-simple`; CannotTell where an index is silent.
    """
    strangers = sorted(set(names) - set(NAMES))
    if strangers:
        raise BadInput(
            Message("refresh.unknown-name", {"name": strangers[0]}), Message("refresh.hint-name", {"names": NAMES})
        )
    wanted = [name for name in NAMES if not names or name in names]
    with Indexes(settings) as indexes:
        day = today or datetime.date.today().isoformat()
        asked = Refresh(matrix, on_step, day, indexes=indexes, is_thorough=is_thorough)
        found: list[Proposal] = []
        for name, read in (("torch-npu", torch_npu), ("triton-ascend", triton_ascend), ("vllm-ascend", vllm_ascend)):
            found += read(asked) if name in wanted else ()
        partners = {*asked.partners, *((row.vllm for row in matrix.vllm_ascend) if "vllm" in wanted else ())}
        return (*found, *(vllm(asked, partners) if partners else ()))
