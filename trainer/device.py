"""The device a run computes on: the only place that knows accelerators by name.

Everything is decided when `choose` is called; importing this module looks at nothing and imports no torch.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    import torch

ACCEPTED = ("auto", "cpu", "npu", "cuda")


class NoDevice(ValueError):
    """The device that was asked for cannot be used here."""


def choose(name: str) -> torch.device:
    """The device for `name`; `auto` takes an NPU, else a CUDA card, else the CPU.

    Raises NoDevice when a named accelerator is absent, or when torch_npu is installed and cannot be imported: that is
    an environment to mend, not one to leave silently for the CPU.
    """
    import torch

    if name == "cpu":
        return torch.device("cpu")
    has_npu = name != "cuda" and _npu_is_available()
    if has_npu:
        return torch.device("npu", 0)
    if name == "npu":
        raise NoDevice("device=npu: torch_npu is not installed or sees no NPU")
    if torch.cuda.is_available():
        return torch.device("cuda", 0)
    if name == "cuda":
        raise NoDevice("device=cuda: torch sees no CUDA card")
    return torch.device("cpu")


def _npu_is_available() -> bool:
    if importlib.util.find_spec("torch_npu") is None:
        return False
    try:
        torch_npu: ModuleType = importlib.import_module("torch_npu")
    except (ImportError, OSError, RuntimeError) as error:
        raise NoDevice(f"torch_npu is installed but cannot be imported: {error}") from error
    return bool(torch_npu.npu.is_available())
