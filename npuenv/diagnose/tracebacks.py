"""Signs from Python tracebacks: through which packages a failure went, and what kind of module was not found."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npuenv.diagnose.search import Text
    from npuenv.host.report import PasteLine

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


def framework_raised(text: Text) -> PasteLine | None:
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
            is_echo = (
                name in ("RuntimeError", "Exception", "EngineDeadError") and not says
            )  # the fixed text is gone: what it points to stands elsewhere
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
    raised_line = framework_raised(text)
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
