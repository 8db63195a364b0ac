"""Checks of environment variables against the documents of their readers: values out of range, unknown names.

The ranges are rows of matrix/variables.toml.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from npuenv.checks.base import CheckResult, Context, card_check, fail, fix_for, ok, warn
from npuenv.checks.python.installed import accepts
from npuenv.facts.hccn.answers import is_address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npuenv.matrix.rows import Variable

_ALIKE = 0.88  # of difflib: one or two letters differ in a name of usual length
# Name prefixes of Ascend software; other names are ignored.
_OURS = re.compile(r"(?:HCCL|ASCEND|PYTORCH_NPU|VLLM_ASCEND|TASK_QUEUE|RAY_EXPERIMENTAL_NOSET|MULTI_STREAM|ACL_OP)_\w+")
_PORT = re.compile(r"[0-9]{1,5}(?:-[0-9]{1,5})?")
# HCCL_RDMA_TIMEOUT is the one number whose range depends on the chip.
_RDMA_TIMEOUT = {"a2": (5, 20), "a3": (5, 20), "310p": (5, 24), "910": (5, 24)}


def misread(row: Variable, value: str, chip: str = "") -> str:
    """The accepted values, as in the variable's row, if `value` is not one of them; else "".

    Example: HCCL_RDMA_SL with "1000" -> "0..7"
    """
    least, most = row.least, row.most
    if row.name == "HCCL_RDMA_TIMEOUT":
        least, most = _RDMA_TIMEOUT.get(chip, (least, most))
    judge: dict[str, Callable[[], bool]] = {
        "number": lambda: _is_number(value, least, most) and int(value) % row.multiple == 0,
        "decimal": lambda: re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value) is not None and least <= float(value) <= most,
        "choice": lambda: value.casefold() in {item.casefold() for item in row.values},
        "ports": lambda: value == "auto" or all(map(_is_port, value.split(","))),
        "address": lambda: is_address(value),
        "pattern": lambda: re.fullmatch(row.pattern, value) is not None,
        "any": lambda: True,
    }
    if judge[row.kind]():
        return ""
    if row.kind in ("number", "decimal"):
        steps = f", a multiple of {row.multiple}" if row.multiple > 1 else ""
        return f"{least}..{most}{' ' if row.unit else ''}{row.unit}{steps}"
    usual = {"ports": "auto, 61000-61050, 61000,61050-61100", "address": "192.0.2.10, 2001:db8::10"}
    return ", ".join(row.values) or row.example or usual[row.kind]


def _is_number(text: str, least: int, most: int) -> bool:
    return re.fullmatch(r"[0-9]{1,12}", text) is not None and least <= int(text) <= most


def _is_port(text: str) -> bool:
    ends = [int(part) for part in text.strip().split("-")] if _PORT.fullmatch(text.strip()) else []
    return bool(ends) and all(1 <= port <= 65535 for port in ends) and ends == sorted(ends)


def _values_of(context: Context, readers: Iterable[str]) -> list[tuple[Variable, str, str]]:
    """(row, value, accepted values) of each variable of these readers with an invalid value."""
    chip, wanted, found = context.generation, set(readers), []
    for row in context.matrix.variables:
        value = context.setting(row.name) if row.reader in wanted and row.kind != "any" else ""
        takes = misread(row, value, chip) if value else ""
        if takes:
            found.append((row, value, takes))
    return found


def _has_any(context: Context) -> bool:
    """Whether the session sets any Ascend variable besides the location of CANN; else the table is not read."""
    return any(_OURS.fullmatch(name) for name in context.environment) or any(
        name in context.environment for name in ("COMBINED_ENABLE", "PER_STREAM_QUEUE", "INF_NAN_MODE_ENABLE",
                                                  "STREAMS_PER_DEVICE", "P2P_HCCL_BUFFSIZE", "ACL_DEVICE_SYNC_TIMEOUT",
                                                  "PYTORCH_NO_NPU_MEMORY_CACHING", "INF_NAN_MODE_FORCE_DISABLE")
    )  # fmt: skip


def hccl_values(context: Context) -> CheckResult | None:
    """HCCL's variables with values that it refuses (EI0001); None if there are none."""
    wrong = _values_of(context, ("hccl",)) if _has_any(context) else []
    if not wrong:
        return None
    row, value, takes = wrong[0]
    lines = [context.line(each.name) for each, *_ in wrong]
    fix = fix_for("session.hccl", *(("unset", each.name) for each, *_ in wrong))
    if row.name == "HCCL_BUFFSIZE" and _is_number(value, row.most, 10**12) and len(wrong) == 1:
        return warn("session.hccl-bytes", *lines, fix=fix, name=row.name, value=value, takes=takes)
    return fail("session.hccl-range", *lines, fix=fix, name=row.name, value=value, takes=takes)


def _torch_npu(context: Context) -> CheckResult:
    """Variables of torch_npu and CANN. Most invalid values fall back to the default with a log line at best."""
    wrong = _values_of(context, ("torch_npu", "cann")) if _has_any(context) else []
    if not wrong:
        return ok("session.values-ok")
    row, value, takes = wrong[0]
    lines = [context.line(each.name) for each, *_ in wrong]
    fix = fix_for("session.values", *(("unset", each.name) for each, *_ in wrong))
    return warn("session.values-misread", *lines, fix=fix, name=row.name, value=value, takes=takes)


def _names(context: Context) -> CheckResult:
    """An unknown name that is almost a known one, if the known one is not set."""
    ours = [name for name in context.environment if _OURS.fullmatch(name)]
    if not ours:
        return ok("session.names-ok")
    known = {row.name for row in context.matrix.variables}
    for name in sorted(set(ours) - known):
        near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
        if near and near[0] not in context.environment and not _is_other_name(name, near[0]):
            fix = fix_for("session.names", ("unset", name), ("export", f"{near[0]}={context.environment[name]}"))
            return warn("session.names-near", context.line(name), fix=fix, name=name, near=near[0])
    return ok("session.names-ok")


def _is_other_name(name: str, near: str) -> bool:
    """Whether two names differ by a complete word or a number, so that neither is a misspelling of the other.

    HCCL_RDMA_SL and HCCL_RDMA_TC are two names; HCCL_SOCKET_IFNAMES is a misspelling of HCCL_SOCKET_IFNAME.
    """
    one, other = name.split("_"), near.split("_")
    if re.sub("[0-9]", "", name) == re.sub("[0-9]", "", near):
        return True
    if len(one) != len(other):
        return any(len(word) > 2 for word in set(one) ^ set(other))
    return any(a != b and difflib.SequenceMatcher(None, a, b).ratio() < 0.6 for a, b in zip(one, other))


def _unread(context: Context) -> CheckResult:
    """Variables that the installed vllm-ascend no longer reads, or not yet."""
    have = context.installed.get("vllm-ascend", "")
    mine = [name for name in context.environment if name.startswith("VLLM_ASCEND_")]
    if not have or not mine:
        return ok("session.vllm-ascend-ok")
    lost = unread(context, *mine)
    if not lost:
        return ok("session.vllm-ascend-ok")
    fix = fix_for("session.vllm-ascend", *(("unset", row.name) for row in lost))
    lines = [context.line(row.name) for row in lost]
    names = tuple(row.name for row in lost)
    return warn("session.vllm-ascend-unread", *lines, fix=fix, names=names, version=have)


def unread(context: Context, *names: str) -> list[Variable]:
    """Those of the names that the installed vllm-ascend does not read; none if it is not installed."""
    have = context.installed.get("vllm-ascend", "")
    rows = [row for row in context.matrix.variables if row.reader == "vllm-ascend" and row.name in names]
    return [row for row in rows if have and not _is_read(row, have)]


def _is_read(row: Variable, version: str) -> bool:
    """Whether this version reads the variable; a custom version may read anything."""
    is_early = bool(row.since) and accepts(f">={row.since}", version) is False
    return not is_early and (not row.until or accepts(f">={row.until}", version) is not True)


_VLLM_ASCEND = "vllm-project/vllm-ascend vllm_ascend/envs.py of each release"
CHECKS = (
    card_check("session.torch-npu", (), "matrix variables: Ascend/pytorch environment variables", _torch_npu),
    card_check("session.names", (), "matrix variables: names in the readers' documents", _names),
    card_check("session.vllm-ascend", ("python.interpreter",), _VLLM_ASCEND, _unread),
)
