"""What all tests share keeps them from what is set where they are started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_language_of_the_shell_that_starts_the_tests_reaches_none_of_them() -> None:
    code = "import runpy, sys; runpy.run_path(sys.argv[1])\n"
    code += "from npuenv.core.messages import language_from_environment as spoken; print(spoken())"
    argv = [sys.executable, "-c", code, str(Path(__file__).with_name("conftest.py"))]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "LC_ALL": "zh_CN.UTF-8", "LANG": "zh_CN.UTF-8"}
    ran = subprocess.run(argv, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("en\n", 0), ran.stderr
