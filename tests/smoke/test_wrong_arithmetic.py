"""`npuenv smoke-train` on the real torch_npu and a CANN whose operators do nothing: a device that computes garbage."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import main
from npuenv.core.errors import ExitCode
from tests.support.sentences import says
from tests.support.stub_cann.build import build, environment
from tests.support.stub_cann.target import NotToBeHad, make

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.registry,
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64", reason="needs x86_64 Linux"
    ),
    pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("nm")), reason="needs gcc and nm"),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The environment's folder."""
    folder = tmp_path_factory.mktemp("target") / "env"
    try:
        make(folder)
    except NotToBeHad as error:
        pytest.skip(f"torch or torch_npu cannot be had here: {error}")
    return folder


@pytest.fixture(scope="module")
def cann(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    packages = next((target / "lib").glob("python3.*")) / "site-packages"
    return build(packages, tmp_path_factory.mktemp("Ascend") / "cann-9.1.0")


@pytest.fixture
def with_cards(cann: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that lets what is started see so many devices, and nothing of a CANN of this machine."""
    for name in [name for name in os.environ if name.startswith(("ASCEND", "STUB_", "PYTHON"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def see(count: int) -> None:
        for name, value in environment(cann, devices=count).items():
            monkeypatch.setenv(name, value)

    return see


def smoke(
    target: Path, out: Path, capsys: pytest.CaptureFixture[str], *settings: str, lang: str = "en"
) -> tuple[int, dict[str, Any]]:
    """The exit code and the document."""
    code = main(["smoke-train", "--target", str(target), "-o", str(out), "--json", "--lang", lang, *settings])
    return code, json.loads(capsys.readouterr().out)


def stages(document: dict[str, Any]) -> dict[str, Any]:
    return {stage["name"]: stage["passed"] for stage in document["run"]["stage"]}


@pytest.mark.parametrize(("device", "lang"), [("npu", "en"), pytest.param("auto", "zh", marks=pytest.mark.long)])
def test_a_device_that_computes_garbage_is_named_and_not_trained_on(
    device: str, lang: str, target: Path, with_cards: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_cards(2)
    code, document = smoke(target, tmp_path / "out", capsys, f"device={device}", lang=lang)
    assert (code, document["exit"], document["verdict"]) == (1, 1, "fail")
    assert document["cause"] == "arithmetic-wrong"
    assert says(document["says"], "smoke.arithmetic-wrong", lang, device="npu:0")
    (fix,) = [found["fix"] for found in document["findings"] if found["check"] == "training.arithmetic"]
    assert says(fix["says"], "smoke.arithmetic-wrong-fix", lang)
    # Copies are exact: what the device holds is right, and only what it computes is not.
    assert stages(document) == {"packages": None, "import": True, "device": True, "matmul": False}
    (seen,) = [stage for stage in document["run"]["stage"] if stage["name"] == "device"]
    assert (seen["card"], seen["visible"], seen["torch_npu"]) == ("Ascend910B1", 2, "2.13.0")
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [record for record in records if record["kind"] in ("step", "eval")] == []


@pytest.mark.slow
@pytest.mark.long
def test_without_a_device_it_is_the_device_that_is_named_and_no_product(
    target: Path, with_cards: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with_cards(0)
    code, document = smoke(target, tmp_path / "out", capsys, "device=npu")
    assert code == ExitCode.INPUT
    assert "device=npu" in document["error"]["message"]
    assert "product" not in json.dumps(document)


@pytest.mark.parametrize(("count", "device"), [pytest.param(2, "cpu", marks=pytest.mark.long), (0, "auto")])
def test_the_cpu_of_the_same_environment_computes_what_it_should(
    count: int, device: str, target: Path, with_cards: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three steps are too few to learn from, and nothing else is said."""
    with_cards(count)
    code, document = smoke(target, tmp_path / "out", capsys, f"device={device}", "steps=3")
    assert (code, document["cause"]) == (ExitCode.UNKNOWN, "too-little")
    assert stages(document)["matmul"] is True
    assert document["run"]["header"][0]["device"] == "cpu"
