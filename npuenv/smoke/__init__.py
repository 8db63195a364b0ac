"""The smoke test: runs the packaged trainer in a target environment, reads its records and judges them.

The trainer only measures. `judge` turns its records into findings; the worst one is the verdict. `cause` selects the
finding that explains the others. What the records lack is unknown, not fine.
"""

from npuenv.smoke.findings import gain_by_chance
from npuenv.smoke.judge import cause, judge
from npuenv.smoke.run import (
    LOG,
    METRICS,
    Record,
    TrainerTarget,
    default_out,
    follow,
    head_elsewhere,
    parse_record,
    records_of,
    sole_use,
    start,
    tail_of_log,
    worker_run,
)

__all__ = [
    "LOG",
    "METRICS",
    "Record",
    "TrainerTarget",
    "cause",
    "default_out",
    "follow",
    "gain_by_chance",
    "head_elsewhere",
    "judge",
    "parse_record",
    "records_of",
    "sole_use",
    "start",
    "tail_of_log",
    "worker_run",
]
