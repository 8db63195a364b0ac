"""The program that imports a module in the target: what counts as imported, and from where."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from npuenv.facts.python import _LOADER
from npuenv.facts.target import text
from npuenv.host.local import LocalHost

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def answer(module: str, path: Path) -> str:
    ran = LocalHost().run(
        (sys.executable, "-c", _LOADER, "imports", module),
        env={"NPUENV_PROGRAM": text("imports"), "PYTHONPATH": str(path)},
        timeout_s=240.0,
    )
    assert ran.code == 0, ran.err
    return ran.out


def test_a_package_whose_init_is_gone_is_no_import(tmp_path: Path) -> None:
    (tmp_path / "halfgone").mkdir()
    (tmp_path / "halfgone" / "rest.py").write_text("")
    assert '"ok": false' in answer("halfgone", tmp_path)
    assert "__init__.py is missing" in answer("halfgone", tmp_path)


def test_a_whole_package_is_imported_with_its_version(tmp_path: Path) -> None:
    (tmp_path / "whole.py").write_text("__version__ = '1.2'")
    assert '"version": "1.2"' in answer("whole", tmp_path)


def test_what_lies_in_the_working_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported by accident')")
    monkeypatch.chdir(tmp_path)
    assert '"ok": true' in answer("textwrap", tmp_path / "none")


def test_a_module_that_prints_or_closes_its_output_does_not_touch_the_answer(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("import os\nprint('x' * 100, end='')\nos.close(1)\n__version__ = '3'\n")
    out = answer("loud", tmp_path)
    assert '"version": "3"' in out and "xxx" not in out


def test_an_error_whose_own_words_fail_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "class Odd(Exception):\n    def __str__(self):\n        raise ValueError('no words')\nraise Odd()\n"
    )
    assert '"errors": ["Odd: (says nothing)"]' in answer("odd", tmp_path)
