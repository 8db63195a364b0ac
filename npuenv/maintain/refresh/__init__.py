"""Compares the matrix with what package indexes say now, and proposes rows. It changes nothing by itself.

`propose` reads the versions, wheels and sdists of torch-npu, triton-ascend, vllm-ascend and vllm; `as_diff` puts its
proposals into one text. What only the vendor's documents say, such as the CANN a torch_npu is recommended for, no
index knows: such fields of a new row stay empty.
"""

from npuenv.maintain.refresh.proposal import Proposal, as_diff
from npuenv.maintain.refresh.propose import NAMES, propose

__all__ = ["NAMES", "Proposal", "as_diff", "propose"]
