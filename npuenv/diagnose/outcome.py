"""Signs of how a run ended: what failed and where, and whether something worked after that."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from npuenv.diagnose.search import named
from npuenv.diagnose.tracebacks import traceback_signs
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.diagnose.search import Text
    from npuenv.host.report import PasteLine

_WORKED = (
    "Application startup complete", '" 200 OK', "Generated text:", "Uvicorn running on", "Avg generation throughput",
    "Engine 000: Avg", "step:*actor/", "global_step:", "Training completed", "train_runtime",
    "Output token throughput", "Request throughput", "device='npu:", "verification successful",
    "Graph capturing finished", "lm loss:", "'grad_norm':",
)  # fmt: skip
_FAILED = re.compile(
    r"^\s*(?:\[[\d:., TZ-]{19,32}\] |E\s+)?(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception|NotFound|Interrupt)\b(?::|$)"
    r"|(?:^|[\s:：，\]])(?:\w+\.)*[A-Z]\w*(?:Error|Exception): ?\S"
    r"|^\s*Traceback|^\s*File \"[^\"]+\", line \d+, in |\(E[A-Z0-9]\d{4}\): |^Error\b|\bAborted \(core dumped\)"
    r"|Segmentation fault|^\s*(?:\S+: )?Bus error\b|段错误|总线错误|^\s*\[ERROR\]|^\s*ERROR: "
    r"|\bERR\d{5}\b|^\s*E[A-Z0-9]\d{4}: "
    r"|\[[Ee]rror\]|fatal error:|\berror: |exec format error|cannot open shared object"
    r"|undefined symbol|ret is -\d"
    r"|^docker: Error|\*\*\* .* Error \d|\bFAILED\b|Error response from daemon|\bCMake Error\b|No solution found"
    r"|^\s*\[?E\d{4} |: command not found|No such file or directory$|\bcore dumped\b|\b[Pp]ermission denied\b"
    r"|is not supported by <class '|execute failed|错误码|(?<!没有)(?<!没)(?<!任何)报错|\] Error \d"
    r"|Failed (?:building wheel|to build) "
    r"|\bcannot import name '|(?:object|module '[\w.]+') has no attribute '|\b[A-Z]\w+Conflict: |^(?:fatal|FATAL): "
    r"|returned non-zero exit status|undefined reference to|out of memory\. Tried to allocate"
)
# What failed below Python: there a version of CANN or of the driver can be the reason.
_NATIVE = re.compile(
    r"error code|aclnn|undefined symbol|core dumped|Segmentation|HCCL|hccl|\bE[A-Z]\d{4}\b|\bE\d{5}\b|ERR\d{5}\b"
    r"|shared object|'_?npu_|result = |aicore|libtorch_npu|\bAcl|\bacl|Inner [Ee]rror|error no|\bdrv"
)
# Somebody says that something fails; what only asks whether it would does not say so.
_COMPLAINS = (
    "报错", "启动报", "时报", "import 报", "训练报", "超时退出", "失败", "无法", "装不", "起不来", "不了", "出错",
    "异常退出", "就 OOM", "就OOM", " fails", " failed", "cannot ", "can't ", "can not ", "unable to", "crash", "error:",
    "not work", "n't work", "does not run", "[bug]", "未成功", "failed to ", " OOM", "n't support", "not support",
)  # fmt: skip
# That a run which had worked does so no more, in the words of whom it happened to.
_STOPPED = (
    "crash", "崩溃", "卡死", "卡住", "hangs", " hang", "stuck", "挂起", "请求超时", "全部超时", "no response", "无响应",
    "报错退出", "异常退出", "服务挂", "dies", "died",
)  # fmt: skip
_TORCH = r"(?<![A-Za-z_-])(?:py)?torch(?:[_-]?npu)?(?![A-Za-z_-])"
_PRODUCT = r"(?:CANN|vllm(?:[_-]ascend)?|torch(?:[_-]npu)?|triton(?:[_-]ascend)?|verl|driver|驱动)"
_CHANGES = (
    r"(?<![\w-])(?:uninstall|remov|delet|replac|overw|overrid|downgrad|upgrad|reinstall|becom|chang|pull|switch)\w*"
    r"|卸载|替换|覆盖|降级|升级|降到|升到|变成|变为|换成|装成"
)
# What a person says of versions, whichever the words: a verb, the name of a package, and numbers.
_SAID = {
    "torch-replaced": re.compile(
        rf"(?:(?<!un)install(?!\w*:)|安装|装)[^\n]{{0,160}}?(?:(?:{_CHANGES})[^\n]{{0,40}}?{_TORCH}"
        rf"|{_TORCH}[^\n]{{0,40}}?(?:{_CHANGES}))[^\n]{{0,60}}?\d+\.\d+", re.IGNORECASE,
    ),
    "version-not-found": re.compile(
        r"(?<![\w-])(?:torch|vllm|triton)[_-](?:npu|ascend)\W{0,6}v?\d+\.\d[\w.+]*[^\n]{0,30}?"
        r"(?:不存在|找不到|没有这个|下载不|装不|无法[^\n]{0,8}?(?:下载|获取|安装|找到)|does ?n[o']t exist"
        r"|not (?:exist|be found|found|available))", re.IGNORECASE,
    ),
    "another-release-works": re.compile(
        rf"(?:(?:{_PRODUCT}[-_ ]?|(?<![A-Za-z_\d.-]))v?\d+\.\d+[\w.]*|:[\w.-]*(?:latest|main)[\w.-]*)[^\n]{{0,60}}?"
        r"(?:works? (?:as|fine|well|normally|without|correctly|ok)|(?:is|are|was) (?:fine|ok)\b"
        r"|(?<![不非法])(?<!不能)(?<!没有)(?<![没未])正常(?!下载|获取|安装|加载)|没问题|没有?(?:这个|此|该)?问题|无(?:此|该)?问题"
        r"|no such (?:issue|problem|error))", re.IGNORECASE,
    ),
}  # fmt: skip
# An error that asks for CUDA, or that knows no NPU. Running out of memory and libraries of CUDA have rows of their own.
_WANTS_CUDA = re.compile(
    r"(?<!lib)(?:cuda|nccl|nvidia|nvml|nvtx)(?!\w*\.so)|\bGPUs? (?:is|are) required|no GPU|PrivateUse1"
    r"|\bnpu\W{0,2} (?:is|are) (?:not|un)|not compiled with \W?npu|platform\W{0,2} npu"
    r"|not (?:available|supported|implemented|compatible) (?:on|in|for|with|by) \W{0,2}(?:ascend )?npu"
    r"|(?:unsupported|unknown|invalid|unexpected) (?:device|backend|accelerator)\W[^\n]{0,30}npu"
    r"|does(?: not|n't) support \W{0,2}npu",
    re.IGNORECASE,
)
_NOT_WANTS_CUDA = re.compile(
    r"out of memory|undefined symbol|cannot open shared|CUDA_(?:VISIBLE|HOME)|nvcc|No module named|nvidia-smi",
    re.IGNORECASE,
)
# The bar of progress of a training run.
_STEPS = re.compile(r"(?:^\s*|train\w*:? *|epoch[^%]{0,20}?)\d+%\|[^\n]*?\b(\d{1,7})/(\d{1,7}) \[", re.IGNORECASE)
# Lines that say `error` and are known to be printed by runs that are well.
_NOISE = (
    "TBE Subprocess[task_distribute] raise error[]",
    "main process disappeared",
    "function operator()",
    "ERR99999",
)


def outcome_signs(text: Text) -> dict[str, PasteLine]:
    """`failed`, `failed-last`, `failed-natively`, `trained`, `stopped`, `cuda-wanted`; `ended-well` where something
    worked and nothing failed after that."""
    signs: dict[str, PasteLine] = {}
    good = max((line for wanted in _WORKED for line in text.all(wanted)), key=lambda line: line.number, default=None)
    bad = list(_failures(text.lines))
    if good is not None and not any(line.number > good.number for line in bad):
        signs["ended-well"] = good
    if bad:
        signs["failed"], signs["failed-last"] = bad[0], bad[-1]
    signs.update(("trained", line) for line in text.with_any(("it]", "it/s")) if _has_trained(line.text))
    signs.update(itertools.islice(named(text, "complains", _COMPLAINS), 1))
    signs.update(itertools.islice(named(text, "stopped", _STOPPED), 1))
    wants = next((line for line in bad if _wants_cuda(line.text[:400])), None)
    if wants is not None:
        signs["cuda-wanted"] = wants
    signs.update(_said(text.lines))
    signs.update(traceback_signs(text))
    native = next((line for line in bad if _NATIVE.search(line.text[:400])), None)
    if native is not None:
        signs["failed-natively"] = native
    done = text.first("Successfully installed")
    if done is not None and not any(line.number > done.number for line in bad):
        signs["installed"] = done
    return signs


def _has_trained(text: str) -> bool:
    """Whether the bar of a training run stands behind its tenth step and before its end."""
    return any(10 <= int(step) < int(steps) for step, steps in _STEPS.findall(text[:400]))


def _said(lines: Sequence[PasteLine]) -> Iterator[tuple[str, PasteLine]]:
    for sign, pattern in _SAID.items():
        said = (line for line in lines if pattern.search(line.text[:600]) and typed_command(line.text) is None)
        yield from ((sign, line) for line in itertools.islice(said, 1))


def _failures(lines: Sequence[PasteLine]) -> Iterator[PasteLine]:
    for line in lines:
        if line.level in ("warning", "info") and not line.text.lstrip().startswith("Traceback"):
            continue
        if _FAILED.search(line.text[:300]) and typed_command(line.text) is None and not _is_noise(line):
            yield line


def _wants_cuda(text: str) -> bool:
    return bool(_WANTS_CUDA.search(text)) and not _NOT_WANTS_CUDA.search(text)


def _is_noise(line: PasteLine) -> bool:
    return any(word in line.text for word in _NOISE)
