"""Rules about what an NPU has and has not: backends, attention, devices and variables that belong to a GPU."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.matrix.keys import roll_names
from npuenv.preflight.rules.base import is_at_least, is_true, matching, problem, roles, rule, value, whole, written
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Severity
    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch

_UNSUPPORTED = "npuenv/matrix/unsupported.toml"
_SAMPLES = "ROLL Ascend samples (2026-04)"
# Variables of NVIDIA's communication library that have a counterpart with the same meaning.
_NCCL = {"NCCL_SOCKET_IFNAME": "HCCL_SOCKET_IFNAME"}
_OF_BOTH_ENGINES = frozenset(("gpu_memory_utilization", "load_format", "dtype", "tensor_parallel_size", "seed"))


@rule("device", "verl")
def _device(launch: Launch) -> Iterator[Problem]:
    key = "trainer.device"
    setting = written(launch, key)
    if is_at_least(launch, "0.7.0"):
        return  # verl sets it to the device that it finds
    if setting is not None and setting.value in ("cuda", "gpu"):
        yield problem(
            key,
            severity="error" if launch.release else "warning",
            changes=(Change(key, "npu"),),
            source="verl wheels 0.5.0 to 0.7.0: verl/utils/device.py, auto_set_device",
        )
    elif setting is None and not launch.is_open(key) and is_at_least(launch, "0.7.0") is False:
        yield problem(
            says="device-unset",
            changes=(Change(key, "npu"),),
            release=launch.release,
            source="verl Ascend quick start (2025-12-11): the device is found by itself from 0.7.0 on",
        )


@rule("visibility", source="ray/_private/accelerators/npu.py: ASCEND_RT_VISIBLE_DEVICES")
def _visibility(launch: Launch) -> Iterator[Problem]:
    setting = launch.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None:
        new = "ASCEND_RT_VISIBLE_DEVICES"
        changes: tuple[Change, ...] = ()
        if new in launch.environ:  # what the user wrote for the NPU stays
            changes = (Change("CUDA_VISIBLE_DEVICES", None, is_variable=True),)
        elif str(setting.value):
            changes = (Change(new, setting.value, is_variable=True, renames="CUDA_VISIBLE_DEVICES"),)
        # A list of all the cards that the launch asks for would hide none of them.
        requested = whole(launch, "trainer.n_gpus_per_node", 8) or 0
        is_whole = str(setting.value) == ",".join(map(str, range(requested)))
        yield problem(
            "CUDA_VISIBLE_DEVICES",
            severity="warning" if is_whole else "error",
            changes=changes,
            name="CUDA_VISIBLE_DEVICES",
            new=new,
        )


@rule("nccl", severity="warning")
def _nccl(launch: Launch) -> Iterator[Problem]:
    for name, setting in launch.environ.items():
        if not name.startswith(("NCCL_", "PYTORCH_CUDA_", "TORCH_NCCL_")):
            continue
        new = _NCCL.get(name)
        change = Change(name, None, is_variable=True)
        if new is not None and new not in launch.environ:
            change = Change(new, setting.value, is_variable=True, renames=name)
        yield problem(
            name,
            says="nccl-renamed" if new else "nccl",
            changes=(change,),
            name=name,
            new=new or "-",
            source=f"{_SAMPLES}: HCCL in place of NCCL; no reader of {name} in torch_npu or CANN",
        )


@rule("megatron-mindspeed", "verl", source="verl Ascend quick start (2025-12): MindSpeed and Megatron-LM")
def _megatron_needs(launch: Launch) -> Iterator[Problem]:
    key, packages = "actor_rollout_ref.actor.strategy", launch.machine.packages
    if value(launch, key) == "megatron" and packages and not {"mindspeed", "mindspeed-llm"} & set(packages):
        yield problem(key)


@rule("roll-strategy", "roll")
def _roll_strategy(launch: Launch) -> Iterator[Problem]:
    for role in roles(launch):
        key = f"{role}.strategy_args.strategy_name"
        name = value(launch, key)
        if not isinstance(name, str) or written(launch, key) is None:
            continue
        yield from _of_strategy(launch, key, name)


def _of_strategy(launch: Launch, key: str, name: str) -> Iterator[Problem]:
    is_new = is_at_least(launch, "0.3.0")
    train = "fsdp2_train" if is_new or is_new is None else "deepspeed_train"
    if "deepspeed" in name and is_new:
        new = train if name.endswith("train") else "fsdp2_infer"
        yield problem(
            key,
            rule="roll-deepspeed",
            changes=_as_fsdp(launch, key, new),
            name=name,
            new=new,
            release=launch.release,
            source="alibaba/ROLL v0.3.0: roll/configs/worker_config.py, StrategyArguments",
        )
    if name.startswith("megatron"):
        new = train if name.endswith("train") else "hf_infer"
        severity: Severity = "error" if is_new is not None else "warning"
        yield problem(
            key,
            rule="roll-megatron",
            severity=severity,
            changes=(Change(key, new), *_without_megatron(launch, key, new)),
            name=name,
            new=new,
            source="alibaba/ROLL ascend_npu_faq.md @8eb27cc2; npuenv/matrix/unsupported.toml unsupported.roll.megatron",
        )
    if name == "sglang":
        yield problem(
            key,
            rule="roll-engine",
            severity="warning",
            changes=_as_vllm(launch, key),
            name=name,
            source=f"{_SAMPLES}; alibaba/ROLL docker/Dockerfile.A2: vllm-ascend is the only engine",
        )


def _as_fsdp(launch: Launch, key: str, new: str) -> tuple[Change, ...]:
    """FSDP with settings of its own in the place of DeepSpeed's tree; nothing where the role's cards are not known.

    Source: ROLL Ascend samples (2026-04), the form of v0.3.0.
    """
    config, cards = f"{key.rpartition('.')[0]}.strategy_config", cards_of(launch, key.partition(".strategy_args")[0])
    if f"{config}.fsdp_size" in launch.settings:
        return (Change(key, new),)  # the settings are FSDP's already
    if not cards:
        return ()
    written = [each for name, each in launch.settings.items() if name == config or name.startswith(f"{config}.")]
    offloads = any(re.search(r"offload.*\bcpu\b", f"{each.key}: {each.value}") for each in written)
    tree = {
        "fsdp_size": len(cards),
        "param_dtype": "bf16",
        "reduce_dtype": "float32",
        "reshard_after_forward": True,
        "offload_policy": offloads,
    }
    return (Change(key, new), Change(config, tree))


def _as_vllm(launch: Launch, key: str) -> tuple[Change, ...]:
    """vLLM in the place of SGLang, with its name for the share of memory; nothing where SGLang has more settings."""
    config = f"{key.rpartition('.')[0]}.strategy_config"
    share, names = f"{config}.mem_fraction_static", _names_below(launch, config)
    if names - _OF_BOTH_ENGINES - {"mem_fraction_static"}:
        return ()
    new = f"{config}.gpu_memory_utilization"
    if share not in launch.settings or new in launch.settings:
        return (Change(key, "vllm"), *((Change(share, None),) if share in launch.settings else ()))
    return (Change(key, "vllm"), Change(new, launch.settings[share].value, renames=share))


def _names_below(launch: Launch, key: str) -> set[str]:
    return {name.removeprefix(f"{key}.") for name in launch.settings if name.startswith(f"{key}.")}


def _without_megatron(launch: Launch, key: str, new: str) -> Iterator[Change]:
    """What goes with the strategy: Megatron's own settings out, and FSDP told to spread over all cards of the role.

    ROLL hands `strategy_config` on as it is. FSDP reads none of Megatron's names, and without a size each card holds
    the whole model.
    """
    config = f"{key.rpartition('.')[0]}.strategy_config"
    for setting in launch.settings.values():
        if setting.key.rpartition(".")[0] == config and setting.key.rpartition(".")[2] in roll_names("megatron"):
            yield Change(setting.key, None)
    cards = cards_of(launch, key.partition(".strategy_args")[0])
    if new == "fsdp2_train" and cards and f"{config}.fsdp_size" not in launch.settings:
        yield Change(f"{config}.fsdp_size", len(cards))


@rule("profiler", "verl", source="verl wheels 0.6.1 to 0.9.1: verl/utils/profiler, npu or torch in place of nsys")
def _profiler(launch: Launch) -> Iterator[Problem]:
    for pattern in ("global_profiler.tool", "*.profiler.tool"):
        for setting in matching(launch, pattern):
            if setting.value == "nsys" and _profiles(launch, setting.key):
                yield problem(setting.key, changes=(Change(setting.key, "npu"),))


def _profiles(launch: Launch, key: str) -> bool:
    """Whether what a profiler's tool is named for is on."""
    part = key.removesuffix(".tool")
    parts = (
        [part]
        if part != "global_profiler"
        else [each.key.removesuffix(".enable") for each in matching(launch, "*.profiler.enable")]
    )
    return any(is_true(launch, f"{each}.enable") for each in parts)


@rule("flash-package", severity="warning")
def _flash_package(launch: Launch) -> Iterator[Problem]:
    for name in ("flash-attn", "flash_attn"):
        if name in launch.machine.packages:
            yield problem(
                version=launch.machine.packages[name],
                source=f"{_UNSUPPORTED} unsupported.{launch.framework}.flash-attn",
            )
