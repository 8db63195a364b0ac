"""The settings of a run: their names, defaults and limits, and the parser of `KEY=VALUE` arguments.

Does not import torch, so that a mistyped setting is rejected at once. A key is a setting's name, alone or after its
section (`lr`, `optim.lr`), or verl's name for it (`trainer.overrides`).
"""

from __future__ import annotations

import argparse
import difflib
import functools
import importlib.util
import math
import sys
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from trainer import overrides as verl
from trainer.algorithms.conventions import Rejection
from trainer.overrides.device_mapping import parse_device_mapping
from trainer.sections import (
    SECTIONS,
    SETTINGS,
    Algorithm,
    Cards,
    Model,
    Noise,
    Optim,
    Output,
    RolloutSettings,
    Run,
    TaskSettings,
    is_own,
    limits,
    shown,
    unread,
    value_of,
)
from trainer.sections import BadSetting as BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


class Arguments(argparse.ArgumentParser):
    """A command line's parser that raises BadSetting."""

    def error(self, message: str) -> NoReturn:
        raise BadSetting(message)


@dataclass(frozen=True, slots=True)
class Config:
    """One run. Every field of every section is a setting; the names are unique over all sections.

    With the defaults all 30 held-out answers were right at the end of 38 of 40 seeds, 29 and 28 in the others, after
    about 4 s of training on one thread. With 8 prompts of 16 rollouts, the same number of rows, a digit stayed unlearnt
    in one seed of ten, and so it did with larger models and with the exact reward.
    """

    run: Run = field(default_factory=Run)
    task: TaskSettings = field(default_factory=TaskSettings)
    model: Model = field(default_factory=Model)
    rollout: RolloutSettings = field(default_factory=RolloutSettings)
    algorithm: Algorithm = field(default_factory=Algorithm)
    optim: Optim = field(default_factory=Optim)
    noise: Noise = field(default_factory=Noise)
    output: Output = field(default_factory=Output)
    placement: Cards = field(default_factory=Cards)

    def flat(self) -> dict[str, Any]:
        """Every setting with its value, sections left out."""
        sections = [getattr(self, section.name) for section in fields(self)]
        return {each.name: getattr(part, each.name) for part in sections for each in fields(part)}

    @property
    def has_generators(self) -> bool:
        """Whether answers are generated in other processes than those that learn."""
        return self.rollout.generators > 0 or self.is_split

    @property
    def is_split(self) -> bool:
        """Whether cards generate that do not learn."""
        cards = self.placement
        return bool(cards.infer_cards) and _numbers(cards.infer_cards) != _numbers(cards.train_cards)

    @classmethod
    def of_saved(cls, settings: Mapping[str, Any]) -> Config:
        """The configuration from the result of `lasting`; of another version's, the settings that are known here."""
        values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
        for name, value in settings.items():
            if name in _HOME:
                values[_HOME[name]][name] = value
        return cls(**{section: kind(**values[section]) for section, kind in SECTIONS.items()})

    @property
    def reference_at(self) -> str | None:
        """The location of the reference policy: `learner`, `generators`; None: the divergence is not used."""
        if self.algorithm.kl_coef <= 0:
            return None
        chosen, rollout = self.placement.reference_place, self.rollout
        if chosen != "auto":
            return chosen
        # An engine that takes several cards may not fit on one, and neither would the reference.
        is_too_large = rollout.engine == "vllm" and rollout.tensor_parallel > 1
        return "generators" if self.is_split and not is_too_large else "learner"

    def lasting(self) -> dict[str, Any]:
        """The settings in a checkpoint: all but `resume`, which is about one process of the run."""
        return {name: value for name, value in self.flat().items() if name != "resume"}


@functools.lru_cache(maxsize=16)  # called in every step
def _numbers(cards: str) -> frozenset[int] | str:
    """The cards of a list; its text if there is none or it cannot be read, which is reported elsewhere."""
    try:
        return frozenset(parse_device_mapping(cards)) if cards else cards
    except BadSetting:
        return cards


_HOME: Mapping[str, str] = {each.name: section for section, kind in SECTIONS.items() for each in fields(kind)}


@dataclass(frozen=True, slots=True)
class ParsedSettings:
    """The result of parsing the arguments."""

    config: Config
    translated: Mapping[str, str]  # verl's arguments, each with its equivalent here
    ignored: Mapping[str, str]  # verl's arguments without effect here, each with the reason
    # Settings that were not given and follow from others: verl's defaults if any verl setting was given; the correction
    # between engine and learner if one is a step behind the other.
    assumed: Mapping[str, str]
    warnings: Sequence[str] = ()  # settings without effect


# Where numbers can go beside the record file.
LOGGERS = ("tensorboard", "wandb", "swanlab")
OFFLOAD_ON_CPU = "offload=true moves shards from an accelerator to the CPU, and this run computes on the CPU"
# vllm raises lower ones to this, with a warning. Source: vllm/sampling_params.py of 0.11.0 and of 0.33.0 (_MAX_TEMP).
LEAST_VLLM_TEMPERATURE = 0.01
# The number of near names in an error; and the pointer to the list of all.
_NUM_NEAR = 3
_ALL = "`python -m trainer --help` lists every setting"
# Other trainers' names for settings, which a refusal translates. Source: transformers' TrainingArguments, TRL's
# GRPOConfig, ROLL's pipeline configuration, the last part of verl's keys.
_ELSEWHERE: Mapping[str, str] = {
    "learning_rate": "lr",
    "lr_scheduler_type": "lr_schedule",
    "max_grad_norm": "grad_clip",
    "num_warmup_steps": "warmup_steps",
    "max_steps": "steps",
    "num_train_epochs": "epochs",
    "save_steps": "save_every",
    "eval_steps": "validate_every",
    "batch_size": "prompts_per_step",
    "rollout_batch_size": "prompts_per_step",
    "per_device_train_batch_size": "micro_batch_rows",
    "num_generations": "rollouts_per_prompt",
    "num_return_sequences_in_group": "rollouts_per_prompt",
    "n": "rollouts_per_prompt",
    "max_prompt_length": "max_prompt_tokens",
    "max_completion_length": "max_new_tokens",
    "response_length": "max_new_tokens",
    "beta": "kl_coef",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "adv_estimator": "estimator",
    "model_name_or_path": "path",
    "vllm_gpu_memory_utilization": "memory_fraction",
}


def parse(words: Iterable[str], *, devices: tuple[str, ...]) -> Config:
    """The configuration of `read`."""
    return read(words, devices=devices).config


def read(words: Iterable[str], *, devices: tuple[str, ...], launched: int = 1) -> ParsedSettings:
    """The defaults with `KEY=VALUE` arguments applied in order; `devices` are the accepted values of `device`.

    `launched`: the processes that a launcher has started, each of which is a rank unless the arguments say otherwise. A
    key may carry hydra's `+` or `++`, which have no effect. Raises BadSetting for an argument without `=`, an unknown
    key, a value of the wrong kind or outside its limits, and for values that do not fit together.
    """
    own: dict[str, str] = {}
    foreign: dict[str, str] = {}
    warnings = []
    for word in words:
        key, equals, given = word.partition("=")
        if not equals:
            raise BadSetting(f"{word!r} is no setting: write KEY=VALUE; {_ALL}")
        key = key.removeprefix("+").removeprefix("+")
        is_foreign = key not in SETTINGS and verl.knows(key)
        taken, name = (foreign, key) if is_foreign else (own, _name(key))
        if taken.get(name, given) != given:
            warnings.append(f"{name} is given twice, {taken[name]} and {given}: the last one counts")
        taken[name] = given
    made = verl.translate(foreign, own)
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    for name, given in {**made.settings, **own}.items():
        values[_HOME[name]][name] = _value(name, given, devices, made.origin.get(name) if name not in own else None)
        _refuse_contradiction(name, own, made, devices)
    assumed = dict(made.assumed)
    if values["rollout"].get("off_policy") and "correction" not in values["algorithm"]:
        values["algorithm"]["correction"] = assumed["correction"] = "token"
    if launched > 1 and not values["placement"].get("train_cards"):  # with cards a launcher starts one on each node
        values["run"].setdefault("ranks", launched)
    if values["run"].get("epochs"):
        values["run"].setdefault("steps", SETTINGS["steps"].metadata["high"])  # epochs alone say when it ends
    config = Config(**{section: kind(**values[section]) for section, kind in SECTIONS.items()})
    if "prompts_per_step" not in values["rollout"]:  # as many as the ranks can share
        ranks, rollout = config.run.ranks, config.rollout
        each = max(math.ceil(rollout.prompts_per_step / ranks), config.optim.mini_batches if ranks > 1 else 1)
        config = replace(config, rollout=replace(rollout, prompts_per_step=ranks * each))
    _check_together(config)
    flat = config.flat()
    for name in own:
        why = unread(name, flat.__getitem__)
        if why is not None and flat[name] != SETTINGS[name].default:
            warnings.append(why)
    return ParsedSettings(config, made.translated, made.ignored, assumed, warnings)


# Those that take an answer's advantage from the other answers to its prompt.
_BY_GROUP = (
    *("grpo", "rloo", "reinforce_plus_plus_baseline", "opo"),
    *("maxrl", "grpo_passk", "gpg", "gdpo", "optimal_token_baseline"),
)


def doubts(config: Config, *, optimizer_steps: int, cores: float, load: float) -> list[str]:
    """Settings of a configuration with its final number of steps that are valid but probably unintended.

    `optimizer_steps`: those of the run. `cores`: those that this process may use; `load`: how many are busy with
    other work. Threads share each product and wait for the slowest: with fewer free cores than threads a run was 8 to
    40 times slower than with one thread (two cores, one of them busy).
    """
    rollout, algorithm, warmup = config.rollout, config.algorithm, config.optim.warmup_steps
    found = []
    if warmup > optimizer_steps:
        found.append(
            f"warmup_steps={warmup} is more than the {optimizer_steps} optimizer steps of the run: lr is never reached"
        )
    if rollout.rollouts_per_prompt == 1 and algorithm.estimator in _BY_GROUP:
        found.append(
            f"rollouts_per_prompt=1: estimator={algorithm.estimator} compares the answers to one prompt, and there is "
            "one; give more, or estimator=reinforce"
        )
    threads = config.run.num_threads
    num_threads = threads * (config.run.ranks + rollout.generators)
    if threads > 1 and num_threads > cores - load + 0.5:  # the load is a mean of the last minute
        found.append(
            f"num_threads={threads} makes {num_threads} threads, and about {max(cores - load, 0.0):.1f} of {cores} "
            "processor cores are free: they wait for each other, and the run may take many times as long as with "
            "num_threads=1"
        )
    return found


def instead(words: Iterable[str], name: str, value: str) -> list[str]:
    """The arguments with `name=value` instead of those that set `name`; one of verl's keeps its key and gets the value.

    verl's arguments stay, because any of them selects verl's defaults.
    Example: ["save_every=5", "trainer.save_freq=-1"], save_every, 10 -> ["trainer.save_freq=10", "save_every=10"]
    """
    made = []
    for word in words:
        key = word.partition("=")[0]
        plain = key.removeprefix("+").removeprefix("+")
        is_foreign = plain not in SETTINGS and verl.knows(plain)
        if is_foreign and verl.sets_alone(plain) == name:
            made.append(f"{key}={value}")
        elif is_foreign or _name(plain) != name:
            made.append(word)
    return [*made, f"{name}={value}"]


def _name(key: str) -> str:
    section, dot, rest = key.rpartition(".")
    if rest in _HOME and (not dot or section == _HOME[rest]):
        return rest
    ends = [name for name in verl.names() if name.endswith(f".{key}")]
    names = [*_HOME, *verl.names(), *_ELSEWHERE]
    near = ends[:_NUM_NEAR] or _nearest(key, names) or _nearest(rest, names)
    near = list(dict.fromkeys(_ELSEWHERE.get(name, name) for name in near))
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise BadSetting(f"There is no setting {key!r}. {hint}{_ALL}")


def _nearest(key: str, names: Sequence[str]) -> list[str]:
    """Up to `_NUM_NEAR` names, the best first, and further ones only if they are about as near."""
    found = difflib.get_close_matches(key, names, n=_NUM_NEAR, cutoff=0.65)
    nearness = {name: difflib.SequenceMatcher(None, name, key).ratio() for name in found}
    return [name for name in found if nearness[name] > nearness[found[0]] - 0.1]


def _value(name: str, given: str, devices: tuple[str, ...], origin: str | None = None) -> Any:
    try:
        return value_of(SETTINGS[name], given, devices if name == "device" else None)
    except BadSetting as error:
        if origin is None:
            raise
        raise BadSetting(f"{origin}: {error}") from None


def _refuse_contradiction(name: str, own: Mapping[str, str], made: verl.Translation, devices: tuple[str, ...]) -> None:
    origin = made.origin.get(name)
    if origin is None or name not in own:
        return
    if _value(name, own[name], devices) != _value(name, made.settings[name], devices, origin):
        raise BadSetting(f"{name}={own[name]} contradicts {origin}, which means {name}={made.settings[name]}: give one")


def describe(devices: Sequence[str]) -> Iterator[tuple[str, str, list[tuple[str, str]]]]:
    """Each section's name and description, and its settings: `name=default (limits)` with one line about it."""
    for section, kind in SECTIONS.items():
        rows = []
        for each in fields(kind):
            taken = limits(each, devices if each.name == "device" else None)
            rows.append((f"{each.name}={shown(each)}  ({taken})", each.metadata.get("about", "")))
        yield section, (kind.__doc__ or "").strip(), rows


def differing(before: Mapping[str, Any], now: Config) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Any, Any]]]:
    """Settings whose values differ from those of a saved run: those that may change, and those that must not.

    Example: {"steps": (10, 20)}, {"lr": (0.1, 0.2)}
    """
    changed = {name: (before.get(name), value) for name, value in now.lasting().items() if before.get(name) != value}
    changed |= {name: (value, None) for name, value in before.items() if name not in SETTINGS}
    allowed = {
        name: pair for name, pair in changed.items() if name in SETTINGS and SETTINGS[name].metadata["may_change"]
    }
    return allowed, {name: pair for name, pair in changed.items() if name not in allowed}


def _check_together(config: Config) -> None:
    model, rollout, algorithm, optim = config.model, config.rollout, config.algorithm, config.optim
    if model.hidden % model.heads or (model.hidden // model.heads) % 2:
        raise BadSetting(f"hidden={model.hidden} must be an even multiple of heads={model.heads}")
    if model.heads % model.kv_heads:
        raise BadSetting(f"heads={model.heads} must be a multiple of kv_heads={model.kv_heads}")
    if 0 < algorithm.dual_clip <= 1:
        raise BadSetting(f"dual_clip={algorithm.dual_clip:g} must be above 1, or 0 for none")
    unknown = [name for name in config.output.loggers.replace(",", " ").split() if name not in LOGGERS]
    if unknown:
        raise BadSetting(f"loggers={config.output.loggers}: there is no {unknown[0]}. Accepted: {', '.join(LOGGERS)}")
    if algorithm.kl_controller == "adaptive" and algorithm.kl_in == "loss":
        raise BadSetting("kl_controller=adaptive needs kl_in=reward: as a loss the divergence has a fixed coefficient")
    if rollout.prompts_per_step % config.run.ranks:
        raise BadSetting(f"prompts_per_step={rollout.prompts_per_step} must be a multiple of ranks={config.run.ranks}")
    if config.run.offload and config.run.sharding == "none":
        raise BadSetting("offload=true needs sharding=fsdp2: only shards wait on the CPU between their uses")
    if config.run.offload and config.run.device == "cpu":
        raise BadSetting(OFFLOAD_ON_CPU)
    _check_alone(config)
    _check_unread(config)
    _check_algorithm(config)
    if config.run.ranks > 1 and algorithm.estimator == "gae":
        raise BadSetting("estimator=gae takes ranks=1: its critic learns from the rows of one rank only")
    _check_generators(config)
    rows = rollout.prompts_per_step * rollout.rollouts_per_prompt
    if algorithm.kl_controller == "adaptive" and 5 * algorithm.kl_horizon <= rows:  # a step moves it by 20 % at most
        raise BadSetting(
            f"kl_horizon={algorithm.kl_horizon} must be above {rows / 5:g}, a fifth of the {rows} rows of a step: else "
            "one step may take kl_coef to 0 or below"
        )
    if optim.warm_start_until and not optim.warm_start_steps:
        raise BadSetting(f"warm_start_until={optim.warm_start_until:g} needs warm_start_steps, the most it may take")
    if optim.mini_batches * config.run.ranks > rollout.prompts_per_step:
        of_ranks = f" on each of {config.run.ranks} ranks" if config.run.ranks > 1 else ""
        raise BadSetting(
            f"mini_batches={optim.mini_batches}{of_ranks} is more than prompts_per_step={rollout.prompts_per_step}"
        )


def _check_algorithm(config: Config) -> None:
    algorithm, task = config.algorithm, config.task
    for setting, given in (("estimator", algorithm.estimator), ("loss", algorithm.loss)):
        if is_own(given):
            locate(setting, given)
    Rejection.of(algorithm.rejection, algorithm.rejection_threshold)
    if algorithm.reference_every and not algorithm.kl_coef:
        raise BadSetting(
            f"reference_every={algorithm.reference_every} needs kl_coef above 0: else there is no reference"
        )
    if algorithm.estimator == "gdpo" and not (task.part_names and task.reward_function):
        raise BadSetting("estimator=gdpo needs reward_function and reward_parts, the names of numbers in its dict")
    if algorithm.estimator == "gdpo" and len(task.part_weights) not in (0, len(task.part_names)):
        raise BadSetting(
            f"reward_part_weights={task.reward_part_weights} must be as many as reward_parts={task.reward_parts}"
        )
    if algorithm.estimator in ("gdpo", "remax") and config.rollout.off_policy:
        raise BadSetting(f"estimator={algorithm.estimator} takes off_policy=0")


def _check_alone(config: Config) -> None:
    """Raises BadSetting for settings that need several ranks if there is only one."""
    run, cards = config.run, _numbers(config.placement.train_cards)
    if max(run.ranks, len(cards)) > 1:
        return
    if run.offload:
        raise BadSetting(
            "offload=true needs ranks=2 or more, or as many train_cards: one rank holds every row, and none waits "
            "on the CPU"
        )
    if run.fault in ("rank-dies", "rank-differs"):
        raise BadSetting(f"fault={run.fault} needs ranks=2 or more, or as many train_cards")


def _check_unread(config: Config) -> None:
    """Raises BadSetting for given settings that are not used."""
    rollout, cards = config.rollout, config.placement
    for name in () if cards.train_cards else ("nodes", "cards_per_node", "ray"):
        value = getattr(cards, name)
        if value != SETTINGS[name].default:
            raise BadSetting(f"{name}={value} needs train_cards, the cards that learn")
    for name in () if rollout.engine == "vllm" else ("tensor_parallel", "sleep"):
        value = getattr(rollout, name)
        if value != SETTINGS[name].default:
            raise BadSetting(f"{name}={str(value).lower()} needs engine=vllm: engine={rollout.engine} does not read it")


def _check_generators(config: Config) -> None:
    rollout, run = config.rollout, config.run
    if rollout.generators and config.placement.train_cards:
        raise BadSetting(
            f"generators={rollout.generators} counts processes without cards of their own, and "
            f"train_cards={config.placement.train_cards} places all processes on cards: infer_cards names those that "
            "generate"
        )
    if 0 < rollout.generators < run.ranks:
        raise BadSetting(f"generators={rollout.generators} is less than ranks={run.ranks}: each needs one of its own")
    if rollout.engine == "vllm" and not config.placement.train_cards and max(run.ranks, rollout.generators) > 1:
        raise BadSetting("several engines of vllm need train_cards: else each of them takes the first card")
    if rollout.engine == "vllm" and rollout.temperature < LEAST_VLLM_TEMPERATURE:
        raise BadSetting(
            f"engine=vllm takes temperature={LEAST_VLLM_TEMPERATURE:g} or more: it raises "
            f"temperature={rollout.temperature:g} to that, and what is learnt would be another policy"
        )
    if config.has_generators and rollout.engine == "scripted":
        raise BadSetting("engine=scripted answers in the learner's process: it takes generators=0")
    if not config.has_generators and config.placement.reference_place == "generators":
        raise BadSetting(
            "reference_place=generators needs generators=1 or more, or infer_cards that are not the train_cards"
        )
    if not config.has_generators and run.fault in ("generator-dies", "generator-garbage", "stale-weights"):
        raise BadSetting(f"fault={run.fault} needs generators=1 or more")
    if not rollout.off_policy:
        return
    if not config.has_generators:
        raise BadSetting("off_policy=1 needs generators=1 or more: one process cannot learn and generate at once")
    if rollout.sleep:
        raise BadSetting("off_policy=1 takes sleep=false: the engine is at work while the learner is")
    if not rollout.max_staleness:
        raise BadSetting("off_policy=1 is one step behind: it takes max_staleness=1 or more")


# Functions of the user's, given as `FILE.py:NAME`.


def locate(setting: str, given: str) -> tuple[Path, str]:
    """The file and the name. Raises BadSetting unless the file is there."""
    path, colon, name = given.rpartition(":")
    file = Path(path).expanduser().resolve()
    if not colon or not name.isidentifier() or not file.is_file():
        raise BadSetting(f"{setting}={given} is not accepted. Accepted: FILE.py:NAME of a file that is there")
    return file, name


def load_function(setting: str, given: str) -> Callable[..., Any]:
    """The function, imported into this process. Raises BadSetting where the file or the function cannot be used."""
    file, name = locate(setting, given)
    spec = importlib.util.spec_from_file_location(f"{setting}_of_the_run", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))  # last: a file beside it must not hide a module of the same name
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name)
    except Exception as error:  # the user's code: whatever it raises says why it cannot be used
        reason = " ".join(str(error).split())[:300]
        raise BadSetting(f"{setting}={given} cannot be loaded: {type(error).__name__}: {reason}") from error
    finally:
        sys.path.remove(str(file.parent))
    if not callable(function):
        raise BadSetting(f"{setting}={given} is not accepted: {name} is no function")
    return function  # type: ignore[no-any-return]
