"""How long a run may be silent: as long as the last note said, and no longer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import StepFailed
from npuenv.smoke import METRICS, follow
from npuenv.smoke.run import LONGEST_SILENCE_S, _announced_s

if TYPE_CHECKING:
    from pathlib import Path


class Quiet:
    """A process that writes nothing more and ends after some looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def wait(self, timeout_s: float) -> int | None:
        import time

        time.sleep(0.02)
        self.looks -= 1
        return 0 if self.looks <= 0 else None


def written(out: Path, *records: dict[str, object]) -> Path:
    (out / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return out


NOTE: dict[str, object] = {"kind": "note", "what": "compiling", "may_take_s": 60.0}


def test_silence_after_a_note_is_no_hang(tmp_path: Path) -> None:
    found = list(follow(Quiet(20), written(tmp_path, NOTE), silence_limit_s=0.1))  # type: ignore[arg-type]
    assert [record["kind"] for record in found] == ["note"]


def test_the_next_record_ends_what_the_note_allowed(tmp_path: Path) -> None:
    out = written(tmp_path, NOTE, {"kind": "stage", "name": "matmul"})
    with pytest.raises(StepFailed):
        list(follow(Quiet(200), out, silence_limit_s=0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("record", "seconds"),
    [
        (NOTE, 60.0),
        ({**NOTE, "may_take_s": 1e9}, LONGEST_SILENCE_S),
        ({**NOTE, "may_take_s": "nan"}, 0.0),
        ({**NOTE, "may_take_s": float("nan")}, 0.0),
        ({"kind": "note", "what": "x"}, 0.0),
        ({"kind": "step", "may_take_s": 60.0}, 0.0),
    ],
)
def test_only_a_note_with_a_number_lifts_the_limit(record: dict[str, object], seconds: float) -> None:
    assert _announced_s(record) == seconds
