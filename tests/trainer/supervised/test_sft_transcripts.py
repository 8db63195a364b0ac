"""Conversations to imitate: the loss is on what the assistant said, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.trainer.tasks.text_cases import WORDS, jsonl
from trainer.algorithms.packing import make_batch
from trainer.config import BadSetting
from trainer.supervised.sft import Transcript, read_transcripts, render_message, transcript
from trainer.tasks.tokenizers import Pretrained

if TYPE_CHECKING:
    from pathlib import Path

    from trainer.tasks.base import Tokenizer

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": 3}}}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+3?"},
    {"role": "assistant", "content": "I ask.", "tool_calls": [CALL]},
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


def pretrained(template: str | None = TEMPLATE) -> Pretrained:
    """A tokenizer of transformers with one token a character and two special ones."""
    transformers = pytest.importorskip("transformers", reason="a model's tokenizer needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="a model's tokenizer needs tokenizers")
    vocabulary = {character: place for place, character in enumerate(WORDS.alphabet)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary | {"?unk?": 98}, unk_token="?unk?"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    made.chat_template = template
    return Pretrained(made)


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
    assert render_message({"role": "assistant", "content": None, "tool_calls": [CALL]}) == CALLED
    assert render_message({"role": "assistant", "content": "", "tool_calls": [CALL["function"]]}) == CALLED


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
