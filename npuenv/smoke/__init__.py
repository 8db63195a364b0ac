"""The smoke test: starts the packaged trainer in a target environment, follows its records and judges them.

The trainer measures and never judges; `judge` turns its records into findings, whose worst is the verdict, and `cause`
picks the finding that explains the others. What the records do not hold is unknown, not fine.
"""

from npuenv.smoke.judge import cause, judge
from npuenv.smoke.learning import gain_by_chance
from npuenv.smoke.run import (
    LOG,
    METRICS,
    Record,
    Target,
    default_out,
    follow,
    head_elsewhere,
    lent,
    parse_record,
    records_of,
    sole_use,
    start,
    tail_of_log,
)

__all__ = [
    "LOG",
    "METRICS",
    "Record",
    "Target",
    "cause",
    "default_out",
    "follow",
    "gain_by_chance",
    "head_elsewhere",
    "judge",
    "lent",
    "parse_record",
    "records_of",
    "sole_use",
    "start",
    "tail_of_log",
]
