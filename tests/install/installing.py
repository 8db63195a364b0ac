"""A process that installs when it is told to, each time in a child of its own that a test may kill.

Started with a pickled (root, plan, settings). Each line on stdin starts an installation; lines on stdout: `pid N`,
then `start STEP` and `done STEP` as steps begin and end, `waits WHO` for another
execution in the same place, and `end CODE` when the child is gone (-9: killed).
Loading everything once and forking makes a run cost a tenth of a fresh `npuenv install`.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput, NpuenvError
from npuenv.core.messages import say
from npuenv.host.local import LocalHost
from npuenv.install.executor import ExecutionContext, StepEvent, execute

if TYPE_CHECKING:
    from npuenv.install.executor import Event


def say_line(text: str) -> None:
    """In one write, so that lines of two processes never mix."""
    os.write(1, f"{text}\n".encode())


def tell(event: Event) -> None:
    if event.state in (StepEvent.START, StepEvent.DONE):
        say_line(f"{event.state.value} {event.step.id}")


def install(job: bytes) -> int:
    """The exit code that the command would have."""
    root, plan, settings = pickle.loads(job)
    try:
        execute(plan, ExecutionContext(LocalHost(), root, settings, tell, wait=lambda who: say_line(f"waits {who}")))
    except KeyboardInterrupt:
        return 130
    except NpuenvError as error:
        say_line(f"says {say(error.message)}")
        return 2 if isinstance(error, BadInput) else 1
    return 0


def main() -> None:
    job = Path(sys.argv[1]).read_bytes()
    for _ in sys.stdin:
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            os.setsid()
            say_line(f"pid {os.getpid()}")
            os._exit(install(job))
        say_line(f"end {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}")


if __name__ == "__main__":
    main()
