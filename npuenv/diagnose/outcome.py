"""Signs of how it ended: something failed, and where, or ran to its end, and which of the two came last.

Start from `outcome`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.diagnose.frames import frames
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.diagnose.search import Text
    from npuenv.host.report import Line

_WORKED = (
    "Application startup complete", '" 200 OK', "Generated text:", "Uvicorn running on", "Avg generation throughput",
    "Engine 000: Avg", "step:*actor/", "global_step:", "Training completed", "train_runtime",
    "Output token throughput", "Request throughput", "device='npu:", "verification successful",
    "Graph capturing finished",
)  # fmt: skip
_FAILED = re.compile(
    r"^\s*(?:E\s+)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)\b(?::|$)|^Traceback"
    r"|\bAborted \(core dumped\)|Segmentation fault|^\[ERROR\]|^ERROR: |\bERR\d{5}\b|^E[A-Z0-9]\d{4}: |\[[Ee]rror\]"
    r"|fatal error:|\berror: |exec format error|cannot open shared object|undefined symbol|ret is -\d|^docker: Error"
    r"|\*\*\* .* Error \d|\bFAILED\b|Error response from daemon|\bCMake Error\b|No solution found|^\[?E\d{4} "
    r"|: command not found|No such file or directory$|\bcore dumped\b|\b[Pp]ermission denied\b|execute failed"
    r"|\] Error \d|Failed (?:building wheel|to build) |returned non-zero exit status|undefined reference to"
)
# What failed below Python: there a version of CANN or of the driver can be the reason.
_NATIVE = re.compile(
    r"error code|aclnn|undefined symbol|core dumped|Segmentation|HCCL|hccl|\bE[A-Z]\d{4}\b|\bE\d{5}\b|ERR\d{5}\b"
    r"|shared object|'_?npu_|result = |aicore|libtorch_npu|\bAcl|\bacl|Inner [Ee]rror|error no|\bdrv"
)
# Lines that say `error` and are known to be printed by runs that are well.
_NOISE = (
    "TBE Subprocess[task_distribute] raise error[]",
    "main process disappeared",
    "function operator()",
    "ERR99999",
)


def outcome(text: Text) -> dict[str, Line]:
    """`worked`, `failed`, `failed-natively`, `ended-well` where nothing failed after the last success; and frames."""
    signs: dict[str, Line] = {}
    good = max((line for wanted in _WORKED for line in text.all(wanted)), key=_number, default=None)
    bad = list(_failures(text.lines))
    if good is not None:
        signs["worked"] = good
        if not any(line.number > good.number for line in bad):
            signs["ended-well"] = good
    if bad:
        signs["failed"] = bad[0]
    signs.update(frames(text, bad))
    native = next((line for line in bad if _NATIVE.search(line.text[:400])), None)
    if native is not None:
        signs["failed-natively"] = native
    return signs


def _number(line: Line) -> int:
    return line.number


def _failures(lines: Sequence[Line]) -> Iterator[Line]:
    for line in lines:
        if line.level in ("warning", "info") and not line.text.lstrip().startswith("Traceback"):
            continue
        if _FAILED.search(line.text[:300]) and typed_command(line.text) is None and not _is_noise(line):
            yield line


def _is_noise(line: Line) -> bool:
    return any(word in line.text for word in _NOISE)
