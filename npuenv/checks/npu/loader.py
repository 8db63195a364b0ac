"""Check of the loader's access to the driver's libraries on this machine. Only a loader error decides: if no library
was missing, the folders in its settings do not matter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.checks.base import card_check, fail, fix_for, ok, skip
from npuenv.checks.npu.driver import library_path
from npuenv.checks.session.variables import loader_path
from npuenv.core.fact import Evidence, Fact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.python.interpreter import Import

_MISSED = re.compile(r"(lib[\w.+-]+\.so[\w.]*): cannot open shared object file")
_SOURCE = "Ascend/pytorch troubleshooting: ImportError libascend_hal.so; CANN installation guide, LD_LIBRARY_PATH"


def _library_path(context: Context) -> CheckResult:
    """A library that an import could not load although it is in a driver folder that the session does not name."""
    folders = context.facts.npu.library_files.value
    if not folders:
        return skip("npu.library-path-skip")
    if context.facts.npu.smi_trouble.value is not None and context.facts.npu.smi_trouble.value.library:
        return skip("npu.see-npu-smi")
    tried = 0
    for fact in (context.facts.python.import_torch_npu, context.facts.python.import_torch):
        tried += fact.value is not None
        for library, line in _missed(fact):
            folder = next((path for path, names in folders.items() if library in names), "")
            if folder and folder not in loader_path(context):
                return _not_named(context, folder, library, line)
    return ok("npu.library-path-ok") if tried else skip("npu.library-path-skip")


def _missed(fact: Fact[Import]) -> Iterator[tuple[str, Evidence]]:
    for text in fact.value.errors if fact.value else ():
        found = _MISSED.search(text)
        if found:
            yield found[1], Evidence(fact.evidence[0].command if fact.evidence else "import", text)


def _not_named(context: Context, folder: str, library: str, line: Evidence) -> CheckResult:
    fix = fix_for("npu.library-path", ("export", f"LD_LIBRARY_PATH={library_path(context)}"), folder=folder)
    shown = (line, Evidence(f"ls {folder}", library), Evidence("environment", f"LD_LIBRARY_PATH lacks {folder}"))
    return fail("npu.library-path-fail", *shown, fix=fix, library=library, folder=folder)


CHECKS = (card_check("driver.library-path", ("npu.library_files",), _SOURCE, _library_path, level=1),)
