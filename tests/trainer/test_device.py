"""The choice of a device, with and without accelerators (which this machine need not have)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from trainer import device as devices
from trainer.device import CACHE_VARIABLE, Memory, NoDevice, _npu_is_available, choose, prepare

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


@pytest.fixture
def no_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)


@pytest.mark.usefixtures("no_cards")
def test_without_cards_auto_is_the_cpu_and_a_named_card_is_refused() -> None:
    assert choose("auto") == choose("cpu") == torch.device("cpu")
    with pytest.raises(NoDevice, match="device=npu: torch_npu "):
        choose("npu")
    with pytest.raises(NoDevice, match="device=cuda"):
        choose("cuda")


@pytest.mark.usefixtures("no_cards")
def test_a_cuda_card_is_taken_by_auto_and_not_by_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose("auto") == choose("cuda") == torch.device("cuda", 0)
    assert choose("cpu") == torch.device("cpu")


@pytest.mark.usefixtures("no_cards")
def test_a_rank_takes_the_card_of_its_number_and_makes_it_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made_current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", made_current.append)
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert choose("cuda") == torch.device("cuda", 3)
    assert made_current == [torch.device("cuda", 3)]


@pytest.mark.parametrize("is_available", [True, False])
def test_torch_npu_is_asked_whether_it_sees_a_card(monkeypatch: pytest.MonkeyPatch, is_available: bool) -> None:
    """Only the question: without the plugin this torch knows no device type of that name."""
    plugin = SimpleNamespace(npu=SimpleNamespace(is_available=lambda: is_available), __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch_npu", plugin)
    for name in (CACHE_VARIABLE, *devices.NPU_ENVIRONMENT["train"]):
        monkeypatch.setenv(name, "the user's")
    assert _npu_is_available() is is_available


def test_a_plugin_that_cannot_be_imported_is_an_error_not_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_npu.py").write_text("raise ImportError('libhccl.so: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch_npu", raising=False)
    for name in (CACHE_VARIABLE, *devices.NPU_ENVIRONMENT["train"]):
        monkeypatch.setenv(name, "the user's")
    with pytest.raises(NoDevice, match=r"torch_npu .* libhccl\.so"):
        choose("auto")
    assert choose("cpu") == torch.device("cpu")


def test_a_role_sets_what_the_user_has_not_set(tmp_path: Path) -> None:
    train = {"HOME": str(tmp_path), "TASK_QUEUE_ENABLE": "0"}
    prepare("train", train)
    cache = tmp_path / ".cache" / "npuenv" / "npu-operators"
    assert train == {
        "HOME": str(tmp_path),
        "TASK_QUEUE_ENABLE": "0",
        "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
        CACHE_VARIABLE: str(cache),
        "TRAINER_PREPARED": "PYTORCH_NPU_ALLOC_CONF",
    }
    assert cache.is_dir()
    rollout = {"XDG_CACHE_HOME": str(tmp_path / "c"), CACHE_VARIABLE: "/kept"}
    prepare("rollout", rollout)
    assert rollout == {
        "XDG_CACHE_HOME": str(tmp_path / "c"),
        CACHE_VARIABLE: "/kept",
        "TASK_QUEUE_ENABLE": "1",
        "TRAINER_PREPARED": "TASK_QUEUE_ENABLE",
    }
    assert not (tmp_path / "c").exists()


def test_a_child_in_another_role_has_what_the_user_set_and_nothing_of_its_parents_role() -> None:
    environ = {CACHE_VARIABLE: "/kept", "TASK_QUEUE_ENABLE": "0"}
    prepare("train", environ)
    prepare("rollout", environ)
    assert "PYTORCH_NPU_ALLOC_CONF" not in environ
    assert environ["TASK_QUEUE_ENABLE"] == "0"
    environ = {CACHE_VARIABLE: "/kept", "PYTORCH_NPU_ALLOC_CONF": "max_split_size_mb:64"}
    prepare("train", environ)
    prepare("rollout", environ)
    assert (environ["PYTORCH_NPU_ALLOC_CONF"], environ["TASK_QUEUE_ENABLE"]) == ("max_split_size_mb:64", "1")


def test_a_home_that_cannot_be_written_leaves_the_cache_where_cann_wants_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file")}
    prepare("rollout", environ)
    assert CACHE_VARIABLE not in environ


def test_the_cpu_says_threads_and_precision_and_counts_no_tensors() -> None:
    found = devices.describe(CPU)
    assert (found["type"], found["num_threads"]) == ("cpu", torch.get_num_threads())
    assert found["matmul_precision"] == torch.get_float32_matmul_precision()
    assert found["cores"] >= 1
    assert (devices.count(CPU), devices.allocated(CPU), devices.peak_mib(CPU)) == (1, None, None)
    assert devices.compiles(CPU) is False
    assert devices.compiles(torch.device("cuda", 0)) is False
    devices.synchronize(CPU)
    devices.give_back(CPU)


def test_free_memory_is_the_systems_or_what_the_container_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    meminfo, limit, used = (tmp_path / name for name in ("meminfo", "max", "current"))
    meminfo.write_text("MemTotal:  4096 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\nHugePages_Total:  0\n")
    monkeypatch.setattr(devices, "_CGROUP_FILES", ((str(limit), str(used)),))
    monkeypatch.setattr(devices, "_MEMINFO", str(meminfo))
    assert devices.memory(CPU) == Memory(2048 << 10, 4096 << 10)
    limit.write_text("max\n")
    used.write_text("1048576\n")
    assert devices.memory(CPU) == Memory(2048 << 10, 4096 << 10)
    limit.write_text("2097152\n")
    assert devices.memory(CPU) == Memory(1 << 20, 2 << 20)
    used.write_text("3097152\n")
    assert devices.memory(CPU) == Memory(0, 2 << 20)


def test_a_card_is_asked_through_torchs_module_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    card = SimpleNamespace(
        mem_get_info=lambda: (3, 5),
        memory_allocated=lambda: 7,
        max_memory_allocated=lambda: 2 << 20,
        device_count=lambda: 4,
        get_device_name=lambda device: "H",
        synchronize=lambda: asked.append("synchronize"),
        empty_cache=lambda: asked.append("empty_cache"),
    )
    monkeypatch.setattr(torch, "cuda", card)
    device = torch.device("cuda", 0)
    assert devices.memory(device) == Memory(3, 5)
    assert (devices.allocated(device), devices.peak_mib(device), devices.count(device)) == (7, 2.0, 4)
    assert devices.describe(device)["card"] == "H"
    devices.synchronize(device)
    devices.give_back(device)
    assert asked == ["synchronize", "empty_cache"]
