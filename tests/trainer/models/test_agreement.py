"""The built-in decoder against transformers: the same folder, the same logits, in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.model_cases import EVEN, UNEVEN, batch_of, decoder, gradients
from trainer.config import parse
from trainer.models import build, save
from trainer.models.decoder import Decoder, Shape
from trainer.models.pretrained import Pretrained

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.types import Batch

transformers = pytest.importorskip("transformers", reason="compares with transformers, which is not installed")

pytestmark = pytest.mark.full

# vocabulary, hidden, layers, heads, kv_heads, head_size, intermediate, rope_base, norm_epsilon, is_tied, is_qwen3
SHAPES = [
    Shape(40, 32, 2, 4, 2, 8, 48),
    Shape(31, 24, 3, 6, 1, 4, 40, 1_000_000.0, 1e-5, False),
    Shape(40, 32, 2, 4, 2, 16, 48, 1_000_000.0, 1e-6, True, True),
    Shape(23, 24, 1, 3, 3, 10, 17, 500.0, 1e-5, False, True),
]
NAMES = ["qwen2-tied", "qwen2-untied-one-kv-head", "qwen3-tied-wide-heads", "qwen3-untied"]


def _from_transformers(shape: Shape, seed: int) -> Any:
    kind = transformers.Qwen3Config if shape.is_qwen3 else transformers.Qwen2Config
    config = kind(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_base},
        rope_theta=shape.rope_base,
        rms_norm_eps=shape.norm_epsilon,
        tie_word_embeddings=shape.is_tied,
        **({"head_dim": shape.head_size} if shape.is_qwen3 else {}),
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _logprobs(model: Any, batch: Batch, temperature: float) -> torch.Tensor:
    """Each masked token's log-probability, row by row, from the model's own forward pass."""
    found = torch.zeros(batch.tokens_BT.shape)
    for row, prompt in enumerate(batch.prompt_of_B.tolist()):
        question = batch.prompts_PS[prompt, : batch.prompt_lengths_P[prompt]]
        answer = batch.tokens_BT[row, : batch.lengths_B[row]]
        logits = model(torch.cat((question, answer))[None]).logits[0, len(question) - 1 : -1]
        found[row, : len(answer)] = torch.log_softmax(logits / temperature, -1).gather(1, answer[:, None])[:, 0]
    return torch.where(batch.mask_BT, found, 0.0)


def _config(path: Path, *words: str) -> Any:
    return parse([f"path={path}", *words], devices=("cpu",))


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_a_folder_that_transformers_wrote_gives_the_same_log_probabilities(shape: Shape, tmp_path: Path) -> None:
    theirs = _from_transformers(shape, seed=3)
    theirs.save_pretrained(tmp_path)
    ours = build(_config(tmp_path), 19, seed=0, device=torch.device("cpu"))
    assert isinstance(ours, Decoder)
    batch = batch_of(*UNEVEN)
    with torch.no_grad():
        found = ours.token_logprobs(batch, temperature=0.8).logprobs_BT
        expected = _logprobs(theirs, batch, 0.8)
    assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("shape", SHAPES, ids=NAMES)
def test_transformers_reads_what_we_wrote_and_says_the_same_logits(shape: Shape, tmp_path: Path) -> None:
    ours = decoder(shape, torch.float32, seed=5)
    save(ours, tmp_path)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(theirs).__name__ == ("Qwen3ForCausalLM" if shape.is_qwen3 else "Qwen2ForCausalLM")
    names = {name for name, _ in theirs.named_parameters()}
    assert names == {name for name, _ in ours.named_parameters()}
    batch = batch_of(*EVEN)
    with torch.no_grad():
        found = ours.token_logprobs(batch, temperature=1.0).logprobs_BT
        assert float((found - _logprobs(theirs, batch, 1.0)).abs().max()) < 1e-4


@pytest.mark.parametrize("lengths", [UNEVEN, EVEN])
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=NAMES[1:3])
def test_a_model_of_transformers_scores_as_its_plain_rows_with_shared_prompts_and_with_checkpointing(
    shape: Shape, lengths: tuple[list[list[int]], list[list[int]]]
) -> None:
    theirs, batch = _from_transformers(shape, seed=4), batch_of(*lengths, words=True)
    shared = Pretrained(theirs)
    found = shared.token_logprobs(batch, temperature=0.8)
    expected = _logprobs(theirs, batch, 0.8)
    assert float((found.logprobs_BT - expected).detach().abs().max()) < 1e-5
    ours = gradients(shared, found.logprobs_BT, found.entropy_BT)
    rows = Pretrained(theirs, gradient_checkpointing=True)
    other = rows.token_logprobs(batch, temperature=0.8)
    torch.testing.assert_close(found.logprobs_BT, other.logprobs_BT, rtol=0, atol=1e-5)
    torch.testing.assert_close(found.entropy_BT, other.entropy_BT, rtol=0, atol=1e-5)
    plain = gradients(rows, other.logprobs_BT, other.entropy_BT)
    assert ours.keys() == plain.keys() == {name for name, _ in theirs.named_parameters()}
    for name in plain:
        apart = (ours[name] - plain[name]).norm() / plain[name].norm()
        assert float(apart) < 1e-4, name


def test_another_kind_of_model_is_left_to_transformers(tmp_path: Path) -> None:
    config = transformers.LlamaConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    made = build(_config(tmp_path), 19, seed=0, device=torch.device("cpu"))
    assert isinstance(made, Pretrained)
    assert "model.embed_tokens.weight" in dict(made.named_parameters())
    batch = batch_of(*UNEVEN)
    found = made.token_logprobs(batch, temperature=1.0).logprobs_BT
    assert float((found - _logprobs(made.inner, batch, 1.0)).detach().abs().max()) < 1e-5
