"""Inventories over the scripted ssh client: `Nodes` holds one, with the captures of a uniform cluster.

`Impatient` lets a test of those that hang take no time.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import time
from typing import TYPE_CHECKING

import psutil

from npuenv.facts.collect import collect
from npuenv.host.recorded import RecordingHost
from tests.cluster.uniform import description, name_of
from tests.support.machines.simulated import SimulatedHost
from tests.support.scripted_ssh import install

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    import pytest

MACHINE = "a2-b3-host-roll"


@functools.cache
def capture_text(number: int, level: int = 1, machine: str = MACHINE) -> str:
    """What the doctor on node `number` of a uniform cluster would save."""
    told = dict(description(machine, number))
    # It was recorded in a run of two nodes.
    told["environ"] = {key: value for key, value in told["environ"].items() if key not in ("RANK", "WORLD_SIZE")}
    host = RecordingHost(SimulatedHost(told))
    collect(host, level=level, framework=told["framework"])
    return host.capture_text()


class Nodes:
    """`count` nodes named node01 ... in an inventory, all well but for `kinds`; their ssh is first on PATH."""

    def __init__(
        self,
        folder: Path,
        patch: pytest.MonkeyPatch,
        count: int,
        kinds: Mapping[str, str],
        *,
        machine: str = MACHINE,
        gives_captures: bool = True,  # False where nobody looks: what is sent comes back
    ) -> None:
        self.names = [name_of(number) for number in range(1, count + 1)]
        self.inventory, self.log, captures = folder / "hosts", folder / "log", folder / "captures"
        captures.mkdir()
        for number, name in enumerate(self.names, start=1):
            if gives_captures and kinds.get(name, "well") in ("well", "half", "greets"):
                (captures / f"{name}.json").write_text(capture_text(number, machine=machine), encoding="utf-8")
        self.inventory.write_text(f"{name_of(1)[:-2]}[01-{count:02}]\n")
        plan = {"nodes": dict(kinds), "captures": str(captures), "log": str(self.log)}
        (folder / "plan.json").write_text(json.dumps(plan))
        patch.setenv("SCRIPTED_SSH", str(folder / "plan.json"))
        patch.setenv("PATH", f"{install(folder)}{os.pathsep}{os.environ['PATH']}")

    def calls(self) -> list[tuple[str, int, list[str]]]:
        """(name, process, options) of every call so far."""
        text = self.log.read_text() if self.log.exists() else ""
        # The last line may be one that is being written.
        return [(row[0], row[1], row[2]) for row in map(ast.literal_eval, text[: text.rfind("\n") + 1].splitlines())]


class Impatient:
    """A clock that leaps ahead once nobody is waited for but those who hang: a limit that leaves all others time
    enough, on however slow a machine, is over then.
    """

    def __init__(self, nodes: Nodes, hung: Collection[str]) -> None:
        self._nodes, self._others, self._leapt_s = nodes, set(nodes.names) - set(hung), 0.0

    def monotonic(self) -> float:
        if not self._leapt_s and self._is_over():
            self._leapt_s = 3600.0
        return time.monotonic() + self._leapt_s

    def time(self) -> float:
        return time.time()

    def _is_over(self) -> bool:
        """Whether all others were asked, and have been waited for; one that has only ended is still to be heard."""
        pids = {name: pid for name, pid, _ in self._nodes.calls()}
        return self._others <= pids.keys() and not any(psutil.pid_exists(pids[name]) for name in self._others)
