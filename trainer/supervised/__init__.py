"""Supervised learning from right answers: `sft` as a separate run, `warm_start` before the first rollout.

The learner of both is `SFTLearner`. A run of `sft` learns transcripts, tool calls included, with the loss on the
assistant's tokens only. It reads `train_files` and `val_files`, `prompts_per_step` transcripts a step. A line of these
jsonl files is `{"messages": [{"role", "content", "tool_calls"?}, ...], "tools"?: [...]}`. The tokens of a conversation
are concatenated from its pieces, cut at the boundaries of the assistant's turns: as in sampling, which never encodes
its own output again.

Writes records, checkpoints, and at the end the model: `OUT/model`, with LoRA `OUT/adapter` too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer import models
from trainer.algorithms.losses import masked_sum
from trainer.algorithms.optimizer import Optimizer, learning_rate
from trainer.algorithms.packing import make_batch, select
from trainer.config import BadSetting
from trainer.device import peak_rss_mib
from trainer.distributed import World
from trainer.launch import Interrupted
from trainer.saving import CHECKPOINT
from trainer.saving.checkpoint import save
from trainer.saving.publish import publish_run
from trainer.tasks.data import rows
from trainer.tasks.tokenizers import PretrainedTokenizer, choose_tokenizer
from trainer.types import Group, Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from trainer.config import Config
    from trainer.launch import Interrupt
    from trainer.metrics.records import Progress, Records
    from trainer.models.decoder import Model
    from trainer.sections import Optim
    from trainer.tasks.tokenizers import Tokenizer
    from trainer.types import Batch

    Message = Mapping[str, Any]

COMMAND = "sft"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The parts of a run."""

    config: Config
    learner: SFTLearner
    train: Sequence[Group]
    val: Sequence[Group]
    world: World
    device: torch.device

    def batch(self, step: int) -> list[Group]:
        """This rank's transcripts of a step, counted from 1: all of them in an order of each epoch's own, on and on."""
        count, size = len(self.train), self.config.rollout.prompts_per_step
        places = range((step - 1) * size, step * size)
        return [self.train[self._order(place // count)[place % count]] for place in self.world.shard(places)]

    def _order(self, epoch: int) -> list[int]:
        generator = torch.Generator().manual_seed((self.config.run.seed * 1_000_003 + epoch) % 2**63)
        order: list[int] = torch.randperm(len(self.train), generator=generator).tolist()
        return order

    def lr(self, step: int) -> float:
        """The learning rate of a step."""
        optim = self.config.optim
        return optim.lr * learning_rate(optim.lr_schedule, step - 1, self.config.run.steps, warmup=optim.warmup_steps)

    def state(self, step: int) -> dict[str, Any]:
        """All that the step after this one depends on."""
        settings = {**self.config.lasting(), "command": COMMAND}
        return {"step": step, "settings": settings, "tuned": self.learner.state()}

    def val_loss(self) -> tuple[float, int]:
        """The mean over the assistant's tokens of all held-out transcripts, and their number; a collective."""
        own, size = self.world.shard(self.val), self.config.rollout.prompts_per_step
        found = [self.learner.nll(own[at : at + size]) for at in range(0, len(own), size)]
        sums = [sum(each) for each in zip(*found, strict=True)] or [0.0, 0]
        total = self.world.all_reduce_sum(torch.tensor(sums, dtype=torch.float64, device=self.device)).tolist()
        return total[0] / max(total[1], 1.0), int(total[1])


def assemble(config: Config, device: torch.device, world: World) -> Tuning:
    """The components of a configuration. Raises BadSetting."""
    if config.run.sharding != "none" and world.size > 1:
        raise BadSetting(f"sharding={config.run.sharding} is for learning from rewards: sft takes sharding=none")
    tokenizer = choose_tokenizer(config.model.path)
    train = _groups("train_files", config.task.train_files, tokenizer, config)
    val = _groups("val_files", config.task.val_files, tokenizer, config) if config.task.val_files else []
    if config.run.epochs:
        steps = min(config.run.steps, max(1, config.run.epochs * len(train) // config.rollout.prompts_per_step))
        config = replace(config, run=replace(config.run, steps=steps))
    model = models.build(config, tokenizer.vocabulary_size, seed=config.run.seed, device=device)
    learner = SFTLearner(model, config.optim, pad=tokenizer.pad, device=device, world=world)
    return Tuning(config, learner, train, val, world, device)


def _groups(name: str, listed: str, tokenizer: Tokenizer, config: Config) -> list[Group]:
    paths = [Path(each.strip()) for each in listed.split(",") if each.strip()]
    if not paths:
        raise BadSetting(f"{name} is needed: a jsonl file of transcripts, {{'messages': [...]}} a line")
    found = []
    for path in paths:
        made = read_transcripts(path, tokenizer, max_tokens=config.task.max_prompt_tokens)
        found += [each.group() for each in made]
    if any(not group.prompt.tokens for group in found):
        raise BadSetting(f"{name}={listed}: a transcript begins with the assistant, who has nothing to answer")
    return found


def run(
    tuning: Tuning,
    out: Path,
    records: Records,
    progress: Progress,
    *,
    interrupt: Interrupt,
    state: Mapping[str, Any] | None = None,
) -> None:
    """The complete run, or the rest from a saved state on. Raises Interrupted."""
    config, learner, first = tuning.config, tuning.learner, 1
    if state is not None:
        learner.restore(state["tuned"])
        first = int(state["step"]) + 1
    else:
        _validate(tuning, "before", 0, records, progress)
    with interrupt.deferred():
        for step in range(first, config.run.steps + 1):
            records.write("step", step=step, **_step(tuning, step, progress))
            progress.steps_done = step
            is_last = step == config.run.steps
            if config.run.validate_every and step % config.run.validate_every == 0 and not is_last:
                _validate(tuning, "during", step, records, progress)
            name = interrupt.requested(tuning.world)
            if name is not None or is_last or (config.run.save_every and step % config.run.save_every == 0):
                _save(tuning, step, out, progress)
            if name is not None and not is_last:
                raise Interrupted(name, step)
        _validate(tuning, "after", config.run.steps, records, progress)
        model: Any = learner.model
        publish_run(model, out, config, records, progress, world=tuning.world)


def _step(tuning: Tuning, step: int, progress: Progress) -> dict[str, Any]:
    began, lr = time.perf_counter(), tuning.lr(step)
    with progress.phase("update_actor"):
        sft_step = tuning.learner.step(tuning.batch(step), lr=lr)
    seconds = time.perf_counter() - began
    return {
        "train/loss": sft_step.loss,
        "train/grad_norm": sft_step.grad_norm,
        "train/lr": lr,
        "train/tokens": sft_step.num_tokens,
        "timing_s/step": seconds,
        "perf/throughput": sft_step.num_tokens / seconds,
        "perf/cpu_memory_used_mib": peak_rss_mib(),
        "wall_s": progress.elapsed_s(),
    }


def _validate(tuning: Tuning, when: str, step: int, records: Records, progress: Progress) -> None:
    if not tuning.val:
        return
    with progress.phase("testing"):
        loss, num_tokens = tuning.val_loss()
    metrics = {"val/loss": loss, "num_prompts": len(tuning.val), "num_tokens": num_tokens}
    records.write("eval", when=when, step=step, split="heldout", **metrics)


def _save(tuning: Tuning, step: int, out: Path, progress: Progress) -> None:
    with progress.phase("save_checkpoint"):
        if tuning.world.is_first:
            save(tuning.state(step), out / CHECKPOINT)
        tuning.world.barrier()


@dataclass(frozen=True, slots=True)
class SFTStep:
    """The metrics of a step, over all ranks."""

    loss: float  # before the step: minus the log-probability, the mean over the tokens to be learnt
    grad_norm: float  # before clipping
    num_tokens: int  # that were to be learnt


class SFTLearner:
    """A model and its optimizer; if there are adapters, only these are trained."""

    def __init__(
        self, model: Model, optim: Optim, *, pad: int, device: torch.device, world: World | None = None
    ) -> None:
        self.model, self._optim, self._pad, self._device = model, optim, pad, device
        self._world = world or World.single()
        self._optimizer = Optimizer.start(
            model.named_parameters(), weight_decay=optim.weight_decay, add=self._world.all_reduce_sum
        )

    def step(self, groups: Sequence[Group], *, lr: float) -> SFTStep:
        """One optimizer step on this rank's answers.

        Denominator: the tokens with a loss of the complete step, over all ranks and micro batches.
        """
        self._optimizer.zero_grad()
        batch = self._batch(groups)
        num_tokens = self._world.all_reduce_sum(batch.mask_BT.sum()).clamp(min=1)
        loss = torch.zeros((), dtype=torch.float64, device=self._device)
        parts = self._parts(batch)
        with self._optimizer.accumulating(len(parts)):
            for rows in parts:
                share = self._nll(select(batch, rows)) / num_tokens
                share.backward()  # type: ignore[no-untyped-call]
                loss += share.detach()
        self._world.all_reduce_gradients(self._optimizer.parameters.values())
        norm = self._optimizer.step(lr=lr, grad_clip=self._optim.grad_clip)
        return SFTStep(float(self._world.all_reduce_sum(loss)), norm, int(num_tokens))

    @torch.no_grad()
    def nll(self, groups: Sequence[Group]) -> tuple[float, int]:
        """Minus the summed log-probability of the tokens to be learnt, and how many they are; of this rank alone."""
        batch = self._batch(groups)
        total = sum(float(self._nll(select(batch, rows))) for rows in self._parts(batch))
        return total, int(batch.mask_BT.sum())

    def _nll(self, part: Batch) -> Tensor:
        output = self.model.token_logprobs(part, temperature=1.0, with_entropy=False)
        return -masked_sum(output.logprobs_BT, part.mask_BT)

    def _batch(self, groups: Sequence[Group]) -> Batch:
        return make_batch(groups, torch.zeros(len(groups), 1, device=self._device), pad=self._pad)

    def _parts(self, batch: Batch) -> tuple[Tensor, ...]:
        rows = torch.arange(len(batch.tokens_BT), device=self._device)
        return torch.split(rows, self._optim.micro_batch_rows or len(rows))

    def state(self) -> dict[str, Any]:
        """All that the next step depends on, by reference."""
        return self._optimizer.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a state that `state` gave; copies the values."""
        self._optimizer.restore(state)


_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation in tokens. The mask is true on the assistant's tokens, its end tokens included."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]

    def group(self) -> Group:
        """The conversation as one prompt (all before the assistant's first token) with one answer (the rest).

        What follows the assistant's last token is left out. The log-probabilities are 0: nobody sampled them.
        """
        first = self.mask.index(True)
        last = len(self.mask) - self.mask[::-1].index(True)
        answer = self.tokens[first:last]
        rollout = Rollout(answer, (0.0,) * len(answer), Stop.END, response_mask=self.mask[first:last])
        return Group(Prompt("", self.tokens[:first], ""), (rollout,))


def read_transcripts(path: Path, tokenizer: Tokenizer, *, max_tokens: int) -> list[Transcript]:
    """The transcripts of a jsonl file that have at most `max_tokens` tokens.

    Raises BadSetting for a line that is no conversation with an assistant in it, and where none is short enough.
    """
    found, num_overlong = [], 0
    for number, row in enumerate(rows(path)):
        problem = _problem(row)
        if problem:
            raise BadSetting(f"{path}: row {number} {problem}")
        try:
            made = transcript(row["messages"], tokenizer, tools=row.get("tools"))
        except ValueError as error:  # BadSetting too: which row it was is what the reader needs
            raise BadSetting(f"{path}: row {number}: {error}") from error
        if len(made.tokens) <= max_tokens:
            found.append(made)
        else:
            num_overlong += 1
    if not found:
        raise BadSetting(f"{path} leaves no transcript: {num_overlong} had more than {max_tokens} tokens")
    return found


def transcript(
    messages: Sequence[Message], tokenizer: Tokenizer, *, tools: Sequence[Mapping[str, Any]] | None = None
) -> Transcript:
    """One conversation in tokens. A message may carry `"train": false`: an assistant's turn without loss.

    With the built-in tokenizer the texts are concatenated, each of the assistant's followed by the end token. Raises
    BadSetting for a chat template that rewrites earlier turns as the conversation grows: then the assistant's tokens
    cannot be located.
    """
    tokens: list[int] = []
    mask: list[bool] = []
    pieces = (
        _rendered(messages, tokenizer, tools)
        if isinstance(tokenizer, PretrainedTokenizer)
        else _plain(messages, tokenizer)
    )
    for piece, is_said in pieces:
        tokens += piece
        mask += [is_said] * len(piece)
    if not any(mask):
        raise BadSetting("there is nothing in it that the assistant said")
    return Transcript(tuple(tokens), tuple(mask))


def _plain(messages: Sequence[Message], tokenizer: Tokenizer) -> Iterator[tuple[tuple[int, ...], bool]]:
    for message in messages:
        end = (tokenizer.end,) if message["role"] == "assistant" and tokenizer.end is not None else ()
        yield (*tokenizer.encode(render_message(message)), *end), _is_learnt(message)


def _rendered(
    messages: Sequence[Message], tokenizer: PretrainedTokenizer, tools: Sequence[Mapping[str, Any]] | None
) -> Iterator[tuple[tuple[int, ...], bool]]:
    """Pieces of the complete conversation's text; the assistant's turns begin and end between two of them."""
    whole = tokenizer.render(messages, is_asking=False, tools=tools)
    done = 0
    for place, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before = tokenizer.render(messages[:place], is_asking=True, tools=tools)
        after = tokenizer.render(messages[: place + 1], is_asking=False, tools=tools)
        if not (whole.startswith(after) and after.startswith(before) and len(before) >= done):
            raise BadSetting(f"the chat template writes message {place} differently once more messages follow")
        # The template may write a line break after the end token, which the model never samples.
        end = after.rfind(tokenizer.end_text, len(before)) if tokenizer.end_text else -1
        stop = end + len(tokenizer.end_text) if end >= 0 else len(after)
        yield tokenizer.encode(whole[done : len(before)]), False
        yield tokenizer.encode(whole[len(before) : stop]), _is_learnt(message)
        done = stop
    yield tokenizer.encode(whole[done:]), False


def render_message(message: Message) -> str:
    """A message's text with its tool calls behind it, each as JSON between `<tool_call>` marks (Hermes, Qwen)."""
    calls = [json.dumps(call.get("function", call), ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join(
        [*filter(None, [message.get("content")]), *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    )


def _is_learnt(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("train", True) is not False


def _problem(row: Mapping[str, Any]) -> str | None:
    messages = row.get("messages")
    if not isinstance(messages, list) or not messages:
        return f"has no list 'messages'; it has {', '.join(map(repr, row)) or 'none'}"
    for place, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return f"has a message {place} without a role of {', '.join(_ROLES)}"
        calls = message.get("tool_calls")
        if calls is not None and not (isinstance(calls, list) and all(isinstance(call, dict) for call in calls)):
            return f"has tool_calls that are no list of calls in message {place}"
        if not isinstance(message.get("content"), str) and not (message.get("content") is None and calls):
            return f"has no text 'content' in message {place}"
    return None
