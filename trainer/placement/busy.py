"""Finds other users of a Ray cluster, for the message of a run that waits for their resources."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

_LONGEST = 100  # characters of a command line in a message
# A job's number in hexadecimal, with which the numbers of its placement groups end.
_JOB = 8


def holders(nodes: Collection[str]) -> str:
    """Other jobs with actors or placement groups on some nodes, by Ray's names for these; empty if none is known.

    Tasks are not included. Example: `job 01000000 (python train.py, process 6511 on 10.0.0.1): 3 actors`
    """
    import ray
    from ray._private import state  # no public API lists actors and jobs without the dashboard
    from ray.util import placement_group_table

    try:
        jobs, actors = state.state.job_table(), list(state.actors().values())
        groups = list(placement_group_table().values())
        own = ray.get_runtime_context().get_job_id()
    except Exception:  # missing information is left out; the wait itself is reported
        return ""
    return told(jobs, held(actors, groups, nodes), own=own)


def held(
    actors: Iterable[Mapping[str, Any]], groups: Iterable[Mapping[str, Any]], nodes: Collection[str]
) -> dict[str, Counter[str]]:
    """How many living actors and placement groups each job has on the nodes."""
    found: dict[str, Counter[str]] = {}
    for actor in actors:
        if actor.get("State") == "ALIVE" and actor.get("Address", {}).get("NodeID") in nodes:
            found.setdefault(str(actor.get("JobID")), Counter())["actor"] += 1
    for group in groups:
        places = group.get("bundles_to_node_id", {}).values()
        if group.get("state") == "CREATED" and any(place in nodes for place in places):
            found.setdefault(str(group["placement_group_id"])[-_JOB:], Counter())["placement group"] += 1
    return found


def told(jobs: Sequence[Mapping[str, Any]], by_job: Mapping[str, Counter[str]], *, own: str) -> str:
    """The same as text."""
    known = {str(each.get("JobID")): each for each in jobs}
    rows = []
    for job in sorted(by_job):
        if job == own:
            continue
        what = " and ".join(f"{count} {name}{'s' if count > 1 else ''}" for name, count in sorted(by_job[job].items()))
        rows.append(f"job {job}{_whose(known.get(job))}: {what}")
    return "; ".join(rows)


def _whose(job: Mapping[str, Any] | None) -> str:
    if job is None:
        return ""
    if job.get("IsDead"):
        return ", whose program has ended"
    words = " ".join(str(job.get("Entrypoint") or "").split())
    short = f"{words[:_LONGEST]}..., " if len(words) > _LONGEST else f"{words}, " if words else ""
    return f" ({short}process {job.get('DriverPid')} on {job.get('DriverIPAddress')})"
