"""What departs from a lock in a folder of packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.app.locking import compare_installed
from npuenv.core.errors import BadInput, ExitCode
from tests.cli.test_lock import cpu_stack, lock_by_hand

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")


def test_a_folder_without_the_packages_is_not_as_locked(tmp_path: Path) -> None:
    stack = cpu_stack()
    with pytest.raises(BadInput, match=r"consistent\.no-packages"):
        compare_installed(tmp_path, stack, lock_by_hand(stack, {}))
    (tmp_path / "lib/python3.11/site-packages").mkdir(parents=True)
    found = compare_installed(tmp_path, stack, lock_by_hand(stack, {}))
    assert found.exit_code is ExitCode.PROBLEMS and found.num_unexplained == len(found.found)
    assert ("torch", "consistent.not-as-locked") in {(each.who, each.says.key) for each in found.found}
    with pytest.raises(BadInput, match=r"consistent\.no-folder"):
        compare_installed(tmp_path / "none", stack, lock_by_hand(stack, {}))
