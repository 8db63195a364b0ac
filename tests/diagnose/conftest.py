"""What the tests of the diagnosis share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.diagnose import diagnose
from npuenv.host.redact import Redactor
from npuenv.host.report import read_paste

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.diagnose import Diagnosis


@pytest.fixture
def diagnosed() -> Callable[[str], Diagnosis]:
    """A function from the text of a report to its diagnosis, redaction included."""
    return lambda text: diagnose(read_paste(text.encode(), Redactor().text))
