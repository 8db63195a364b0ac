"""What an environment of npuenv's own says of itself, from the files on disk to the finding."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import pytest

from npuenv.core.finding import Status
from npuenv.core.messages import LANGUAGES, say
from npuenv.core.seal import seal_of, text_hash
from npuenv.facts.manifest import LOCK as LOCK_FILE
from npuenv.facts.manifest import MANIFEST, MARKER, VERIFIED, Described, LastVerification, described
from npuenv.facts.python.packages import Owned
from npuenv.host.local import LocalHost
from npuenv.host.recorded import RecordingHost
from tests.support.changes import HEALTHY, both, find, part, put

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.core.finding import Finding

LOCK = "aabbccddeeff"
MARK = {"stack": "cpu", "platform": "x86_64-cp311-glibc2.28", "lock": LOCK}
PROVEN = {"lock": LOCK, "at": "2026-01-02T03:04:05Z", "files": 900, "packages": 11, "tree": "00"}


def finding_of(root: Path, marker: object, verified: object) -> Finding:
    (root / ".npuenv").mkdir()
    manifest = {"lock": LOCK} if verified is not None else None
    for name, value in {MARKER: marker, VERIFIED: verified, MANIFEST: manifest}.items():
        if value is not None:
            (root / name).write_text(value if isinstance(value, str) else json.dumps(value))
    python = dataclasses.replace(HEALTHY.python, made=described(LocalHost(), str(root)))
    return find(dataclasses.replace(HEALTHY, python=python), "python.made")


@pytest.mark.parametrize(
    ("marker", "verified", "status", "words"),
    [
        (None, None, Status.SKIP, "not created"),
        ("{torn", None, Status.SKIP, "not created"),
        ({**MARK, "status": "building"}, None, Status.FAIL, "never finished"),
        ({**MARK, "status": "building"}, PROVEN, Status.FAIL, "never finished"),
        ({**MARK, "status": "complete"}, None, Status.WARN, "not been verified"),
        ({**MARK, "status": "complete"}, {**PROVEN, "lock": "of another"}, Status.WARN, "not been verified"),
        ({**MARK, "status": "complete"}, PROVEN, Status.OK, "11 packages verified 2026-01-02T03:04:05Z"),
    ],
)
def test_only_a_finished_and_proven_environment_is_fine(
    tmp_path: Path, marker: object, verified: object, status: Status, words: str
) -> None:
    finding = finding_of(tmp_path, marker, verified)
    assert finding.status is status
    assert words in say(finding.says)
    if status in (Status.FAIL, Status.WARN):
        assert finding.fix is not None
        assert finding.fix.commands == (("npuenv", "install", "cpu", "--target", str(tmp_path)),)
        assert all(say(finding.fix.says, lang) for lang in LANGUAGES)


def made(*named: str, status: str = "complete") -> Described:
    return Described("/envs/cpu/1", "cpu", MARK["platform"], LOCK, status, verified=LastVerification(LOCK, named=named))


JINJA = Owned("jinja2", 1, 0, ("jinja2/__init__.py",))


@pytest.mark.parametrize(("check", "fact"), [("python.altered", "files"), ("python.hashes", "hashes")])
def test_in_an_environment_of_npuenv_every_file_that_it_put_in_counts(check: str, fact: str) -> None:
    altered = part(f"python.{fact}", altered=(JINJA,))
    finding = find(both(put(made=made("jinja2", "torch")), altered)(HEALTHY), check)
    assert finding.status is Status.WARN and "jinja2" in say(finding.says)
    assert finding.fix is not None
    assert finding.fix.commands == (("npuenv", "install", "--repair", "--target", "/envs/cpu/1"),)
    assert all(say(finding.fix.says, lang) for lang in LANGUAGES)


def test_headers_and_tests_count_where_npuenv_put_them() -> None:
    gone = part("python.files", spared=(Owned("jinja2", 2, 0, ("jinja2/tests/a.py",)),))
    own = find(both(put(made=made("jinja2")), gone)(HEALTHY), "python.files")
    assert (own.status, own.says.args["count"]) == (Status.WARN, 2)
    assert find(both(put(made=None), gone)(HEALTHY), "python.files").status is Status.OK


def test_a_link_in_place_of_a_file_counts_where_npuenv_put_the_file() -> None:
    linked = part("python.files", linked=(JINJA,))
    own = find(both(put(made=made("jinja2")), linked)(HEALTHY), "python.altered")
    assert (own.status, own.says.key) == (Status.WARN, "check_python.altered-linked")
    assert find(both(put(made=None), linked)(HEALTHY), "python.altered").status is Status.OK


@pytest.mark.parametrize(
    ("lost", "command"),
    [
        ("activate.sh", ("npuenv", "install", "--repair", "--target", "/envs/cpu/1")),
        (LOCK_FILE, ("npuenv", "install", "cpu", "--target", "/envs/cpu/1")),
    ],
)
def test_a_lost_file_of_npuenvs_own_is_named_with_what_restores_it(lost: str, command: tuple[str, ...]) -> None:
    finding = find(put(made=dataclasses.replace(made(), lost=(lost,)))(HEALTHY), "python.made")
    assert (finding.status, finding.says.args["files"]) == (Status.WARN, (lost,))
    assert finding.fix is not None and finding.fix.commands == (command,)


@pytest.mark.parametrize(("check", "fact"), [("python.altered", "files"), ("python.hashes", "hashes")])
@pytest.mark.parametrize(
    "own",
    [None, made("torch"), made("jinja2", status="building"), made()],
    ids=["made by others", "a package that the user added", "never finished", "verified by an older npuenv"],
)
def test_what_was_not_verified_may_have_been_edited_and_is_not_passed_off_as_recorded(
    own: Described | None, check: str, fact: str
) -> None:
    finding = find(both(put(made=own), part(f"python.{fact}", altered=(JINJA,)))(HEALTHY), check)
    assert finding.status is Status.OK
    assert "as recorded" not in say(finding.says)
    assert any("jinja2/__init__.py" in item.line for item in finding.evidence)


def finished(root: Path) -> None:
    """An environment with a finished installation's own words: marker, manifest, verification, one file of its own."""
    (root / ".npuenv").mkdir(parents=True)
    text = f"export ROOT={root}\n"
    (root / "activate.sh").write_text(text)
    manifest = json.dumps({"lock": LOCK, "kind": "venv", "files": {"activate.sh": text_hash(text)}})
    (root / MANIFEST).write_text(manifest)
    marker = {**MARK, "status": "complete", "manifest": text_hash(manifest)}
    (root / MARKER).write_text(json.dumps({**marker, "seal": seal_of(marker)}))
    proven = {**PROVEN, "site": "site", "hooks": ["old.pth"], "venv": {}}
    (root / VERIFIED).write_text(json.dumps({**proven, "seal": seal_of(proven)}))
    (root / "site/own-1.dist-info").mkdir(parents=True)
    (root / "site/own-1.dist-info/RECORD").write_text("own.pth,sha256=x,1\n")
    for name in ("old.pth", "own.pth"):
        (root / "site" / name).touch()


def test_what_is_redacted_before_it_is_judged_counts_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home/marialuisa"
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USER", "marialuisa")
    finished(home / "env")
    host = RecordingHost(LocalHost())
    assert "marialuisa" not in host.look(str(home / "env/activate.sh")).text
    found = described(host, str(home / "env")).value
    assert found is not None and (found.lost, found.hooks, found.is_proven) == ((), (), True)


@pytest.mark.parametrize("name", ["new.pth", "sitecustomize.py"])
def test_a_hook_that_came_after_the_verification_is_named_and_a_packages_own_is_not(tmp_path: Path, name: str) -> None:
    finished(tmp_path / "env")
    (tmp_path / "env/site" / name).touch()
    python = dataclasses.replace(HEALTHY.python, made=described(LocalHost(), str(tmp_path / "env")))
    finding = find(dataclasses.replace(HEALTHY, python=python), "python.made")
    assert (finding.status, finding.says.key) == (Status.WARN, "check_python.made-hooks")
    assert finding.says.args["files"] == (f"site/{name}",)
    assert finding.fix is not None and "--repair" in finding.fix.commands[0]


@pytest.mark.parametrize("name", [MARKER, MANIFEST, "activate.sh"])
def test_a_link_in_place_of_a_file_of_npuenvs_own_is_named(tmp_path: Path, name: str) -> None:
    finished(tmp_path / "env")
    (tmp_path / "env" / name).rename(tmp_path / "elsewhere")
    (tmp_path / "env" / name).symlink_to(tmp_path / "elsewhere")
    found = described(LocalHost(), str(tmp_path / "env")).value
    assert found is not None and found.lost == (name,)
