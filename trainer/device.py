"""The device a run computes on: the only module that knows accelerators by name.

Everything is decided when a function is called; importing this module inspects nothing and imports no torch. `choose`
selects the device; `memory`, `peak_mib` and `synchronize` measure it, `describe` describes it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from types import ModuleType

    import torch

ACCEPTED = ("auto", "cpu", "npu", "cuda")

# Ray's resource name of a device.
RAY_NPU, RAY_GPU = "NPU", "GPU"
RAY_RESOURCES: Mapping[str, str] = {"npu": RAY_NPU, "cuda": RAY_GPU}
# By Ray's name: the variable with a process's visible cards, and the one that keeps Ray from writing it.
VISIBLE: Mapping[str, str] = {RAY_NPU: "ASCEND_RT_VISIBLE_DEVICES", RAY_GPU: "CUDA_VISIBLE_DEVICES"}
# The variable that selects the network interface of a card's collectives, and the format for an exact name: a plain
# value is a prefix.
INTERFACE: Mapping[str, str] = {RAY_NPU: "HCCL_SOCKET_IFNAME"}
INTERFACE_EXACT = "={}"
RAY_KEEPS_OUT: Mapping[str, str] = {
    RAY_NPU: "RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES",
    RAY_GPU: "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
}

# What torch_npu reads when it is imported, by the role of the process. Training queues operators in two stages and
# lets segments grow; engines of vllm-ascend manage their memory in pools, which growing segments break: one that sleeps
# refuses to start beside them, also in the learner's process.
# Source: alibaba/ROLL ascend_npu_env_config.md; vllm-project/vllm-ascend Dockerfile v0.23.0.
NPU_ENVIRONMENT: Mapping[str, Mapping[str, str]] = {
    "train": {"TASK_QUEUE_ENABLE": "2", "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True"},
    "rollout": {"TASK_QUEUE_ENABLE": "1"},
}
# The variables set here, for a child that inherits the environment in another role.
_PREPARED = "TRAINER_PREPARED"
# Cache of compiled operators between runs; CANN's own default is in the working folder or the home folder.
CACHE_VARIABLE = "ACL_OP_COMPILER_CACHE_DIR"


class NoDevice(ValueError):
    """The requested device cannot be used on this machine."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of the device's memory; on the CPU as limited by the system or the container."""

    free: int
    total: int


def choose(name: str, *, role: str = "train") -> torch.device:
    """The device for `name`; `auto` selects an NPU, else a CUDA card, else the CPU.

    Before torch_npu is imported, the variables of the role are set unless the user has set them. Raises NoDevice if a
    named accelerator is absent, or if torch_npu is installed and cannot be imported: such an environment has to be
    repaired, not silently replaced by the CPU.
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    has_npu = name != "cuda" and _npu_is_available(role)
    if has_npu:
        return _card("npu")
    if name == "npu":
        raise NoDevice("device=npu: torch_npu is not installed or sees no NPU")
    if torch.cuda.is_available():
        return _card("cuda")
    if name == "cuda":
        raise NoDevice("device=cuda: torch sees no CUDA card")
    return torch.device("cpu")


def _card(kind: str) -> torch.device:
    """The card of this process among the ranks of its node, made the current one: collectives use that."""
    import torch

    card = torch.device(kind, int(os.environ.get("LOCAL_RANK", "0")))
    if card.index:
        getattr(torch, kind).set_device(card)
    return card


def _npu_is_available(role: str = "train") -> bool:
    if importlib.util.find_spec("torch_npu") is None:
        return False
    prepare(role, os.environ)
    try:
        torch_npu: ModuleType = importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise NoDevice(f"torch_npu is installed but cannot be imported: {error}") from error
    return bool(torch_npu.npu.is_available())


def prepare(role: str, environ: MutableMapping[str, str]) -> None:
    """Sets the variables of a role that the user has not set, and the folder that keeps compiled operators.

    Those that were set here for another role, in this process or in its parent, are taken back first.
    """
    for name in filter(None, environ.get(_PREPARED, "").split(",")):
        environ.pop(name, None)
    chosen = {name: value for name, value in NPU_ENVIRONMENT[role].items() if name not in environ}
    environ.update(chosen)
    environ[_PREPARED] = ",".join(chosen)
    if CACHE_VARIABLE not in environ:
        cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME", "/tmp"), ".cache")
        folder = Path(cache) / "npuenv" / "npu-operators"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            return  # a home that cannot be written: CANN's own default stays
        environ[CACHE_VARIABLE] = str(folder)


def compiles(device: torch.device) -> bool:
    """Whether an operator's first use there may take long because it is compiled."""
    return device.type == "npu"


def count(device: torch.device) -> int:
    """How many devices of its kind are visible; 1 for the CPU."""
    return 1 if device.type == "cpu" else int(_module(device).device_count())


def backend(device: torch.device) -> str:
    """What carries the collectives of ranks on such devices."""
    return {"npu": "hccl", "cuda": "nccl"}.get(device.type, "gloo")


def of_barrier(backend: str) -> list[int] | None:
    """`device_ids` for `barrier`; without it NCCL and HCCL guess the device from the rank. None for gloo."""
    import torch

    kinds = {"hccl": "npu", "nccl": "cuda"}
    return [int(getattr(torch, kinds[backend]).current_device())] if backend in kinds else None


def reduces_float64(device: torch.device) -> bool:
    """Whether what carries the collectives there adds float64; HCCL takes 32 bits at most of a floating point."""
    return device.type in ("cpu", "cuda")


def synchronize(device: torch.device) -> None:
    """Waits until everything queued there is computed, so that a clock read afterwards is honest."""
    if device.type != "cpu":
        _module(device).synchronize()


def describe(device: torch.device) -> dict[str, Any]:
    """The device and its settings: for the CPU threads and precision, for a card name and variables."""
    import torch

    if device.type == "cpu":
        return {
            "type": "cpu",
            "num_threads": torch.get_num_threads(),
            "cores": cores(),
            "matmul_precision": torch.get_float32_matmul_precision(),
        }
    module = _module(device)
    found: dict[str, Any] = {
        "type": device.type,
        "card": str(module.get_device_name(device)),
        "visible": int(module.device_count()),
        "matmul_precision": torch.get_float32_matmul_precision(),
    }
    if device.type == "npu":
        names = (*NPU_ENVIRONMENT["train"], CACHE_VARIABLE)
        found |= {
            "torch_npu": str(importlib.import_module("torch_npu").__version__),
            "environment": {name: os.environ.get(name, "") for name in names},
        }
    return found


def memory(device: torch.device) -> Memory | None:
    """The free and the total memory; None if the system does not report it."""
    if device.type == "cpu":
        return _ram()
    free, total = _module(device).mem_get_info()
    return Memory(int(free), int(total))


def allocated(device: torch.device) -> int | None:
    """Bytes held by tensors on the device; None on the CPU, which does not count them."""
    return None if device.type == "cpu" else int(_module(device).memory_allocated())


def peak_mib(device: torch.device) -> float | None:
    """The peak memory of tensors on the device; None on the CPU, where the process's own peak applies."""
    return None if device.type == "cpu" else int(_module(device).max_memory_allocated()) / (1 << 20)


def peak_rss_mib() -> float:
    """The most memory that this process has held."""
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


def give_back(device: torch.device) -> None:
    """Returns cached blocks of freed tensors to the device."""
    if device.type != "cpu":
        _module(device).empty_cache()


def _module(device: torch.device) -> Any:
    """`torch.npu` or `torch.cuda`: the two answer the same questions under the same names."""
    import torch

    return getattr(torch, device.type)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ram() -> Memory | None:
    meminfo = _numbers(Path(_MEMINFO))
    if "MemAvailable" not in meminfo or "MemTotal" not in meminfo:
        return None
    free, total = meminfo["MemAvailable"] * 1024, meminfo["MemTotal"] * 1024
    for limit_file, used_file in _CGROUP_FILES:
        limit, used = _number(Path(limit_file)), _number(Path(used_file))
        if limit is not None and used is not None and limit < total:
            free, total = min(free, max(limit - used, 0)), limit
    return Memory(free, total)


_MEMINFO = "/proc/meminfo"
# A container's limit: control groups version 2, then version 1.
_CGROUP_FILES = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def _numbers(path: Path) -> dict[str, int]:
    """`MemTotal:  123 kB` lines as numbers; empty without the file."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) >= 2 and pair[1].isdigit()}


def _number(path: Path) -> int | None:
    """The number in a file; None if the file is missing or contains `max`."""
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
