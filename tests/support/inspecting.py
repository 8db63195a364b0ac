"""The inspector of an environment asked in this process, for tests in which its process is not the point."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

from npuenv.facts import conditions
from npuenv.host import Ran
from npuenv.install import env_verifier as inspector
from npuenv.install import executor as work
from npuenv.install.env_verifier import inspection, program

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.core.plan import Run, Step
    from npuenv.host import Host
    from npuenv.install.executor import ExecutionContext

_ask, _run = conditions._inspect, work._run


def inspect_here(host: Host, verb: str, of: tuple[str, ...]) -> tuple[Ran, str]:
    """What the inspector says, where the one in the environment is npuenv's present one; else it is asked itself.

    In place of `npuenv.facts.conditions._inspect`. That the program runs by itself, with the environment's Python,
    `tests/install/test_inspector.py` shows, and every step that mends or verifies.
    """
    root = Path(of[0])
    its_own, sites = root / conditions.INSPECTOR, list(root.glob("lib/python*/site-packages"))
    is_present = its_own.is_file() and its_own.read_text() == inspector.text()
    if not is_present or len(sites) != 1 or not (root / "bin/python").exists():
        return _ask(host, verb, of)
    code, out = inspected(verb, *of)
    return Ran((str(root / "bin/python"), verb, *of), code, out, ""), f"{its_own} {verb} {root}"


def inspected(verb: str, root: str, *words: str) -> tuple[int, str]:
    """Exit code and output of npuenv's present inspector, as with the Python of that environment."""
    (site,) = Path(root).glob("lib/python*/site-packages")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.setattr(inspection, "sysconfig", SimpleNamespace(get_paths=lambda: {"purelib": str(site)}))
        patch.setattr(program, "sys", SimpleNamespace(executable=f"{root}/bin/python"))
        code = program.main([verb, root, *words])
    return code, out.getvalue()


def run_here(
    action: Run, step: Step, session: ExecutionContext, held: int, on_line: Callable[[str | None], None]
) -> int:
    """A step's look at the environment, in place of the executor's `_run`; every other program runs as always."""
    words = action.argv[3:]
    if not (words and words[0].endswith(conditions.INSPECTOR)) or words[1] == "mend":
        return _run(action, step, session, held, on_line)
    code, out = inspected(*words[1:])
    session.log(step).write_text(out)
    for line in out.splitlines():
        on_line(line)
    return code
