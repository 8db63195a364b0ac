"""Signs from the machine, the session, the container and the cluster as a report shows them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from npuenv.diagnose.text import named
from npuenv.host.report import blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npuenv.diagnose.text import Text
    from npuenv.diagnose.types import DockerRun, ReportFacts, Sign
    from npuenv.host.report import PasteLine
    from npuenv.matrix import Matrix

_MANAGERS = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_DRIVER = "/usr/local/Ascend/driver"
_FEW_RIGHTS = ("runAsNonRoot: true", "runAsUser: 1", "CapEff: 0000000000000000", "drop: *ALL", "cap-drop*all")


def machine_signs(facts: ReportFacts, text: Text, matrix: Matrix) -> dict[str, PasteLine]:
    """Name of a sign to the line that shows it."""
    signs: dict[str, PasteLine] = {}
    for judge in _JUDGES:
        for name, line in judge(facts, text):
            signs.setdefault(name, line)
    for name, line in (*_chip(facts, matrix), *_asked(facts, text, matrix)):
        signs.setdefault(name, line)
    return signs


def _run_line(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    run = facts.docker
    if run is not None:
        yield "docker-run", run.line
        yield from _mounts(run, text)
        if "privileged" in run.options:
            yield "docker-privileged", run.line
        user = run.options.get("user", "")
        if user and not user.startswith(("0", "root")):
            yield "docker-user", run.line
    yield from named(text, "few-rights", _FEW_RIGHTS)


def _mounts(run: DockerRun, text: Text) -> Iterator[Sign]:
    is_asked = "ASCEND_VISIBLE_DEVICES" in run.environ or "ASCEND_RT_VISIBLE_DEVICES" in run.environ
    driver = [path for path in run.mounts if path.startswith("/usr/local/Ascend") or path in ("/usr/local", "/usr")]
    names_nothing = not run.devices and not driver and not {"runtime", "privileged", "gpus"} & set(run.options)
    if is_asked and names_nothing:
        yield "docker-variable-only", run.line
    by_runtime = run.options.get("runtime") == "ascend" or "ASCEND_VISIBLE_DEVICES" in run.environ
    has_cards = "privileged" in run.options or any(re.search(r"/dev/davinci\d|\$", each) for each in run.devices)
    if by_runtime:
        return
    if not driver and not any("$" in path for path in run.mounts):
        yield "docker-no-driver", run.line
    whole = any(path in (_DRIVER, "/usr/local/Ascend", "/usr/local", "/usr") for path in driver)
    if driver and not whole and not {f"{_DRIVER}/lib64", f"{_DRIVER}/version.info"} <= set(driver):
        yield "docker-driver-partial", run.line
    if driver and not {"/etc/ascend_install.info", "/etc"} & set(run.mounts):
        yield "docker-no-install-info", run.line
    if driver and not {"/usr/local/dcmi", "/usr/local", "/usr"} & set(run.mounts):
        yield "docker-no-dcmi", run.line
    managers = [each for each in _MANAGERS if each not in run.devices]
    if "privileged" not in run.options and managers:
        yield "docker-device-missing", run.line
    if not has_cards:
        yield "docker-no-card", run.line
    if driver and has_cards and ("privileged" in run.options or not managers):
        yield "docker-complete", run.line


_CLOSED_NODE = re.compile(r"/dev/(?:davinci|devmm_svm|hisi_hdc)")


def _rights(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """Device nodes that only their owner and group may open, and a user that is in no such group."""
    for line in text.with_any(("/dev/davinci", "/dev/devmm_svm", "/dev/hisi_hdc")):
        is_closed = re.search(r"crw-(?:rw-|r--|---)---|\b06?[46]0\b|\b6[46]0\b", line.text)
        if is_closed and _CLOSED_NODE.search(line.text):
            yield "device-nodes-closed", line
    for line in text.all("uid="):
        user = re.search(r"\buid=([1-9]\d*)", line.text)
        if user and user.group(1) != "1000" and "HwHiAiUser" not in line.text:
            yield "outside-group", line


_IDLE_PERCENT = 20  # of a card's memory: more than any driver or idle context takes
_FOR_CHIP = re.compile(r"[-_.](910b|a2|a3|910c|310p|950|a5)(?=[-_.]|$)", re.IGNORECASE)
_CHIP_WORDS = {"910b": "a2", "a2": "a2", "a3": "a3", "910c": "a3", "310p": "310p", "950": "950", "a5": "950"}
_SMALL_SHM = re.compile(r"(?:shm|tmpfs)\s+(?:[\d.]+[KM]|1(?:\.\d+)?G|\d{1,6})\s.*\s/dev/shm$")  # less than 2 GiB
_RAY_WORDS = ("RayWorkerWrapper", "ray::", "RayTaskError", "(raylet", "ray.exceptions", "ray/_private")
_RAY_ACTOR = re.compile(r"\((?:\w*Ray\w*|\w*Actor\w*|raylet|WorkerDict|TaskRunner|\w*vLLM\w*Server)[ ,]")


_ASKED = re.compile(r"satisfies the requirement torch[-_]npu==([\w.+]+)", re.IGNORECASE)


def _asked(facts: ReportFacts, text: Text, matrix: Matrix) -> Iterator[Sign]:
    """`index-unreachable` where pip knows of no file because no index answered; `python-without-wheel` where the
    torch_npu that was asked for has none for this Python."""
    if text.first("from versions: none") and not any(text.all("(from versions: *.")):
        yield from named(text, "index-unreachable", ("connection broken by", "Could not fetch URL"))
    for line in text.all("satisfies the requirement torch") if facts.python else ():
        asked = _ASKED.search(line.text)
        row = matrix.torch_npu_row(asked.group(1)) if asked else None
        known = {*row.python_aarch64, *row.python_x86_64} if row else set()
        if known and facts.python and facts.python.value not in known:
            yield "python-without-wheel", line


def _chip(facts: ReportFacts, matrix: Matrix) -> Iterator[Sign]:
    if facts.chip and facts.chip.value.upper().startswith("310B"):
        yield "chip-not-accepted", facts.chip.line
    if facts.generation is None:
        return
    generation, line = facts.generation.value, facts.generation.line
    yield f"chip-{generation}", line
    row = matrix.hardware_row(generation)
    if row is not None and not row.accepted:
        yield "chip-not-accepted", line
    for image in facts.images:
        word = _FOR_CHIP.search(image.value.partition(":")[2])
        if word and _CHIP_WORDS[word.group(1).lower()] != generation:
            yield "image-for-other-chip", image.line
        elif word is None and "vllm-ascend:" in image.value and generation in ("a3", "310p", "950"):
            yield "image-for-other-chip", image.line  # a tag without a chip is the A2 one


def _table(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """Cards that npu-smi shows in alarm, and cards whose memory is in use though no process is listed."""
    table = facts.table
    if table is None:
        return
    by_text = {line.text.strip(): line for line in text.lines if "|" in line.text}
    for card in table.cards:
        line = by_text.get(card.line)
        if line is None:
            continue
        if card.health in ("Alarm", "Warning"):
            yield "health-alarm", line
        is_used = 100 * (card.hbm_used_mib or 0) >= _IDLE_PERCENT * (card.hbm_total_mib or math.inf)
        if is_used and text.first(f"No running processes found in NPU {card.npu} "):
            yield "card-held-by-nobody-seen", line


_OOM = re.compile(
    r"([\d.]+) GiB total capacity; ([\d.]+) ([GM])iB already allocated;[^\n]{0,120}?([\d.]+) ([GMK])iB free"
    r"(?:; ([\d.]+) ([GM])iB reserved)?"
)
_GIB = {"G": 1.0, "M": 1 / 1024, "K": 1 / 1024**2, None: 0.0}
_OTHERS_SHARE = 0.35  # of a card that is neither free nor this process's: more than the driver and the context take


def _memory(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """What an out-of-memory line itself says: who holds the card that is full."""
    for line in text.all("total capacity"):
        match = _OOM.search(line.text)
        if match is None:
            continue
        total, held = float(match.group(1)), float(match.group(2)) * _GIB[match.group(3)]
        free, reserved = float(match.group(4)) * _GIB[match.group(5)], float(match.group(6) or 0) * _GIB[match.group(7)]
        if total - free - max(held, reserved) > _OTHERS_SHARE * total:
            yield "memory-held-elsewhere", line


def _folders(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """A listing of the folder in which CANN lies by default that holds the driver only."""
    for block in blocks(text.lines):
        if re.match(r"(?:ls|ll|dir)\b[^|;]*/usr/local/Ascend/?\s*$", block.command or ""):
            words = " ".join(line.text for line in block.lines[1:12])
            if "driver" in words and not re.search(r"toolkit|\bcann\b|nnae|nnrt|latest|set_env", words):
                yield "cann-folder-absent", block.lines[0]


_OF_CANN = (
    r"(?:hccl|ascendcl|acl_|aclnn|ge_|graph|opapi|runtime|register|platform|msprofiler|profapi|ascend_protobuf|nnopbase"
    r"|unified_dlog|error_manager|exe_graph|metadef|lowering|tiling)\w*"
)
_NOT_FOUND = re.compile(rf"\blib{_OF_CANN}\.so[.\d]*: cannot open|cannot find (?:-l|lib){_OF_CANN}")


def _libraries(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """A library of CANN's toolkit that the loader or the linker does not find; those of the driver have other rows."""
    for line in text.with_any((": cannot open", "cannot find ")):
        if _NOT_FOUND.search(line.text):
            yield "cann-library-missing", line


_TOOLKIT = re.compile(r"/(?:cann-|ascend-toolkit/(?:cann-)?)(\d+\.\d[\w.]*)/")


def _toolkits(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """Paths into toolkits of two versions."""
    lines = text.with_any(("cann", "toolkit"))
    found = {match.group(1): line for line in lines for match in _TOOLKIT.finditer(line.text)}
    if len(found) > 1:
        yield "two-cann-paths", list(found.values())[-1]


def _variables(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    yield from _set(text, "cann-variables-set", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
    yield from _set(text, "atb-variables-set", "ATB_HOME_PATH")
    yield from named(text, "expandable-segments-on", ("PYTORCH_NPU_ALLOC_CONF*expandable_segments:True",))
    yield from _visible(facts, text)


def _set(text: Text, sign: str, *names: str) -> Iterator[Sign]:
    """The lines that give one of the variables a value, in a shell, a table of variables or YAML."""
    for name in names:
        value = re.compile(rf"\b{name}[\"']?(?:=|: +)[\"']?[^\s\"';]")
        yield from ((sign, line) for line in text.all(name) if value.search(line.text))


_VISIBLE = re.compile(r"ASCEND_(RT_)?VISIBLE_DEVICES[\"']?(?:=|: +)[\"']?(\d+(?:, ?\d+)*)(?=[\"';\s]|$)")


def _visible(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    """The cards of the session: what a container is given (without RT) counts only where the session says nothing."""
    found = [(match, line) for line in text.all("VISIBLE_DEVICES") if (match := _VISIBLE.search(line.text))]
    cards = len(facts.table.cards) if facts.table and facts.table.is_complete else 0
    for match, line in ([each for each in found if each[0].group(1)] or found)[-1:]:
        yield "visible-devices-set", line
        if cards and max(map(int, match.group(2).split(","))) >= cards:
            yield "visible-devices-out-of-range", line


def _limits(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    for block in blocks(text.lines):
        command, answer = block.command or "", next((line for line in block.lines[1:] if line.text.strip()), None)
        value = answer.text.strip() if answer else ""
        if re.match(r"ulimit -\w*n", command) and value.isdecimal() and int(value) <= 8192 and answer:
            yield "nofile-low", answer
        if re.match(r"id(?: -u)?$", command) and answer and re.match(r"(?:uid=)?[1-9]", value):
            yield "non-root", answer
    for line in text.all("uid="):
        match = re.search(r"\buid=(\d+)", line.text)
        if match and match.group(1) != "0":
            yield "non-root", line
    yield from named(text, "nofile-low", ("open files*1024", "Max open files*1024 ", "nofile*1024:1024"))
    yield from (("shm-small", line) for line in text.all("/dev/shm") if _SMALL_SHM.match(line.text.strip()))


_LINK = re.compile(r"\blink status:? ?\[?(UP|DOWN)\b", re.IGNORECASE)
_SWITCH = re.compile(r"\bswitch\[(\d)\]", re.IGNORECASE)
_RANK_LISTS = re.compile(r"enabled tls: ?\[[^\]]+\].*disabled tls: ?\[[^\]]+\]")


def _network(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    for line in text.all("link status"):
        match = _LINK.search(line.text)
        if match:
            yield f"link-{match.group(1).lower()}", line
    switches: dict[str, PasteLine] = {}
    for line in text.all("switch["):
        for match in _SWITCH.finditer(line.text):
            switches.setdefault(match.group(1), line)
    if len(switches) > 1:
        yield "tls-mixed", max(switches.values(), key=lambda line: line.number)
    elif switches:
        yield "tls-same", next(iter(switches.values()))
    yield from _linked(text)


def _linked(text: Text) -> Iterator[Sign]:
    for line in text.all("disabled tls"):
        if _RANK_LISTS.search(line.text):
            yield "tls-mixed", line
    states = {state: line for state in ("ENABLE", "DISABLE") for line in text.all(f"|*{state}*| LinkInfo")}
    if len(states) > 1:
        yield "tls-mixed", states["ENABLE"]


_RESOURCE = re.compile(r"^[\d.]+/([\d.]+) (GPU|NPU|CPU)\b")
_NODE_NPU = re.compile(r"'NPU': (\d+(?:\.\d+)?)")


def _ray(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    counts: dict[str, tuple[float, PasteLine]] = {}
    for line in text.lines:
        match = _RESOURCE.match(line.text.strip()) if "/" in line.text else None
        if match:
            counts[match.group(2)] = (float(match.group(1)), line)
    yield from named(text, "ray-process", _RAY_WORDS)
    yield from (("ray-process", line) for line in text.lines if _RAY_ACTOR.search(line.shown[:80]))
    yield from (("printed-false", line) for line in text.all("False") if line.text.strip() == "False")
    yield from (("ray-npu", line) for line in text.all("'CPU':*'NPU':") if _counts_npu(line.text))
    if "NPU" in counts:
        yield "ray-npu", counts["NPU"][1]
    elif "GPU" in counts and "CPU" in counts:
        yield "ray-gpu-only", counts["GPU"][1]


def _counts_npu(text: str) -> bool:
    """Whether a line with the resources of a cluster or a node, and not what a task asks for, has cards in it."""
    has = "object_store_memory" in text or "current_node_resource" in text or "'node:" in text
    return has and any(float(number) > 0 for number in _NODE_NPU.findall(text))


# A word that only hosts with NPUs have in their reports.
_NPU_WORDS = (
    "torch_npu", "torch-npu", "npu-smi", "vllm_ascend", "vllm-ascend", "Ascend9", "Ascend3", "Ascend-", "/Ascend",
    "Ascend 9", "Ascend 3", "on Ascend", "昇腾", "davinci", "HCCL", "910B",
    "310P", "huawei", "mindspeed", "mindie", "aclnn", "Atlas 800",
)  # fmt: skip
_NPU = re.compile(r"(?<![a-z])npus?(?![a-z])", re.IGNORECASE)  # "input" holds the letters too


def _npu(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    if facts.table is not None and facts.table.cards:
        yield "npu-host", text.lines[0]
    yield from named(text, "npu-host", _NPU_WORDS)
    line = next((line for line in text.lines if _NPU.search(line.text[:500])), None)
    if line is not None:
        yield "npu-host", line
    yield from named(text, "framework-ran", _FRAMEWORKS)
    yield from (("framework-ran", line) for line in text.lines if _ENGINE_PROCESS.search(line.shown[:120]))


# That a framework ran, and not only a script of the user.
_ENGINE_PROCESS = re.compile(r"\((?:EngineCore|Worker|VllmWorker|APIServer)(?:_\w+)? (?:rank|pid)=")
_FRAMEWORKS = (
    "vllm serve", "vllm-serve", "vllm.entrypoints", "VllmWorker", "EngineCore", "sglang", "llamafactory", "swift ",
    "verl.", "verl/", "ms-swift", "ms_swift", "mindspeed", "accelerate launch", "deepspeed", "fastchat",
    "lmdeploy", "mindie", "xinference", "vllm version", "vllm-ascend:", "vllm_ascend/",
    "llama.cpp", "ggml", "comfyui", "paddle", "diffusers", "mineru", "mindspore", "funasr",
)  # fmt: skip


_CUDA_TROUBLE = (
    "libcud", "libcublas", "libnccl", "libnvrtc", "libcupti", "nvidia-smi", "NVIDIA driver", "undefined symbol",
    "CUDA enabled", "CUDA driver", "No CUDA", "Two accelerators", "Failed to load the backend extension", "torch.cuda",
    "import torch_npu", "libtorch_npu", "torch_npu._C",
)  # fmt: skip


def _build(facts: ReportFacts, text: Text) -> Iterator[Sign]:
    yield from named(text, "cuda-trouble", _CUDA_TROUBLE)
    yield from named(text, "building", (
        "Building CXX object", "Building wheel", "gmake", "CMake Error", "failed to solve", "RUN pip", "RUN python",
        "setup.py", "build_ext", "docker build", "Step */* : RUN", "Installing build dependencies", "ninja: ",
        "cmake --build", "csrc/", "collect2: error", "/bin/ld: ", "cc1plus:",
    ))  # fmt: skip


_JUDGES: tuple[Callable[[ReportFacts, Text], Iterator[Sign]], ...] = (
    _npu, _table, _memory, _folders, _libraries, _toolkits, _variables, _limits, _network, _ray,
    _build, _run_line, _rights,
)  # fmt: skip
