"""What the sentence for a failed program names."""

from __future__ import annotations

from npuenv.execute.failures import reason
from npuenv.plan import Run


def test_the_program_is_named_and_not_what_it_was_given() -> None:
    uv = Run(("/opt/bin/uv", "pip", "install", "-r", "/t/rest.txt"))
    assert reason("boom", uv, 3).args == {"program": "uv", "code": 3, "line": "boom"}
    assert reason("", uv, -9).args == {"program": "uv", "signal": 9}
    assert reason("error: Connection refused", uv, 2).args["program"] == "uv"
