"""Finds a framework in the target environment: `look` returns its release and the cards, or reports what is missing."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import BadInput, CannotTell, StepFailed
from npuenv.core.json_input import JsonError, loads
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.host.base import Host

# Importing acl loads CANN, seconds on a cold disk.
_LOOK_S, _WRITE_S = 120.0, 120.0
# Entries of a ROLL tree that an installed package of the same name lacks.
ROLL_PROGRAM = "examples/start_agentic_pipeline.py"


@dataclass(frozen=True, slots=True)
class InstalledFramework:
    """An installed framework."""

    framework: str  # verl | roll
    release: str  # the release that launch files are rendered for
    cards: int  # the number that Ray will detect
    tree: str = ""  # ROLL's source tree; empty for verl


def program() -> str:
    """The text of the program that runs in the target."""
    return Path(__file__).with_name("target_program.py").read_text(encoding="utf-8")


def look(host: Host, python: Path, framework: str) -> InstalledFramework:
    """The framework in the target with the cards that it can use.

    Raises: BadInput if it is not installed or cannot be inspected, CannotTell if no card is visible.
    """
    if not python.is_file():
        raise BadInput(Message("smoke.no-python", {"path": str(python)}), Message("smoke.no-python-hint"))
    answer = _query(host, python, framework)
    args: dict[str, object] = {"backend": framework, "python": str(python)}
    tree = _tree(host, answer) if framework == "roll" else ""
    if not (tree if framework == "roll" else answer["version"] and answer["place"]):
        hint = Message(f"smoke.backend-absent-{framework}")
        raise BadInput(Message("smoke.backend-absent", args), hint)
    if framework == "verl" and not answer["has_pyarrow"]:
        raise BadInput(Message("smoke.backend-no-pyarrow", args), Message("smoke.backend-absent-verl"))
    if not answer["cards"]:
        raise CannotTell(Message("smoke.backend-no-cards", args), Message("smoke.backend-no-cards-hint"))
    return InstalledFramework(framework, _release(framework, answer), int(answer["cards"]), tree)


def _query(host: Host, python: Path, framework: str) -> dict[str, Any]:
    ran = host.run([str(python), "-c", program(), "look", framework], timeout_s=_LOOK_S)
    last = ran.out.strip().rpartition("\n")[2]
    try:
        answer = loads(last)
    except JsonError:
        answer = None
    if ran.code != 0 or not isinstance(answer, dict):
        reason = (ran.err.strip() or last or str(ran.code)).rpartition("\n")[2]
        args = {"path": str(python), "reason": reason}
        raise BadInput(Message("smoke.bad-python", args), Message("smoke.no-python-hint"))
    return answer


def _tree(host: Host, answer: dict[str, Any]) -> str:
    """ROLL's source tree: ROLL_ROOT, else the location of the target's `roll`; "" if there is none."""
    named = host.environ().get("ROLL_ROOT", "")
    for tree in (named, str(Path(answer["place"]).parent) if answer["place"] else ""):
        if tree and (Path(tree) / ROLL_PROGRAM).is_file():
            return tree
    return ""


def _release(framework: str, answer: dict[str, Any]) -> str:
    """The release to render for. A ROLL tree that is not installed has no metadata: the newest format then."""
    version = str(answer["version"]).partition("+")[0]
    return version or ("main" if framework == "roll" else version)


def write_rows(host: Host, python: Path, files: Mapping[Path, list[dict[str, Any]]]) -> None:
    """Writes rows as parquet files with the target's pyarrow. Raises: StepFailed if that fails."""
    words = []
    for location, rows in files.items():
        source = location.with_suffix(".json")
        source.write_text(json.dumps(rows), encoding="utf-8")
        words += [str(source), str(location)]
    ran = host.run([str(python), "-c", program(), "write", *words], timeout_s=_WRITE_S)
    missing = next((location for location in files if not location.is_file()), None)
    if ran.code != 0 or missing is not None:
        reason = (ran.err.strip() or str(ran.code)).rpartition("\n")[2]
        args = {"path": str(missing or next(iter(files))), "reason": reason}
        raise StepFailed(Message("smoke.backend-no-data", args), Message("smoke.backend-no-data-hint"))
