"""The settings of a run, in sections: every name with its default, its limits and its meaning.

Names are unique over all sections. `trainer.config` combines the sections and fills them from `KEY=VALUE` arguments.
Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from trainer.registry import ESTIMATORS, LOSSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_BOOLEANS = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}


class BadSetting(ValueError):
    """A setting that cannot be used; the text names it, its value and what would be accepted."""


def number(default: float, low: float, high: float, about: str = "", *, may_change: bool = False) -> Any:
    """A setting with a lowest and a highest accepted value; an integer if its default is.

    `may_change`, here and below: a resumed run may have another value than the saved one.
    """
    return field(default=default, metadata={"low": low, "high": high, "about": about, "may_change": may_change})


def choice(default: str, *others: str, about: str = "", may_change: bool = False, own: bool = False) -> Any:
    """A setting that accepts one of some names; with `own` also a function of the user's, `FILE.py:NAME`."""
    accepted = (default, *others)
    return field(default=default, metadata={"accepted": accepted, "about": about, "may_change": may_change, "own": own})


def text(default: str = "", about: str = "", *, may_change: bool = False) -> Any:
    """A setting that takes any text: a path, a name."""
    return field(default=default, metadata={"about": about, "may_change": may_change})


def switch(default: bool, about: str = "", *, may_change: bool = False) -> Any:
    """A setting that is on or off."""
    return field(default=default, metadata={"about": about, "may_change": may_change})


def value_of(setting: Field[Any], given: str, accepted: Sequence[str] | None = None) -> Any:
    """The value of a text. `accepted` are the names for a setting that cannot declare them itself.

    Raises BadSetting for a text of the wrong kind or outside of the limits.
    """
    name, kind = setting.name, type(setting.default)
    words = setting.metadata.get("accepted", accepted)
    if kind is str:
        if setting.metadata.get("own") and is_own(given):
            return given
        if words is not None and given.lower() not in words:
            own = ", FILE.py:NAME" if setting.metadata.get("own") else ""
            raise BadSetting(f"{name}={given} is not accepted. Accepted: {', '.join(words)}{own}")
        return given if words is None else given.lower()
    if kind is bool:
        if given.lower() not in _BOOLEANS:
            raise BadSetting(f"{name}={given} is not accepted. Accepted: true, false")
        return _BOOLEANS[given.lower()]
    return _number(name, given, kind, setting.metadata["low"], setting.metadata["high"])


def is_own(given: str) -> bool:
    """Whether a value is a function of the user's, `FILE.py:NAME`."""
    return ".py:" in given


def _number(name: str, given: str, kind: Callable[[str], Any], low: float, high: float) -> int | float:
    kind_of_number = "a whole number" if kind is int else "a number"
    try:
        value: int | float = kind(given)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise BadSetting(f"{name}={given} is not accepted. Accepted: {kind_of_number} from {low:g} to {high:g}")
    return value


def limits(setting: Field[Any], accepted: Sequence[str] | None = None) -> str:
    """The accepted values as text. Example: `0 to 10`, `verl | trl | roll`, `true | false`, `text`."""
    words = setting.metadata.get("accepted", accepted)
    if words is not None:
        return " | ".join((*words, "FILE.py:NAME") if setting.metadata.get("own") else words)
    if "low" in setting.metadata:
        return f"{setting.metadata['low']:g} to {setting.metadata['high']:g}"
    return "true | false" if isinstance(setting.default, bool) else "text"


def shown(setting: Field[Any]) -> str:
    """A default as it would be typed. Example: False -> `false`."""
    assert setting.default is not MISSING
    return str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)


@dataclass(frozen=True, slots=True)
class Run:
    """How long, where, with what numbers."""

    steps: int = number(200, 1, 1_000_000, "rollout batches", may_change=True)
    epochs: int = number(
        0, 0, 1_000_000, "times that every prompt is asked, in whole batches; with steps too the fewer count; 0: steps"
    )
    seed: int = number(0, 0, 2**63 - 1, "of the first weights, the prompts drawn and the answers")
    device: str = text("auto", "auto: the first accelerator that works, else the CPU")
    dtype: str = choice("float32", "float64", "bfloat16", about="of the weights")
    num_threads: int = number(1, 1, 1024, "of torch on the CPU; with another number sums may round otherwise")
    ranks: int = number(
        1, 1, 1024, "processes on this machine that share the rollouts and learn one gradient", may_change=True
    )
    sharding: str = choice(
        "none",
        "fsdp2",
        about="each rank keeps its rows of weights, gradients and moments alone (one rank: nothing changes); with "
        "dtype=bfloat16 in float32, gathered and computed with in bfloat16",
        may_change=True,
    )
    offload: bool = switch(
        False, "sharding only: rows wait on the CPU between their uses; accelerators only", may_change=True
    )
    matmul_precision: str = choice(
        "highest", "high", "medium", about="float32 products on the CPU; medium rounds to bfloat16"
    )
    validate_every: int = number(0, 0, 1_000_000, "steps; 0: before the first and after the last only", may_change=True)
    save_every: int = number(
        0, 0, 1_000_000, "steps; 0: in the middle, where it is tried, and at the end", may_change=True
    )
    resume: str = choice(
        "false",
        "true",
        "auto",
        about="go on from the checkpoint in the output folder; auto: if there is one",
        may_change=True,
    )
    probe_packages: bool = switch(
        True,
        "false: Ray and vllm, where they are installed, are not tried before training (5 to 25 s)",
        may_change=True,
    )
    fault: str = choice(
        "none",
        *("lr-zero", "shuffled-reward", "constant-reward", "mask-off-by-one", "stale-sampler", "zero-advantage"),
        *("nan-gradient", "wrong-arithmetic", "corrupt-checkpoint", "full-disk", "reward-raises", "reward-hangs"),
        *("no-end-token", "no-signal", "skipped-validation", "rank-dies", "rank-differs", "generator-dies"),
        *("generator-garbage", "stale-weights"),
        about="breaks the run on purpose, to see the verdict fail; generator-dies, generator-garbage and stale-weights "
        "need generators=1 or more, and so the package ray",
    )


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What is asked, and what an answer is worth."""

    task: str = choice(
        *("successor", "addition", "copy", "gsm8k", "math", "code", "frozen_lake", "sokoban", "file"),
        about="what is asked",
    )
    distractors: int = number(1, 0, 3, "successor only: random digits before the one that decides")
    reward: str = choice("partial", "exact", about="exact: 1 for the right answer, else 0; partial: the share in place")
    reward_function: str = text("", "FILE.py:NAME instead of the task's own reward")
    reward_parts: str = text("", "gdpo: names of numbers beside `score` in the dict of reward_function, by comma")
    reward_part_weights: str = text("", "gdpo: a weight for each of them, by comma; empty: 1")
    reward_timeout_s: float = number(60.0, 0.01, 86400.0, "for all answers of a step")
    on_reward_error: str = choice(
        "stop",
        "zero",
        "drop",
        about="a reward that raises or hangs ends the run, which has saved its state; counts 0; or its group of "
        "answers is left out",
        may_change=True,
    )
    train_files: str = text("", "parquet or jsonl, for tasks that read one; several by comma")
    val_files: str = text("", "the same, held out")
    max_prompt_tokens: int = number(512, 1, 1 << 20, "of a question; in fine-tuning, of a whole transcript")
    max_new_tokens: int = number(0, 0, 1 << 20, "0: what the task says")
    filter_overlong_prompts: bool = switch(True, "false: an overlong prompt is an error")
    strict_answers: bool = switch(True, "gsm8k: only `#### number` counts; false: the last number of the answer")
    map_size: int = number(3, 2, 16, "frozen_lake, sokoban")
    maps: str = choice(
        "own",
        "gymnasium",
        "roll",
        about="frozen_lake, sokoban: the map of a seed is this trainer's, or that of ROLL, or for frozen_lake that of "
        "generate_random_map of gymnasium (from corner to corner; ROLL's go from anywhere to anywhere)",
    )
    answer_format: str = choice(
        "answer",
        "think",
        about="frozen_lake, sokoban in words: <answer>Right</answer>, or <think>...</think> before it (ROLL's "
        "action_pattern and think_action_pattern)",
    )
    max_turns: int = number(5, 1, 1000, "of an episode, for tasks with an environment")
    format_penalty: float = number(-0.01, -100.0, 0.0, "for a turn without a valid action")

    @property
    def part_weights(self) -> tuple[float, ...]:
        """Of the components of a reward. Raises BadSetting for what is no number."""
        try:
            return tuple(float(each) for each in self.reward_part_weights.split(",") if each.strip())
        except ValueError as error:
            raise BadSetting(f"reward_part_weights={self.reward_part_weights} is not accepted: {error}") from error

    @property
    def part_names(self) -> tuple[str, ...]:
        """Of the components of a reward."""
        return tuple(each.strip() for each in self.reward_parts.split(",") if each.strip())


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
class RolloutSettings:
    """How answers are made."""

    engine: str = choice("builtin", "transformers", "vllm", "scripted", about="what generates")
    prompts_per_step: int = number(
        16, 1, 4096, "questions a step; in fine-tuning, transcripts; by default as many as ranks can share"
    )
    rollouts_per_prompt: int = number(8, 1, 4096, "answers to each, its group")
    temperature: float = number(1.0, 1e-3, 100.0, "of sampling, and of the log-probabilities that are learnt")
    top_p: float = number(
        1.0, 1e-6, 1.0, "draws among the likeliest tokens with so much probability; the policy that learns is that one"
    )
    top_k: int = number(0, 0, 1 << 30, "draws among so many likeliest tokens, likewise; 0: among all")
    script: str = text("", "scripted only: a file of answers, one JSON list of texts a line")
    tensor_parallel: int = number(1, 1, 1024, "cards per engine of vllm")
    memory_fraction: float = number(0.6, 0.01, 1.0, "of a card, for weights and cache of the vllm engine")
    enforce_eager: bool = switch(False, "vllm without captured graphs")
    weight_sync: str = choice("in-place", "reload", about="how vllm gets new weights")
    sleep: bool = switch(False, "the engine gives its memory to the learner between generations")
    generators: int = number(
        0,
        0,
        1024,
        "processes on this machine, in a new Ray (needs the package ray), that generate for the ranks; 0: each rank "
        "does so itself",
        may_change=True,
    )
    off_policy: int = number(
        0,
        0,
        1,
        "1: the next batch is generated while this one is learnt, one step behind; correction=token unless given",
    )
    max_staleness: int = number(1, 0, 1000, "steps that answers may be behind; at more the run ends", may_change=True)
    bucket_mib: int = number(256, 1, 1 << 16, "of weights sent to generators at once", may_change=True)
    generator_timeout_s: float = number(
        600.0, 0.01, 86400.0, "for an answer; then another generator is started and asked", may_change=True
    )


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is learnt from the rewards."""

    convention: str = choice("verl", "trl", "roll", about="whose edge cases: groups of one, epsilons, clamps")
    estimator: str = choice(
        *ESTIMATORS,
        own=True,
        about="how rewards become advantages; gae trains a critic, remax draws a greedy answer to each prompt",
    )
    scale_by_std: bool = switch(True, "false: reward minus mean only (Dr. GRPO)")
    scale_by_batch: bool = switch(False, "grpo: over the deviation of all rewards of a step in place of a group's")
    whiten_advantages: bool = switch(False, "mean 0 and deviation 1 over all tokens of a step, after the estimator")
    advantage_clip: float = number(0.0, 0.0, 1e6, "advantages are held within +- this; 0: no limit")
    gamma: float = number(1.0, 0.0, 1.0, "discount per token")
    lam: float = number(1.0, 0.0, 1.0, "gae")
    loss: str = choice(*LOSSES, own=True, about="of the policy")
    clip_low: float = number(0.2, 0.0, 1.0, "the ratio may fall by this much; dppo: the probability or the divergence")
    clip_high: float = number(0.2, 0.0, 100.0, "and rise by this much")
    dual_clip: float = number(3.0, 0.0, 1e6, "bound for negative advantages, above 1; dppo: of the ratio; 0: none")
    tau_pos: float = number(1.0, 1e-6, 1e6, "sapo: how sharply the gate closes for advantages above 0")
    tau_neg: float = number(1.05, 1e-6, 1e6, "sapo: and for the others")
    cov_ratio: float = number(
        2e-4, 0.0, 1.0, "clip_cov leaves out, kl_cov penalises so large a share of the tokens of a forward pass"
    )
    clip_cov_low: float = number(1.0, -1e6, 1e6, "clip_cov: among tokens whose covariance is above this")
    clip_cov_high: float = number(5.0, -1e6, 1e6, "clip_cov: and below this")
    kl_cov_coef: float = number(0.1, 0.0, 1e6, "kl_cov: weight of the penalty")
    entropy_share: float = number(
        1.0, 0.0, 1.0, "only so large a share of the tokens of a forward pass learns, those of highest entropy"
    )
    mask_truncated: bool = switch(False, "answers cut at the limit of their length count as rewards only")
    aggregation: str = choice(
        *("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"),
        about="what the sum over tokens is divided by; gmpo, sapo, verl's gspo: always seq-mean-token-mean",
    )
    kl: str = choice(
        *("low_var", "k1", "k2", "k3", "abs", "k1+", "k3+"),
        about="estimator of the divergence from the reference policy; with +: its value, with the gradient of k2",
    )
    kl_in: str = choice("loss", "reward", about="where the divergence counts")
    kl_coef: float = number(1e-3, 0.0, 100.0, "its weight; 0: no reference policy is kept")
    reference_every: int = number(
        0, 0, 1_000_000, "steps after which the reference becomes the present policy, again and again; 0: it stays"
    )
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
    correction_floor: float = number(0.0, 0.0, 1.0, "the smallest weight")
    correction_bound: str = choice(
        "truncate", "mask", about="beyond cap and floor a weight is held there, or becomes 0 (IcePop)"
    )
    rejection: str = text(
        "",
        "leaves out tokens (token_k1, token_k2, token_k3) or answers (seq_sum_k1 to seq_mean_k3, seq_max_k2, "
        "seq_max_k3) on which sampler and learner are too far apart; several by comma",
    )
    rejection_threshold: str = text("2", "of k1 LOW_HIGH, or HIGH and its inverse; of k2 and k3 the largest; by comma")
    off_policy_mask: float = number(
        0.0,
        0.0,
        1e6,
        "answers with a negative advantage do not learn where sampler and learner are further apart in the mean of "
        "their tokens, in nats; 0: all learn",
    )


@dataclass(frozen=True, slots=True)
class Optim:
    """How the weights move."""

    lr: float = number(1.2e-3, 0.0, 10.0, "the highest")
    lr_schedule: str = choice("linear", "constant", "cosine", about="linear and cosine fall to 0 at the end of the run")
    warmup_steps: int = number(0, 0, 1_000_000, "optimizer steps from 0 up to lr")
    weight_decay: float = number(0.0, 0.0, 10.0, "decoupled, per optimizer step times lr")
    grad_clip: float = number(1.0, 1e-9, 1e9, "largest norm of the gradient")
    mini_batches: int = number(
        2, 1, 1024, "optimizer steps per rollout batch and epoch; from 2 on the clipped ratio is at work"
    )
    ppo_epochs: int = number(1, 1, 1024, "times that a rollout batch is learnt, in new mini batches each time")
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

    @property
    def optimizer_steps_per_batch(self) -> int:
        """Optimizer steps per rollout batch."""
        return self.mini_batches * self.ppo_epochs


@dataclass(frozen=True, slots=True)
class Cards:
    """Which cards learn and which generate, in processes that Ray starts; both lists empty: none is reserved."""

    train_cards: str = text(
        "", "0-3, [0,1] or list(range(0,4)), a rank each; numbers run on over the nodes", may_change=True
    )
    infer_cards: str = text("", "empty or the same: ranks generate too; others: generators there", may_change=True)
    reference_place: str = choice(
        "auto",
        "learner",
        "generators",
        about="where the reference policy of the divergence is: beside the policy, or in every generator; auto: there "
        "where infer_cards are others than train_cards and vllm has one card an engine, else beside the policy",
        may_change=True,
    )
    nodes: int = number(0, 0, 4096, "that the cards stand in; 0: as many as they fill", may_change=True)
    cards_per_node: int = number(0, 0, 1024, "0: as Ray counts them, or all cards over the nodes", may_change=True)
    ray: str = text(
        "auto",
        "HOST:PORT; auto: RAY_ADDRESS, else your own on this node, else a new one; local: a new one",
        may_change=True,
    )
    restarts: int = number(2, 0, 1000, "after a process or a node is lost, from the last checkpoint", may_change=True)
    cluster_limit_s: float = number(
        120.0, 1.0, 86400.0, "for Ray, its nodes and the processes to be there", may_change=True
    )
    hang_limit_s: float = number(
        1800.0, 1.0, 86400.0, "seconds without progress before the run counts as hung", may_change=True
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

    loggers: str = text("", "tensorboard, wandb, swanlab, by comma; the last two offline", may_change=True)
    peak_tflops: float = number(
        0.0, 0.0, 1e6, "of one device, for MFU; 0: measured on a large product at the start", may_change=True
    )


# Settings that are read only while another one has some values: that one and its values; none: any but the default.
READ_WITH: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(
        ("tensor_parallel", "memory_fraction", "enforce_eager", "weight_sync", "sleep"), ("engine", "vllm")
    ),
    "script": ("engine", "scripted"),
    "scale_by_std": ("estimator", "grpo", "grpo_passk", "gdpo"),
    "scale_by_batch": ("estimator", "grpo", "gdpo"),
    **dict.fromkeys(("reward_parts", "reward_part_weights"), ("estimator", "gdpo")),
    **dict.fromkeys(("lam", "critic_lr", "value_clip"), ("estimator", "gae")),
    **dict.fromkeys(("tau_pos", "tau_neg"), ("loss", "sapo")),
    "cov_ratio": ("loss", "clip_cov", "kl_cov"),
    **dict.fromkeys(("clip_cov_low", "clip_cov_high"), ("loss", "clip_cov")),
    "kl_cov_coef": ("loss", "kl_cov"),
    **dict.fromkeys(("kl_target", "kl_horizon"), ("kl_controller", "adaptive")),
    **dict.fromkeys(("correction_cap", "correction_floor", "correction_bound"), ("correction",)),
    "rejection_threshold": ("rejection",),
    "overlong_factor": ("overlong_buffer",),
    "max_generations": ("dynamic_sampling",),
    **dict.fromkeys(("lora_alpha", "lora_targets"), ("lora_rank",)),
    **dict.fromkeys(("noise_start", "noise_end", "noise_shape", "noise_targets", "noise_excludes"), ("noise_stages",)),
    "warm_start_lr": ("warm_start_steps",),
}

SECTIONS: Mapping[str, Any] = {
    "run": Run,
    "task": TaskSettings,
    "model": Model,
    "rollout": RolloutSettings,
    "algorithm": Algorithm,
    "optim": Optim,
    "noise": Noise,
    "output": Output,
    "placement": Cards,
}
SETTINGS: Mapping[str, Field[Any]] = {each.name: each for kind in SECTIONS.values() for each in fields(kind)}


def unread(name: str, chosen: Callable[[str], object]) -> str | None:
    """Why a setting changes nothing beside the values `chosen` of others; None: it is read."""
    if name not in READ_WITH:
        return None
    decides, *values = READ_WITH[name]
    found = str(chosen(decides)).lower()
    if not values:
        return f"{name} is not read with {decides}={found}" if found == shown(SETTINGS[decides]) else None
    if found in values or is_own(found):
        return None
    return f"only {decides}={' or '.join(values)} reads {name}, and this run has {decides}={found}"
