"""Rules about environment variables of the launch: values out of range, settings that reach roles they do not suit.

The ranges are rows of matrix/variables.toml; the doctor judges the same rows for a session.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.matrix import load_matrix
from npuenv.preflight.rules.base import is_at_least, problem, reaches, roles, rule, value, whole
from npuenv.preflight.rules.cards import cards_of
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.core.finding import Severity
    from npuenv.matrix.rows import Variable
    from npuenv.preflight.rules.base import Problem
    from npuenv.preflight.types import Launch

_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950
_BYTES_ABOVE = 65536
_VISIBLE = "ASCEND_RT_VISIBLE_DEVICES"
_VISIBLE_SOURCE = "ray/_private/accelerators/npu.py: Ray counts the cards that ASCEND_RT_VISIBLE_DEVICES names"


def _text(launch: Launch, name: str) -> str:
    """A variable's value; "" where it is not set, or not known."""
    setting = launch.environ.get(name)
    return "" if setting is None or setting.is_open or setting.value is None else str(setting.value).strip()


@rule("hccl-bytes", source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_BUFFSIZE.md: MB")
def _buffer(launch: Launch) -> Iterator[Problem]:
    name, text = "HCCL_BUFFSIZE", _text(launch, "HCCL_BUFFSIZE")
    if text.isdigit() and int(text) > _BYTES_ABOVE:
        megabytes = max(int(text) // 2**20, 1)
        yield problem(name, changes=(Change(name, str(megabytes), is_variable=True),), value=text, fit=megabytes)


@rule("hccl-aiv", source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_EXEC_TIMEOUT.md", severity="warning")
def _aiv_timeout(launch: Launch) -> Iterator[Problem]:
    name, text = "HCCL_EXEC_TIMEOUT", _text(launch, "HCCL_EXEC_TIMEOUT")
    is_number = re.fullmatch(r"\d+(?:\.\d+)?", text) is not None
    if (
        _text(launch, "HCCL_OP_EXPANSION_MODE").upper() == "AIV"
        and is_number
        and not 0 < float(text) <= _AIV_EXEC_TIMEOUT_S
    ):
        yield problem(
            name,
            "HCCL_OP_EXPANSION_MODE",
            value=text,
            most=_AIV_EXEC_TIMEOUT_S,
            changes=(Change(name, str(_AIV_EXEC_TIMEOUT_S), is_variable=True),),
        )


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


@rule(
    "expandable-segments",
    source="vllm-project/vllm-ascend camem allocator; alibaba/ROLL roll/platforms/npu.py @8eb27cc2",
    severity="warning",
)
def _allocator(launch: Launch) -> Iterator[Problem]:
    """Expandable segments and the memory pool of vllm-ascend do not go together; the variable belongs to training."""
    name = "PYTORCH_NPU_ALLOC_CONF"
    is_whole = name in launch.environ and "expandable_segments:true" in _text(launch, name).casefold().replace(" ", "")
    if not is_whole or (launch.framework == "roll" and is_at_least(launch, "0.3.0")):
        return  # from 0.3.0 on ROLL empties it for its generating workers
    engine = (
        value(launch, "actor_rollout_ref.rollout.name", "vllm")
        if launch.framework == "verl"
        else value(launch, "actor_infer.strategy_args.strategy_name", "vllm")
    )
    if engine == "vllm":
        yield problem(name, changes=(Change(name, None, is_variable=True),))


@rule("task-queue")
def _task_queue(launch: Launch) -> Iterator[Problem]:
    name = "TASK_QUEUE_ENABLE"
    if _text(launch, name) not in ("", "0", "1", "2"):
        yield problem(
            name,
            rule="variable",
            name=name,
            value=_text(launch, name),
            takes="0, 1, 2",
            source="Ascend/pytorch docs: TASK_QUEUE_ENABLE",
        )
    elif _text(launch, name) == "2" and not (launch.framework == "roll" and is_at_least(launch, "0.3.0")):
        severity: Severity = "warning" if launch.framework == "roll" else "note"
        yield problem(
            name,
            severity=severity,
            changes=(Change(name, "1", is_variable=True),),
            source="alibaba/ROLL roll/platforms/npu.py @8eb27cc2: 1 for generating workers",
        )


@rule("unread-variable", severity="warning")
def _unread(launch: Launch) -> Iterator[Problem]:
    have = launch.machine.packages.get("vllm-ascend")
    for row in load_matrix().variables if have else ():
        if row.reader == "vllm-ascend" and row.name in launch.environ:
            is_late = row.until and reaches(have, row.until)
            is_early = row.since and reaches(have, row.since) is False
            if is_late or is_early:
                yield problem(
                    row.name,
                    changes=(Change(row.name, None, is_variable=True),),
                    name=row.name,
                    version=have,
                    source=row.source,
                )


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
        changes = _spelled_out(text)
        yield problem(_VISIBLE, says="visible-list", changes=changes, value=text)
        return
    beyond = tuple(card for card in cards if there is not None and card >= there)
    if beyond:
        yield problem(_VISIBLE, says="visible-beyond", cards=beyond, there=there)
        return
    key, requested = _requested_cards(launch)
    if requested > len(cards):
        yield problem(_VISIBLE, key, count=len(cards), asked=requested)


def _spelled_out(text: str) -> tuple[Change, ...]:
    """A range as the list that is meant: 0-7."""
    found = re.fullmatch(r"(\d{1,3})-(\d{1,3})", text.strip())
    if found is None or int(found[1]) >= int(found[2]):
        return ()
    cards = ",".join(map(str, range(int(found[1]), int(found[2]) + 1)))
    return (Change(_VISIBLE, cards, is_variable=True),)


def _requested_cards(launch: Launch) -> tuple[str, int]:
    """The key that says how many cards of a node the launch wants, and how many; 0 where that is not known."""
    if launch.framework == "verl":
        key = "trainer.n_gpus_per_node"
        return key, whole(launch, key, 8) or 0
    highest = {
        key: max(cards)
        for role in roles(launch)
        if (cards := cards_of(launch, role)) and (key := f"{role}.device_mapping") in launch.settings
    }
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
            change = Change(key, setting.text.strip(), is_variable=key in launch.environ)
            yield problem(key, changes=(change,), name=key.rpartition(".")[2], value=setting.text.strip())
