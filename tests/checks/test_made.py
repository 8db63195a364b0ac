"""What an environment of npuenv's own says of itself, from the files on disk to the finding."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest
from changes import HEALTHY, find

from npuenv.checks import Status
from npuenv.facts.manifest import MARKER, VERIFIED, described
from npuenv.host.local import LocalHost
from npuenv.messages import LANGUAGES, say

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.checks import Finding

LOCK = "aabbccddeeff"
MARK = {"stack": "cpu", "platform": "x86_64-cp311-glibc2.28", "lock": LOCK}
PROVEN = {"lock": LOCK, "at": "2026-01-02T03:04:05Z", "files": 900, "packages": 11, "tree": "00"}


def finding_of(root: Path, marker: object, verified: object) -> Finding:
    (root / ".npuenv").mkdir()
    for name, value in {MARKER: marker, VERIFIED: verified}.items():
        if value is not None:
            (root / name).write_text(value if isinstance(value, str) else json.dumps(value))
    python = dataclasses.replace(HEALTHY.python, made=described(LocalHost(), str(root)))
    return find(dataclasses.replace(HEALTHY, python=python), "python.made")


@pytest.mark.parametrize(
    ("marker", "verified", "status", "words"),
    [
        (None, None, Status.SKIP, "did not make"),
        ("{torn", None, Status.SKIP, "did not make"),
        ({**MARK, "status": "building"}, None, Status.FAIL, "never finished"),
        ({**MARK, "status": "building"}, PROVEN, Status.FAIL, "never finished"),
        ({**MARK, "status": "complete"}, None, Status.WARN, "not verified"),
        ({**MARK, "status": "complete"}, {**PROVEN, "lock": "of another"}, Status.WARN, "not verified"),
        ({**MARK, "status": "complete"}, PROVEN, Status.OK, "11 packages verified 2026-01-02T03:04:05Z"),
    ],
)
def test_only_a_finished_and_proven_environment_is_fine(
    tmp_path: Path, marker: object, verified: object, status: Status, words: str
) -> None:
    finding = finding_of(tmp_path, marker, verified)
    assert finding.status is status
    assert words in say(finding.says)
    if status in (Status.FAIL, Status.WARN):
        assert finding.fix is not None
        assert finding.fix.commands == (("npuenv", "install", "cpu", "--target", str(tmp_path)),)
        assert all(say(finding.fix.says, lang) for lang in LANGUAGES)
