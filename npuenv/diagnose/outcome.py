"""Signs of how it ended: something failed, and where, or ran to its end, and which of the two came last.

Start from `outcome`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.diagnose.frames import frames
from npuenv.diagnose.recovered import Recovery, names_trouble, runs_of, went_on
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
# A step that measured this is no success. An infinite norm of the gradient alone is none: scaled losses begin so.
_NOT_A_NUMBER = re.compile(
    r"(?:(?:loss|entropy|\bkl|_kl|log_?probs?)\w*['\"]?\s*[:=]\s*(?:[\w.]{1,20}\()?[+-]?(?:nan|inf)"
    r"|grad_?norm['\"]?\s*[:=]\s*(?:[\w.]{1,20}\()?nan)\b", re.IGNORECASE,
)  # fmt: skip
_FAILED = re.compile(
    r"^\s*(?:\[[\d:., TZ-]{19,32}\] |E\s+)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)\b(?::|$)"
    r"|^\s*Traceback|^Error\b|\bAborted \(core dumped\)"
    r"|Segmentation fault|^\s*(?:\S+: )?Bus error\b|段错误|总线错误|^\s*\[ERROR\]|^\s*ERROR: "
    r"|\bERR\d{5}\b|^\s*E[A-Z0-9]\d{4}: "
    r"|\[[Ee]rror\]|fatal error:|\berror: |exec format error|cannot open shared object"
    r"|undefined symbol|ret is -\d"
    r"|^docker: Error|\*\*\* .* Error \d|\bFAILED\b|Error response from daemon|\bCMake Error\b|No solution found"
    r"|^\s*\[?E\d{4} |: command not found|No such file or directory$|\bcore dumped\b|\b[Pp]ermission denied\b"
    r"|execute failed|错误码|(?<!没有)(?<!没)(?<!任何)报错|\] Error \d|Failed (?:building wheel|to build) "
    r"|returned non-zero exit status|undefined reference to|out of memory\. Tried to allocate"
)
# How a run ends that says nothing itself: it was killed, or others say that it is gone. No version explains that, so
# these are no signs of a failure in which versions are looked for; they only take the word back that all is well.
_ENDED = re.compile(
    r"(?:^|\d\s+|\]\s*[+-]?\s+|: )(?:Killed|Terminated)(?:: \d+)?(?:\s{2,}|$)|\bKilled process \d|\bOOMKilled\b"
    r"|已杀死|已终止|被杀死|被 ?kill"
    r"|\b(?:[Ee]xited \(|exit(?:ed with)?[ _]?(?:code|status)[:= ]+\(?|exitcode[:= ]+)-?[1-9]"
    r"|\bkilled (?:due to|by)\b|\bmemory pressure \(OOM\)|\bSYSTEM_ERROR\b|\bSIG(?:KILL|TERM|BUS|SEGV|ABRT)\b"
    r"|[Ww]atchdog caught|\b(?:actor|worker|raylet|process|engine)\b[^\n]{0,24}\b(?:died|is dead|was killed)\b"
)
# A line that a log calls an error itself, and not a sentence with that word.
_LOGGED = re.compile(
    r"(?:\([^()\n]{0,80}\)\s*)?(?:\[[^\]\n]{0,60}\]:?\s*){0,4}[\d\s:.,TZ/|+\[-]{0,40}"
    r"(?:(?:ERROR|CRITICAL|FATAL)\b|E\d{3,4} )|.{0,100}[|-] ?(?:ERROR|CRITICAL|FATAL) ?[|-]"
)
_REFUSED_REQUEST = re.compile(r"\" 5\d\d\b")  # a server logs it as any other request
_KILLED = re.compile(r"\bKilled\b|被?已?杀死|\bSIGKILL\b|exitcode[:= ]+-9\b|\(137\)")
# What people write of a run that stands still.
_SILENT = re.compile(
    r"没有(?:任何)?(?:输出|反应|响应)|无(?:输出|响应|反应)|卡住|卡死|\b(?:hangs|hung|stuck|no output|freezes)\b"
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
    """`worked`, `failed`, `failed-natively`, `ended-well` where nothing failed after the last success; and frames.

    `broke-off`: where the last word is not good, though nothing says what failed: a step measured `no-number`, or
    something `killed` the run.
    """
    signs: dict[str, Line] = {}
    measured = (line for wanted in _WORKED for line in text.all(wanted))
    good = max((line for line in measured if not _is_no_number(line)), key=_number, default=None)
    bad = list(_failures(text.lines))
    if good is not None:
        signs["worked"] = good
        if not any(line.number > good.number for line in bad) and not _is_another_run(text, bad, good):
            signs["ended-well"] = good
    if recovered.last is not None:
        signs.setdefault("worked", recovered.last)
        signs.setdefault("ended-well", recovered.last)
    has_levels = good is None or good.level != "error"  # a collector can call every line an error
    broken = next((line for line in reversed(text.lines) if _breaks_off(line, has_levels=has_levels)), None)
    last = max((_number(line) for line in (good, recovered.last) if line is not None), default=0)
    if broken is not None and broken.number > last:
        signs["broke-off"] = broken
        signs.pop("ended-well", None)
        if _is_no_number(broken):
            signs["no-number"] = broken
        elif _KILLED.search(broken.text[:400]):
            signs["killed"] = broken
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


def _is_no_number(line: Line) -> bool:
    return _NOT_A_NUMBER.search(line.text) is not None


def _breaks_off(line: Line, *, has_levels: bool) -> bool:
    """Whether a line says that a run broke off or stands still, that a step went wrong, or is an error of any log.

    has_levels: whether the level of a line tells anything in this report
    """
    text = line.text[:400]
    if typed_command(text) is not None or _is_noise(line):
        return False
    if _REFUSED_REQUEST.search(text) is not None or _is_no_number(line):
        return True
    if line.level in ("warning", "info"):
        return False
    is_logged = has_levels and line.level == "error" and _LOGGED.match(line.shown) is not None
    return is_logged or _ENDED.search(text) is not None or _SILENT.search(text) is not None


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


def is_failure(line: Line) -> bool:
    """Whether a line that was not typed says that something failed or was killed."""
    is_said = line.level not in ("warning", "info") and _ENDED.search(line.text[:400]) is not None
    return is_said or any(True for _ in _failures((line,)))


def is_trouble(line: Line) -> bool:
    """The same of a line that only looks like it: in doubt it does."""
    if is_failure(line) or _breaks_off(line, has_levels=True):
        return True
    return line.level == "error" or (line.level not in ("warning", "info") and names_trouble(line))


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
