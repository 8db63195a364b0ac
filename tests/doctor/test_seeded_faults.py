"""Single faults in the raw text of healthy hosts: the right check speaks, and no other one does."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import check_all
from npuenv.core.documents import parse_toml
from npuenv.facts.collect import collect
from npuenv.host import Looked, PathState, Ran
from npuenv.host.recorded import parse_capture
from tests.support.sentences import in_both_languages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.core.finding import Finding
    from npuenv.host import Host

HERE = Path(__file__).parent
FAULTS = parse_toml((HERE / "seeded_faults.toml").read_text(encoding="utf-8"))["fault"]
# Each check has seen its faults already in tests/checks; here is the whole doctor, in README's tests for one fault of
# three. tests/doctor/test_machines.py has one for each check that these leave out.
UNMARKED = FAULTS[::3]


class EditedHost:
    """A recorded host with a fault; what the recording was never asked for is not there.

    The recording holds only what a healthy host is asked, and a fault makes the doctor look further.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.name = "host1"
        self._recorded = parse_capture(json.dumps(document), Path("edited"))
        self._paths = document["paths"]
        self._words = {tuple(item["argv"]) for item in document["commands"]}

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        known = tuple(argv) in self._words
        return self._recorded.run(argv) if known else Ran(tuple(argv), None, "", "No such file or directory")

    def look(self, path: str) -> Looked:
        return self._recorded.look(path) if path in self._paths else Looked(path, PathState.ABSENT)

    def environ(self) -> Mapping[str, str]:
        return self._recorded.environ()


def _words(argv: list[str]) -> str:
    """The name of a command in the table: `python` stands for the target's interpreter and its program."""
    if argv[0] == "npuenv-elf":  # its words are the extension modules, too many to name
        return argv[0]
    return " ".join(["python", *argv[3:]] if _is_python(argv) else argv)


def _is_python(argv: list[str]) -> bool:
    return argv[1:2] == ["-c"] and argv[0].rpartition("/")[2].startswith("python")


def _edit_text(document: dict[str, Any], place: str, old: str, new: str) -> None:
    places = [(item, "out") for item in document["commands"] if _words(item["argv"]) == place]
    places += [(document["paths"][place], "text")] if place in document["paths"] else []
    ((holder, key),) = places
    # Programs print JSON, whose keys are sorted with a blank after the colon: edits are literal.
    assert old in holder[key], f"{old!r} is not in {place}"
    holder[key] = holder[key].replace(old, new)


def _answer(document: dict[str, Any], place: str, answer: Mapping[str, Any]) -> None:
    ran = {"code": answer.get("code"), "out": answer.get("out", ""), "err": answer.get("err", "")}
    if answer.get("timed_out"):
        ran["timed_out"] = True
    for item in document["commands"]:
        if _words(item["argv"]) == place:
            item.update(ran)
            return
    words = place.split()
    if words[0] == "python":
        words[:1] = next(item["argv"][:3] for item in document["commands"] if _is_python(item["argv"]))
    document["commands"].append({"argv": words, **ran})


@functools.cache
def _capture(name: str) -> str:
    return (HERE.parent / "support" / "hosts" / f"{name}.json").read_text(encoding="utf-8")


def faulty_host(fault: Mapping[str, Any]) -> EditedHost:
    """The recorded host of a row with the row's edits."""
    document = json.loads(_capture(fault["host"]))
    for place, old, new in fault.get("replace", ()):
        _edit_text(document, place, old, new)
    for place, answer in fault.get("ran", {}).items():
        _answer(document, place, answer)
    for place, line in fault.get("ran_after", {}).items():
        next(item for item in document["commands"] if _words(item["argv"]) == place)["out"] += line
    document["environ"].update(fault.get("set", {}))
    for name in fault.get("drop", ()):
        del document["environ"][name]
    paths = document["paths"]
    paths.update({path: {"state": "file", "text": text} for path, text in fault.get("files", {}).items()})
    paths.update({path: {"state": "folder", "names": names} for path, names in fault.get("folders", {}).items()})
    paths.update({path: {"state": "absent"} for path in fault.get("gone", ())})
    paths.update({path: {"state": "device", "error": why} for path, why in fault.get("closed", {}).items()})
    paths.update({path: {"state": "unreadable", "error": why} for path, why in fault.get("unreadable", {}).items()})
    return EditedHost(document)


def statuses(host: Host, level: int = 2, framework: str | None = None) -> dict[str, str]:
    """Check id -> status of everything that the doctor looks at."""
    return {check: finding.status.value for check, finding in findings(host, level, framework).items()}


@functools.cache
def of_healthy(name: str, level: int, framework: str | None) -> Mapping[str, str]:
    """The same of a recorded host as it is."""
    return statuses(faulty_host({"host": name}), level, framework)


def findings(host: Host, level: int = 2, framework: str | None = None) -> dict[str, Finding]:
    """Check id -> what it found."""
    facts = collect(host, level=level, framework=framework)
    return {finding.check: finding for finding in check_all(facts, level=level, framework=framework)}


def is_for_want_of_the_table(finding: Finding) -> bool:
    """Whether a check could not judge because npu-smi lists no card, which the check of npu-smi reports."""
    return finding.says.key in ("check_npu.see-npu-smi", "check_cann.kernels-no-chip")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault["id"])
@pytest.mark.one_in(5)
def test_the_check_of_a_fault_speaks_and_no_other_one_does(fault: dict[str, Any]) -> None:
    level, framework = fault.get("level", 2), fault.get("framework")
    healthy = of_healthy(fault["host"], level, framework)
    assert framework or set(healthy.values()) == {"ok", "skip"}  # a framework that is not installed is a fault itself
    told = findings(faulty_host(fault), level, framework)
    assert all(in_both_languages(finding) for finding in told.values())
    found = {check: finding.status.value for check, finding in told.items()}
    assert {check: found.get(check) for check, right in fault["must"].items() if found.get(check) not in right} == {}
    allowed = {*fault["must"], *fault.get("may", ())}
    if found["driver.npu-smi"] in ("fail", "unknown"):
        allowed |= {check for check, finding in told.items() if is_for_want_of_the_table(finding)}
    moved = {
        check: status for check, status in found.items() if status != healthy[check] and status not in ("ok", "skip")
    }
    assert {check: status for check, status in moved.items() if check not in allowed} == {}


# Not to be seen on the hosts of the table, and shown at work elsewhere: these need a stack to be named
# (tests/checks/test_settings_stack.py, test_packages.py), or cards of the 950 line (tests/checks/test_hccn.py).
ELSEWHERE = {"stack.cann", "stack.python", "stack.settings", "python.stack", "python.made", "network.card-ports"}


def test_each_check_has_a_fault_that_it_finds() -> None:
    """Keeps the table honest: a new check comes with a fault of its own."""
    spoken = {check for fault in FAULTS for check, right in fault["must"].items() if "ok" not in right}
    assert {*statuses(faulty_host({"host": "a2_healthy"}))} - spoken == ELSEWHERE
