"""About a Ray cluster: its variables, its errors in one line, whether an address responds, who else uses it."""

from __future__ import annotations

import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from trainer.metrics import records

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

# Of a Ray that a run starts. On a busy node agents take long to come, and a raylet that does not see its agent ends
# itself. A node that is gone is to be known within three quarters of a minute, and one whose link is down for twenty
# seconds is not gone.
OWN: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_SCHEDULER_EVENTS": "0",
    "RAY_agent_register_timeout_ms": "120000",
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "2000",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "6",
}


def one_line(error: BaseException) -> str:
    """An error of Ray, whose texts may hold whole logs. Example: `ConnectionError: ray client connection timeout`."""
    return records.one_line(error, longest=400)


def answers(address: str, limit_s: float) -> str | None:
    """Why nothing answers at `HOST:PORT`; None where something does."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        return f"{address!r} is no HOST:PORT"
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s):
            return None
    except TimeoutError:
        return f"nothing answered within {limit_s:g} s"
    except socket.gaierror:
        return f"the name {host} is not known here"
    except (OSError, OverflowError) as error:
        return f"the connection failed ({getattr(error, 'strerror', None) or error})"


# A process whose node may be about to be found gone; more is known a little later.
OUT_OF_REACH = "cannot be reached"
# Parts of Ray's messages about a lost actor, and their meaning; the first match counts.
_LOSSES = (
    ("temporarily unavailable", OUT_OF_REACH),
    ("ray.kill", "was ended"),
    ("SIGKILL", "was killed by SIGKILL"),
    ("out of memory", "was killed because memory ran out"),
    ("node has died", "was lost with its node"),
    ("node was terminated", "was lost with its node"),
    ("node died", "was lost with its node"),
    ("connection error code 2", "was killed"),
    ("End of file", "was killed"),
)


def how_lost(error: BaseException) -> str:
    """Ray's reason for the loss of an actor, in short. Example: `was killed`."""
    text = " ".join(str(error).split())
    return next((meaning for words, meaning in _LOSSES if words in text), f"was lost ({text[:300]})")


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
    return list_jobs(jobs, held(actors, groups, nodes), own=own)


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


def list_jobs(jobs: Sequence[Mapping[str, Any]], by_job: Mapping[str, Counter[str]], *, own: str) -> str:
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
