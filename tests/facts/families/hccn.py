"""Facts of the cards' network. The answers of hccn_tool itself have cases of their own: test_hccn_cases.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.hccn import rank_table, tls, tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "hccn_conf": tls.hccn_conf,
    "hccn_rank_table": rank_table.ranks,
    "hccn_place": tool.hccn_tool,
}
