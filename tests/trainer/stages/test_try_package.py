"""The trial of vllm on a stand-in with the signatures of its releases."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.trainer.engines.vllm_signatures import fields, stands_in
from trainer.stages.try_package import try_vllm


class Model:
    """Answers with as many tokens as it was made for."""

    tokens: tuple[int, ...] = (7,)

    def __init__(self, **given: Any) -> None:
        assert given.keys() <= fields("EngineArgs")
        assert (given["load_format"], given["enforce_eager"]) == ("dummy", True)
        assert json.loads((Path(given["model"]) / "config.json").read_text(encoding="utf-8"))["model_type"] == "qwen2"

    @stands_in("LLM.generate")
    def generate(
        self,
        prompts: Any,
        sampling_params: Any = None,
        *,
        use_tqdm: bool = True,
        lora_request: Any = None,
        priority: Any = None,
        tokenization_kwargs: Any = None,
        mm_processor_kwargs: Any = None,
    ) -> list[Any]:
        assert [each.keys() <= fields("TokensPrompt") for each in prompts] == [True]
        assert sampling_params == {"max_tokens": 1, "temperature": 0.0, "detokenize": False}
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=list(self.tokens))])]


def params(**given: Any) -> dict[str, Any]:
    assert given.keys() <= fields("SamplingParams")
    return given


@pytest.fixture(autouse=True)
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    package, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    package.__version__, package.LLM, package.SamplingParams = "0.33.0", Model, params  # type: ignore[attr-defined]
    platforms.current_platform = SimpleNamespace(device_type="npu")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", package)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)


def test_a_card_generates_one_token() -> None:
    found = try_vllm("npu")
    assert (found["version"], found["generated"], "problem" in found) == ("0.33.0", [7], False)


def test_without_a_card_only_the_import_is_tried() -> None:
    found = try_vllm("cpu")
    assert (found["platform"], found["generated"]) == ("SimpleNamespace", None)


def test_another_platform_and_a_missing_token_are_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "none for cuda" in try_vllm("cuda")["problem"]
    monkeypatch.setattr(Model, "tokens", ())
    assert "0 tokens" in try_vllm("npu")["problem"]
