"""What the tests of reports share: findings made by hand, and facts of a machine of which nothing was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message
from npuenv.facts.collect import collect

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.collect import Facts


@pytest.fixture
def blank() -> Facts:
    """The facts of a machine of which only the variables are known."""
    from tests.support.scripted_host import ScriptedHost

    return collect(ScriptedHost(variables={"HOME": "/root", "PATH": "/usr/bin"}), only=frozenset())


@pytest.fixture
def found() -> Callable[..., Finding]:
    """Makes a finding: `found("cards.healthy", Status.FAIL, "line of evidence", fix=Fix(...))`."""

    def make(
        check: str, status: Status = Status.FAIL, line: str = "a line", *, fix: Fix | None = None, says: str = "{has}"
    ) -> Finding:
        message = Message("doctor.source", {"source": says})
        evidence = (Evidence("a command", line),) if line else ()
        return Finding(check, status, message, evidence, "a document", fix)

    return make
