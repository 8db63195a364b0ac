"""Any causal language model of transformers as a policy. Needs transformers, imported when a model is loaded."""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from trainer.config import BadSetting
from trainer.models import gradients
from trainer.models.base import Model, ModelOutput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from trainer.types import Batch


class Pretrained(Model):
    """A policy around a model of transformers, under that model's parameter names.

    Prompts are computed once per group through the model's own cache, with gradient. With gradient checkpointing
    transformers has no cache: then every row is computed completely.
    """

    def __init__(self, inner: Any, *, gradient_checkpointing: bool = False) -> None:
        super().__init__()
        self.inner = inner
        self.gradient_checkpointing = gradient_checkpointing
        self._head = _plain_head(inner)
        if gradient_checkpointing:
            # Versions 4 and 5 of transformers have different names for it; where both exist the old one warns.
            enable = getattr(inner, "activation_checkpointing_enable", None) or inner.gradient_checkpointing_enable
            enable({"use_reentrant": False})
            self.inner.train()  # transformers checkpoints in training alone

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Under transformers' names."""
        yield from self.inner.named_parameters(prefix, recurse, remove_duplicate)

    def token_logprobs(
        self, batch: Batch, *, temperature: float, with_entropy: bool = True, with_sum_pi_squared: bool = False
    ) -> ModelOutput:
        """Each masked token's log-probability [B, T], and the entropy of its distribution; both 0 elsewhere."""
        mask_BT = batch.mask_BT
        logprobs_C, statistic_C = self(batch, temperature, with_entropy, with_sum_pi_squared)
        empty = logprobs_C.new_zeros(mask_BT.shape)
        logprobs_BT = empty.masked_scatter(mask_BT, logprobs_C)
        if with_sum_pi_squared:
            return ModelOutput(logprobs_BT, empty, empty.masked_scatter(mask_BT, statistic_C))
        return ModelOutput(logprobs_BT, empty.masked_scatter(mask_BT, statistic_C) if with_entropy else empty)

    def forward(
        self, batch: Batch, temperature: float, with_entropy: bool, with_sum_pi_squared: bool = False
    ) -> tuple[Tensor, Tensor]:
        """As `gradients.token_logprobs`, for each masked token."""
        before_BTH: Tensor = self._whole_rows(batch) if self.gradient_checkpointing else self._shared(batch)
        hidden_CH, target_C = before_BTH[batch.mask_BT], batch.tokens_BT[batch.mask_BT]
        return gradients.token_logprobs(
            hidden_CH,
            self._head.weight,
            source_C=torch.arange(len(target_C), device=target_C.device),
            target_C=target_C,
            temperature=temperature,
            with_entropy=with_entropy,
            with_sum_pi_squared=with_sum_pi_squared,
            top_p=self.top_p,
            top_k=self.top_k,
        )

    def _shared(self, batch: Batch) -> Tensor:
        """Hidden states [B, T, H] of the place before each answer token; the prompts through the cache."""
        length, width = batch.prompts_PS.shape[1], batch.tokens_BT.shape[1] - 1
        if self.is_gathered:
            width = max(width, 1)  # another rank may have longer answers, and waits for this one in their pass
        steps = torch.arange(max(length, width), device=batch.tokens_BT.device)
        is_prompt_PS = steps[:length] < batch.prompt_lengths_P[:, None]
        body: Any = self.inner.base_model
        prompts = body(
            input_ids=batch.prompts_PS,
            attention_mask=is_prompt_PS.long(),
            position_ids=steps[None, :length].expand_as(batch.prompts_PS),
            use_cache=True,
        )
        rows = torch.arange(len(batch.prompts_PS), device=steps.device)
        last_BH: Tensor = prompts.last_hidden_state[rows, batch.prompt_lengths_P - 1][batch.prompt_of_B]
        if not width:
            return last_BH[:, None]
        cache = prompts.past_key_values
        cache.batch_select_indices(batch.prompt_of_B)
        is_answer_BT = steps[:width] < batch.lengths_B[:, None]
        answers = body(
            input_ids=batch.tokens_BT[:, :width],
            attention_mask=torch.cat((is_prompt_PS[batch.prompt_of_B], is_answer_BT), dim=1).long(),
            position_ids=batch.prompt_lengths_P[batch.prompt_of_B, None] + steps[:width],
            past_key_values=cache,
            use_cache=True,
        )
        states_BTH = torch.cat((last_BH[:, None], answers.last_hidden_state), dim=1)
        return states_BTH[:, : batch.tokens_BT.shape[1]]

    def _whole_rows(self, batch: Batch) -> Tensor:
        """The same, each row with its prompt before it; the padding is at the end."""
        lengths_B = batch.prompt_lengths_P[batch.prompt_of_B]
        prompts_BS, width = batch.prompts_PS[batch.prompt_of_B], batch.tokens_BT.shape[1]
        places_BT = lengths_B[:, None] + torch.arange(width, device=lengths_B.device)
        room = torch.nn.functional.pad(prompts_BS, (0, width))
        tokens_BL = room.scatter(1, places_BT, batch.tokens_BT)[:, :-1]
        steps = torch.arange(tokens_BL.shape[1], device=lengths_B.device)
        body: Any = self.inner.base_model
        states: Tensor = body(
            input_ids=tokens_BL,
            attention_mask=(steps < (lengths_B + batch.lengths_B)[:, None]).long(),
            position_ids=steps[None].expand_as(tokens_BL),
            use_cache=False,
        ).last_hidden_state
        return states.gather(1, (places_BT - 1)[:, :, None].expand(-1, -1, states.shape[-1]))


def _plain_head(inner: Any) -> nn.Linear:
    """The output layer. Raises BadSetting for a model whose logits are not its product with the last hidden state."""
    head: object = inner.get_output_embeddings()
    changes = [
        getattr(inner.config, name, None) for name in ("final_logit_softcapping", "logits_scaling", "logit_scale")
    ]
    has_bias = getattr(head, "bias", None) is not None
    if not isinstance(head, nn.Linear) or has_bias or any(each not in (None, 1.0) for each in changes):
        raise BadSetting(f"{type(inner).__name__} changes its logits after the output layer, which is not supported")
    return head


def load(folder: Path, *, dtype: torch.dtype, gradient_checkpointing: bool) -> Pretrained:
    """The folder's model, on the CPU. Raises BadSetting where transformers is missing or cannot load it."""
    return Pretrained(causal_model(folder, dtype), gradient_checkpointing=gradient_checkpointing)


def causal_model(folder: Path, dtype: torch.dtype) -> Any:
    """transformers' model of a local folder, on the CPU. Nothing is downloaded, and no code of the folder is run.

    Raises BadSetting where transformers is missing or cannot load it.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise BadSetting(f"path={folder} needs the package transformers, which cannot be imported: {error}") from error
    options = {dtype_argument(transformers.__version__): dtype, "local_files_only": True}
    try:
        return transformers.AutoModelForCausalLM.from_pretrained(str(folder), **options)
    except (OSError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:200]
        raise BadSetting(f"path={folder} holds no causal model that transformers can read: {reason}") from error


def dtype_argument(version: str) -> str:
    """What `from_pretrained` calls the dtype in a release of transformers.

    Before 4.56 a `dtype` reaches the model's own constructor, which does not know it; since then `torch_dtype` is
    deprecated. Example: "4.55.4" -> "torch_dtype", "5.3.0" -> "dtype"
    """
    release = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    return "dtype" if release >= (4, 56) else "torch_dtype"
