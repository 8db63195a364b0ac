"""Signs of how it ended: something failed, and where, or ran to its end, and which of the two came last.

Start from `outcome`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.diagnose.frames import frames
from npuenv.diagnose.recovery import Recovery, runs_of, went_on
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
    r"^\s*(?:\[[\d:., TZ-]{19,32}\] |E\s+)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)\b(?::|$)"
    r"|^\s*Traceback|^Error\b|\bAborted \(core dumped\)"
    r"|Segmentation fault|^\s*\[ERROR\]|^\s*ERROR: "
    r"|\bERR\d{5}\b|^\s*E[A-Z0-9]\d{4}: "
    r"|\[[Ee]rror\]|fatal error:|\berror: |exec format error|cannot open shared object"
    r"|undefined symbol|ret is -\d"
    r"|^docker: Error|\*\*\* .* Error \d|\bFAILED\b|Error response from daemon|\bCMake Error\b|No solution found"
    r"|^\s*\[?E\d{4} |: command not found|No such file or directory$|\bcore dumped\b|\b[Pp]ermission denied\b"
    r"|execute failed|错误码|(?<!没有)(?<!没)(?<!任何)报错|\] Error \d|Failed (?:building wheel|to build) "
    r"|returned non-zero exit status|undefined reference to|out of memory\. Tried to allocate"
)
# What failed below Python: there a version of CANN or of the driver can be the reason.
_NATIVE = re.compile(
    r"error code|aclnn|undefined symbol|core dumped|Segmentation|HCCL|hccl|\bE[A-Z]\d{4}\b|\bE\d{5}\b|ERR\d{5}\b"
    r"|shared object|'_?npu_|result = |aicore|libtorch_npu|\bAcl|\bacl|Inner [Ee]rror|error no|\bdrv"
)
# An operator that says itself which shape, size or attribute it does not take: a fault of the model or the release.
_REFUSED = re.compile(
    r"unsupported[ \w]{0,24}(?:shape|mask|layout|head)|(?:shape|head_?dim|head ?num|dims?|axis|mask|layout|stride"
    r"|block_?size|hidden size|seq_?len|n_?heads?)\b[^\n]{0,80}\b(?:invalid|illegal|not support\w*|unsupported"
    r"|should (?:be|equal)|must (?:be|equal)|mismatch|not match|greater than|less than|exceeds?|out of range"
    r"|not equal|cannot be)|(?:invalid|illegal|not support|wrong) [\w ]{0,20}(?:shape|dim|head|layout)", re.IGNORECASE,
)  # fmt: skip
_OPERATOR = ("EZ9999", "EZ1001", "EZ1009", "EZ1010", "aclnn", "tiling", "op_name", "OpName", "161002", "561002")
# Failures that no version of CANN, of the driver or of torch_npu explains.
_EXPLAINED = re.compile(
    r"out of memory|address already in use|no space left|too many open files|must be divisible|maximum context"
    r"|aicore exception|vector core exception|MTE (?:instruction|ddr)|DDR address|shapes cannot be multiplied"
    r"|Getting socket times out|EI00(?:02|04|06|13|15|16|19)|EJ0003|Heartbeat Lost|stream resources? (?:are|is)"
    r"|No available memory for the cache|in forked subprocess|input shape|shape of self|size mismatch", re.IGNORECASE,
)  # fmt: skip
# Lines that say `error` and are known to be printed by runs that are well.
_NOISE = (
    "TBE Subprocess[task_distribute] raise error[]",
    "main process disappeared",
    "function operator()",
    "ERR99999",
)


def recovery(text: Text) -> Recovery:
    """The errors of the report after which the same run went on."""
    return went_on(text.lines, list(_failures(text.lines)))


def outcome(text: Text, recovered: Recovery) -> dict[str, Line]:
    """`worked`, `failed`, `failed-natively`, `ended-well` where nothing failed after the last success; and frames."""
    signs: dict[str, Line] = {}
    good = max((line for wanted in _WORKED for line in text.all(wanted)), key=_number, default=None)
    bad = list(_failures(text.lines))
    if good is not None:
        signs["worked"] = good
        if not any(line.number > good.number for line in bad) and not _is_another_run(text, bad, good):
            signs["ended-well"] = good
    if recovered.last is not None:
        signs.setdefault("worked", recovered.last)
        signs.setdefault("ended-well", recovered.last)
    bad = [line for line in bad if line.number not in recovered.lines]
    if bad:
        signs["failed"] = bad[0]
    signs.update(frames(text, bad))
    native = next((line for line in bad if _NATIVE.search(line.text[:400])), None)
    if native is not None:
        signs["failed-natively"] = native
    signs.update(_explained(text, bad))
    signs.update(_crashed_at_import(text))
    return signs


def _is_another_run(text: Text, bad: Sequence[Line], good: Line) -> bool:
    """Whether what worked was typed otherwise than what failed last: a way around it, or a test that tells it apart."""
    typed = runs_of(text.lines) if bad else {}
    failed = typed.get(bad[-1].number, "") if bad else ""
    return bool(failed) and typed[good.number] != failed


_CRASHED = ("Segmentation fault", "core dumped", "Illegal instruction", "Bus error", "段错误")


def _crashed_at_import(text: Text) -> Iterator[tuple[str, Line]]:
    """A crash right below a typed import of torch_npu, or with a frame of its import above or below."""
    asked = list(text.all("import*torch_npu"))
    asked += text.all("torch_npu/__init__.py*in <module>")
    for line in (line for word in _CRASHED for line in text.all(word)):
        if any(abs(line.number - each.number) <= 12 for each in asked):
            yield "crashed-at-import", line


def _explained(text: Text, bad: Sequence[Line]) -> Iterator[tuple[str, Line]]:
    """`operator-refuses` and `explained`: what failed says why itself; `installed` where pip ended well."""
    for line in text.with_any(tuple(word.lower() for word in _OPERATOR)) if bad else ():
        if _REFUSED.search(line.text[:500]) and "BFLOAT16" not in line.text:
            yield "operator-refuses", line
            yield "explained", line
    for line in bad:
        if _EXPLAINED.search(line.text[:500]):
            yield "explained", line
    done = next(text.all("Successfully installed"), None)
    if done is not None and not any(line.number > done.number for line in bad):
        yield "installed", done


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
