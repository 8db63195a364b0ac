"""Facts of the target interpreter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.facts.python import interpreter

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.fact import Fact
    from npuenv.host.base import Host

FACTS: dict[str, Callable[[Host], Fact[Any]]] = {
    "interpreter": lambda host: interpreter.interpreter(host, "/opt/env/bin/python"),
    "imports": lambda host: interpreter.imports(host, "/opt/env/bin/python", "torch"),
    "devices": lambda host: interpreter.devices(host, "/opt/env/bin/python"),
}
