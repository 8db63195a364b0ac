"""Checks of Ray: whether the cluster has the cards, whether waiting demands can ever run, remains of an earlier one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.checks.base import NPU_FRAMEWORKS, Check, card_check, fail, fix_for, given, ok, skip, unknown, warn
from npuenv.checks.python.installed import accepts
from npuenv.checks.session.variables import NOSET
from npuenv.core.fact import Evidence
from npuenv.facts.ray import ClusterStatus, Lack, StatusRefusal, unsatisfiable_demand

if TYPE_CHECKING:
    from npuenv.checks.base import CheckResult, Context
    from npuenv.facts.ray import Demand, RaySession, UnsatisfiableDemand

_FALSE_VALUES = ("0", "false", "no", "off")
# /session_2026-11-21_02-17-05_908845_12345 and /sockets/plasma_store follow; a socket path is limited to 107 bytes.
_FOLDER_AT_MOST = 107 - 1 - 40 - 21
_FULL = 0.95  # Ray's local_fs_capacity_threshold: above it no object is written to disk any more
_TMP_GOOD_KIB = 2 << 20  # below this `machine.tmp` reports it
_CPUS_OF_VERL = 3.0  # a bundle of verl from 0.6 on; up to 0.5 it is 1, from 0.9 on it can be set
_SERVERS = ("raylet", "gcs_server")
_COMMANDS = {
    StatusRefusal.TOKEN: (("export", "RAY_AUTH_MODE=disabled"),),
    StatusRefusal.VERSION: (("ray", "--version"), ("python", "--version")),
}


def _chips(context: Context) -> int:
    """The chips that Ray would count: the device nodes, or fewer if the session selects some."""
    nodes = context.facts.npu.nodes.value
    here = len(nodes.cards) if nodes else 0
    named = context.environment.get("ASCEND_RT_VISIBLE_DEVICES")
    if named is None:
        return here
    return min(here, len([word for word in named.split(",") if word.strip().isdecimal()]))


def _status(context: Context) -> ClusterStatus | None:
    value = context.facts.ray.status.value
    return value if isinstance(value, ClusterStatus) else None


def _runs_here(context: Context) -> bool | None:
    """Whether a Ray node runs on this machine; None if the processes are unknown."""
    found = context.facts.machine.processes.value
    return None if found is None else any(item.name in _SERVERS and not item.is_zombie for item in found.ours)


@given(lambda context: context.facts.ray.address.value, "ray.no-address")
def _address(context: Context, address: str) -> CheckResult:
    """An address must belong to a cluster with a node on this machine; else `ray.init` waits for nothing."""
    if _runs_here(context) is not False or _status(context) is not None:
        return ok("ray.address-ok", address=address)
    evidence = context.facts.ray.address.evidence
    source = evidence[0].command
    if source == "environment":
        fix = fix_for("ray.address-named", ("unset", "RAY_ADDRESS"), address=address)
        return warn("ray.address-named", *evidence, fix=fix, address=address)
    fix = fix_for("ray.address-noted", ("rm", source))
    return warn("ray.address-noted", *evidence, fix=fix, address=address, path=source)


def _answers(context: Context) -> CheckResult:
    """Each refusal has its own fix; `ray.address` reports a missing cluster if no node runs here."""
    value = context.facts.ray.status.value
    if value is None:
        return skip("ray.no-address")
    if isinstance(value, ClusterStatus):
        return ok("ray.answers-ok", nodes=_nodes(value))
    is_silent = value.kind in (StatusRefusal.TIMEOUT, StatusRefusal.UNREACHABLE, StatusRefusal.NO_CLUSTER)
    if is_silent and _runs_here(context) is False:
        return skip("ray.because-address")
    name, address = f"ray.refused-{value.kind.value}", context.facts.ray.address.value or "-"
    return fail(name, fix=fix_for(name, *_COMMANDS.get(value.kind, ())), address=address, line=value.line)


def _nodes(status: ClusterStatus) -> int | str:
    return "?" if status.nodes is None else status.nodes


@given(_status, "ray.no-status")
def _npu(context: Context, status: ClusterStatus) -> CheckResult:
    chips, npus, gpus = _chips(context), status.total("NPU"), status.total("GPU")
    if npus is None:
        return unknown("ray.resource-unknown", name="NPU")
    if npus:
        return ok("ray.npu-ok", npus=f"{npus:g}", nodes=_nodes(status))
    if not chips and context.framework not in NPU_FRAMEWORKS:
        return skip("no-nodes")  # a cluster without NPUs may have GPUs
    fix = fix_for("ray.npu", ("ray", "start", "--head", f'--resources={{"NPU": {chips or 8}}}'), chips=chips)
    if gpus:
        return fail("ray.npu-gpu", fix=fix, gpus=f"{gpus:g}")
    return fail("ray.npu-none", fix=fix, chips=chips)


@given(_status, "ray.no-status")
def _gpu(_: Context, status: ClusterStatus) -> CheckResult:
    """With `--num-gpus` Ray up to 2.48 registers both; from 2.49 on one of them, depending on a hash."""
    npus, gpus = status.total("NPU"), status.total("GPU")
    if npus is None or gpus is None:
        return unknown("ray.resource-unknown", name="GPU" if gpus is None else "NPU")
    if gpus and not npus:
        return skip("ray.because-npu")
    if not gpus:
        return ok("ray.gpu-ok")
    return warn("ray.gpu-both", fix="ray.gpu", gpus=f"{gpus:g}", npus=f"{npus:g}")


def _count(context: Context) -> CheckResult:
    """A node that joins with too few cards does so silently."""
    status, chips = _status(context), _chips(context)
    npus = status.total("NPU") if status else 0.0
    if status is None or npus == 0 or not chips or status.nodes == 0:
        return skip("ray.no-status")
    if npus is None or status.nodes is None:
        return unknown("ray.resource-unknown", name="NPU")
    expected = status.nodes * chips
    if npus == expected:
        return ok("ray.count-ok", npus=f"{npus:g}", nodes=status.nodes)
    words = {"npus": f"{npus:g}", "nodes": status.nodes, "chips": chips, "expected": expected}
    if status.nodes == 1 and npus > chips:
        return fail("ray.count-more", fix=fix_for("ray.count-more", chips=chips), **words)
    return warn("ray.count-fewer", fix="ray.count-fewer", **words)


@given(_status, "ray.no-status")
def _demands(context: Context, status: ClusterStatus) -> CheckResult:
    """Demands that wait for other jobs will run; those larger than a node or the cluster never will."""
    for demand in status.demands:
        short = _never(context, demand, status)
        if short is not None and short.name in ("NPU", "GPU") and not status.total(short.name):
            return skip("ray.because-npu")
        if short is not None:
            return _never_told(context, demand, short, status)
    idle = next((demand for demand in status.demands if _fits_now(demand, status)), None)
    if idle is not None:
        line = Evidence(context.facts.ray.status.evidence[0].command, idle.line)
        fix = fix_for("ray.demand-idle", ("ray", "list", "nodes"))
        return warn("ray.demand-idle", line, *context.facts.ray.status.evidence[:1], fix=fix, demand=idle.line)
    # Without these totals nothing is known; Ray hides the names that it adds by itself.
    names = {name for demand in status.demands for name in demand.names if ":" not in name}
    if not status.has_all_demands or any(status.total(name) is None for name in names):
        return unknown("ray.demands-unknown")
    return ok("ray.demands-ok", count=len(status.demands))


def _fits_now(demand: Demand, status: ClusterStatus) -> bool:
    """Whether the unused resources suffice: then the demand waits for a dead node, or no worker can start.

    With several nodes the free resources of each are unknown, unless everything is free.
    """
    rows = {item.name: item for item in status.resources}
    if status.nodes != 1 and any(rows[name].used for name in demand.names if name in rows):
        return False
    free = {name: item.total - item.used for name, item in rows.items()}
    return all(demand.of(name) <= free.get(name, 0.0) + 1e-6 for name in demand.names)


def _never(context: Context, demand: Demand, status: ClusterStatus) -> UnsatisfiableDemand | None:
    """Why a demand can never run, even on an idle cluster; None if it fits, or if it is unknown."""
    totals = {item.name: item.total for item in status.resources}
    nodes, count = [], status.nodes
    # If the total is a multiple of this machine's cards, all nodes have the same number.
    if count and (count == 1 or totals.get("NPU") == count * _chips(context)):
        nodes = [{name: total / count for name, total in totals.items()}] * count
    return unsatisfiable_demand(demand, status.total, nodes, count)


def _never_told(context: Context, demand: Demand, short: UnsatisfiableDemand, status: ClusterStatus) -> CheckResult:
    line = Evidence(context.facts.ray.status.evidence[0].command, demand.line)
    name = "apart" if short.lack is Lack.APART else "cpu" if short.name == "CPU" else "other"
    words = {"demand": demand.line, "resource": short.name, "total": f"{short.total:g}", "bundles": demand.count}
    nodes = short.nodes if name == "apart" else _nodes(status)
    fix = fix_for("ray.demand-cpu" if name == "cpu" else "ray.demand-other")
    return fail(f"ray.demand-{name}", line, *context.facts.ray.status.evidence[:1], fix=fix, nodes=nodes, **words)


def _cpus(context: Context) -> CheckResult:
    """Too few CPUs look exactly like missing cards: everything waits forever. Ray's own count decides."""
    facts = context.facts
    cpus, chips, status = facts.machine.cpus.value, _chips(context), _status(context)
    evidence = (*facts.machine.cpus.evidence, *facts.npu.nodes.evidence)
    if status is not None:
        shorts = [_never(context, demand, status) for demand in status.demands]
        if any(short is not None and short.name == "CPU" for short in shorts):
            return skip("ray.because-demand")
        npus = status.total("NPU")
        if npus:
            cpus, chips, evidence = status.total("CPU"), int(npus), facts.ray.status.evidence[:1]
        if npus is None or (npus and cpus is None):
            return unknown("ray.resource-unknown", *facts.ray.status.evidence[:1], name="CPU" if npus else "NPU")
    if cpus is None or not chips:
        return skip("no-nodes")
    verl = context.version("verl")  # a custom version is inconclusive
    takes_three = context.framework == "verl" if verl is None else accepts(">=0.6,<0.9", verl) is True
    needs = _CPUS_OF_VERL if takes_three else 1.0
    if cpus >= chips * needs:
        return ok("ray.cpus-ok", *evidence, cpus=f"{cpus:g}")
    good, each = f"{chips * needs:g}", f"{needs:g}"
    fix = fix_for("ray.cpus", good=good)
    return warn("ray.cpus-warn", *evidence, fix=fix, cpus=f"{cpus:g}", chips=chips, good=good, each=each)


@given(lambda context: context.facts.ray.session.value, "ray.no-session")
def _folder(_: Context, session: RaySession) -> CheckResult:
    if session.is_writable and session.is_note_writable:
        return ok("ray.folder-ok", path=session.folder)
    fix = fix_for("ray.folder", ("export", "RAY_TMPDIR=/tmp/ray-of-mine"))
    return fail("ray.folder-fail", fix=fix, path=session.folder)


def _length(context: Context) -> CheckResult:
    environ = context.environment
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if environ.get(name)), None)
    if name is None or (name == "TMPDIR" and context.version("ray") is None):
        return skip("ray.no-folder-named")
    folder = f"{environ[name].rstrip('/')}/ray"
    if len(folder.encode()) <= _FOLDER_AT_MOST:
        return ok("ray.length-ok", path=folder)
    fix, length = fix_for("ray.length", ("export", "RAY_TMPDIR=/tmp")), len(folder.encode())
    return fail("ray.length-fail", context.line(name), fix=fix, path=folder, length=length, most=_FOLDER_AT_MOST)


def _disk(context: Context) -> CheckResult:
    """On a disk this full Ray writes no more objects, however much space is left."""
    folder = context.facts.ray.session_disk.value
    if folder is None and context.version("ray") is not None:
        folder = context.facts.machine.tmp.value  # its location once Ray runs
    if folder is None or not folder.size_kib:
        return skip("ray.no-session")
    share = 1 - folder.free_kib / folder.size_kib
    if share <= _FULL:
        return ok("ray.disk-ok", share=f"{share:.0%}")
    if folder.free_kib < _TMP_GOOD_KIB:
        return skip("ray.because-tmp")
    return warn("ray.disk-full", fix="ray.disk", share=f"{share:.0%}", path=folder.path)


def _noset(context: Context) -> CheckResult:
    """ROLL sets it for its own workers; in the shell it hides from vLLM's workers the one card that each expects."""
    value = context.environment.get(NOSET)
    if value is None:
        return ok("ray.noset-unset")
    line, ray, fix = context.line(NOSET), context.version("ray"), fix_for("ray.noset", ("unset", NOSET))
    is_false = value.lower() in _FALSE_VALUES
    if is_false and ray is not None and accepts("<=2.41.0", ray):
        return warn("ray.noset-word", line, fix=fix, name=NOSET, value=value, ray=ray)
    if value and not is_false and context.framework == "vllm-ascend":
        return warn("ray.noset-on", line, fix=fix, name=NOSET, value=value)
    return ok("ray.noset-ok", line, name=NOSET, value=value)


_MEASURED = "measured with Ray 2.41.0, 2.50.1 and 2.60.0 on nodes with NPU device files"
_VERL = "measured: verl 0.7.1 asks for {'NPU': 1.0, 'CPU': 3.0} * 8 (STRICT_PACK)"
_ADDRESS = "alibaba/ROLL#147; ray-project/ray#45771"
_FOLDER = "ray-project/ray#3899, #20634: the folder belongs to who started Ray first"
CHECKS = (
    Check("ray.address", ("ray.address", "machine.processes"), _ADDRESS, _address, level=1),
    Check("ray.answers", ("ray.status",), "measured: `ray status` of Ray 2.50 to 2.60", _answers, level=1),
    Check("ray.npu-resource", ("ray.status",), "ray-project/ray: accelerators/npu.py; " + _MEASURED, _npu, level=1),
    card_check("ray.gpu-declared", ("ray.status",), _MEASURED, _gpu, level=1),
    card_check("ray.npu-count", ("ray.status", "npu.nodes"), _MEASURED, _count, level=1),
    Check("ray.demands", ("ray.status",), _VERL, _demands, level=1),
    card_check("ray.cpus", ("machine.cpus", "npu.nodes"), _VERL, _cpus),
    Check("ray.folder", ("ray.session",), _FOLDER, _folder),
    Check("ray.path-length", (), "verl-project/verl#1120: AF_UNIX path length cannot exceed 107 bytes", _length),
    Check("ray.disk", ("ray.session", "machine.tmp"), "Ray: local_fs_capacity_threshold is 0.95", _disk),
    card_check("ray.visible-devices", (), "measured: Ray 2.41.0 takes any word as yes; vllm-ascend issues", _noset),
)
