"""The choice of a device, with and without accelerators (which this machine need not have)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from trainer.device import NoDevice, _npu_is_available, choose

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_cards")
def test_without_cards_auto_is_the_cpu_and_a_named_card_is_refused() -> None:
    assert choose("auto") == choose("cpu") == torch.device("cpu")
    with pytest.raises(NoDevice, match="device=npu: torch_npu is not installed or sees no NPU"):
        choose("npu")
    with pytest.raises(NoDevice, match="device=cuda"):
        choose("cuda")


@pytest.mark.usefixtures("no_cards")
def test_a_cuda_card_is_taken_by_auto_and_not_by_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose("auto") == choose("cuda") == torch.device("cuda", 0)
    assert choose("cpu") == torch.device("cpu")


@pytest.mark.parametrize("is_available", [True, False])
def test_torch_npu_is_asked_whether_it_sees_a_card(monkeypatch: pytest.MonkeyPatch, is_available: bool) -> None:
    """Only the question: without the plugin this torch knows no device type of that name."""
    plugin = SimpleNamespace(npu=SimpleNamespace(is_available=lambda: is_available), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_npu", plugin)
    assert _npu_is_available() is is_available


def test_a_plugin_that_cannot_be_imported_is_an_error_not_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    with pytest.raises(NoDevice, match=r"cannot be imported: libhccl\.so"):
        choose("auto")
    assert choose("cpu") == torch.device("cpu")
