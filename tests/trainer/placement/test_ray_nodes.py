"""Who holds a Ray, from what Ray 2.60 tells of its jobs, actors and placement groups."""

from __future__ import annotations

import json
import re
from typing import Any

from trainer.placement.ray_nodes import held, list_jobs

# Cut from `job_table`, `actors` and `placement_group_table` of Ray 2.60.0.
JOBS: list[dict[str, Any]] = json.loads("""[
  {"JobID": "02000000", "DriverIPAddress": "192.0.2.2", "DriverPid": 7173, "EndTime": 0, "IsDead": false,
   "Entrypoint": "/opt/v/bin/python own.py 127.0.0.1:50699"},
  {"JobID": "01000000", "DriverIPAddress": "192.0.2.2", "DriverPid": 6511, "EndTime": 0, "IsDead": false,
   "Entrypoint": "/opt/v/bin/python hold.py 127.0.0.1:50699"},
  {"JobID": "03000000", "DriverIPAddress": "192.0.2.3", "DriverPid": 12, "EndTime": 5, "IsDead": true,
   "Entrypoint": "x"}
]""")


def actor(job: str, node: str = "a", state: str = "ALIVE") -> dict[str, Any]:
    return {"ActorClassName": "Holder", "JobID": job, "Address": {"NodeID": node}, "State": state}


def group(job: str, node: str = "a", state: str = "CREATED") -> dict[str, Any]:
    number = f"bbbcddc03de3b32218a9e9aedf91{job}"
    return {"placement_group_id": number, "bundles_to_node_id": {"0": node}, "state": state}


def words(actors: list[dict[str, Any]], groups: list[dict[str, Any]]) -> str:
    return list_jobs(JOBS, held(actors, groups, {"a", "b"}), own="02000000")


def test_actors_and_placement_groups_are_counted_by_job_and_the_program_is_named() -> None:
    assert words([actor("01000000"), actor("01000000", "b"), actor("02000000")], [group("01000000")]) == (
        "job 01000000 (/opt/v/bin/python hold.py 127.0.0.1:50699, process 6511 on 192.0.2.2): "
        "2 actors and 1 placement group"
    )


def test_what_holds_nothing_where_the_run_is_to_be_is_not_told() -> None:
    others = [actor("01000000", "c"), actor("01000000", "a", "DEAD"), actor("02000000")]
    waiting = [group("01000000", "c"), group("01000000", "a", "PENDING"), group("02000000")]
    assert words(others, waiting) == ""


def test_what_outlives_its_program_is_told_as_such() -> None:
    said = words([actor("03000000")], [group("04000000")])
    assert re.fullmatch(r"job 03000000, .* ended: 1 actor; job 04000000: 1 .*", said)


def test_a_long_command_line_is_cut() -> None:
    long = [{**JOBS[1], "Entrypoint": "python " + "a" * 500}]
    said = list_jobs(long, held([actor("01000000")], [], {"a"}), own="")
    assert f"({('python ' + 'a' * 500)[:100]}..., process 6511" in said
