"""Facts of the cards' network. The answers of hccn_tool itself have cases of their own: test_hccn_cases.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.hccn import conf

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "hccn_conf": conf.hccn_conf,
    "hccn_rank_table": conf.ranks,
    "hccn_place": conf.hccn_tool,
}
