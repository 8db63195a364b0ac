"""The locks of many stacks as a Python program makes and verifies them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app import LockOptions, lock_published, verify_locks
from npuenv.core.errors import BadInput, ExitCode
from npuenv.lock.checking import Availability
from npuenv.lock.file import Lock, LockedPackage
from npuenv.lock.store import put_lock
from npuenv.resolve.types import Request
from tests.cli.test_lock import NOWHERE, TAG

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.slow
def test_architecture_and_python_choose_in_any_spelling(home: Path) -> None:
    request = Request(arch="arm64", python="3.14.0")
    found = lock_published(request, LockOptions(is_offline=True, out=home / "locks"))
    assert found.exit_code is ExitCode.UNKNOWN and found.error is not None
    assert {row.platform for row in found.rows} == {"aarch64-cp314-glibc2.28"}


def test_a_stack_that_is_impossible_from_the_start_needs_no_index(home: Path) -> None:
    found = lock_published(Request(stack="verl-950"), LockOptions(out=home / "locks"))
    assert (found.exit_code, found.error) == (ExitCode.FINE, None)
    assert found.rows and all(row.status == "impossible" and row.why for row in found.rows)
    with pytest.raises(BadInput, match=r"lock\.nothing-asked"):
        lock_published(Request(stack="verl-950", cann="8.5.0"), LockOptions(out=home / "locks"))


def test_all_locks_of_the_shelf_are_verified_where_none_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    packages = tuple(LockedPackage(name, "1.0", ("a" * 64,)) for name in ("base", "upper"))
    put_lock(Lock("tiny", TAG, "npuenv 1", packages), home / "some")
    monkeypatch.setattr("npuenv.lock.store.shipped_folder", lambda: home / "some")
    found = verify_locks()
    assert found.exit_code is ExitCode.UNKNOWN
    ((lock, rows),) = found.locks
    assert lock.stack == "tiny" and [row.offer for row in rows] == [
        Availability.OUT_OF_REACH,
        Availability.OUT_OF_REACH,
    ]
