"""Signs of how a run ended: what failed and through which packages, and whether something worked after that.

Also whether anything happened at all, or the text only explains (a guide, a list of known problems, code).
"""

from __future__ import annotations

import itertools
import math
import re
from typing import TYPE_CHECKING

from npuenv.diagnose.text import named
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.diagnose.text import Text
    from npuenv.host.report import PasteLine
    from npuenv.matrix.error_patterns import RoleRow


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
    "TBE Subprocess[task_distribute] raise error[]", "main process disappeared", "function operator()", "ERR99999",
)  # fmt: skip


def outcome_signs(text: Text, roles: Sequence[RoleRow]) -> dict[str, PasteLine]:
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
    wants = (line for line in bad if _WANTS_CUDA.search(line.text[:400]))
    asked = (("cuda-wanted", line) for line in wants if not _NOT_WANTS_CUDA.search(line.text[:400]))
    signs.update(itertools.islice(asked, 1))
    signs.update(_said(text.lines))
    signs.update(traceback_signs(text))
    native = (("failed-natively", line) for line in bad if _NATIVE.search(line.text[:400]))
    signs.update(itertools.islice(native, 1))
    done = text.first("Successfully installed")
    if done is not None and not any(line.number > done.number for line in bad):
        signs["installed"] = done
    signs.update(_role(text.lines, roles))
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
        is_failure = _FAILED.search(line.text[:300]) and typed_command(line.text) is None
        if is_failure and not any(word in line.text for word in _NOISE):
            yield line


_FRAME = re.compile(r'^\s*(?:E\s+)?File "([^"]+)", (?:line \d+|in \w)')
_INSTALLED = re.compile(r"(?:site|dist)-packages/([A-Za-z_]\w*)")
_SOURCE_TREE = re.compile(
    r"(?<!^/tmp)/(?:src/)?(vllm_ascend|vllm_omni|vllm|verl|torch_npu|torch|transformers|ray|triton|mindspeed|mindspeed_llm|megatron"
    r"|sglang|tbe|te_fusion|roll|lmdeploy|diffusers|accelerate|llamafactory|llmtuner|swift|trl|openrlhf|areal|slime|comfy"
    r"|fastchat|xtuner|opencompass|mmengine|ultralytics|unsloth|modelscope|FlagEmbedding|sentence_transformers|lightning"
    r"|open_clip|deepspeed|peft|xinference|ComfyUI[\w-]*)/"
)
_NO_NAME = re.compile(r"cannot import name '\w+' from '(\w+)")
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
# Names that projects give to their own folders.
_OWN_NAMES = frozenset((
    "utils", "util", "src", "lib", "libs", "core", "common", "config", "configs", "models", "model", "modules", "data",
    "dataset", "tools", "scripts", "test", "tests", "main", "app", "train", "trainer", "engine", "helpers", "examples",
))  # fmt: skip
_STANDARD = re.compile(r"/lib(?:64)?/python3[\d.]*/\w|^<frozen")
_RAISED = re.compile(r"^\s*(?:E\s+)?((?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)|AssertionError)\b(?::|\s*$)")
_BELOW = frozenset(("torch", "torch_npu", "python"))  # what frameworks and scripts call
# Frameworks that have code of their own for NPUs, and what an exception of theirs does not show: a refused setting.
_FRAMEWORKS = frozenset((
    "vllm", "vllm_ascend", "vllm_omni", "sglang", "sgl_kernel_npu", "verl", "roll", "trl", "swift", "megatron",
    "mindspeed", "mindspeed_llm", "mindspeed_rl",
))  # fmt: skip
_RAISED_BELOW = re.compile(
    r"^\s*(?:E\s+)?(?:[\w.]+\.)?(?:RayTaskError\()?"
    r"([A-Z]\w*(?:Error|Exception|Exit|Interrupt|Unsupported))\b\)?:? ?(.*)"
)
_EXPECTS = re.compile(r"^(?!.* is not initialized)\S")  # an assertion that says what it expects of a setting
_REFUSES = frozenset(("ValueError", "FileNotFoundError", "OSError", "KeyboardInterrupt", "SystemExit"))
# Frames in which a text that ends there does not say whose fault it is: collectives, the start of a card, and processes
# that wait for what another one has to say.
_WAITS = re.compile(
    r"/torch/distributed/|/torch_npu/npu/|/ray/_private/|/vllm/(?:v1/engine/core|(?:v1/)?executor/\w+)\.py"
    r"|, in (?:wait_for_engine_startup|launch_core_engines|get_output_async|output_handler|make_async_mp_client"
    r"|_perform_handshake\w*|wait_for_ready|get_response)$"
)
# Exceptions that nobody raises on purpose.
_UNMEANT = frozenset(("AttributeError", "TypeError", "KeyError", "NameError", "UnboundLocalError", "IndexError"))
# How an operator of torch_npu refuses arguments that its release does not have.
_SIGNATURE = re.compile(r"\b_?npu_\w+(?:\(\))?:? (?:got an unexpected keyword|expected at most|missing \d|takes \d)")

# A class of a framework; what transformers or Python names so has rows of its own.
_LACKS = re.compile(
    r"'(?!\w*(?:Tokenizer|TokenizerFast|Config|Cache|Processor|NoneType|Namespace|Tensor|Parameter)')[A-Z]\w*[a-z]\w*'"
    r" object has no attribute"
)


def _framework_raised(text: Text) -> PasteLine | None:
    """The exception of the first traceback through a framework, or its last frame where the text ends before that.

    None where that one refuses a setting (a value, a path, an assertion that says what it expects): what is raised
    around it says no more. Exceptions that Python ignored do not count, nor those that only point to another one.
    """
    last, is_ignored = None, False
    for line in text.with_any(("file '", "error", "exception", "unsupported", "interrupt", "exit")):
        package = _package(line.text)
        if package is not None:
            last = line if package in _FRAMEWORKS else last and line
            continue
        is_ignored = is_ignored or line.text.startswith("Exception ignored in")
        raised = _RAISED_BELOW.match(line.text) if last else None
        if raised:
            name, says = raised.groups()
            # The fixed text is gone: what it points to stands elsewhere.
            is_echo = name in ("RuntimeError", "Exception", "EngineDeadError") and not says
            if not is_ignored and not is_echo:
                return None if name in _REFUSES or (name == "AssertionError" and _EXPECTS.search(says)) else line
            last, is_ignored = None, False
    return None if last and (_WAITS.search(last.text.rstrip()) or "HCCL function error" in text) else last


def traceback_signs(text: Text) -> dict[str, PasteLine]:
    """Signs of tracebacks and of exceptions without one.

    `frame-<package>` for every package in a traceback, `caller-<package>` for the last one above torch (`own`: the
    user's files) and `slip-<package>` where the exception is one that nobody raises on purpose. `operator-signature`,
    `class-lacks-attribute`, `own-module-missing`, `submodule-missing` for what an exception says;
    `own-submodule-missing` where a package does not find a module of its own; `imports-across` and `importer-<package>`
    where a package asks another one for a name that this one does not have.
    """
    signs: dict[str, PasteLine] = {}
    caller, importer, frames = "", "", ["", ""]  # the first and the last package
    for line in text.with_any(("file '", "error", "exception", "cannot import")):
        package = _package(line.text)
        if package:
            signs.setdefault(f"frame-{package}", line)
            frames = [frames[0] or package, package]
        if package is not None and package != "python":
            importer = package
        if package is not None and package not in _BELOW:
            caller = package or "own"
        raised = _RAISED.match(line.text) if package is None and caller else None
        if raised:
            signs.setdefault(f"caller-{caller}", line)
            if raised.group(1) in _UNMEANT:
                signs.setdefault(f"slip-{caller}", line)
            caller = ""
        if _SIGNATURE.search(line.text):
            signs.setdefault("operator-signature", line)
        if _LACKS.search(line.text):
            signs.setdefault("class-lacks-attribute", line)
        lacking = _NO_NAME.search(line.text) if importer else None
        is_standard = _STANDARD.search(line.text) and not _INSTALLED.search(line.text)
        if lacking and lacking.group(1) != importer and not is_standard:
            signs.setdefault(f"importer-{importer}", line)
            signs.setdefault("imports-across", line)
    raised_line = _framework_raised(text)
    if raised_line is not None:
        signs["framework-raised"] = raised_line
    for line in text.all("No module named '"):
        match = _NO_MODULE.search(line.text)
        if match and match.group(1).split(".")[0] in _OWN_NAMES:
            signs.setdefault("own-module-missing", line)
        elif match and "." in match.group(1):
            signs.setdefault("submodule-missing", line)
            if match.group(1).split(".")[0] in frames and not frames[1].startswith(match.group(1).split(".")[0] + "_"):
                signs.setdefault("own-submodule-missing", line)
    return signs


def _package(text: str) -> str | None:
    """The package of a frame's file, "" for the user's own; None where the line is no frame."""
    match = _FRAME.match(text)
    if match is None:
        return None
    path = match.group(1)
    installed = _INSTALLED.search(path) or _SOURCE_TREE.search(path)
    if installed:
        return installed.group(1)
    return "python" if _STANDARD.search(path) else ""


_READ = 400  # lines that are looked at
_DOCUMENT = 3.2  # weight from which on a text is a document
_CODE_SHARE, _CODE_LINES = 0.4, 6


def _role(lines: Sequence[PasteLine], rows: Sequence[RoleRow]) -> Iterator[tuple[str, PasteLine]]:
    """`is-document` for a guide or a list of problems, `is-code` for a source file, `nothing-happened` where no line of
    a log is in the text."""
    texts = [line.text[:500] for line in lines[:_READ] if line.text.strip()]
    if not texts:
        return
    counts = {}
    for row in rows:
        pattern = re.compile("|".join(row.patterns), 0 if row.is_case_sensitive else re.IGNORECASE)
        counts[row.id] = sum(pattern.search(text) is not None for text in texts)
    if sum(row.weight * math.log1p(counts[row.id]) for row in rows) > _DOCUMENT:
        yield "is-document", lines[0]
    if counts["event"] or counts["error"]:
        return
    yield "nothing-happened", lines[0]
    if not counts["person"] and _CODE_LINES <= counts["code"] > _CODE_SHARE * len(texts):
        yield "is-code", lines[0]
