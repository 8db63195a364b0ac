"""The questions to the machine: right answers pass, each kind of wrong one does not."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.trainer_cases import CPU, TINY, changed, only, read
from trainer import device as devices
from trainer.distributed import World
from trainer.faults import WrongProducts
from trainer.metrics.records import Progress, Records
from trainer.models import ops
from trainer.run_state import state_of
from trainer.saving.checkpoint import difference
from trainer.stages import probes
from trainer.stages.probes import Stage, StageFailed, run_probe
from trainer.trainer import build_trainer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_this_cpu_computes(dtype: str) -> None:
    products, decoder = probes.matmul(CPU, dtype), probes.decoder(CPU, dtype)
    assert (products.passed, decoder.passed) == (True, True)
    assert set(products.measured["errors"]) == {"float32", "bfloat16", dtype}
    assert 0 < products.measured["errors"]["float32"] < 2e-5 < products.measured["errors"]["bfloat16"]


@pytest.mark.usefixtures("precision")
def test_products_that_may_round_are_held_against_wider_limits() -> None:
    torch.set_float32_matmul_precision("medium")
    assert probes.matmul(CPU, "float32").passed is True
    assert probes.decoder(CPU, "float32").measured["limit"] == 0.15
    assert probes.tolerance("float32", "medium") > probes.tolerance("float32", "highest")
    assert probes.tolerance("bfloat16", "medium") == probes.tolerance("bfloat16", "highest")


def test_a_wrong_tile_is_noticed_by_products_and_decoder() -> None:
    with WrongProducts():
        products, decoder = probes.matmul(CPU, "float32"), probes.decoder(CPU, "float32")
    assert (products.passed, decoder.passed) == (False, False)
    assert products.reason is not None and "float32 " in products.reason
    assert decoder.reason is not None and "nats" in decoder.reason


@pytest.mark.parametrize("value", [0.0, float("nan"), 1e30])
def test_an_operator_that_does_nothing_is_noticed(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the stub of CANN: shapes are right, values are whatever lay in memory."""
    true = torch.matmul

    def garbage(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        found = true(left, right)
        return found if left.dtype == torch.float64 else torch.full_like(found, value)

    monkeypatch.setattr(torch, "matmul", garbage)
    assert probes.matmul(CPU, "float32").passed is False


def test_a_wrong_gradient_is_noticed_though_the_log_probabilities_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    score = probes._score

    def half(device: torch.device, dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs, gradient = score(device, dtype)
        return logprobs, gradient * (1.0 if dtype == "float64" else 0.5)

    monkeypatch.setattr(probes, "_score", half)
    found = probes.decoder(CPU, "float32")
    assert (found.passed, found.measured["gradient_error"]) == (False, pytest.approx(0.5, abs=1e-3))


def test_memory_is_enough_or_named(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build_trainer(TINY, CPU, seed=0)
    assert probes.memory(trainer, TINY).passed is True
    monkeypatch.setattr(devices, "memory", lambda device: devices.Memory(1000, 2000))
    short = probes.memory(trainer, TINY)
    assert short.passed is False and short.reason is not None and "0 MiB are free" in short.reason
    monkeypatch.setattr(devices, "memory", lambda device: None)
    assert probes.memory(trainer, TINY).passed is None
    counts = iter((10, 30))
    monkeypatch.setattr(devices, "allocated", lambda device: next(counts))
    assert (probes.memory(trainer, TINY).reason or "").startswith("20 bytes ")


def test_what_a_run_still_needs_is_gradients_and_logits() -> None:
    trainer = build_trainer(TINY, CPU, seed=0)
    numbers = sum(each.numel() for _, each in trainer.learner.model.named_parameters())
    rows, tokens, vocabulary = 12, 3, 19
    assert probes.needed_bytes(trainer, TINY) == 4 * numbers + 3 * 4 * rows * tokens * vocabulary


def test_no_more_logits_are_needed_than_are_held_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = build_trainer(TINY, CPU, seed=0)
    gradients = sum(4 * each.numel() for _, each in trainer.learner.model.named_parameters())
    rows, vocabulary = 12, 19
    monkeypatch.setattr(ops, "LOGITS_AT_ONCE", 20)
    elsewhere = changed(TINY, generators=1)
    assert probes.needed_bytes(trainer, TINY) == gradients + 2 * 4 * rows * vocabulary  # the sampler's
    assert probes.needed_bytes(trainer, elsewhere) == gradients + 3 * 4 * 20
    halved = replace(trainer, world=World(0, 2))
    assert probes.needed_bytes(halved, TINY) == gradients + 2 * 4 * rows // 2 * vocabulary


class Adding(World):
    """Two ranks of which the other one gives a prepared number."""

    other = 2.0

    def all_reduce_sum(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.add_(self.other)

    def barrier(self) -> None:
        """The other is here already."""


def test_ranks_that_add_up_pass_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.collective(World.single(), CPU).passed is None
    assert probes.collective(Adding(0, 2), CPU).passed is True
    monkeypatch.setattr(Adding, "other", 0.0)
    found = probes.collective(Adding(0, 2), CPU)
    assert not found.passed and re.search(r"\b1 .*\b3\b", found.reason or "")


def test_the_warm_up_leaves_no_trace() -> None:
    trainer, same = build_trainer(TINY, CPU, seed=0), build_trainer(TINY, CPU, seed=0)
    assert probes.warm_up(trainer).passed is None
    found = probes.first_use(trainer)
    assert (found.passed, found.measured["answers"]) == (True, 12)
    assert difference(state_of(trainer, 0), state_of(same, 0)) is None
    assert all(each.grad is None for _, each in trainer.learner.model.named_parameters())


def asked(out: Path, fault: bool = False) -> list[dict[str, Any]]:
    with Records(out) as records:
        probes.run_probes(build_trainer(TINY, CPU, seed=0), TINY, records, Progress())
    return read(out)


def test_every_question_has_a_record_with_its_time_and_all_are_quick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "installed_packages", list)
    trainer = build_trainer(TINY, CPU, seed=0)
    began = time.process_time()
    with Records(tmp_path) as records:
        probes.run_probes(trainer, TINY, records, Progress())
    spent = time.process_time() - began
    found = read(tmp_path)
    names = ["packages", "import", "device", "matmul", "decoder", "memory", "collective", "warm-up"]
    assert [record["name"] for record in found] == names
    assert all(record["kind"] == "stage" and record["seconds"] >= 0 for record in found)
    passed = {record["name"]: record["passed"] for record in found}
    assert {name for name, value in passed.items() if value is None} == {"packages", "collective", "warm-up"}
    assert False not in passed.values()
    # Processor time, which other programs do not spend: 0.1 s measured. Slow machines and shared cores take a multiple.
    assert spent < 5


def test_a_device_that_computes_nonsense_is_not_trained_on(tmp_path: Path) -> None:
    with WrongProducts(), pytest.raises(StageFailed, match="matmul: products in float32"):
        asked(tmp_path)
    found = read(tmp_path)
    assert found[-1]["name"] == "matmul"
    assert found[-1]["passed"] is False


def test_a_card_is_announced_before_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "compiles", lambda device: True)
    monkeypatch.setattr(probes, "installed_packages", list)
    found = asked(tmp_path)
    assert [record["what"] for record in found if record["kind"] == "note"] == ["compiling", "warm-up"]
    kinds = [record.get("name", record.get("what")) for record in found]
    assert kinds.index("compiling") < kinds.index("matmul")
    assert found[-1]["passed"] is True and found[-1]["answers"] == 12
    assert all(record["may_take_s"] >= 600 for record in found if record["kind"] == "note")


def test_what_a_probe_raises_is_its_answer(tmp_path: Path) -> None:
    def breaks() -> Stage:
        raise RuntimeError("aclnnMatmul\n failed")

    with Records(tmp_path) as records:
        run_probe("matmul", breaks, records)
    record = only(read(tmp_path), name="matmul")
    assert (record["passed"], record["reason"]) == (False, "RuntimeError: aclnnMatmul failed")


CHILDREN = {
    "fine": "print('noise'); print('{\"version\": \"1\"}')",
    "problem": 'print(\'{"version": "1", "problem": "something is wrong"}\')',
    "dies": "import sys; sys.exit('no module')",
    "hangs": "import time; time.sleep(600)",
}


def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Lets `python -m trainer.stages.try_package` be this text."""
    file = tmp_path / "child.py"
    file.write_text(text)
    popen = subprocess.Popen

    def start(argv: list[str], **options: Any) -> Any:
        return popen([sys.executable, str(file)], **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(probes, "installed_packages", lambda: ["ray"])


@pytest.mark.parametrize(
    ("name", "passed", "reason"),
    [
        ("fine", True, None),
        ("problem", False, "ray: something is wrong"),
        ("dies", False, "ray: ended with 1: no module"),
        ("hangs", False, "ray: .*1 s"),
    ],
)
def test_a_package_is_believed_by_what_its_child_says(
    name: str, passed: bool, reason: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child(tmp_path, monkeypatch, CHILDREN[name])
    found = probes.packages(CPU, limit_s=1 if name == "hangs" else 240)
    assert found.passed is passed
    assert found.reason is None if reason is None else re.fullmatch(reason, found.reason or "")
    assert json.dumps(found.measured)


def test_a_stack_without_ray_and_vllm_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "installed_packages", list)
    found = probes.packages(CPU)
    assert found == Stage(None, found.reason) and re.search("ray .*vllm", found.reason or "")


def test_packages_that_are_not_to_be_tried_are_named_and_no_process_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(probes, "installed_packages", lambda: ["ray", "vllm"])
    monkeypatch.setattr(subprocess, "Popen", start)
    config = changed(TINY, probe_packages=False)
    with Records(tmp_path) as records:
        probes.run_probes(build_trainer(config, CPU, seed=0), config, records, Progress())
    found = read(tmp_path)
    assert [record for record in found if record["kind"] == "note"] == []
    record = only(found, name="packages")
    assert (record["passed"], record["skipped"]) == (None, ["ray", "vllm"])
    assert record["reason"] == "probe_packages=false: ray and vllm skipped"


def test_by_default_packages_are_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child(tmp_path, monkeypatch, CHILDREN["fine"])
    found = asked(tmp_path)
    assert only(found, name="packages")["passed"] is True
    assert only(found, kind="note")["what"] == "packages"


def test_without_packages_there_is_nothing_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "installed_packages", list)
    assert probes.packages(CPU, is_wanted=False) == probes.packages(CPU)


@pytest.mark.full
def test_ray_passes_a_tensordict_through_an_actor_where_it_is_installed() -> None:
    pytest.importorskip("ray", reason="needs ray, which comes with the stacks cpu-full, verl and roll")
    found = probes.try_package("ray", ["cpu", "1"], limit_s=300)
    assert "problem" not in found and found["start_s"] > 0


def test_a_tensor_that_comes_back_changed_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.present(CPU).passed is True
    monkeypatch.setattr(torch, "equal", lambda left, right: False)
    assert probes.present(CPU).passed is False


def test_parts_without_a_signal_still_answer_the_memory_question() -> None:
    trainer = build_trainer(TINY, CPU, seed=0)
    config = replace(TINY, optim=replace(TINY.optim, micro_batch_rows=1))
    assert probes.needed_bytes(trainer, config) < probes.needed_bytes(trainer, TINY)
