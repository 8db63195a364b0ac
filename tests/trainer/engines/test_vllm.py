"""The engine over vLLM: our control flow on a small stand-in. `test_vllm_installed.py` has the real ones."""

from __future__ import annotations

import contextlib
import gc
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from trainer.config import BadSetting, parse
from trainer.engines import vllm as engine_module
from trainer.engines.base import Sampling
from trainer.engines.generator_client import EngineSpec
from trainer.engines.vllm import ENVIRONMENT, Package, Vllm, arguments, read, reload, start
from trainer.models.files import read_weights
from trainer.tasks.base import Characters, Task
from trainer.types import Stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

END = Characters().end
QKV = {"q_proj": 4, "k_proj": 2, "v_proj": 2}
WEIGHTS = {
    "model.embed_tokens.weight": torch.arange(57.0).view(19, 3),
    **{f"model.layers.0.self_attn.{name}.weight": torch.randn(rows, 3) for name, rows in QKV.items()},
    **{f"model.layers.0.self_attn.{name}.bias": torch.randn(rows) for name, rows in QKV.items()},
    "model.layers.0.self_attn.o_proj.weight": torch.randn(3, 4),
    **{f"model.layers.0.mlp.{name}.weight": torch.randn(5, 3) for name in ("gate_proj", "up_proj")},
    "model.norm.weight": torch.randn(3),
}


class Stacked(nn.Module):
    """Parameters as vLLM holds them: q, k, v in one, gate and up in one, the vocabulary padded to 64."""

    def __init__(self) -> None:
        super().__init__()
        self.held = {
            "model.embed_tokens.weight": torch.zeros(64, 3),
            "model.layers.0.self_attn.qkv_proj.weight": torch.zeros(8, 3),
            "model.layers.0.self_attn.qkv_proj.bias": torch.zeros(8),
            "model.layers.0.self_attn.o_proj.weight": torch.zeros(3, 4),
            "model.layers.0.mlp.gate_up_proj.weight": torch.zeros(10, 3),
            "model.norm.weight": torch.zeros(3),
        }
        self.num_loads = 0

    def named_parameters(self, *args: object, **kwargs: object) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, nn.Parameter(each, requires_grad=False)) for name, each in self.held.items())

    def load_weights(self, weights: list[tuple[str, torch.Tensor]]) -> None:
        self.num_loads += 1
        starts = {"q_proj": ("qkv_proj", 0), "k_proj": ("qkv_proj", 4), "v_proj": ("qkv_proj", 6)}
        starts |= {"gate_proj": ("gate_up_proj", 0), "up_proj": ("gate_up_proj", 5)}
        for name, weight in weights:
            part = next((part for part in name.split(".") if part in starts), None)
            stack, at = starts[part] if part else ("", 0)
            own = self.held[name.replace(part, stack) if part else name]
            own[at : at + len(weight)] = weight


CURRENT: list[Any] = [None]


@contextlib.contextmanager
def set_current(config: Any) -> Iterator[None]:
    """vLLM's `set_current_vllm_config`."""
    CURRENT.append(config)
    yield
    CURRENT.pop()


def vllm_config(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.config")
    module.set_current_vllm_config = set_current  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


@dataclass
class FakeLLM:
    """Records what it is asked; answers `5, end` and `6, 7`, each with the likelier `1` beside the drawn token."""

    model: Stacked = field(default_factory=Stacked)
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def generate(self, prompts: Any, sampling_params: Any, *, use_tqdm: bool) -> list[Any]:
        self.calls.append(("generate", (prompts, sampling_params, use_tqdm)))
        return [SimpleNamespace(outputs=[answer((5, END), "stop"), answer((6, 7), "length")]) for _ in prompts]

    def apply_model(self, func: Any) -> list[Any]:
        self.calls.append(("apply_model", None))
        return [func(self.model)]

    def collective_rpc(self, method: Any) -> None:
        # Under which configuration, as vLLM's layers ask for it.
        runner = SimpleNamespace(reload_weights=lambda: self.calls.append(("reload_weights", CURRENT[-1])))
        method(SimpleNamespace(model_runner=runner, vllm_config="the worker's"))

    def sleep(self, level: int = 1) -> None:
        self.calls.append(("sleep", level))

    def wake_up(self, tags: list[str] | None = None) -> None:
        self.calls.append(("wake_up", tags))

    def reset_prefix_cache(self) -> None:
        self.calls.append(("reset_prefix_cache", None))

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def answer(tokens: tuple[int, ...], reason: str) -> Any:
    logprobs = [{1: SimpleNamespace(logprob=-0.1), token: SimpleNamespace(logprob=-token / 10)} for token in tokens]
    return SimpleNamespace(token_ids=list(tokens), logprobs=logprobs, finish_reason=reason)


def params(**given: Any) -> Mapping[str, Any]:
    return given


PACKAGE = Package(LLM=None, SamplingParams=params, TokensPrompt=params)


def engine(**given: Any) -> tuple[Vllm, FakeLLM]:
    llm = FakeLLM()
    return Vllm(llm, PACKAGE, end=END, seed=0, **given), llm


def task(**given: Any) -> Task:
    return Task("none", Characters(), (), (), 7, reward=lambda *_: 0.0, is_right=lambda *_: False, **given)


def order(*words: str) -> EngineSpec:
    return EngineSpec.of(parse(words, devices=("cpu",)), task(), seed=0)


def test_tokens_go_in_and_drawn_tokens_with_their_own_logprobs_come_out() -> None:
    made, llm = engine()
    groups = made.generate([(1, 2), (3,)], Sampling(2, 4, 0.7))
    assert [rollout.tokens for rollout in groups[1]] == [(5, END), (6, 7)]
    assert [rollout.logprobs for rollout in groups[0]] == [(-0.5, -END / 10), (-0.6, -0.7)]
    assert [rollout.stop for rollout in groups[0]] == [Stop.END, Stop.LENGTH]
    prompts, asked, use_tqdm = llm.calls[0][1]
    assert (prompts, use_tqdm) == ([{"prompt_token_ids": [1, 2]}, {"prompt_token_ids": [3]}], False)
    assert {key: asked[0][key] for key in ("n", "temperature", "max_tokens", "logprobs", "stop_token_ids")} == {
        "n": 2,
        "temperature": 0.7,
        "max_tokens": 4,
        "logprobs": 0,
        "stop_token_ids": [END],
    }


def test_greedy_answers_are_asked_for_at_temperature_zero() -> None:
    made, llm = engine()
    made.generate([(1,)], Sampling(1, 4, 0.7, is_greedy=True))
    assert llm.calls[0][1][1][0]["temperature"] == 0.0


def test_top_p_and_top_k_are_asked_for_where_they_are_set_and_the_answer_is_drawn() -> None:
    made, llm = engine()
    for sampling in (
        Sampling(1, 4, 1.0, top_p=0.9),
        Sampling(1, 4, 1.0, top_k=5),
        Sampling(1, 4, 1.0),
        Sampling(1, 4, 1.0, is_greedy=True, top_p=0.9, top_k=5),
    ):
        made.generate([(1,)], sampling)
    asked = [{key: each for key, each in call[1][0].items() if key.startswith("top_")} for _, call in llm.calls]
    assert asked == [{"top_p": 0.9, "top_k": -1}, {"top_p": 1.0, "top_k": 5}, {}, {}]


def test_each_request_has_its_own_seed_and_a_restored_state_gives_the_same_ones() -> None:
    made, llm = engine()
    state = made.random_state()
    for _ in range(2):
        made.generate([(1,), (1,)], Sampling(1, 4, 1.0))
    made.restore_random_state(state)
    made.generate([(1,), (1,)], Sampling(1, 4, 1.0))
    first, second, again = ([asked["seed"] for asked in call[1]] for _, call in llm.calls)
    assert first == again
    assert len({*first, *second}) == 4


def test_seeds_of_prompts_are_those_of_their_requests() -> None:
    made, llm = engine()
    state = made.random_state().clone()
    made.generate([(1,), (2,)], Sampling(1, 2, 1.0, seeds=(41, 42)))
    assert [asked["seed"] for asked in llm.calls[-1][1][1]] == [41, 42]
    assert torch.equal(made.random_state(), state)


def test_weights_handed_over_in_place_are_read_back_bit_for_bit() -> None:
    made, llm = engine()
    made.load_weights(WEIGHTS)
    held = made.weights()
    assert held.keys() == WEIGHTS.keys()
    assert all(torch.equal(held[name], weight) for name, weight in WEIGHTS.items())
    assert llm.names == ["apply_model", "reset_prefix_cache", "apply_model"]


def test_many_weights_go_over_in_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "_BUCKET_BYTES", 100)
    made, llm = engine(is_parallel=True)
    made.load_weights(WEIGHTS)
    assert llm.model.num_loads == 5  # the embedding's 228 bytes alone, the others filled up to 100
    assert all(torch.equal(made.weights()[name], weight) for name, weight in WEIGHTS.items())


def test_a_shard_is_left_out_of_the_weights_read_back() -> None:
    model = Stacked()
    model.held["model.layers.0.self_attn.qkv_proj.weight"] = torch.zeros(4, 3)
    model.held["model.layers.0.self_attn.o_proj.weight"] = torch.zeros(3, 2)
    missing = WEIGHTS.keys() - read({name: tuple(each.shape) for name, each in WEIGHTS.items()}, model).keys()
    assert missing == {f"model.layers.0.self_attn.{name}.weight" for name in (*QKV, "o_proj")}


def test_sleep_drops_everything_and_the_cache_wakes_after_the_weights_came() -> None:
    made, llm = engine(can_sleep=True)
    made.sleep()
    made.wake()
    made.load_weights(WEIGHTS)
    made.load_weights(WEIGHTS)
    assert llm.calls == [
        ("sleep", 2),
        ("wake_up", ["weights"]),
        ("apply_model", None),
        ("wake_up", ["kv_cache"]),
        ("reset_prefix_cache", None),
        ("apply_model", None),
        ("reset_prefix_cache", None),
    ]


def test_an_engine_without_sleep_mode_stays_awake() -> None:
    made, llm = engine()
    made.sleep()
    made.wake()
    assert llm.calls == []


def test_reloading_goes_through_a_folder_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    (model / "model-00001-of-00002.safetensors").write_bytes(b"old")
    llm = FakeLLM()
    fake = ModuleType("vllm")
    fake.LLM = lambda **given: llm.calls.append(("LLM", given)) or llm  # type: ignore[attr-defined, func-returns-value]
    fake.SamplingParams = params  # type: ignore[attr-defined]
    inputs = ModuleType("vllm.inputs")
    inputs.TokensPrompt = params  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.inputs", inputs)
    vllm_config(monkeypatch)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    made = start(order("engine=vllm", f"path={model}", "weight_sync=reload"), seed=0)
    made.load_weights(WEIGHTS)
    folder = Path(llm.calls[0][1]["model"])
    assert sorted(each.name for each in folder.iterdir()) == ["config.json", "model.safetensors"]
    written = dict(read_weights(folder))
    assert all(torch.equal(written[name], weight) for name, weight in WEIGHTS.items())
    assert llm.calls[1:] == [("reload_weights", "the worker's"), ("reset_prefix_cache", None)]
    assert CURRENT == [None]
    assert (model / "model-00001-of-00002.safetensors").read_bytes() == b"old"
    del made
    gc.collect()
    assert not folder.exists()


def test_a_runner_that_cannot_reload_is_reloaded_by_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    loader = ModuleType("vllm.model_executor.model_loader")
    loader.get_model_loader = lambda config: SimpleNamespace(  # type: ignore[attr-defined]
        load_weights=lambda model, model_config: loaded.append((config, model, model_config, CURRENT[-1]))
    )
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, loader.__name__, loader)
    vllm_config(monkeypatch)
    config = SimpleNamespace(load_config="how", model_config="where")
    reload(SimpleNamespace(model_runner=SimpleNamespace(), vllm_config=config, get_model=lambda: "model"))
    assert loaded == [("how", "model", "where", config)]


def test_the_arguments_follow_the_configuration() -> None:
    words = ["engine=vllm", "memory_fraction=0.3", "tensor_parallel=2", "sleep=true", "enforce_eager=true"]
    words += ["max_prompt_tokens=20"]
    given = arguments(order(*words), Path("somewhere"), seed=2**40 + 3)
    assert given["max_model_len"] == 27
    assert given["distributed_executor_backend"] == "mp"
    assert "distributed_executor_backend" not in arguments(order(), Path("x"), seed=0)
    assert (given["gpu_memory_utilization"], given["tensor_parallel_size"], given["seed"]) == (0.3, 2, 3)
    assert (given["enable_sleep_mode"], given["enforce_eager"], given["logprobs_mode"]) == (
        True,
        True,
        "processed_logprobs",
    )
    assert given["additional_config"] == {"rl_config": {"enabled": True}, "weight_nz_mode": 0}


def test_a_missing_package_and_a_missing_folder_are_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="path=FOLDER"):
        start(order("engine=vllm"), seed=0)
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    with pytest.raises(BadSetting, match="package vllm"):
        start(order("engine=vllm", "path=somewhere"), seed=0)
