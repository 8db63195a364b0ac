"""Fine-tuning on transcripts, and the warm start: the loss on the right tokens only, and a model others can read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.tasks.text_cases import WORDS, jsonl
from tests.trainer.trainer_cases import CPU, TINY, changed, only, read
from trainer import models, saving, supervised
from trainer.algorithms.packing import make_batch
from trainer.config import BadSetting, Config
from trainer.distributed import World
from trainer.launch import Interrupt, Interrupted
from trainer.metrics.records import Progress, Records
from trainer.models import lora
from trainer.models.pretrained import read_config, read_shape, read_tensors, read_weights
from trainer.run_state import learner_state
from trainer.saving.checkpoint import difference, load
from trainer.supervised import SFTLearner, Transcript, read_transcripts, render_message, transcript, warm_start
from trainer.tasks.tokenizers import PretrainedTokenizer, choose_tokenizer
from trainer.trainer import build_trainer
from trainer.types import Group

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trainer.tasks.tokenizers import Tokenizer

CALL = {"function": {"name": "add", "arguments": {"a": 1, "b": 2}}}

USED_TOOL = {
    "messages": [
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "3"},
        {"role": "assistant", "content": "It is 3."},
    ]
}

SPOKEN = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def said(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": str(number + 1)}]}


def written(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def settings(folder: Path, **values: object) -> Config:
    train = written(folder / "train.jsonl", [USED_TOOL, *map(said, range(6))])
    val = written(folder / "val.jsonl", [USED_TOOL, said(7)])
    base = changed(TINY, train_files=train, val_files=val, steps=4, lr=1e-2, max_prompt_tokens=200, seed=3)
    return changed(base, **values)


class Leaving(Interrupt):
    """Asks to leave after the first step."""

    def requested(self, world: World) -> str | None:
        return "SIGINT"


def go(out: Path, config: Config, *, interrupt: Interrupt | None = None, is_resumed: bool = False) -> supervised.Tuning:
    tuning = supervised.assemble(config, CPU, World.single())
    state = load(out / saving.CHECKPOINT, CPU) if is_resumed else None
    with Records(out, append=is_resumed) as records:
        supervised.run(tuning, out, records, Progress(), interrupt=interrupt or Interrupt(), state=state)
    return tuning


def test_the_loss_stands_on_the_assistants_tokens_alone(tmp_path: Path) -> None:
    tuning = supervised.assemble(settings(tmp_path), CPU, World.single())
    tokenizer, group = choose_tokenizer(""), tuning.train[0]
    rollout = group.rollouts[0]
    learnt = [token for token, is_said in zip(rollout.tokens, rollout.response_mask, strict=True) if is_said]
    assert tokenizer.decode(learnt) == f"{SPOKEN}It is 3."
    assert learnt.count(tokenizer.end or -1) == 2
    loss, num_tokens = tuning.learner.nll([group])
    assert num_tokens == len(SPOKEN) + len("It is 3.") + 2
    # Slow and plain: the whole conversation token by token, minus the log-probability wherever the assistant spoke.
    logprobs = torch.cat(
        [one_logprob(tuning, group, at) for at, is_said in enumerate(rollout.response_mask) if is_said]
    )
    assert loss == pytest.approx(-float(logprobs.sum()), rel=1e-5)


def one_logprob(tuning: supervised.Tuning, group: Group, at: int) -> torch.Tensor:
    """Of one token, all before it being the prompt."""
    rollout = group.rollouts[0]
    prompt = replace(group.prompt, tokens=(*group.prompt.tokens, *rollout.tokens[:at]))
    alone = Group(prompt, (replace(rollout, tokens=rollout.tokens[at : at + 1], logprobs=(0.0,), response_mask=()),))
    loss, count = tuning.learner.nll([alone])
    assert count == 1
    return torch.tensor([-loss])


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_micro_batches_give_the_step_of_the_whole(tmp_path: Path, rows: int) -> None:
    made = []
    for micro in (0, rows):
        tuning = supervised.assemble(settings(tmp_path, micro_batch_rows=micro, dtype="float64"), CPU, World.single())
        sft_step = tuning.learner.step(tuning.train[:5], lr=0.0)
        gradients = [each.grad for _, each in tuning.learner.model.named_parameters() if each.grad is not None]
        made.append((sft_step, torch.cat([gradient.reshape(-1) for gradient in gradients])))
    (whole, expected), (trainer, found) = made
    assert trainer.loss == pytest.approx(whole.loss, rel=1e-10)
    assert trainer.grad_norm == pytest.approx(whole.grad_norm, rel=1e-8)
    assert torch.allclose(found, expected, atol=1e-10)


def test_a_run_learns_validates_and_leaves_a_model_that_reads_back(tmp_path: Path) -> None:
    config = settings(tmp_path, steps=30, validate_every=10)
    tuning = go(tmp_path / "out", config)
    records = read(tmp_path / "out")
    before, after = (only(records, kind="eval", when=when)["val/loss"] for when in ("before", "after"))
    assert before == pytest.approx(math.log(98), rel=0.02)  # an untrained model of 98 tokens
    assert after < 0.8 * before
    assert [each["step"] for each in records if each["kind"] == "eval" and each["when"] == "during"] == [10, 20]
    folder = tmp_path / "out" / "model"
    shape = read_shape(read_config(folder))
    assert shape is not None and shape.vocabulary == 98
    again = models.build(changed(config, path=str(folder)), 98, seed=99, device=CPU)
    assert difference(dict(again.named_parameters()), dict(tuning.learner.model.named_parameters())) is None
    assert not (tmp_path / "out" / "adapter").exists()


def test_with_adapters_they_alone_learn_and_are_written_beside_the_merged_model(tmp_path: Path) -> None:
    config = settings(tmp_path, lora_rank=2)
    tuning = go(tmp_path / "out", config)
    first = models.build(config, 98, seed=config.run.seed, device=CPU)
    own, start = dict(tuning.learner.model.named_parameters()), dict(first.named_parameters())
    moved = {name for name, weight in own.items() if not torch.equal(weight, start[name])}
    assert moved == {name for name in own if ".lora_" in name}
    adapter = dict(read_tensors(tmp_path / "out" / "adapter" / "adapter_model.safetensors"))
    assert difference(adapter, lora.factors(tuning.learner.model)) is None
    merged = dict(read_weights(tmp_path / "out" / "model"))
    assert difference(merged, dict(lora.merged(tuning.learner.model))) is None
    assert set(load(tmp_path / "out" / saving.CHECKPOINT, CPU)["tuned"]["weights"]) == moved


def test_a_run_that_is_left_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    config = settings(tmp_path, steps=3)
    whole = go(tmp_path / "whole", config)
    with pytest.raises(Interrupted, match="SIGINT"):
        go(tmp_path / "out", config, interrupt=Leaving())
    last = go(tmp_path / "out", config, is_resumed=True)
    assert difference(whole.state(3), last.state(3)) is None
    losses = [
        [each["train/loss"] for each in read(tmp_path / name) if each["kind"] == "step"] for name in ("whole", "out")
    ]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 3


def test_every_transcript_is_seen_once_an_epoch_in_an_order_of_its_own(tmp_path: Path) -> None:
    tuning = supervised.assemble(settings(tmp_path, epochs=3, steps=1000), CPU, World.single())
    assert tuning.config.run.steps == 7  # 3 x 7 transcripts, 3 a step
    seen = [group.prompt.tokens for step in range(1, 8) for group in tuning.batch(step)]
    epochs = [seen[at : at + 7] for at in (0, 7, 14)]
    assert all(sorted(epoch) == sorted(group.prompt.tokens for group in tuning.train) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_a_step_of_two_ranks_is_cut_from_the_step_of_one(tmp_path: Path) -> None:
    tuning = supervised.assemble(settings(tmp_path), CPU, World.single())
    parts = [replace(tuning, world=World(rank, 2)).batch(2) for rank in (0, 1)]
    assert [parts[0][0], parts[1][0], parts[0][1]] == tuning.batch(2)


def test_files_that_cannot_be_learnt_from_are_refused_by_name(tmp_path: Path) -> None:
    config = settings(tmp_path)
    with pytest.raises(BadSetting, match="train_files is needed"):
        supervised.assemble(changed(config, train_files=""), CPU, World.single())
    alone = written(tmp_path / "alone.jsonl", [{"messages": [{"role": "assistant", "content": "hello"}]}])
    with pytest.raises(BadSetting, match=r"alone\.jsonl.*assistant"):
        supervised.assemble(changed(config, train_files=alone), CPU, World.single())
    with pytest.raises(BadSetting, match=r"missing\.jsonl "):
        supervised.assemble(changed(config, val_files=str(tmp_path / "missing.jsonl")), CPU, World.single())


def test_a_warm_start_is_where_policy_reference_and_sampler_begin(tmp_path: Path) -> None:
    config = changed(TINY, warm_start_steps=12, warm_start_lr=1e-2, dtype="bfloat16", steps=2, lr=0.0)
    trainer = build_trainer(config, CPU, seed=0)
    start = {name: weight.detach().clone() for name, weight in trainer.learner.model.named_parameters()}
    with Records(tmp_path) as records:
        warm_start.run(trainer, config, records, Progress())
    learnt = dict(trainer.learner.model.named_parameters())
    assert difference(learnt, start) is not None
    assert difference(dict(trainer.engine.weights()), learnt) is None
    state = learner_state(trainer.learner)
    assert difference(state["reference"], learnt) is None
    wide = {name: weight.to(torch.bfloat16) for name, weight in state["master"].items()}
    assert difference(wide, learnt) is None
    assert not any(bool(each.any()) for each in state["first"].values())
    told = read(tmp_path)
    assert [(each["kind"], each["step"]) for each in told] == [("warm-start", 10), ("warm-start", 12)]
    assert told[1]["loss"] < told[0]["loss"]


def test_a_task_whose_right_answer_it_does_not_take_is_refused() -> None:
    trainer = build_trainer(TINY, CPU, seed=0)
    task = replace(trainer.task, is_right=lambda prompt, rollout: False)
    with pytest.raises(BadSetting, match="not take"):
        warm_start.demonstration(task.train[0], task)


def test_a_gradient_that_is_not_finite_leaves_the_weights_and_shows(tmp_path: Path) -> None:
    tuning = supervised.assemble(settings(tmp_path), CPU, World.single())
    parameters = dict(tuning.learner.model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in parameters.items()}
    next(iter(parameters.values())).register_hook(lambda gradient: torch.full_like(gradient, torch.nan))
    assert isinstance(tuning.learner, SFTLearner)
    assert math.isnan(tuning.learner.step(tuning.train[:2], lr=1.0).grad_norm)
    assert difference(before, parameters) is None


# Conversations to imitate: the loss is on what the assistant said, nothing else.

ADDING = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "I ask.", "tool_calls": [ADDING]},
    {"role": "tool", "content": "5"},
    {"role": "assistant", "content": "It is 5."},
    {"role": "user", "content": "Thanks"},
]

CALLED = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'

TEMPLATE = (
    "{% if tools %}<tools>{{ tools | length }}</tools>{% endif %}"
    "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ '\n<tool_call>\n' + c.function | tojson + '\n</tool_call>' }}{% endfor %}"
    "<|end|>\n{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)

# Drops what the assistant thought in earlier turns, as the templates of some reasoning models do.
FORGETFUL = TEMPLATE.replace("m.content or ''", "(m.content if loop.last else '') or ''")


def pretrained(template: str | None = TEMPLATE) -> PretrainedTokenizer:
    """A tokenizer of transformers with one token a character and two special ones."""
    transformers = pytest.importorskip("transformers", reason="a model's tokenizer needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="a model's tokenizer needs tokenizers")
    vocabulary = {character: place for place, character in enumerate(WORDS.alphabet)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary | {"?unk?": 98}, unk_token="?unk?"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    made.chat_template = template
    return PretrainedTokenizer(made)


def learnt(made: Transcript, tokenizer: Tokenizer) -> list[str]:
    """The text of each stretch that has a loss."""
    found, stretch = [], []
    for token, counts in (*zip(made.tokens, made.mask, strict=True), (0, False)):
        if counts:
            stretch.append(token)
        elif stretch:
            found.append(tokenizer.decode(stretch))
            stretch = []
    return found


def test_the_built_in_tokenizer_learns_the_assistants_words_and_ends() -> None:
    made = transcript(TALK, WORDS)
    assert learnt(made, WORDS) == [f"I ask.\n{CALLED}", "It is 5."]
    assert WORDS.decode(made.tokens) == f"Be brief.2+3?I ask.\n{CALLED}5It is 5.Thanks"
    assert [made.mask[place] for place, token in enumerate(made.tokens) if token == WORDS.end] == [True, True]


def test_a_tool_call_without_words_is_said_alone() -> None:
    assert render_message({"role": "assistant", "content": None, "tool_calls": [ADDING]}) == CALLED
    assert render_message({"role": "assistant", "content": "", "tool_calls": [ADDING["function"]]}) == CALLED


def test_a_message_can_be_left_out_of_the_loss() -> None:
    talk = [TALK[1], {**TALK[2], "train": False}, TALK[3], TALK[4]]
    assert learnt(transcript(talk, WORDS), WORDS) == ["It is 5."]


def test_a_transcript_becomes_one_prompt_with_one_answer() -> None:
    made = transcript(TALK, WORDS)
    group = made.group()
    (answer,) = group.rollouts
    assert WORDS.decode(group.prompt.tokens) == "Be brief.2+3?"
    assert WORDS.decode(answer.tokens) == f"I ask.\n{CALLED}5It is 5."
    assert len(answer.response_mask) == len(answer.logprobs) == len(answer.tokens)
    assert [
        WORDS.decode([token]) for token, said in zip(answer.tokens, answer.response_mask, strict=True) if not said
    ] == ["5"]


def test_packed_transcripts_have_the_loss_on_the_same_tokens() -> None:
    torch = pytest.importorskip("torch")
    groups = [transcript(talk, WORDS).group() for talk in (TALK, TALK[1:5], TALK[3:5])]
    batch = make_batch(groups, torch.zeros(3, 1), pad=WORDS.pad)
    for line, said in enumerate([f"I ask.\n{CALLED}It is 5.", f"I ask.\n{CALLED}It is 5.", "It is 5."]):
        assert WORDS.decode(batch.tokens_BT[line][batch.mask_BT[line]].tolist()) == said


@pytest.mark.full
def test_the_chat_template_decides_the_words_around_and_the_line_break_behind_is_not_learnt() -> None:
    tokenizer = pretrained()
    made = transcript(TALK, tokenizer)
    assert learnt(made, tokenizer) == [f"I ask.\n{CALLED}", "It is 5."]
    whole = tokenizer.render(TALK, is_asking=False)
    assert tokenizer.encode(whole) == made.tokens
    ends = [place for place, token in enumerate(made.tokens) if token == tokenizer.end]
    assert [made.mask[place] for place in ends] == [False, False, True, False, True, False]
    assert not any(made.mask[place + 1] for place in ends)


@pytest.mark.full
def test_tools_are_told_to_the_template(tmp_path: Path) -> None:
    tokenizer = pretrained()
    path = jsonl(tmp_path / "talks.jsonl", [{"messages": TALK, "tools": [{"type": "function"}]}])
    (made,) = read_transcripts(path, tokenizer, max_tokens=1000)
    assert tokenizer.decode(made.tokens).startswith("<tools>1</tools><|start|>system")


@pytest.mark.full
def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    with pytest.raises(BadSetting, match=r"message 2 differently"):
        transcript(TALK, pretrained(FORGETFUL))


@pytest.mark.full
def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(BadSetting, match="chat template"):
        transcript(TALK, pretrained(None))


def test_long_transcripts_are_left_out(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "talks.jsonl", [{"messages": TALK}, {"messages": TALK[3:5]}])
    (made,) = read_transcripts(path, WORDS, max_tokens=20)
    assert learnt(made, WORDS) == ["It is 5."]
    with pytest.raises(BadSetting, match=r"no transcript: 2 .*\b3 tokens"):
        read_transcripts(path, WORDS, max_tokens=3)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"text": "a"}, "row 1 .*'messages'; it has 'text'"),
        ({"messages": []}, "row 1 .*'messages'"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "row 1 .*message 0 without"),
        ({"messages": [{"role": "user", "content": None}]}, "row 1 .*'content' in message 0"),
        ({"messages": [{"role": "assistant", "content": "a", "tool_calls": "add"}]}, "row 1 has tool_calls"),
        ({"messages": [TALK[1]]}, "row 1: .*assistant said"),
        ({"messages": [{"role": "assistant", "content": "\u00a3"}]}, "row 1: substring not found"),
    ],
)
def test_a_row_that_is_no_conversation_is_named(tmp_path: Path, broken: dict[str, Any], problem: str) -> None:
    path = jsonl(tmp_path / "talks.jsonl", [{"messages": TALK}, broken])
    with pytest.raises(BadSetting, match=problem):
        read_transcripts(path, WORDS, max_tokens=1000)
