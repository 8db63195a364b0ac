"""Mistakes put into scripts that start a right run, drawn by rules: `mutants`."""

from __future__ import annotations

import itertools
import random
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

# An override that stands alone on its line, so that a change of it is the only one.
_LINE = re.compile(r"^(?P<lead>[ \t]*)(?P<key>[a-z_]+(?:\.\w+)+)=(?P<value>[^\s\\]+)(?P<tail>[ \t]*\\?)$", re.M)
_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class Mutant:
    """`rule` changed the script called `base` into `text`. `is_checked`: the framework's own checks must refuse it."""

    rule: str
    base: str
    text: str
    is_checked: bool


def _of_key(pattern: str, value: str) -> Callable[[str, random.Random], str | None]:
    """Another value for one of the keys that match."""

    def change(text: str, draw: random.Random) -> str | None:
        found = [each for each in _LINE.finditer(text) if re.fullmatch(pattern, each["key"])]
        return _replaced(text, draw.choice(found), "{key}=" + value) if found else None

    return change


def _replaced(text: str, found: re.Match[str], by: str) -> str:
    new = by.format(key=found["key"], value=found["value"])
    return f"{text[: found.start()]}{found['lead']}{new}{found['tail']}{text[found.end() :]}"


def _any_line(change: Callable[[re.Match[str], random.Random], str]) -> Callable[[str, random.Random], str | None]:
    def changed(text: str, draw: random.Random) -> str | None:
        found = list(_LINE.finditer(text))
        if not found:
            return None
        each = draw.choice(found[:-1] or found)
        return text[: each.start()] + change(each, draw) + text[each.end() :]

    return changed


def _misspelt(word: str, draw: random.Random) -> str:
    """Two neighbouring letters swapped, or one left out."""
    at = draw.choice([at for at in range(1, len(word) - 1) if word[at] != word[at + 1]])
    return word[:at] + (word[at + 1] + word[at] if draw.random() < 0.5 else word[at + 1]) + word[at + 2 :]


def _misspelt_key(found: re.Match[str], draw: random.Random) -> str:
    head, _, tail = found["key"].rpartition(".")
    key = f"{head}.{_misspelt(tail, draw)}" if len(tail) > 3 else f"{_misspelt(head, draw)}.{tail}"
    return f"{found['lead']}{key}={found['value']}{found['tail']}"


def _more(*words: str) -> Callable[[str, random.Random], str | None]:
    """Overrides in front of the first one of the script."""

    def change(text: str, draw: random.Random) -> str | None:
        found = next((each for each in _LINE.finditer(text) if each["tail"].strip()), None)
        lines = "".join(f"    {word} \\\n" for word in words)
        return None if found is None else text[: found.start()] + lines + text[found.start() :]

    return change


def _in_text(pattern: str, by: str) -> Callable[[str, random.Random], str | None]:
    def change(text: str, draw: random.Random) -> str | None:
        new, count = re.subn(pattern, by, text, count=1, flags=re.M)
        return new if count else None

    return change


def _moved_key(found: re.Match[str], draw: random.Random) -> str:
    """The key of one part of the configuration written below another."""
    top, _, rest = found["key"].partition(".")
    return f"{found['lead']}{'trainer' if top == 'data' else 'data'}.{rest}={found['value']}{found['tail']}"


_COUNTS = r"(?:data\.(?:train_batch_size|max_(?:prompt|response)_length)|trainer\.(?:nnodes|n_gpus_per_node))"
_OWN_COUNTS = rf"(?:{_ROLLOUT}\.(?:n|tensor_model_parallel_size)|{_ACTOR}\.ppo_(?:mini|micro)_batch_size(?:_per_gpu)?)"
_TIMES = r"trainer\.(?:save_freq|test_freq|total_epochs)"
_MICRO = rf"{_ACTOR}\.ppo_micro_batch_size"
_LOG_PROB = f"{_ROLLOUT}.log_prob_micro_batch_size"
# Rule: the change, and whether the framework's own checks must refuse it before a worker starts.
RULES: Mapping[str, tuple[Callable[[str, random.Random], str | None], bool]] = {
    "misspelt key": (_any_line(_misspelt_key), True),
    "key in another part": (_any_line(_moved_key), True),
    "+ before a key that is there": (_any_line(lambda found, _: f"{found['lead']}+{found[0].strip()}"), True),
    "word for a count": (_of_key(_COUNTS, "many"), False),
    "fraction for a count": (_of_key(_OWN_COUNTS, "2.5"), False),
    "word for an interval": (_of_key(_TIMES, "often"), False),
    "word for a rate": (_of_key(rf"{_ACTOR}\.optim\.lr", "slow"), False),
    "memory above all": (_of_key(rf"{_ROLLOUT}\.gpu_memory_utilization", "1.6"), False),
    "unknown estimator": (_of_key(r"algorithm\.adv_estimator", "grpoo"), False),
    "unknown engine": (_of_key(rf"{_ROLLOUT}\.name", "vlm"), False),
    "unknown loss aggregation": (_more(f"{_ACTOR}.loss_agg_mode=token-average"), True),
    "old and new micro batch": (_more(f"{_MICRO}=4", f"{_MICRO}_per_gpu=4", f"{_ACTOR}.use_dynamic_bsz=False"), True),
    "no micro batch": (_of_key(rf"{_MICRO}_per_gpu", "null"), True),
    "no micro batch of probabilities": (_of_key(rf"{_LOG_PROB}_per_gpu", "null"), True),
    "mini batch above the batch": (_of_key(rf"{_ACTOR}\.ppo_mini_batch_size", "100000"), True),
    "batch that the cards do not divide": (_of_key(r"data\.train_batch_size", "1021"), True),
    "mini batch that micro batches do not divide": (_of_key(rf"{_MICRO}_per_gpu", "7"), True),
    "sequences cut without padding removed": (
        _more(f"{_ACTOR}.ulysses_sequence_parallel_size=2", "actor_rollout_ref.model.use_remove_padding=False"), True,
    ),
    "engine over cards that do not divide": (_of_key(rf"{_ROLLOUT}\.tensor_model_parallel_size", "3"), False),
    "engine over more cards than there are": (_of_key(rf"{_ROLLOUT}\.tensor_model_parallel_size", "64"), False),
    "Megatron over cards that do not divide": (
        _of_key(rf"{_ACTOR}\.megatron\.(?:tensor|pipeline)_model_parallel_size", "3"), True,
    ),
    "zero temperature with sampling": (
        _more(f"{_ROLLOUT}.temperature=0", f"{_ROLLOUT}.val_kwargs.do_sample=True"), True,
    ),
    "missing quote": (_any_line(lambda found, _: found[0].replace("=", '="', 1)), True),
    "missing backslash": (_any_line(lambda found, _: f"{found['lead']}{found['key']}={found['value']}"), True),
    "blank behind a backslash": (_any_line(lambda found, _: found[0].rstrip(" \\") + " \\ "), True),
    "comment between the words": (_any_line(lambda found, _: f"{found['lead']}# {found[0].strip()}"), True),
    "open bracket": (_any_line(lambda found, _: found[0].replace(found["value"], "'[1,2'", 1)), True),
    "comma without brackets": (_any_line(lambda found, _: found[0].replace(found["value"], "a,b", 1)), True),
    "blank around the equals sign": (_any_line(lambda found, _: found[0].replace("=", " = ", 1)), True),
    "misspelt module": (_in_text(r"(-m verl\.[\w.]*)main_ppo\b", r"\1main_pp0"), True),
    "misspelt configuration": (_in_text(r"(-m verl\.[\w.]+main_\w+)", r"\1 --config-name=ppo_trainr"), True),
}  # fmt: skip


def mutants(bases: Mapping[str, str], each: int, seed: int = 1) -> Iterator[Mutant]:
    """Up to `each` mutants of every rule, on bases drawn among those that the rule can change."""
    draw = random.Random(seed)
    for rule, (change, is_checked) in RULES.items():
        made = dict[str, str]()
        for base in draw.sample(sorted(bases), len(bases)):
            text = change(bases[base], draw)
            if text is not None and text != bases[base] and len(made) < each:
                made.setdefault(text, base)
        yield from (Mutant(rule, base, text, is_checked) for text, base in made.items())


def chosen(found: Iterable[Mutant], count: int) -> list[Mutant]:
    """As many as asked for, the rules in turn."""
    by_rule: dict[str, list[Mutant]] = {}
    for each in found:
        by_rule.setdefault(each.rule, []).append(each)
    rounds = itertools.zip_longest(*by_rule.values())
    return [each for group in rounds for each in group if each is not None][:count]
