"""Rules about what an NPU has and has not: backends, attention, devices, and environment variables of the launch.

The ranges of variables are rows of matrix/variables.toml; the doctor judges the same rows for a session.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from npuenv.matrix import load_matrix
from npuenv.matrix.keys import roll_names
from npuenv.preflight.launch import Change
from npuenv.preflight.rules.base import (
    KEEP,
    is_at_least,
    is_true,
    matching,
    problem,
    reaches,
    roles,
    rule,
    value,
    whole,
    written,
)
from npuenv.preflight.rules.cards import cards_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Severity
    from npuenv.matrix.rows import Variable
    from npuenv.preflight.launch import Launch
    from npuenv.preflight.rules.base import Problem

_SAMPLES = "ROLL Ascend samples (2026-04)"
_NO_DEEPSPEED = "alibaba/ROLL v0.3.0: roll/configs/worker_config.py, StrategyArguments"
_ONE_ENGINE = f"{_SAMPLES}; alibaba/ROLL docker/Dockerfile.A2: vllm-ascend is the only engine"
_FAQ = "alibaba/ROLL ascend_npu_faq.md @8eb27cc2; npuenv/matrix/unsupported.toml unsupported.roll.megatron"
_ALLOCATOR = "vllm-project/vllm-ascend camem allocator; alibaba/ROLL roll/platforms/npu.py @8eb27cc2"
# Variables of NVIDIA's communication library that have a counterpart with the same meaning.
_NCCL = {"NCCL_SOCKET_IFNAME": "HCCL_SOCKET_IFNAME"}
_OF_BOTH_ENGINES = frozenset(("gpu_memory_utilization", "load_format", "dtype", "tensor_parallel_size", "seed"))
_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950
_BYTES_ABOVE = 65536
_VISIBLE, _CUDA_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"
_VISIBLE_SOURCE = "ray/_private/accelerators/npu.py: Ray counts the cards that ASCEND_RT_VISIBLE_DEVICES names"


@rule("device", "verl")
def _device(launch: Launch) -> Iterator[Problem]:
    key = "trainer.device"
    setting = written(launch, key)
    if is_at_least(launch, "0.7.0"):
        return  # verl sets it to the device that it finds
    if setting is not None and setting.value in ("cuda", "gpu"):
        severity: Severity = "error" if launch.release else "warning"
        source = "verl wheels 0.5.0 to 0.7.0: verl/utils/device.py, auto_set_device"
        yield problem(key, to="npu", severity=severity, source=source)
    elif setting is None and not launch.is_open(key) and is_at_least(launch, "0.7.0") is False:
        source = "verl Ascend quick start (2025-12-11): the device is found by itself from 0.7.0 on"
        yield problem(says="device-unset", changes=(Change(key, "npu"),), source=source)


@rule("visibility", source="ray/_private/accelerators/npu.py: ASCEND_RT_VISIBLE_DEVICES")
def _visibility(launch: Launch) -> Iterator[Problem]:
    setting = launch.environ.get(_CUDA_VISIBLE)
    if setting is None:
        return
    changes: tuple[Change, ...] = ()
    if _VISIBLE in launch.environ:  # what the user wrote for the NPU stays
        changes = (Change(_CUDA_VISIBLE, None, is_variable=True),)
    elif str(setting.value):
        changes = (Change(_VISIBLE, setting.value, is_variable=True, renames=_CUDA_VISIBLE),)
    # A list of all the cards that the launch asks for would hide none of them.
    requested = whole(launch, "trainer.n_gpus_per_node", 8) or 0
    severity: Severity = "warning" if str(setting.value) == ",".join(map(str, range(requested))) else "error"
    yield problem(_CUDA_VISIBLE, severity=severity, changes=changes, name=_CUDA_VISIBLE, new=_VISIBLE)


@rule("nccl", severity="warning")
def _nccl(launch: Launch) -> Iterator[Problem]:
    for name, setting in launch.environ.items():
        if not name.startswith(("NCCL_", "PYTORCH_CUDA_", "TORCH_NCCL_")):
            continue
        new = _NCCL.get(name)
        change = Change(name, None, is_variable=True)
        if new is not None and new not in launch.environ:
            change = Change(new, setting.value, is_variable=True, renames=name)
        source = f"{_SAMPLES}: HCCL in place of NCCL; no reader of {name} in torch_npu or CANN"
        says = "nccl-renamed" if new else "nccl"
        yield problem(name, says=says, changes=(change,), source=source, name=name, new=new or "-")


@rule("megatron-mindspeed", "verl", source="verl Ascend quick start (2025-12): MindSpeed and Megatron-LM")
def _megatron_needs(launch: Launch) -> Iterator[Problem]:
    key, packages = "actor_rollout_ref.actor.strategy", launch.machine.packages
    if value(launch, key) == "megatron" and packages and not {"mindspeed", "mindspeed-llm"} & set(packages):
        yield problem(key)


@rule("roll-strategy", "roll")
def _roll_strategy(launch: Launch) -> Iterator[Problem]:
    is_new = is_at_least(launch, "0.3.0")
    for role in roles(launch):
        key = f"{role}.strategy_args.strategy_name"
        name = value(launch, key)
        if not isinstance(name, str) or written(launch, key) is None:
            continue
        is_train = name.endswith("train")
        if "deepspeed" in name and is_new:
            new = "fsdp2_train" if is_train else "fsdp2_infer"
            changes = _as_fsdp(launch, key, new)
            yield problem(key, rule="roll-deepspeed", changes=changes, source=_NO_DEEPSPEED, name=name, new=new)
        if name.startswith("megatron"):
            train = "deepspeed_train" if is_new is False else "fsdp2_train"
            new = train if is_train else "hf_infer"
            args: dict[str, Any] = {"severity": "warning" if is_new is None else "error", "name": name, "new": new}
            changes = (Change(key, new), *_without_megatron(launch, key, new))
            yield problem(key, rule="roll-megatron", changes=changes, source=_FAQ, **args)
        if name == "sglang":
            changes = _as_vllm(launch, key)
            yield problem(key, rule="roll-engine", severity="warning", changes=changes, source=_ONE_ENGINE, name=name)


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
    tree = {"fsdp_size": len(cards), "param_dtype": "bf16", "reduce_dtype": "float32"}
    return (Change(key, new), Change(config, {**tree, "reshard_after_forward": True, "offload_policy": offloads}))


def _as_vllm(launch: Launch, key: str) -> tuple[Change, ...]:
    """vLLM in the place of SGLang, with its name for the share of memory; nothing where SGLang has more settings."""
    config = f"{key.rpartition('.')[0]}.strategy_config"
    share = f"{config}.mem_fraction_static"
    names = {name.removeprefix(f"{config}.") for name in launch.settings if name.startswith(f"{config}.")}
    if names - _OF_BOTH_ENGINES - {"mem_fraction_static"}:
        return ()
    new = f"{config}.gpu_memory_utilization"
    if share not in launch.settings or new in launch.settings:
        return (Change(key, "vllm"), *((Change(share, None),) if share in launch.settings else ()))
    return (Change(key, "vllm"), Change(new, launch.settings[share].value, renames=share))


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
                yield problem(setting.key, to="npu")


def _profiles(launch: Launch, key: str) -> bool:
    """Whether what a profiler's tool is named for is on."""
    if key == "global_profiler.tool":
        return any(is_true(launch, each.key) for each in matching(launch, "*.profiler.enable"))
    return is_true(launch, f"{key.removesuffix('.tool')}.enable")


@rule("flash-package", severity="warning")
def _flash_package(launch: Launch) -> Iterator[Problem]:
    for name in ("flash-attn", "flash_attn"):
        if name in launch.machine.packages:
            source = f"npuenv/matrix/unsupported.toml unsupported.{launch.framework}.flash-attn"
            yield problem(version=launch.machine.packages[name], source=source)


def _text(launch: Launch, name: str) -> str:
    """A variable's value; "" where it is not set, or not known."""
    setting = launch.environ.get(name)
    return "" if setting is None or setting.is_open or setting.value is None else str(setting.value).strip()


@rule("hccl-bytes", source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_BUFFSIZE.md: MB")
def _buffer(launch: Launch) -> Iterator[Problem]:
    name, text = "HCCL_BUFFSIZE", _text(launch, "HCCL_BUFFSIZE")
    if text.isdigit() and int(text) > _BYTES_ABOVE:
        megabytes = max(int(text) // 2**20, 1)
        yield problem(name, to=str(megabytes), value=text, fit=megabytes)


@rule("hccl-aiv", source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_EXEC_TIMEOUT.md", severity="warning")
def _aiv_timeout(launch: Launch) -> Iterator[Problem]:
    name, mode = "HCCL_EXEC_TIMEOUT", "HCCL_OP_EXPANSION_MODE"
    text, most = _text(launch, name), _AIV_EXEC_TIMEOUT_S
    is_right = re.fullmatch(r"\d+(?:\.\d+)?", text) is None or 0 < float(text) <= most
    if _text(launch, mode).upper() == "AIV" and not is_right:
        yield problem(name, mode, to=str(most), value=text, most=most)


@rule("variable")
def _range(launch: Launch) -> Iterator[Problem]:
    rows = {row.name: row for row in load_matrix().variables} if launch.environ else {}
    for name in launch.environ:
        row, text = rows.get(name), _text(launch, name)
        if row is None or not text or (name == "HCCL_BUFFSIZE" and text.isdigit() and int(text) > _BYTES_ABOVE):
            continue
        takes = _misread(row, text)
        if takes:
            yield problem(name, name=name, value=text, takes=takes, source=row.source)


def _misread(row: Variable, text: str) -> str:
    """What the variable takes, where a value is none of it; "" for a value that it takes."""
    if row.kind in ("number", "decimal"):
        form = r"\d{1,12}" if row.kind == "number" else r"\d+(?:\.\d+)?"
        is_right = re.fullmatch(form, text) is not None and row.least <= float(text) <= row.most
        if is_right and (row.kind == "decimal" or int(text) % row.multiple == 0):
            return ""
        return f"{row.least}..{row.most} {row.unit}".strip()
    if row.kind == "choice" and text.casefold() not in {item.casefold() for item in row.values}:
        return ", ".join(row.values)
    if row.kind == "pattern" and re.fullmatch(row.pattern, text) is None:
        return row.example or row.pattern
    return ""


@rule("expandable-segments", source=_ALLOCATOR, severity="warning")
def _allocator(launch: Launch) -> Iterator[Problem]:
    """Expandable segments and the memory pool of vllm-ascend do not go together; the variable belongs to training."""
    name = "PYTORCH_NPU_ALLOC_CONF"
    is_whole = name in launch.environ and "expandable_segments:true" in _text(launch, name).casefold().replace(" ", "")
    if not is_whole or (launch.framework == "roll" and is_at_least(launch, "0.3.0")):
        return  # from 0.3.0 on ROLL empties it for its generating workers
    is_verl = launch.framework == "verl"
    engine = "actor_rollout_ref.rollout.name" if is_verl else "actor_infer.strategy_args.strategy_name"
    if value(launch, engine, "vllm") == "vllm":
        yield problem(name, to=None)


@rule("task-queue")
def _task_queue(launch: Launch) -> Iterator[Problem]:
    name, text = "TASK_QUEUE_ENABLE", _text(launch, "TASK_QUEUE_ENABLE")
    is_roll = launch.framework == "roll"
    if text not in ("", "0", "1", "2"):
        source = "Ascend/pytorch docs: TASK_QUEUE_ENABLE"
        yield problem(name, rule="variable", source=source, name=name, value=text, takes="0, 1, 2")
    elif text == "2" and not (is_roll and is_at_least(launch, "0.3.0")):
        source = "alibaba/ROLL roll/platforms/npu.py @8eb27cc2: 1 for generating workers"
        yield problem(name, severity="warning" if is_roll else "note", to="1", source=source)


@rule("unread-variable", severity="warning")
def _unread(launch: Launch) -> Iterator[Problem]:
    have = launch.machine.packages.get("vllm-ascend")
    for row in load_matrix().variables if have else ():
        if row.reader == "vllm-ascend" and row.name in launch.environ:
            is_late = row.until and reaches(have, row.until)
            is_early = row.since and reaches(have, row.since) is False
            if is_late or is_early:
                yield problem(row.name, to=None, name=row.name, version=have, source=row.source)


@rule("visible-cards", source=_VISIBLE_SOURCE)
def _visible(launch: Launch) -> Iterator[Problem]:
    """The cards that the launch may see: numbers of cards that are there, each once, and as many as it asks for."""
    text, there = _text(launch, _VISIBLE), launch.machine.cards_per_node
    if not text:
        return
    items = [item.strip() for item in text.split(",")]
    is_list = all(item.isascii() and item.isdigit() for item in items)
    cards = tuple(map(int, items)) if is_list else ()
    if not is_list or len(set(cards)) < len(cards):
        yield problem(_VISIBLE, says="visible-list", to=_spelled_out(text), value=text)
        return
    beyond = tuple(card for card in cards if there is not None and card >= there)
    if beyond:
        yield problem(_VISIBLE, says="visible-beyond", cards=beyond, there=there)
        return
    key, requested = _requested_cards(launch)
    if requested > len(cards):
        yield problem(_VISIBLE, key, count=len(cards), asked=requested)


def _spelled_out(text: str) -> Any:
    """A range as the list that is meant: 0-7."""
    found = re.fullmatch(r"(\d{1,3})-(\d{1,3})", text.strip())
    if found is None or int(found[1]) >= int(found[2]):
        return KEEP
    return ",".join(map(str, range(int(found[1]), int(found[2]) + 1)))


def _requested_cards(launch: Launch) -> tuple[str, int]:
    """The key that says how many cards of a node the launch wants, and how many; 0 where that is not known."""
    if launch.framework == "verl":
        key = "trainer.n_gpus_per_node"
        return key, whole(launch, key, 8) or 0
    mapped = ((f"{role}.device_mapping", cards_of(launch, role)) for role in roles(launch))
    highest = {key: max(cards) for key, cards in mapped if cards and key in launch.settings}
    if launch.machine.nodes != 1 or not highest:
        return "", 0  # the mappings count through all nodes
    key = max(highest, key=lambda each: highest[each])
    return key, highest[key] + 1


@rule("variable-text", "roll", source="ray: runtime_env env_vars is a dict of str to str; others are a TypeError")
def _not_text(launch: Launch) -> Iterator[Problem]:
    """Variables of a ROLL YAML that are numbers or switches there: Ray's environment takes text alone."""
    inner = {key: each for key, each in launch.settings.items() if ".system_envs." in key}
    for key, setting in {**launch.environ, **inner}.items() if launch.source == "roll-yaml" else ():
        if not setting.is_open and isinstance(setting.value, (bool, int, float)):
            text = setting.text.strip()
            yield problem(key, to=text, name=key.rpartition(".")[2], value=text)
