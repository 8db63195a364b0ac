"""Shapes of models: by the name of a published one, or from the config.json of a local folder.

No model library is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput, CannotTell
from npuenv.core.json_input import load_file
from npuenv.core.messages import Message
from npuenv.matrix import load_matrix
from npuenv.matrix.rows import ModelShape
from npuenv.preflight.memory.types import Model

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.matrix import Matrix

_BIASED = ("qwen2", "qwen2_moe", "qwen2_vl", "qwen2_5_vl", "qwen2_5_vl_text")  # no key of theirs says so
_HEAD_NORMED = ("qwen3", "qwen3_moe", "qwen3_vl_text")


def find_model(name: str, matrix: Matrix | None = None) -> Model:
    """The model of that name, or in that folder. An unknown one has no layers, and estimates of it stay unknown.

    A path counts by its last part too: `/data/models/Qwen2.5-7B` without a config.json is taken for Qwen/Qwen2.5-7B.
    Raises: BadInput where the folder's config.json cannot be used.
    """
    if (Path(name) / "config.json").is_file():
        return model_from(Path(name))
    lowered = name.rstrip("/").casefold()
    for shape in (matrix or load_matrix()).models:
        names = [each.casefold() for each in (shape.id, *shape.also)]
        if lowered in names or lowered.rsplit("/", 1)[-1] in {each.split("/")[-1] for each in names}:
            return model_of(shape, name)
    return Model(name, 0.0, 0, 0, 0, 0, 0, 0, 0, False)


def model_of(shape: ModelShape, name: str = "") -> Model:
    """The model of a shape, under its own name or another."""
    return Model(
        id=name or shape.id,
        parameters=float(count(shape)),
        layers=shape.layers,
        hidden=shape.hidden,
        intermediate=_width(shape),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
        is_tied=shape.is_tied,
        latent=shape.latent_rank + shape.rope_dim if shape.latent_rank else 0,
    )


def model_from(folder: Path) -> Model:
    """The model in a local folder, from its config.json; of a model that also sees, the text part.

    Raises: BadInput for a file that is no such configuration, CannotTell for a kind of layer that has no formula here.
    """
    path = folder / "config.json"
    try:
        raw = load_file(path)
    except (OSError, ValueError) as error:
        raise BadInput(Message("placement.config-unreadable", {"path": str(path), "what": str(error)})) from error
    if not isinstance(raw, dict):
        raise BadInput(Message("placement.config-unreadable", {"path": str(path), "what": type(raw).__name__}))
    text = raw["text_config"] if isinstance(raw.get("text_config"), dict) else {}
    config = {**raw, **text}
    kinds = config.get("layer_types") or ()
    if "linear_attention" in kinds or config.get("full_attention_interval"):
        raise CannotTell(Message("placement.config-mixed", {"path": str(path)}), Message("placement.hint-config-mixed"))
    return model_of(_shape(config, path), str(folder))


def _shape(config: Mapping[str, Any], path: Path) -> ModelShape:
    def number(*names: str, default: int | None = None) -> int:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 0 or (found == 0 and default != 0):
            raise BadInput(
                Message("placement.config-number", {"path": str(path), "key": names[0], "value": str(found)})
            )
        return found

    kind, heads, hidden = str(config.get("model_type")), number("num_attention_heads"), number("hidden_size")
    experts = number("num_experts", "n_routed_experts", "num_local_experts", default=0)
    return ModelShape(
        id=str(path.parent),
        source=path.name,
        seen="",
        parameters=0.0,
        layers=number("num_hidden_layers"),
        hidden=hidden,
        intermediate=number("intermediate_size"),
        heads=heads,
        kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", "qk_nope_head_dim", default=hidden // heads),
        vocabulary=number("vocab_size"),
        is_tied=bool(config.get("tie_word_embeddings", False)),
        has_bias=bool(config.get("attention_bias", kind in _BIASED)),
        has_head_norm=kind in _HEAD_NORMED,
        experts=experts,
        experts_active=number("num_experts_per_tok") if experts else 0,
        expert_intermediate=number("moe_intermediate_size", "intermediate_size") if experts else 0,
        experts_shared=number("n_shared_experts", default=0),
        dense_layers=number("first_k_dense_replace", default=0),
        query_rank=number("q_lora_rank", default=0),
        latent_rank=number("kv_lora_rank", default=0),
        rope_dim=number("qk_rope_head_dim", default=0),
        value_dim=number("v_head_dim", default=0),
    )


def count(shape: ModelShape) -> int:
    """The parameters of a shape: embedding, layers, last norm, output layer unless it is tied, vision tower."""
    outer = shape.vocabulary * shape.hidden * (1 if shape.is_tied else 2) + shape.hidden
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    dense = (shape.layers - sparse) * 3 * shape.hidden * shape.intermediate
    layers = shape.layers * (_attention(shape) + 2 * shape.hidden)
    return outer + layers + dense + sparse * _beside_experts(shape) + _experts(shape) + int(shape.vision)


def _attention(shape: ModelShape) -> int:
    """The parameters of a layer's attention; latent attention as in DeepSeek-V2 (arXiv 2405.04434, section 2.1)."""
    h, a, d = shape.hidden, shape.heads, shape.head_dim
    if shape.latent_rank:
        wide = a * (d + shape.rope_dim)
        query = h * shape.query_rank + shape.query_rank * (wide + 1) if shape.query_rank else h * wide
        latent = h * (shape.latent_rank + shape.rope_dim) + shape.latent_rank * (a * (d + shape.value_dim) + 1)
        return query + latent + a * shape.value_dim * h
    keys = shape.kv_heads * d
    bias = a * d + 2 * keys if shape.has_bias else 0
    return h * (2 * a * d + 2 * keys) + bias + (2 * d if shape.has_head_norm else 0)


def _experts(shape: ModelShape) -> int:
    """The parameters of all routed experts of all layers."""
    sparse = shape.layers - shape.dense_layers if shape.experts else 0
    return sparse * shape.experts * 3 * shape.hidden * shape.expert_intermediate


def _beside_experts(shape: ModelShape) -> int:
    """The router and the shared experts of one sparse layer."""
    return shape.experts * shape.hidden + 3 * shape.experts_shared * shape.hidden * shape.expert_intermediate


def _width(shape: ModelShape) -> int:
    """The width of the feed-forward part that one token passes."""
    if not shape.experts:
        return shape.intermediate
    return (shape.experts_active + shape.experts_shared) * shape.expert_intermediate
