"""Compares the matrix with the package indexes or upstream's repositories, and proposes rows. It changes nothing.

`propose` reads the versions, wheels and sdists of torch-npu, triton-ascend, vllm-ascend and vllm; `propose_from_tree` a
checkout or an archive of vllm-ascend or verl; `as_diff` puts proposals into one text. What only the vendor's documents
say, such as the CANN a torch_npu is recommended for, neither knows: such fields of a new row stay empty.
"""

from npuenv.maintain.refresh.proposal import Proposal, as_diff
from npuenv.maintain.refresh.propose import propose
from npuenv.maintain.refresh.upstream_tree import propose_from_tree

__all__ = ["Proposal", "as_diff", "propose", "propose_from_tree"]
