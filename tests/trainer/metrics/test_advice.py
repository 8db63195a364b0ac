"""Advice: each rule with a run that it speaks to and one just beside it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from trainer.metrics.advice import Advisor
from trainer.metrics.records import FILE, Loggers, Records

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = {
    "task": "gsm8k", "engine": "vllm", "prompts_per_step": 16, "rollouts_per_prompt": 4, "mini_batches": 2, "ranks": 1,
    "micro_batch_rows": 0, "memory_fraction": 0.8, "max_new_tokens": 64,
}  # fmt: skip
STEP = {
    "perf/memory_used_share": 0.7, "timing_s/gen": 1.0, "timing_s/step": 2.0, "response_length/max": 60,
    "response_length/clip_ratio": 0.0,
}  # fmt: skip


def advice(
    settings: dict[str, Any] | None = None, *steps: dict[str, Any], device: str = "npu:0"
) -> list[tuple[str, dict[str, Any]]]:
    advisor = Advisor()
    advisor.read({"kind": "header", "settings": {**SETTINGS, **(settings or {})}, "device": device})
    for step in steps or ({},):
        advisor.read({"kind": "step", **STEP, **step})
    return [(record["id"], record["args"]) for record in advisor.finish()]


def test_a_run_that_uses_its_card_well_gets_no_advice() -> None:
    assert advice() == []


def test_unused_memory_goes_to_larger_micro_batches_first() -> None:
    low = {"perf/memory_used_share": 0.45}
    assert advice({"micro_batch_rows": 2, "memory_fraction": 0.4}, low) == [
        ("micro-batch", {"used": 45, "device": "npu:0", "now": 2, "value": 4})
    ]
    # A micro batch is never larger than the mini batch: 16 prompts * 4 answers / 2.
    assert advice({"micro_batch_rows": 20}, low)[0][1]["value"] == 32


def test_then_to_the_sampler_up_to_the_most_that_leaves_room_for_a_learner() -> None:
    low = {"perf/memory_used_share": 0.45}
    assert advice({"memory_fraction": 0.4}, low) == [
        ("memory-fraction", {"used": 45, "device": "npu:0", "now": 0.4, "value": 0.5})
    ]
    assert advice({"memory_fraction": 0.75}, low)[0][1]["value"] == 0.8
    assert advice({"memory_fraction": 0.8}, low) == []
    assert advice({"memory_fraction": 0.4, "engine": "builtin"}, low) == []


def test_it_is_the_peak_that_counts_and_a_cpu_has_no_memory_to_fill() -> None:
    low, high = {"perf/memory_used_share": 0.45}, {"perf/memory_used_share": 0.61}
    assert advice({"micro_batch_rows": 2}, low, high, low) == []
    assert advice({"micro_batch_rows": 2}, low, device="cpu") == []


@pytest.mark.parametrize(
    ("engine", "levers"),
    [("vllm", "micro_batch_rows, memory_fraction, max_new_tokens"), ("builtin", "micro_batch_rows, max_new_tokens")],
)
def test_memory_that_is_almost_full_names_the_levers_in_their_order(engine: str, levers: str) -> None:
    full = {"perf/memory_used_share": 0.93}
    assert advice({"engine": engine}, full) == [("memory-full", {"used": 93, "device": "npu:0", "settings": levers})]
    assert advice({}, {"perf/memory_used_share": 0.92}) == []


def test_answers_cut_off_late_in_the_run_ask_for_more_room() -> None:
    cut, whole = {"response_length/clip_ratio": 0.4, "response_length/max": 64}, {"response_length/clip_ratio": 0.0}
    assert advice({}, whole, whole, whole, cut) == [("length-clipped", {"share": 40, "limit": 64, "value": 128})]
    assert advice({}, cut, cut, cut, whole) == []
    assert advice({"task": "frozen_lake"}, cut) == advice({"task": "successor"}, cut) == []


def test_a_limit_far_above_every_answer_is_named_where_it_was_set() -> None:
    short = {"response_length/max": 32}
    assert advice({}, short) == [("length-unused", {"longest": 32, "limit": 64, "value": 40})]
    assert advice({}, short, {"response_length/max": 33}) == []
    assert advice({"max_new_tokens": 0}, short) == []


def test_generation_that_takes_most_of_the_time_on_a_card_asks_for_another_engine() -> None:
    slow = {"timing_s/gen": 1.5}
    assert advice({"engine": "transformers"}, slow) == [("generation-slow", {"share": 75, "engine": "transformers"})]
    assert advice({"engine": "vllm"}, slow) == []
    assert advice({"engine": "builtin"}, slow, device="cpu") == []


def test_advice_stands_before_the_last_record_and_a_run_without_steps_has_none(tmp_path: Path) -> None:
    for name, steps in (("some", 2), ("none", 0)):
        folder = tmp_path / name
        with Records(folder, followers=[Loggers(folder), Advisor()]) as records:
            records.write("header", settings={**SETTINGS, "micro_batch_rows": 2}, device="npu:0")
            for step in range(steps):
                records.write("step", step=step, **{**STEP, "perf/memory_used_share": 0.3})
            records.write("end", status="completed")
        kinds = [json.loads(line)["kind"] for line in (folder / FILE).read_text().splitlines()]
        assert kinds == ["header", *["step"] * steps, *["advice"] * bool(steps), "end"]
