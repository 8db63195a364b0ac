"""One loader for all of transformers' causal models, whichever pinned release of it is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from trainer.config import BadSetting
from trainer.models.pretrained import causal_model, dtype_argument

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
_PIN = re.compile(r'^name = "transformers"\nversion = "([^"]+)"', re.MULTILINE)


def pinned() -> list[str]:
    """The releases of transformers in the committed locks, oldest first."""
    found = {version for path in (ROOT / "lockfiles").glob("*.toml") for version in _PIN.findall(path.read_text())}
    return sorted(found, key=lambda version: [int(number) for number in version.split(".")])


def old(path: str, *, torch_dtype: object = None, local_files_only: bool = False) -> object:
    """What 4.55 and earlier take; anything else goes to the model's constructor, which refuses it."""
    return "old", path, torch_dtype, local_files_only


def new(path: str, *, dtype: object = None, local_files_only: bool = False) -> object:
    """What later releases take; the other name is deprecated there."""
    return "new", path, dtype, local_files_only


@pytest.mark.parametrize(
    ("version", "takes"), [("4.51.3", old), ("4.55.4", old), ("4.56.0", new), ("4.57.6", new), ("5.3.0.dev0", new)]
)
def test_the_dtype_reaches_every_release_under_its_own_name(
    version: str, takes: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = SimpleNamespace(__version__=version, AutoModelForCausalLM=SimpleNamespace(from_pretrained=takes))
    monkeypatch.setitem(sys.modules, "transformers", package)
    assert causal_model(Path("folder"), torch.bfloat16) == (takes.__name__, "folder", torch.bfloat16, True)


def test_the_pinned_releases_are_of_both_kinds() -> None:
    assert [dtype_argument(version) for version in (pinned()[0], pinned()[-1])] == ["torch_dtype", "dtype"]


@pytest.mark.full
def test_a_model_is_read_from_its_folder_in_the_dtype(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = llama(transformers)
    model.save_pretrained(tmp_path)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = dict(causal_model(tmp_path, dtype).named_parameters())
        assert all(torch.equal(loaded[name], each.to(dtype)) for name, each in model.named_parameters())
        assert {each.dtype for each in loaded.values()} == {dtype}


def llama(transformers: Any) -> Any:
    """A model that the built-in decoder cannot be."""
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.full
def test_a_folder_that_holds_no_model_is_a_bad_setting(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(BadSetting, match="causal model"):
        causal_model(tmp_path, torch.float32)


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long  # its tests run with the installed release before each change
def test_the_oldest_pinned_release_loads_scores_and_samples(tmp_path: Path) -> None:
    """This room's tests of transformers, and the engine's, with that release in the place of the installed one."""
    import uv

    packages = tmp_path / "packages"
    words = ["pip", "install", "--python", sys.executable, "--target", str(packages), f"transformers=={pinned()[0]}"]
    installed = subprocess.run([uv.find_uv_bin(), *words], capture_output=True, text=True, timeout=300, check=False)
    if installed.returncode:
        pytest.skip(f"cannot be had here: {installed.stderr.strip()[-300:]}")
    files = ("models/test_agreement.py", "models/test_pretrained.py", "engines/test_transformers.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not registry", "-rs"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [*command, *(f"tests/trainer/{file}" for file in files)],
        cwd=ROOT,
        env={**variables, "PYTHONPATH": os.pathsep.join([str(packages), str(Path(torch.__file__).parents[1])])},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:]
    assert "skipped" not in ran.stdout, ran.stdout[-3000:]
