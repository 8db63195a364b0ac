"""Groups from an engine: single answers, and episodes whose tokens are appended and never encoded again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from trainer.engines.engine import Sampling
from trainer.rollouts import collect, demonstrate, reply
from trainer.tasks.base import Observation, Task
from trainer.tasks.tokenizers import Characters, PretrainedTokenizer
from trainer.types import Prompt, Rollout, Stop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORDS = Characters("abc123.")
END = WORDS.end


def said(text: str, stop: Stop = Stop.END, logprob: float = -0.5) -> Rollout:
    tokens = (*WORDS.encode(text), *((END,) if stop is Stop.END else ()))
    return Rollout(tokens, tuple(logprob - 0.01 * at for at in range(len(tokens))), stop)


@dataclass
class Turns:
    """An engine that says, for each context, the next of its prepared turns; remembers what it was asked."""

    turns: list[Rollout]
    asked: list[tuple[list[tuple[int, ...]], int]] = field(default_factory=list)

    def generate(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[tuple[Rollout, ...]]:
        self.asked.append((list(prompts), sampling.rollouts_per_prompt))
        return [tuple(self.turns.pop(0) for _ in range(sampling.rollouts_per_prompt)) for _ in prompts]


class Countdown:
    """Ends after as many turns as the prompt says; pays 1 for an `a`, charges 0.25 for a `c`, says `.N`."""

    def __init__(self, prompt: Prompt) -> None:
        self.left = int(prompt.extra["turns"])

    def step(self, answer: str) -> Observation:
        self.left -= 1
        reward = {"a": 1.0, "c": -0.25}.get(answer, 0.0)
        return Observation("" if self.left == 0 else f".{self.left}", reward, self.left == 0, answer != "c")


def ask(text: str, turns: int, **extra: object) -> Prompt:
    return Prompt(text, WORDS.encode(text), "a", {"turns": turns, **extra})


def task(tokenizer: object = WORDS, *, max_turns: int = 5, has_environment: bool = True) -> Task:
    return Task(
        name="countdown",
        tokenizer=tokenizer,  # type: ignore[arg-type]
        train=(),
        heldout=(),
        max_new_tokens=3,
        reward=lambda prompt, rollout: 0.0,
        is_right=lambda prompt, rollout: False,
        environment=Countdown if has_environment else None,
        max_turns=max_turns,
    )


def test_without_an_environment_a_group_is_what_the_engine_gave() -> None:
    turns = [said("a"), said("b"), said("c"), said("a", Stop.LENGTH)]
    engine = Turns(list(turns))
    one, two = collect(engine, [ask("1", 1), ask("22", 1)], task(has_environment=False), Sampling(2, 3, 1.0))  # type: ignore[arg-type]
    assert (one.rollouts, two.rollouts) == ((turns[0], turns[1]), (turns[2], turns[3]))
    assert engine.asked == [([WORDS.encode("1"), WORDS.encode("22")], 2)]


def test_an_episode_keeps_the_sampled_tokens_and_marks_only_them_as_actions() -> None:
    engine = Turns([said("b", logprob=-0.5), said("a", logprob=-0.7)])
    ((rollout,),) = (group.rollouts for group in collect(engine, [ask("12", 2)], task(), Sampling(1, 3, 1.0)))  # type: ignore[arg-type]
    between = WORDS.encode(".1")
    assert rollout.tokens == (*WORDS.encode("b"), END, *between, *WORDS.encode("a"), END)
    assert rollout.response_mask == (True, True, False, False, True, True)
    assert rollout.logprobs == (-0.5, -0.51, 0.0, 0.0, -0.7, -0.71)
    assert (rollout.reward, rollout.stop) == (1.0, Stop.TERMINATED)
    assert engine.asked[1] == ([(*WORDS.encode("12b"), END, *between)], 1)


def test_tokens_that_decode_to_other_text_are_not_encoded_again() -> None:
    """A pad decodes to `_`, which the alphabet cannot encode: only kept tokens survive this."""
    odd = Rollout((WORDS.pad, END), (-1.0, -1.0), Stop.END)
    engine = Turns([odd, said("a")])
    (group,) = collect(engine, [ask("1", 2)], task(), Sampling(1, 3, 1.0))  # type: ignore[arg-type]
    assert group.rollouts[0].tokens[:2] == odd.tokens


def test_episodes_that_ended_are_left_out_of_the_next_call_and_results_keep_their_order() -> None:
    engine = Turns([said("a"), said("b"), said("a"), said("b"), said("a"), said("c")])
    groups = collect(engine, [ask("1", 1), ask("22", 2)], task(), Sampling(2, 3, 1.0))  # type: ignore[arg-type]
    assert [rollout.reward for group in groups for rollout in group.rollouts] == [1.0, 0.0, 2.0, -0.25]
    assert [each.is_valid for group in groups for each in group.rollouts] == [
        (True,), (True,), (True, True), (True, False),
    ]  # fmt: skip
    assert [(len(contexts), count) for contexts, count in engine.asked] == [(2, 2), (2, 1)]
    assert engine.asked[1][0] == [(*WORDS.encode(f"22{turn}"), END, *WORDS.encode(".1")) for turn in "ab"]


def test_running_out_of_turns_ends_an_episode_with_an_action() -> None:
    engine = Turns([said("b"), said("b")])
    (group,) = collect(engine, [ask("1", 4)], task(max_turns=2), Sampling(1, 3, 1.0))  # type: ignore[arg-type]
    assert (group.rollouts[0].stop, group.rollouts[0].response_mask[-1]) == (Stop.LENGTH, True)
    assert len(engine.asked) == 2


class Chat(Characters):
    """Characters with a template of the usual kind: `1` opens the user, `2` the assistant, the end token closes."""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        marks = {"user": "1", "assistant": "2"}
        turns = [(*self.encode(marks[each["role"]] + each["content"]), self.end) for each in messages]
        return (*(token for turn in turns for token in turn), *self.encode("2"))


def test_a_chat_template_closes_the_turn_once() -> None:
    chat = Chat("abc123.")
    user = (*chat.encode("1.b"), chat.end, *chat.encode("2"))
    assert reply(chat, ".b", is_closed=True) == user
    assert reply(chat, ".b", is_closed=False) == (chat.end, *user)
    assert reply(WORDS, ".b", is_closed=True) == WORDS.encode(".b")


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


@pytest.mark.full
def test_a_tokenizer_of_transformers_goes_on_in_the_marks_of_its_template() -> None:
    transformers = pytest.importorskip("transformers", reason="a chat template is rendered by transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="comes with transformers")
    words = ["?", "<|im_start|>", "<|im_end|>", "user", "assistant", "left", "wall"]
    inner = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="?")
    )
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(words[1:3])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    fast.chat_template = CHATML
    chat = PretrainedTokenizer(fast)
    assert reply(chat, "wall", is_closed=True) == (1, 3, 6, 2, 1, 4)
    assert reply(chat, "wall", is_closed=False) == (2, 1, 3, 6, 2, 1, 4)


class Rewriting(Chat):
    def chat(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        return (*self.encode(str(len(messages))), *super().chat(messages))


def test_a_template_that_rewrites_earlier_turns_is_refused() -> None:
    with pytest.raises(ValueError, match="earlier turns"):
        reply(Rewriting("abc123."), "a", is_closed=True)


def test_a_demonstration_has_the_tokens_that_the_same_answers_would_have_made() -> None:
    shown = demonstrate(ask("1", 2, answers=("b", "a")), task())
    engine = Turns([said("b"), said("a")])
    (group,) = collect(engine, [ask("1", 2)], task(), Sampling(1, 3, 1.0))  # type: ignore[arg-type]
    made = group.rollouts[0]
    assert (shown.tokens, shown.response_mask, shown.reward) == (made.tokens, made.response_mask, made.reward)
    assert set(shown.logprobs) == {0.0}


def test_a_demonstration_without_environment_is_the_expected_answer() -> None:
    assert demonstrate(ask("1", 1), task(has_environment=False)).tokens == (*WORDS.encode("a"), END)


def test_a_demonstration_that_stops_short_is_refused() -> None:
    with pytest.raises(ValueError, match="before the"):
        demonstrate(ask("1", 3, answers=("b",)), task())
