"""Settings spelt as other frameworks spell them: verl's dotted names here, ROLL's cards in `device_mapping`.

`actor_rollout_ref.rollout.n=5` becomes `rollouts_per_prompt=5`. A key of verl's has an equivalent here, has no effect
(with a reason), or is combined with others into one setting, as the batch and the mini batch are.

A single verl setting selects verl's defaults of loss and optimizer for everything that is not given (no entropy bonus,
a constant learning rate of 1e-6, ...); these are listed in `assumed`. The estimator, sizes, lengths and the engine keep
this trainer's defaults. Source: verl, trainer/config/ppo_trainer.yaml and the files it includes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from trainer.overrides.verl_keys import (
    ACTOR,
    CORRECTION,
    EVERY,
    IGNORED,
    IGNORED_BELOW,
    KL,
    NOISE,
    ONLY,
    OVERLONG,
    REWARD,
    SAME,
    TOGETHER,
    WORDS,
    read_value,
    spell,
)
from trainer.sections import READ_WITH, SETTINGS, BadSetting, shown, unread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from trainer.overrides.verl_keys import Value


_FILES = ("train_files", "val_files", "path")


@dataclass(slots=True)
class Translation:
    """The result of translating verl's settings. `settings`: this trainer's; `origin`: the verl setting of each."""

    settings: dict[str, str] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    translated: dict[str, str] = field(default_factory=dict)  # verl's setting -> its equivalent here
    ignored: dict[str, str] = field(default_factory=dict)  # verl's setting -> why it has no effect
    assumed: dict[str, str] = field(default_factory=dict)  # settings that nobody gave, as verl has them

    def put(self, name: str, value: str, origin: str, why: str = "") -> None:
        """Sets a setting. Raises BadSetting if another verl setting gave it a different value."""
        if self.settings.get(name, value) != value:
            raise BadSetting(f"{origin} and {self.origin[name]} contradict each other: both set {name}")
        self.settings[name], self.origin[name] = value, origin
        self.translated[origin] = ", ".join(filter(None, [self.translated.get(origin), f"{name}={value}{why}"]))

    def assume(self, name: str, value: str, own: Mapping[str, str]) -> None:
        """verl's default; explicit settings win."""
        if name not in self.settings and name not in own:
            self.settings[name] = self.assumed[name] = value

    def drop(self, name: str, why: str) -> None:
        """Removes a setting that verl's settings gave; those are then reported as ignored."""
        if name in self.origin:
            origin = self.origin.pop(name)
            del self.settings[name]
            self.translated.pop(origin, None)  # of several settings from one, the first removed it
            self.ignored.setdefault(origin, why)


def names() -> Iterable[str]:
    """Every key of verl's that is known, those with open ends left out."""
    return (*SAME, *WORDS, *EVERY, *TOGETHER, *ONLY, *IGNORED)


def knows(key: str) -> bool:
    """Whether a key is one of verl's that means something, or is known to mean nothing."""
    return key in names() or key.startswith(tuple(IGNORED_BELOW))


def sets_alone(key: str) -> str | None:
    """Our setting that one of verl's keys decides by itself; None for one that it decides together with others."""
    return SAME.get(key) or EVERY.get(key) or (WORDS[key][0] if key in WORDS else None)


def translate(given: Mapping[str, str], own: Mapping[str, str]) -> Translation:
    """This trainer's settings for verl's; `own` are those given under this trainer's names, which apply where verl's
    are silent.

    Raises BadSetting for a value that is not supported and for settings that contradict each other.
    Example: {"data.train_batch_size": "128", "actor_rollout_ref.actor.ppo_mini_batch_size": "64"} ->
    prompts_per_step=128, mini_batches=2
    """
    made = Translation()
    values = {key: _read(key, text) for key, text in given.items() if not _is_ignored(key)}
    for key, text in given.items():
        if _is_ignored(key):
            made.ignored[f"{key}={text}"] = _reason(key)
        else:
            _alone(key, text, values[key], made)
    for rule in _RULES:
        rule(_Words(values, given), own, made)
    if given:
        critic = _CRITIC_DEFAULTS if _chosen("estimator", own, made) == "gae" else {}
        for name, value in {**_DEFAULTS, **critic}.items():
            made.assume(name, value, own)
    return made


def _is_ignored(key: str) -> bool:
    return key in IGNORED or (key not in names() and key.startswith(tuple(IGNORED_BELOW)))


def _reason(key: str) -> str:
    return IGNORED.get(key) or next(why for start, why in IGNORED_BELOW.items() if key.startswith(start))


def _read(key: str, text: str) -> Value:
    try:
        return read_value(text)
    except BadSetting as error:
        raise BadSetting(f"{key}: {error}") from None


def _alone(key: str, text: str, value: Value, made: Translation) -> None:
    word, spelt = f"{key}={text}", spell(value)
    if key in SAME:
        made.put(SAME[key], _at_home(spelt) if SAME[key] in _FILES else spelt, word)
    elif key in EVERY:
        made.put(EVERY[key], "0" if value == -1 else spelt, word)
    elif key in WORDS:
        name, words = WORDS[key]
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if spelt not in words and not is_number:
            raise BadSetting(f"{word} is not accepted. Accepted: {', '.join(words)}")
        made.put(name, words.get(spelt, spelt), word)
    elif key in ONLY:
        accepted, why = ONLY[key]
        if not any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in accepted):
            names = ", ".join(spell(each) or "null" for each in accepted)
            raise BadSetting(f"{word} is not accepted: {why}. Accepted: {names}")
        made.ignored[word] = why


def _at_home(files: str) -> str:
    """Paths by comma, with `~` expanded: the shell does not expand it after a `=`."""
    return ",".join(os.path.expanduser(file) for file in files.split(","))


class _Words:
    """verl's settings by key: the parsed value, or the text."""

    def __init__(self, values: Mapping[str, Value], given: Mapping[str, str]) -> None:
        self._values, self._given = values, given

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def word(self, key: str) -> str:
        return f"{key}={self._given[key]}"

    def text(self, key: str, default: str = "") -> str:
        value = self._values.get(key)
        return default if value is None else spell(value)

    def is_on(self, key: str) -> bool:
        """Raises BadSetting for what is neither true nor false."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            raise BadSetting(f"{self.word(key)} is not accepted. Accepted: true, false")
        return value

    def count(self, key: str) -> int:
        """Raises BadSetting unless it is an integer above 0."""
        value = self._values.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise BadSetting(f"{self.word(key)} is not accepted. Accepted: a whole number from 1 on")
        return value


def _batches(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """verl counts a mini batch in prompts, as the batch; here it is the number of mini batches that is set."""
    whole, part = "data.train_batch_size", f"{ACTOR}ppo_mini_batch_size"
    if whole in words:
        made.put("prompts_per_step", str(words.count(whole)), words.word(whole))
    if part not in words:
        if whole in words:
            made.assume("mini_batches", str(-(-words.count(whole) // _MINI_BATCH)), own)
        return
    if whole not in words and "prompts_per_step" not in own:
        raise BadSetting(f"{words.word(part)} says nothing without {whole}: how many prompts a step has")
    total, size = words.count(whole) if whole in words else _whole(own["prompts_per_step"]), words.count(part)
    if total % size:
        raise BadSetting(f"{words.word(part)} must divide the {total} prompts of a step")
    made.put("mini_batches", str(total // size), words.word(part), f" ({total} / {size})")


# verl's default number of prompts of a mini batch.
_MINI_BATCH = 256


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise BadSetting(f"prompts_per_step={text} is not accepted. Accepted: a whole number from 1 to 4096")
    return int(text)


def _clip(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """`clip_ratio` is both bounds, where the one that it means is not given."""
    for name, key in (("clip_low", f"{ACTOR}clip_ratio_low"), ("clip_high", f"{ACTOR}clip_ratio_high")):
        used = key if key in words else f"{ACTOR}clip_ratio"
        if used in words:
            made.put(name, words.text(used), words.word(used))


_KL_TYPES = {"kl": "k1", "k1": "k1", "abs": "abs", "mse": "k2", "k2": "k2", "low_var_kl": "low_var", "k3": "low_var"}
_KL_TYPES |= {"kl+": "k1+", "k1+": "k1+", "mse+": "k2", "k2+": "k2", "low_var_kl+": "k3+", "k3+": "k3+"}


def _divergence(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """The divergence in the loss or in the reward, each with its own coefficient and estimator; not in both."""
    in_loss, in_reward = f"{ACTOR}use_kl_loss", "algorithm.use_kl_in_reward"
    if words.is_on(in_loss) and words.is_on(in_reward):
        raise BadSetting(f"{words.word(in_loss)} and {words.word(in_reward)}: the divergence counts in one place only")
    at_loss = {f"{ACTOR}kl_loss_coef": "kl_coef", f"{ACTOR}kl_loss_type": "kl"}
    at_reward = {f"{KL}kl_coef": "kl_coef", "algorithm.kl_penalty": "kl", f"{KL}type": "kl_controller"}
    at_reward |= {f"{KL}target_kl": "kl_target", f"{KL}horizon": "kl_horizon"}
    for switch, where, keys in ((in_loss, "loss", at_loss), (in_reward, "reward", at_reward)):
        if words.is_on(switch):
            made.put("kl_in", where, words.word(switch))
        elif switch in words:
            made.ignored.setdefault(words.word(switch), f"the divergence does not count in the {where}")
        _switched(switch, keys, words, made)
    if words.is_on(in_loss) or words.is_on(in_reward):
        made.assume("kl_coef", "0.001", own)
    if words.is_on(in_reward):
        made.assume("kl", "k1", own)


def _switched(switch: str, keys: Mapping[str, str], words: _Words, made: Translation) -> None:
    """Our settings for keys that are read with a switch only; switched off they mean nothing."""
    for key, name in keys.items():
        if key in words and not words.is_on(switch):
            made.ignored[words.word(key)] = f"it is read with {switch}=True only"
        elif key in words:
            made.put(name, _kl_word(key, words), words.word(key))


def _kl_word(key: str, words: _Words) -> str:
    if not key.endswith(("kl_loss_type", "kl_penalty")):
        return words.text(key)
    if words.text(key) not in _KL_TYPES:
        raise BadSetting(f"{words.word(key)} is not accepted. Accepted: {', '.join(_KL_TYPES)}")
    return _KL_TYPES[words.text(key)]


def _noise(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """The keys of the AQN branch."""
    switch = f"{NOISE}enabled"
    keys = {
        f"{NOISE}sigma_start": "noise_start",
        f"{NOISE}sigma_end": "noise_end",
        f"{NOISE}num_stages": "noise_stages",
        f"{NOISE}target_modules": "noise_targets",
        f"{NOISE}exclude_patterns": "noise_excludes",
    }
    if switch in words and not words.is_on(switch):
        made.put("noise_stages", "0", words.word(switch))
    _switched(switch, keys, words, made)
    if words.is_on(switch):
        made.translated.setdefault(words.word(switch), "noise_stages above 0")
        made.assume("noise_stages", "10", own)


def _reward(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """A file and a name; verl's own file for GSM8K is what the task does anyway."""
    path, name = f"{REWARD}path", f"{REWARD}name"
    if not words.text(path):
        for key in (path, name):
            if key in words:
                made.ignored[words.word(key)] = f"there is no {path}"
        return
    function = words.text(name, "compute_score")
    if words.text(path).replace("\\", "/").endswith("utils/reward_score/gsm8k.py"):
        for key in (path, name):
            if key in words:
                made.ignored[words.word(key)] = "the task gsm8k scores by the same rule"
        return
    made.put("reward_function", f"{words.text(path)}:{function}", words.word(path))
    if name in words:
        made.translated[words.word(name)] = f"reward_function={words.text(path)}:{function}"


def _overlong(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    switch, length = f"{OVERLONG}enable", f"{OVERLONG}len"
    if words.is_on(switch) and length in words:
        made.put("overlong_buffer", words.text(length), words.word(length))
        made.translated[words.word(switch)] = f"overlong_buffer={words.text(length)}"
    elif switch in words or length in words:
        for key in (switch, length):
            if key in words:
                made.ignored[words.word(key)] = f"it takes {switch}=True and {length}"


_LOGGERS = {"tensorboard": "tensorboard", "wandb": "wandb", "swanlab": "swanlab", "console": "", "file": ""}


def _length(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """Of steps and epochs the fewer count, as in verl, whose loop ends with either; and what is written besides."""
    steps, epochs, logger = "trainer.total_training_steps", "trainer.total_epochs", "trainer.logger"
    if words.text(steps):
        made.put("steps", str(words.count(steps)), words.word(steps))
    if epochs in words:
        beside = made.settings.get("steps") or own.get("steps")
        why = f" (or steps={beside}, whichever is less)" if beside else ""
        made.put("epochs", str(words.count(epochs)), words.word(epochs), why)
    if logger in words:
        given = [each.strip() for each in words.text(logger).split(",") if each.strip()]
        unknown = [each for each in given if each not in _LOGGERS]
        if unknown:
            raise BadSetting(f"{words.word(logger)}: {unknown[0]} is not accepted. Accepted: {', '.join(_LOGGERS)}")
        made.put("loggers", ",".join(filter(None, (_LOGGERS[each] for each in given))), words.word(logger))


def _task(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """verl reads the rule from each row; here the task is chosen first, by the name of the files if it must be."""
    files = "data.train_files"
    if files not in words or "task" in own:
        return
    for name in ("gsm8k", "math"):
        if name in words.text(files).lower():
            made.settings["task"], made.translated["(task)"] = name, f"task={name}, by the name of the files"
            return
    if "reward_function" in own or "reward_function" in made.settings:
        made.settings["task"], made.translated["(task)"] = "file", "task=file, judged by the function"
        return
    raise BadSetting(f"{words.word(files)} does not tell what is asked: add task=gsm8k, math, code or file")


def _unread(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """Reports translated settings without effect as ignored."""
    for name, (decides, *_) in READ_WITH.items():
        why = unread(name, lambda other: _chosen(other, own, made))
        if why is not None and not (decides == "correction" and "off_policy" in own):  # which may put a correction
            made.drop(name, why)


def _chosen(name: str, own: Mapping[str, str], made: Translation) -> str:
    return made.settings.get(name, own.get(name, shown(SETTINGS[name]))).lower()


def _correction(words: _Words, own: Mapping[str, str], made: Translation) -> None:
    """One number holds weights at most there; two, `LOW_HIGH`, leave out what is beyond (IcePop)."""
    level, threshold = f"{CORRECTION}rollout_is", f"{CORRECTION}rollout_is_threshold"
    if level in words:
        made.put("correction", words.text(level) or "none", words.word(level))
    if threshold in words:
        floor, has_floor, cap = words.text(threshold).rpartition("_")
        made.put("correction_cap", cap, words.word(threshold))
        if has_floor:
            made.put("correction_floor", floor, words.word(threshold))
            made.put("correction_bound", "mask", words.word(threshold))


_RULES: tuple[Callable[[_Words, Mapping[str, str], Translation], None], ...] = (
    _batches,
    _clip,
    _divergence,
    _noise,
    _reward,
    _overlong,
    _correction,
    _length,
    _task,
    _unread,
)
# verl's defaults of loss and optimizer.
_DEFAULTS: Mapping[str, str] = {
    "entropy_coef": "0",
    "lr": "1e-6",
    "lr_schedule": "constant",
    "weight_decay": "0.01",
    "kl_coef": "0",
    "mini_batches": "1",
}
_CRITIC_DEFAULTS: Mapping[str, str] = {"critic_lr": "1e-5"}
