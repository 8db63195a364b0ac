"""Rules about environment variables of the launch: values out of range, settings that reach roles they do not suit.

The ranges are rows of matrix/variables.toml; the doctor judges the same rows for a session.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.matrix import load_matrix
from npuenv.preflight.rules.base import Rule, is_at_least, problem, reaches, value
from npuenv.preflight.types import Change

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix.rows import Variable
    from npuenv.preflight.types import Launch, Problem, Severity

_AIV_EXEC_TIMEOUT_S = 1091  # with AIV, larger values and 0 count as this on A2, A3 and 950
_BYTES_ABOVE = 65536


def _text(launch: Launch, name: str) -> str:
    """A variable's value; "" where it is not set, or not known."""
    setting = launch.environ.get(name)
    return "" if setting is None or setting.is_open or setting.value is None else str(setting.value).strip()


def _buffer(launch: Launch) -> Iterator[Problem]:
    name, text = "HCCL_BUFFSIZE", _text(launch, "HCCL_BUFFSIZE")
    if text.isdigit() and int(text) > _BYTES_ABOVE:
        megabytes = max(int(text) // 2**20, 1)
        yield problem(
            launch,
            "hccl-bytes",
            (name,),
            changes=(Change(name, str(megabytes), is_variable=True),),
            value=text,
            fit=megabytes,
            source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_BUFFSIZE.md: MB",
        )


def _aiv_timeout(launch: Launch) -> Iterator[Problem]:
    name, text = "HCCL_EXEC_TIMEOUT", _text(launch, "HCCL_EXEC_TIMEOUT")
    is_number = re.fullmatch(r"\d+(?:\.\d+)?", text) is not None
    if (
        _text(launch, "HCCL_OP_EXPANSION_MODE").upper() == "AIV"
        and is_number
        and not 0 < float(text) <= _AIV_EXEC_TIMEOUT_S
    ):
        yield problem(
            launch,
            "hccl-aiv",
            (name, "HCCL_OP_EXPANSION_MODE"),
            severity="warning",
            value=text,
            most=_AIV_EXEC_TIMEOUT_S,
            changes=(Change(name, str(_AIV_EXEC_TIMEOUT_S), is_variable=True),),
            source="hicann/hccl docs/zh/user_guide/hccl_env/HCCL_EXEC_TIMEOUT.md",
        )


def _range(launch: Launch) -> Iterator[Problem]:
    rows = {row.name: row for row in load_matrix().variables} if launch.environ else {}
    for name in launch.environ:
        row, text = rows.get(name), _text(launch, name)
        if row is None or not text or (name == "HCCL_BUFFSIZE" and text.isdigit() and int(text) > _BYTES_ABOVE):
            continue
        takes = _misread(row, text)
        if takes:
            yield problem(launch, "variable", (name,), name=name, value=text, takes=takes, source=row.source)


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
        yield problem(
            launch,
            "expandable-segments",
            (name,),
            severity="warning",
            changes=(Change(name, None, is_variable=True),),
            source="vllm-project/vllm-ascend camem allocator; alibaba/ROLL roll/platforms/npu.py @8eb27cc2",
        )


def _task_queue(launch: Launch) -> Iterator[Problem]:
    name = "TASK_QUEUE_ENABLE"
    if _text(launch, name) == "2" and not (launch.framework == "roll" and is_at_least(launch, "0.3.0")):
        severity: Severity = "warning" if launch.framework == "roll" else "note"
        yield problem(
            launch,
            "task-queue",
            (name,),
            severity=severity,
            changes=(Change(name, "1", is_variable=True),),
            source="alibaba/ROLL roll/platforms/npu.py @8eb27cc2: 1 for generating workers",
        )


def _unread(launch: Launch) -> Iterator[Problem]:
    have = launch.machine.packages.get("vllm-ascend")
    for row in load_matrix().variables if have else ():
        if row.reader == "vllm-ascend" and row.name in launch.environ:
            is_late = row.until and reaches(have, row.until)
            is_early = row.since and reaches(have, row.since) is False
            if is_late or is_early:
                yield problem(
                    launch,
                    "unread-variable",
                    (row.name,),
                    severity="warning",
                    changes=(Change(row.name, None, is_variable=True),),
                    name=row.name,
                    version=have,
                    source=row.source,
                )


def _weight_format(launch: Launch) -> Iterator[Problem]:
    name = "VLLM_ASCEND_ENABLE_NZ"
    if _text(launch, name) in ("1", "2"):
        yield problem(
            launch,
            "weight-format",
            (name,),
            changes=(Change(name, "0", is_variable=True),),
            value=_text(launch, name),
            source="vllm-project/vllm-ascend: FRACTAL_NZ mode is refused where weights are loaded again",
        )


def _blocking(launch: Launch) -> Iterator[Problem]:
    name = "ASCEND_LAUNCH_BLOCKING"
    if _text(launch, name) == "1":
        yield problem(
            launch,
            "launch-blocking",
            (name,),
            severity="warning",
            changes=(Change(name, None, is_variable=True),),
            source="Ascend/pytorch docs: ASCEND_LAUNCH_BLOCKING is for debugging",
        )


RULES = (
    Rule("preflight.hccl-bytes", ("verl", "roll"), _buffer),
    Rule("preflight.hccl-aiv", ("verl", "roll"), _aiv_timeout),
    Rule("preflight.variable", ("verl", "roll"), _range),
    Rule("preflight.expandable-segments", ("verl", "roll"), _allocator),
    Rule("preflight.task-queue", ("verl", "roll"), _task_queue),
    Rule("preflight.unread-variable", ("verl", "roll"), _unread),
    Rule("preflight.weight-format", ("verl", "roll"), _weight_format),
    Rule("preflight.launch-blocking", ("verl", "roll"), _blocking),
)
