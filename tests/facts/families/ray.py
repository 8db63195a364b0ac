"""Facts of Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.ray import session, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "ray_status": lambda host: status.status(host, "/opt/env/bin/ray", 45.0),
    "ray_session": session.session,
    "ray_address": session.address,
    "ray_token": session.token,
}
