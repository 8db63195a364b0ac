"""The engine over vLLM: our control flow on a small stand-in. `test_vllm_installed.py` has the real ones."""

from __future__ import annotations

import contextlib
import gc
import sys
import tempfile
from dataclasses import dataclass, field, make_dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from tests.trainer.engines.vllm_signatures import VLLM, VLLM_ASCEND, fields, require, stands_in
from trainer.config import BadSetting, parse
from trainer.engines import vllm as engine_module
from trainer.engines.engine import Sampling
from trainer.engines.generator_client import EngineSpec
from trainer.engines.vllm import ENVIRONMENT, Package, Vllm, arguments, process_logprobs, read, reload, start
from trainer.models.pretrained import read_weights
from trainer.tasks.base import Task
from trainer.tasks.tokenizers import Characters
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

    @stands_in("model.load_weights")
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
def set_current(*args: Any, **kwargs: Any) -> Iterator[None]:
    """vLLM's `set_current_vllm_config`."""
    require("set_current_vllm_config", *args, **kwargs)
    CURRENT.append(args[0])
    yield
    CURRENT.pop()


def vllm_config(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm.config")
    module.set_current_vllm_config = set_current  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)


def sampler() -> Any:
    """vLLM's as vllm-ascend makes it: without the mode of the engine's arguments."""
    return SimpleNamespace(logprobs_mode="raw", topk_topp_sampler=SimpleNamespace(logprobs_mode="raw"))


@dataclass
class Runner:
    """Notes under which configuration it reloads, as vLLM's layers ask for it."""

    calls: list[tuple[str, Any]]
    sampler: Any = field(default_factory=sampler)

    @stands_in("model_runner.reload_weights")
    def reload_weights(
        self, weights_iterator: Any = None, weights_path: str | None = None, is_checkpoint_format: bool = True
    ) -> None:
        self.calls.append(("reload_weights", CURRENT[-1]))


@dataclass
class FakeLLM:
    """Records what it is asked; answers `5, end` and `6, 7`, each with the likelier `1` beside the drawn token."""

    model: Stacked = field(default_factory=Stacked)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=lambda: [answer((5, END), "stop"), answer((6, 7), "length")])
    runner: Runner = field(default_factory=lambda: Runner([]))

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
        self.calls.append(("generate", (prompts, sampling_params, use_tqdm)))
        return [SimpleNamespace(outputs=self.answers) for _ in prompts]

    @stands_in("LLM.apply_model")
    def apply_model(self, func: Any) -> list[Any]:
        self.calls.append(("apply_model", None))
        return [func(self.model)]

    @stands_in("LLM.collective_rpc")
    def collective_rpc(self, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None) -> None:
        self.runner.calls = self.calls
        method(SimpleNamespace(model_runner=self.runner, vllm_config="the worker's"))

    @stands_in("LLM.sleep")
    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append(("sleep", level))

    @stands_in("LLM.wake_up")
    def wake_up(self, tags: list[str] | None = None) -> bool:
        self.calls.append(("wake_up", tags))
        return tags is None or "kv_cache" in tags

    @stands_in("LLM.reset_prefix_cache")
    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        self.calls.append(("reset_prefix_cache", None))
        return True

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]


def made_as(name: str, **given: Any) -> Any:
    """An object of vllm's class, with no other fields than every release has."""
    assert given.keys() <= fields(name), name
    return SimpleNamespace(**given)


def answer(tokens: tuple[int, ...], reason: str) -> Any:
    logprobs = [
        {1: made_as("Logprob", logprob=-0.1), token: made_as("Logprob", logprob=-token / 10)} for token in tokens
    ]
    return made_as("CompletionOutput", token_ids=list(tokens), logprobs=logprobs, finish_reason=reason)


def params(**given: Any) -> Mapping[str, Any]:
    assert given.keys() <= fields("SamplingParams")
    return given


def prompt(**given: Any) -> Mapping[str, Any]:
    assert given.keys() <= fields("TokensPrompt")
    return given


ENGINE_ARGS = make_dataclass("EngineArgs", sorted(fields("EngineArgs")))
PACKAGE = Package(LLM=None, EngineArgs=ENGINE_ARGS, SamplingParams=params, TokensPrompt=prompt)


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
    fake.EngineArgs, fake.SamplingParams = ENGINE_ARGS, params  # type: ignore[attr-defined]
    inputs = ModuleType("vllm.inputs")
    inputs.TokensPrompt = prompt  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.inputs", inputs)
    vllm_config(monkeypatch)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    made = start(order("engine=vllm", f"path={model}", "weight_sync=reload"), seed=0)
    assert llm.runner.sampler.topk_topp_sampler.logprobs_mode == llm.calls[0][1]["logprobs_mode"]
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


def test_a_vllm_that_does_not_start_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, temporary = tmp_path / "model", tmp_path / "temporary"
    model.mkdir()
    temporary.mkdir()
    (model / "config.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    seen: list[list[Path]] = []

    def llm(**given: Any) -> Any:
        seen.append([*temporary.iterdir()])
        raise RuntimeError("broken")

    monkeypatch.setattr(engine_module, "_package", lambda: Package(llm, ENGINE_ARGS, params, prompt))
    with pytest.raises(RuntimeError, match="broken"):
        start(order("engine=vllm", f"path={model}", "weight_sync=reload"), seed=0)
    assert [len(each) for each in seen] == [1] and [*temporary.iterdir()] == []
    assert (model / "config.json").read_text(encoding="utf-8") == "{}"


def test_a_runner_that_cannot_reload_is_reloaded_by_the_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []
    loader = ModuleType("vllm.model_executor.model_loader")

    def load_weights(*args: Any, **kwargs: Any) -> None:
        require("model_loader.load_weights", *args, **kwargs)
        loaded.append((*args, *kwargs.values(), CURRENT[-1]))

    def get_model_loader(*args: Any) -> Any:
        require("get_model_loader", *args)
        loaded.append(args[0])
        return SimpleNamespace(load_weights=load_weights)

    loader.get_model_loader = get_model_loader  # type: ignore[attr-defined]
    for name in ("vllm", "vllm.model_executor"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, loader.__name__, loader)
    vllm_config(monkeypatch)
    config = SimpleNamespace(load_config="how", model_config="where")
    reload(SimpleNamespace(model_runner=SimpleNamespace(), vllm_config=config, get_model=lambda: "model"))
    assert loaded == ["how", ("model", "where", config)]


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
    assert given.keys() <= fields("EngineArgs")
    assert all(given["logprobs_mode"] in release["logprobs_modes"] for release in VLLM)


@pytest.mark.parametrize("release", VLLM_ASCEND, ids=[each["version"] for each in VLLM_ASCEND])
def test_every_vllm_ascend_keeps_weights_in_the_layout_that_can_be_loaded_again(release: Mapping[str, Any]) -> None:
    given = arguments(order(), Path("x"), seed=0)["additional_config"]
    assert given.keys() <= set(release["additional_config"]) or not release["rejects_unknown"]
    by_variable = release["variables"] == ["VLLM_ASCEND_ENABLE_NZ"] and ENVIRONMENT["VLLM_ASCEND_ENABLE_NZ"] == "0"
    by_argument = "weight_nz_mode" in release["additional_config"] and given["weight_nz_mode"] == 0
    assert by_variable or by_argument
    assert "rl_config" not in release["additional_config"] or given["rl_config"] == {"enabled": True}
    assert release["calls"] == {"sleep": ["level="], "wake_up": ["tags="], "get_model": []}


def test_the_variables_of_the_engine_are_read_by_every_vllm() -> None:
    own = {name for name in ENVIRONMENT if not name.startswith("VLLM_ASCEND_")}
    assert all(set(release["variables"]) == own for release in VLLM)


def test_every_sampler_returns_processed_logprobs_also_one_that_was_made_without_the_argument() -> None:
    assert all({"logprobs_mode", "topk_topp_sampler"} <= set(release["sampler"]) for release in VLLM)
    assert all(
        release["ignores_logprobs_mode"] and "topk_topp_sampler" in release["sampler"] for release in VLLM_ASCEND
    )
    first, second = sampler(), SimpleNamespace(logprobs_mode="raw")  # of the first and the second model runner
    for each in (first, second):
        process_logprobs(SimpleNamespace(model_runner=SimpleNamespace(sampler=each)))
    modes = (first.logprobs_mode, first.topk_topp_sampler.logprobs_mode, second.logprobs_mode)
    assert modes == ("processed_logprobs",) * 3
    assert not hasattr(second, "topk_topp_sampler")


def test_an_answer_that_was_not_finished_is_an_error() -> None:
    reasons = {reason for release in VLLM for reason in release["finish_reasons"]}
    assert reasons == {"stop", "length", "abort", "error", "repetition"}
    made, llm = engine()
    for reason in reasons - {"stop", "length"}:
        llm.answers = [answer((6,), reason)]
        with pytest.raises(RuntimeError, match=f"vllm ended an answer with {reason}, after 1 tokens"):
            made.generate([(1,)], Sampling(1, 4, 1.0))


def test_a_vllm_that_lacks_an_argument_is_a_bad_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 0.9.1 is, which the oldest stacks have: its log-probabilities are those before the temperature."""
    old = make_dataclass("EngineArgs", sorted(fields("EngineArgs") - {"logprobs_mode"}))
    monkeypatch.setattr(engine_module, "_package", lambda: replace(PACKAGE, EngineArgs=old))
    with pytest.raises(BadSetting, match=r"for vllm 0\.11\.0 to .* the installed one does not take logprobs_mode"):
        start(order("engine=vllm", f"path={tmp_path}"), seed=0)


def test_a_missing_package_and_a_missing_folder_are_bad_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadSetting, match="path=FOLDER"):
        start(order("engine=vllm"), seed=0)
    monkeypatch.setitem(sys.modules, "vllm", None)
    for name in ENVIRONMENT:
        monkeypatch.setenv(name, "0")
    with pytest.raises(BadSetting, match="package vllm"):
        start(order("engine=vllm", "path=somewhere"), seed=0)
