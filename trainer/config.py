"""The settings of a run: their names, defaults and limits, and how `KEY=VALUE` words become a `Config`.

Knows nothing of torch, so that a mistyped setting is refused at once. A key is a setting's name, alone or after its
section (`lr`, `optim.lr`), or verl's name for it (`trainer.overrides.verl`). Start from `parse`.
"""

from __future__ import annotations

import difflib
from dataclasses import Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trainer.overrides import verl
from trainer.settings import BadSetting, choice, limits, number, shown, switch, text, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

__all__ = ["BadSetting", "Config", "Given", "describe", "differing", "parse", "read"]


@dataclass(frozen=True, slots=True)
class Run:
    """How long, where, with what numbers."""

    steps: int = number(200, 1, 1_000_000, "rollout batches", free=True)
    epochs: int = number(
        0, 0, 1_000_000, "instead of steps: times that as many prompts are drawn as there are; 0: steps"
    )
    seed: int = number(0, 0, 2**63 - 1, "of the first weights, the prompts drawn and the answers")
    device: str = text("auto", "auto: the first accelerator that works, else the CPU")
    dtype: str = choice("float32", "float64", "bfloat16", about="of the weights")
    num_threads: int = number(1, 1, 1024, "of torch on the CPU; with another number sums may round otherwise")
    ranks: int = number(1, 1, 1024, "processes on this machine that share the rollouts and learn one gradient")
    matmul_precision: str = choice(
        "highest", "high", "medium", about="float32 products on the CPU; medium rounds to bfloat16"
    )
    validate_every: int = number(0, 0, 1_000_000, "steps; 0: before the first and after the last only", free=True)
    save_every: int = number(0, 0, 1_000_000, "steps; 0: in the middle, where it is tried, and at the end", free=True)
    resume: str = choice(
        "false",
        "true",
        "auto",
        about="go on from the checkpoint in the output folder; auto: if there is one",
        free=True,
    )
    probe_packages: bool = switch(
        True, "false: Ray and vllm, where they are installed, are not tried before training (5 to 25 s)", free=True
    )
    fault: str = choice(
        "none",
        "lr-zero",
        "shuffled-reward",
        "constant-reward",
        "mask-off-by-one",
        "stale-sampler",
        "zero-advantage",
        "nan-gradient",
        "wrong-arithmetic",
        "corrupt-checkpoint",
        "full-disk",
        "reward-raises",
        "reward-hangs",
        "no-end-token",
        "no-signal",
        "skipped-validation",
        "rank-dies",
        "rank-differs",
        about="breaks the run on purpose, to see the verdict fail",
    )


@dataclass(frozen=True, slots=True)
class Questions:
    """What is asked, and what an answer is worth."""

    task: str = choice(
        "successor",
        "addition",
        "copy",
        "gsm8k",
        "math",
        "code",
        "frozen_lake",
        "sokoban",
        "file",
        about="what is asked",
    )
    distractors: int = number(1, 0, 3, "successor only: random digits before the one that decides")
    reward: str = choice("partial", "exact", about="exact: 1 for the right answer, else 0; partial: the share in place")
    reward_function: str = text("", "FILE.py:NAME instead of the task's own reward")
    reward_timeout_s: float = number(60.0, 0.01, 86400.0, "for all answers of a step")
    train_files: str = text("", "parquet or jsonl, for tasks that read one; several by comma")
    val_files: str = text("", "the same, held out")
    max_prompt_tokens: int = number(512, 1, 1 << 20, "of a question; in fine-tuning, of a whole transcript")
    max_new_tokens: int = number(0, 0, 1 << 20, "0: what the task says")
    filter_overlong_prompts: bool = switch(True, "false: an overlong prompt is an error")
    strict_answers: bool = switch(True, "gsm8k: only `#### number` counts; false: the last number of the answer")
    map_size: int = number(3, 2, 16, "frozen_lake, sokoban")
    max_turns: int = number(5, 1, 1000, "of an episode, for tasks with an environment")
    format_penalty: float = number(-0.01, -100.0, 0.0, "for a turn without a valid action")


@dataclass(frozen=True, slots=True)
class Model:
    """The policy: the built-in decoder at a size, or a folder in transformers' layout."""

    path: str = text("", "empty: the built-in decoder from a random start")
    layers: int = number(1, 1, 64, "of the built-in decoder, like the next four")
    hidden: int = number(64, 2, 16384, "size of the residual stream")
    heads: int = number(4, 1, 128, "of queries")
    kv_heads: int = number(2, 1, 128, "of keys and values; divides heads")
    intermediate: int = number(128, 1, 65536, "size within the feed-forward half")
    lora_rank: int = number(0, 0, 1024, "0: every weight is trained")
    lora_alpha: float = number(16.0, 0.0, 4096.0, "the change is scaled by alpha / rank")
    lora_targets: str = text(
        "q_proj,k_proj,v_proj,o_proj,gate_proj,up_proj,down_proj", "layers that get one, by the end of their names"
    )
    gradient_checkpointing: bool = switch(False, "layers are computed again in the backward pass: less memory")


@dataclass(frozen=True, slots=True)
class Sampler:
    """How answers are made."""

    engine: str = choice("builtin", "transformers", "vllm", "scripted", about="what generates")
    prompts_per_step: int = number(16, 1, 4096, "questions a step; in fine-tuning, transcripts")
    rollouts_per_prompt: int = number(8, 1, 4096, "answers to each, its group")
    temperature: float = number(1.0, 1e-3, 100.0, "of sampling, and of the log-probabilities that are learnt")
    script: str = text("", "scripted only: a file of answers, one JSON list of texts a line")
    tensor_parallel: int = number(1, 1, 1024, "cards per engine of vllm")
    memory_fraction: float = number(0.6, 0.01, 1.0, "of a card, for weights and cache of the vllm engine")
    enforce_eager: bool = switch(False, "vllm without captured graphs")
    weight_sync: str = choice("in-place", "reload", about="how vllm gets new weights")
    sleep: bool = switch(False, "the engine gives its memory to the learner between generations")


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is learnt from the rewards."""

    convention: str = choice("verl", "trl", "roll", about="whose edge cases: groups of one, epsilons, clamps")
    estimator: str = choice(
        "grpo",
        "rloo",
        "reinforce",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
        "opo",
        "gae",
        about="how rewards become advantages; gae trains a critic",
    )
    scale_by_std: bool = switch(True, "grpo; false: reward minus mean only (Dr. GRPO)")
    gamma: float = number(1.0, 0.0, 1.0, "discount per token")
    lam: float = number(1.0, 0.0, 1.0, "gae")
    loss: str = choice("clip", "gspo", "cispo", "plain", about="of the policy")
    clip_low: float = number(0.2, 0.0, 1.0, "the ratio may fall by this much")
    clip_high: float = number(0.2, 0.0, 100.0, "and rise by this much")
    dual_clip: float = number(3.0, 0.0, 1e6, "bound for negative advantages, above 1; 0: none")
    aggregation: str = choice(
        "token-mean",
        "seq-mean-token-sum",
        "seq-mean-token-sum-norm",
        "seq-mean-token-mean",
        about="what the sum over tokens is divided by",
    )
    kl: str = choice("low_var", "k1", "k2", "k3", about="estimator of the divergence from the reference policy")
    kl_in: str = choice("loss", "reward", about="where the divergence counts")
    kl_coef: float = number(1e-3, 0.0, 100.0, "its weight; 0: no reference policy is kept")
    kl_controller: str = choice("fixed", "adaptive", about="whether kl_coef follows the divergence")
    kl_target: float = number(0.1, 1e-9, 100.0, "adaptive only")
    kl_horizon: int = number(10_000, 1, 1 << 40, "adaptive only; rows")
    entropy_coef: float = number(0.15, -100.0, 100.0, "bonus for entropy")
    dynamic_sampling: bool = switch(False, "groups whose rewards are all equal are drawn again (DAPO)")
    max_generations: int = number(10, 1, 10_000, "batches that dynamic sampling may draw for one step")
    overlong_buffer: int = number(0, 0, 1 << 20, "tokens before the limit within which length costs reward; 0: none")
    overlong_factor: float = number(1.0, 0.0, 100.0, "reward lost at the limit")
    correction: str = choice("none", "token", "sequence", about="weights for the gap of sampler and learner")
    correction_cap: float = number(2.0, 1.0, 1e6, "the largest weight")


@dataclass(frozen=True, slots=True)
class Optim:
    """How the weights move."""

    lr: float = number(1.2e-3, 0.0, 10.0, "the highest")
    lr_schedule: str = choice("linear", "constant", "cosine", about="linear and cosine fall to 0 at the end of the run")
    warmup_steps: int = number(0, 0, 1_000_000, "optimizer steps from 0 up to lr")
    weight_decay: float = number(0.0, 0.0, 10.0, "decoupled, per optimizer step times lr")
    grad_clip: float = number(1.0, 1e-9, 1e9, "largest norm of the gradient")
    mini_batches: int = number(2, 1, 1024, "optimizer steps per rollout batch; from 2 on the clipped ratio is at work")
    micro_batch_rows: int = number(0, 0, 1 << 24, "rows per forward pass; 0: a whole mini batch")
    critic_lr: float = number(1e-3, 0.0, 10.0, "gae only")
    value_clip: float = number(0.5, 0.0, 1e6, "gae only")
    warm_start_steps: int = number(
        0, 0, 1_000_000, "supervised steps on right answers before the first rollout; see trainer.supervised.warm_start"
    )
    warm_start_lr: float = number(1e-3, 0.0, 10.0, "stays over those steps")
    warm_start_until: float = number(
        0.0, 0.0, 1.0, "share of right greedy answers to prompts of training that ends those steps early; 0: none does"
    )


@dataclass(frozen=True, slots=True)
class Noise:
    """Adaptive noise on the sampler's copy of the weights (AQN); stages 0: none."""

    noise_start: float = number(0.05, 0.0, 10.0, "deviation of the first stage that has noise")
    noise_end: float = number(0.0005, 0.0, 10.0, "deviation of the last stage")
    noise_stages: int = number(0, 0, 10_000, "equal parts of the run, the first without noise; 0: no noise")
    noise_shape: str = choice("geometric", "linear", about="how it falls from stage to stage")
    noise_targets: str = text("", "parts of names, by comma; empty: every RMSNorm")
    noise_excludes: str = text("", "parts of names that get none, by comma")


@dataclass(frozen=True, slots=True)
class Output:
    """Where numbers go beside metrics.jsonl, which is always written."""

    loggers: str = text("", "tensorboard, wandb, swanlab, by comma; the last two offline", free=True)
    peak_tflops: float = number(
        0.0, 0.0, 1e6, "of one device, for MFU; 0: measured on a large product at the start", free=True
    )


@dataclass(frozen=True, slots=True)
class Config:
    """One run. Every field of every section is a setting; the names are unique over all sections.

    With the defaults all 30 held-out answers were right at the end of 38 of 40 seeds, 29 and 28 in the others, after
    about 4 s of training on one thread. With 8 prompts of 16 rollouts, the same number of rows, a digit stayed unlearnt
    in one seed of ten, and so it did with larger models and with the exact reward.
    """

    run: Run = field(default_factory=Run)
    task: Questions = field(default_factory=Questions)
    model: Model = field(default_factory=Model)
    rollout: Sampler = field(default_factory=Sampler)
    algorithm: Algorithm = field(default_factory=Algorithm)
    optim: Optim = field(default_factory=Optim)
    noise: Noise = field(default_factory=Noise)
    output: Output = field(default_factory=Output)

    def flat(self) -> dict[str, Any]:
        """Every setting with its value, sections left out."""
        sections = [getattr(self, section.name) for section in fields(self)]
        return {each.name: getattr(part, each.name) for part in sections for each in fields(part)}

    def lasting(self) -> dict[str, Any]:
        """What a checkpoint keeps: every setting but `resume`, which is about one process of the run."""
        return {name: value for name, value in self.flat().items() if name != "resume"}


_SECTIONS: Mapping[str, Any] = {
    "run": Run,
    "task": Questions,
    "model": Model,
    "rollout": Sampler,
    "algorithm": Algorithm,
    "optim": Optim,
    "noise": Noise,
    "output": Output,
}
_SETTINGS: Mapping[str, Field[Any]] = {each.name: each for kind in _SECTIONS.values() for each in fields(kind)}
_HOME: Mapping[str, str] = {each.name: section for section, kind in _SECTIONS.items() for each in fields(kind)}


@dataclass(frozen=True, slots=True)
class Given:
    """What words came to."""

    config: Config
    translated: Mapping[str, str]  # verl's words, each with what it became here
    ignored: Mapping[str, str]  # verl's words that mean nothing here, each with the reason
    assumed: Mapping[str, str]  # settings that nobody gave and that are as in verl, because a word of verl's was given


# Where numbers can go beside the record file.
LOGGERS = ("tensorboard", "wandb", "swanlab")
# Near names that a refusal tells; and where all of them stand.
_NUM_NEAR = 3
_ALL = "`python -m trainer --help` lists every setting"


def parse(words: Iterable[str], *, devices: tuple[str, ...]) -> Config:
    """The configuration of `read`."""
    return read(words, devices=devices).config


def read(words: Iterable[str], *, devices: tuple[str, ...]) -> Given:
    """The defaults with `KEY=VALUE` words applied in order; `devices` are the accepted values of `device`.

    A key may carry hydra's `+` or `++`, which change nothing. Raises BadSetting for a word without `=`, an unknown
    key, a value of the wrong kind or outside its limits, and for values that do not go together.
    """
    own: dict[str, str] = {}
    foreign: dict[str, str] = {}
    for word in words:
        key, equals, given = word.partition("=")
        if not equals:
            raise BadSetting(f"{word!r} is no setting: write KEY=VALUE; {_ALL}")
        key = key.removeprefix("+").removeprefix("+")
        if key not in _SETTINGS and verl.knows(key):
            foreign[key] = given
        else:
            own[_name(key)] = given
    made = verl.translate(foreign, own)
    values: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for name, given in {**made.settings, **own}.items():
        values[_HOME[name]][name] = _value(name, given, devices, made.origin.get(name) if name not in own else None)
        _refuse_contradiction(name, own, made, devices)
    config = Config(**{section: kind(**values[section]) for section, kind in _SECTIONS.items()})
    _check_together(config)
    return Given(config, made.said, made.ignored, made.assumed)


def _name(key: str) -> str:
    section, dot, rest = key.rpartition(".")
    if rest in _HOME and (not dot or section == _HOME[rest]):
        return rest
    names = [*_HOME, *verl.names()]
    near = _nearest(key, names) or _nearest(rest, names)
    hint = f"Did you mean {' or '.join(near)}? " if near else ""
    raise BadSetting(f"There is no setting {key!r}. {hint}{_ALL}")


def _nearest(key: str, names: Sequence[str]) -> list[str]:
    """Up to `_NUM_NEAR` names, the best first, and others only where they are about as near as that."""
    found = difflib.get_close_matches(key, names, n=_NUM_NEAR)
    nearness = {name: difflib.SequenceMatcher(None, name, key).ratio() for name in found}
    return [name for name in found if nearness[name] > nearness[found[0]] - 0.1]


def _value(name: str, given: str, devices: tuple[str, ...], origin: str | None = None) -> Any:
    try:
        return value_of(_SETTINGS[name], given, devices if name == "device" else None)
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
    """Each section's name, what it is, and its settings: `name=default (limits)` with one line about it."""
    for section, kind in _SECTIONS.items():
        rows = []
        for each in fields(kind):
            taken = limits(each, devices if each.name == "device" else None)
            rows.append((f"{each.name}={shown(each)}  ({taken})", each.metadata.get("about", "")))
        yield section, (kind.__doc__ or "").strip(), rows


def differing(before: Mapping[str, Any], now: Config) -> tuple[dict[str, tuple[Any, Any]], dict[str, tuple[Any, Any]]]:
    """Settings whose values differ from those that a saved run kept: the ones that may, and the ones that must not.

    Example: {"steps": (10, 20)}, {"lr": (0.1, 0.2)}
    """
    changed = {name: (before.get(name), value) for name, value in now.lasting().items() if before.get(name) != value}
    changed |= {name: (value, None) for name, value in before.items() if name not in _SETTINGS}
    free = {name: pair for name, pair in changed.items() if name in _SETTINGS and _SETTINGS[name].metadata["free"]}
    return free, {name: pair for name, pair in changed.items() if name not in free}


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
    if config.run.ranks > 1 and algorithm.estimator == "gae":
        raise BadSetting("estimator=gae takes ranks=1: its critic learns from the rows of one rank only")
    if optim.warm_start_until and not optim.warm_start_steps:
        raise BadSetting(f"warm_start_until={optim.warm_start_until:g} needs warm_start_steps, the most it may take")
    if optim.mini_batches * config.run.ranks > rollout.prompts_per_step:
        of_ranks = f" on each of {config.run.ranks} ranks" if config.run.ranks > 1 else ""
        raise BadSetting(
            f"mini_batches={optim.mini_batches}{of_ranks} is more than prompts_per_step={rollout.prompts_per_step}"
        )
