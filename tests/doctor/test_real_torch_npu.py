"""The doctor on the real torch_npu: without CANN, with a CANN that does nothing, with another torch."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import CHECKS, check_all
from npuenv.core.finding import Finding, Status
from npuenv.core.messages import say
from npuenv.facts.collect import Facts, collect
from npuenv.host.local import LocalHost
from npuenv.host.recorded import RecordingHost
from npuenv.report.doctor import document
from tests.support.stub_cann import target
from tests.support.stub_cann.build import build, environment, wanted

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.registry,
    pytest.mark.slow,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="needs x86_64 Linux"
    ),
    pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="needs gcc and nm"),
]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with torch for the CPU and torch_npu beside it."""
    folder = tmp_path_factory.mktemp("target") / "env"
    target.make(folder)
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def cann(python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(_site_packages(python), tmp_path_factory.mktemp("Ascend") / "cann-9.1.0")


def _site_packages(python: Path) -> Path:
    return next((python.parent.parent / "lib").glob("python3.*")) / "site-packages"


def _diagnose(python: Path, level: int) -> tuple[Facts, dict[str, Finding]]:
    facts = collect(RecordingHost(LocalHost()), python=str(python), level=level)
    return facts, {finding.check: finding for finding in check_all(facts, level=level)}


def _clean(monkeypatch: pytest.MonkeyPatch, values: dict[str, str]) -> None:
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "LD_LIBRARY_PATH", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_the_stub_covers_what_torch_npu_wants(python: Path) -> None:
    names = wanted(_site_packages(python))
    assert {"aclrtMalloc", "aclrtGetDeviceCount", "rtKernelLaunch", "aclopCompileAndExecute"} <= set(names)
    assert len(names) >= 84


@pytest.mark.long
def test_without_cann_the_report_is_complete_and_names_the_library(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch, {})
    facts, found = _diagnose(python, 1)
    npu = found["python.torch-npu-imports"]
    assert npu.status is Status.FAIL and "libhccl.so" in say(npu.says)
    assert npu.fix is not None and "set_env.sh" in say(npu.fix.says)
    assert any("libhccl.so: cannot open shared object file" in item.line for item in npu.evidence)
    assert found["python.torch-imports"].status is Status.SKIP
    assert found["python.torch-imports"].says.args["cause"] == "python.torch-npu-imports"
    assert found["python.torch-pair"].status is Status.OK
    report: dict[str, Any] = json.loads(json.dumps(document(tuple(found.values()), facts)))
    assert len(report["findings"]) == len(CHECKS) and report["exit"] == 1
    assert [item["check"] for item in report["findings"] if item["status"] == "unknown"] == []


def test_with_a_cann_that_does_nothing_copies_are_exact_and_the_product_is_caught(
    python: Path, cann: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch, environment(cann, devices=2))
    facts, found = _diagnose(python, 2)
    assert found["python.torch-imports"].status is Status.OK
    assert found["python.torch-npu-imports"].status is Status.OK
    devices = facts.python.devices.value
    assert devices is not None and devices.error == ""
    assert (devices.is_available, devices.count, devices.names[0]) == (True, 2, "Ascend910B1")
    assert devices.copies_exactly is True and devices.computes_correctly is False
    assert found["devices.computes"].status is Status.FAIL
    assert facts.cann.toolkit.value is not None
    assert (facts.cann.toolkit.value.version, facts.cann.toolkit.value.answered_by) == ("9.1.0", "ASCEND_HOME_PATH")
    fine = {"cann.found", "cann.sourced", "cann.links", "cann.one-version", "cann.gone", "cann.arch"}
    assert {name for name in fine if found[name].status is not Status.OK} == set()
    without = found["cann.python-packages"]
    assert without.status is Status.WARN and "attrs, decorator" in say(without.says)


@pytest.mark.long
def test_a_cann_without_one_of_its_libraries_is_named_by_the_import(
    python: Path, cann: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torn = tmp_path / "cann-9.1.0"
    shutil.copytree(cann, torn)
    (torn / "lib64" / "libhccl.so").unlink()
    _clean(monkeypatch, environment(torn, devices=1))
    facts, found = _diagnose(python, 2)
    assert found["python.torch-npu-imports"].status is Status.FAIL
    assert "libhccl.so" in say(found["python.torch-npu-imports"].says)
    assert facts.python.devices.value is not None and "torch_npu" in facts.python.devices.value.error
    assert found["devices.computes"].status is not Status.OK


@pytest.mark.long
def test_a_cann_that_shows_no_device_is_not_taken_for_one_that_computes(
    python: Path, cann: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch, environment(cann, devices=0))
    facts, found = _diagnose(python, 2)
    devices = facts.python.devices.value
    assert devices is not None and (devices.is_available, devices.count, devices.cards) == (False, 0, ())
    assert found["python.torch-npu-imports"].status is Status.OK
    assert found["cards.present"].status is Status.FAIL
    assert found["devices.computes"].status is not Status.OK


@pytest.mark.long
def test_the_number_of_devices_is_the_stubs(python: Path, cann: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _clean(monkeypatch, environment(cann, devices=3, soc="Ascend910B3"))
    facts, _ = _diagnose(python, 2)
    assert facts.python.devices.value is not None
    assert (facts.python.devices.value.count, facts.python.devices.value.names[0]) == (3, "Ascend910B3")


@pytest.mark.slow
@pytest.mark.long
def test_another_torch_is_found_by_metadata_though_the_import_says_something_else(
    python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _clean(monkeypatch, {})
    target.put_torch_npu(python, "2.9.0")
    try:
        _, found = _diagnose(python, 1)
    finally:
        target.put_torch_npu(python)
    assert found["python.torch-pair"].status is Status.FAIL
    assert "2.9.0" in say(found["python.torch-pair"].says) and "2.13.0" in say(found["python.torch-pair"].says)
    assert "libhccl.so" in say(found["python.torch-npu-imports"].says)
    assert "2.9.0" not in say(found["python.torch-npu-imports"].says)
