"""LoRA: at first nothing changes, then only the thin matrices learn, and merging says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.model_cases import QWEN2, QWEN3, UNEVEN, batch_of, decoder
from trainer.config import BadSetting
from trainer.models import lora, pretrained
from trainer.saving.checkpoint import difference

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.models.decoder import Decoder

ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapted(targets: list[str] = ALL, *, seed: int = 0) -> Decoder:
    made = decoder()
    lora.attach(made, rank=3, alpha=6.0, targets=targets, seed=seed)
    return made


def moved(made: Decoder) -> Decoder:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _, layer in lora.adapted(made):
            layer.lora_B.weight.normal_(0.0, 0.3, generator=generator)
    return made


def test_a_fresh_adapter_changes_nothing() -> None:
    batch = batch_of(*UNEVEN)
    found, plain = adapted().token_logprobs(batch, temperature=1.0), decoder().token_logprobs(batch, temperature=1.0)
    torch.testing.assert_close(found.logprobs_BT, plain.logprobs_BT, rtol=0, atol=1e-12)


@pytest.mark.parametrize("targets", [ALL, ["q_proj", "up_proj"], ["down_proj"]])
def test_merged_weights_in_a_plain_model_say_the_same(targets: list[str]) -> None:
    batch, made, plain = batch_of(*UNEVEN), moved(adapted(targets)), decoder()
    before = plain.token_logprobs(batch, temperature=1.0).logprobs_BT.detach()
    weights = lora.merged(made)
    assert weights.keys() == dict(plain.named_parameters()).keys()
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            parameter.copy_(weights[name])
    found = made.token_logprobs(batch, temperature=1.0).logprobs_BT.detach()
    torch.testing.assert_close(
        found, plain.token_logprobs(batch, temperature=1.0).logprobs_BT.detach(), rtol=0, atol=1e-12
    )
    assert float((found - before).abs().max()) > 1e-2


def test_only_the_thin_matrices_get_gradients() -> None:
    made = moved(adapted(["q_proj", "gate_proj"]))
    made.token_logprobs(batch_of(*UNEVEN), temperature=1.0).logprobs_BT.sum().backward()
    learning = {name for name, parameter in made.named_parameters() if parameter.grad is not None}
    assert len(learning) == 2 * 2 * QWEN2.layers
    assert all(".lora_" in name for name in learning)
    assert {name for name, parameter in made.named_parameters() if parameter.requires_grad} == learning


def test_a_product_of_the_size_alpha_over_rank_is_added() -> None:
    made = moved(adapted(["o_proj"]))
    layer = dict(lora.adapted(made))["model.layers.1.self_attn.o_proj"]
    change = layer.merged() - layer.weight
    torch.testing.assert_close(change, 2.0 * layer.lora_B.weight @ layer.lora_A.weight)


def test_a_target_that_names_no_layer_is_refused() -> None:
    with pytest.raises(BadSetting, match="lora_targets=w1 "):
        lora.attach(decoder(), rank=2, alpha=4.0, targets=["q_proj", "w1"], seed=0)


def test_a_saved_adapter_holds_both_factors_of_each_layer(tmp_path: Path) -> None:
    made = moved(adapted())
    lora.save(made, tmp_path, lora.factors(made), base="somewhere")
    saved = dict(pretrained.read_tensors(tmp_path / "adapter_model.safetensors"))
    assert difference(saved, lora.factors(made)) is None


def test_peft_reads_a_saved_adapter(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft", reason="compares with peft, which is not installed")
    transformers = pytest.importorskip("transformers", reason="peft needs transformers")
    from trainer.models import save

    plain = decoder(QWEN3, torch.float32)
    save(plain, tmp_path / "base")
    made = decoder(QWEN3, torch.float32)
    lora.attach(made, rank=3, alpha=6.0, targets=ALL, seed=0)
    moved(made)
    lora.save(made, tmp_path / "adapter", lora.factors(made), base=str(tmp_path / "base"))
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").merge_and_unload()
    ours = lora.merged(made)
    for name, weight in theirs.named_parameters():
        torch.testing.assert_close(weight, ours[name], rtol=0, atol=1e-6, msg=name)
