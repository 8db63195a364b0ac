"""`npuenv lock` as a user runs it; indexes are folders."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.core.documents import parse_toml
from npuenv.core.messages import Message
from npuenv.lock.file import Lock, LockedPackage, parse_lock, read_lock
from npuenv.lock.inputs import inputs_of
from npuenv.lock.store import find_lock, put_lock
from npuenv.lock.uv import write_wheel
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Pin, Platform, Reason, Request, Stack
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

NOWHERE = "https://index.invalid/simple/"
CPU = ("lock", "cpu", "--arch", "x86_64", "--python", "3.11")
TAG = f"{platform.machine()}-cp3{sys.version_info[1]}-glibc2.28"


def offer(folder: Path, name: str, version: str, *, requires: tuple[str, ...] = (), text: str = "") -> str:
    """Puts a wheel on the static index in a folder; gives its hash."""
    folder.mkdir(exist_ok=True)
    wheel = write_wheel(folder, name, version, requires=requires, files={f"{name}.py": text})
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = folder / "simple" / name / "index.html"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(f'<a href="{wheel.as_uri()}#sha256={digest}">{wheel.name}</a>')
    return digest


@pytest.fixture
def lock_file(home: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A complete lock in a file, and a default index that offers what it names."""
    index = home / "index"
    packages = tuple(LockedPackage(name, "1.0", (offer(index, name, "1.0"),)) for name in ("base", "upper"))
    monkeypatch.setenv("PIP_INDEX_URL", (index / "simple").as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    return put_lock(Lock("tiny", TAG, "npuenv 1", packages), home / "some")


def test_verify_ends_with_0_where_all_is_there(lock_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lock", "--verify", str(lock_file)]) == 0
    captured = capsys.readouterr()
    assert says(captured.out, "lock.verified", name=f"tiny.{TAG}.toml", status="complete", there=2, all=2)
    assert captured.err == f"[1/1] tiny.{TAG}.toml\n"


def test_verify_ends_with_1_where_a_hash_is_no_longer_offered(
    home: Path, lock_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(home / "index", "upper", "1.0", text="other = True\n")
    assert main(["lock", "--verify", str(lock_file), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "npuenv.verify/1" and document["exit"] == 1
    assert [(p["name"], p["offer"]) for p in document["locks"][0]["packages"]] == [("upper", "changed")]


def test_verify_ends_with_3_where_the_index_is_out_of_reach(lock_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", NOWHERE)
    monkeypatch.setenv("PIP_RETRIES", "0")
    assert main(["lock", "--verify", str(lock_file), "--quiet"]) == 3


def test_verify_takes_several_files_and_refuses_an_edited_one(
    home: Path, lock_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = put_lock(replace(read_lock(lock_file), stack="other"), home / "some")
    assert main(["lock", "--verify", str(lock_file), str(other), "--json"]) == 0
    assert [row["stack"] for row in json.loads(capsys.readouterr().out)["locks"]] == ["tiny", "other"]
    other.write_text(other.read_text().replace('version = "1.0"', 'version = "1.1"', 1))
    assert main(["lock", "--verify", str(lock_file), str(other)]) == 2
    said = capsys.readouterr().err
    line = other.read_text().split("\n").index("[[package]]") + 1
    assert (
        says(
            said, "lock.edited", path=other, line=line, what=sentence("lock.table-changed", kind="package", name="base")
        )
        and "--renew" in said
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["cpu", "cpu-full"], sentence("lock.one-stack", words=("cpu-full",))),
        (["cpu", "--format", "pylock"], "--bundle DIR"),
        (["cpu", "--bundle", "x"], "--format pylock"),
        (["--all", "--format", "requirements"], sentence("lock.not-with", option="--format", other="--all")),
        (["--verify", "--renew", "cpu"], sentence("lock.not-with", option="--renew", other="--verify")),
        (["--verify", "--all"], sentence("lock.not-with", option="--all", other="--verify")),
        (["--verify", "no-such-stack"], "no-such-stack"),
        (["cpu", "--format", "uv"], sentence("lock.only-with", option="--format uv", other="--out DIR")),
        (["--all", "--pin", "numpy==1.26.4"], sentence("lock.not-with", option="--pin", other="--all")),
        (["cpu", "--verify", "--python", "3.12"], sentence("lock.not-with", option="--python", other="--verify")),
        (["cpu", "--verify", "--offline"], sentence("lock.not-with", option="--offline", other="--verify")),
        (["--verify", "--for", "cpu"], sentence("lock.not-with", option="--for", other="--verify")),
        (["--verify", "--newest"], sentence("lock.not-with", option="--newest", other="--verify")),
        (["cpu", "--verify", "--host", "this"], sentence("lock.not-with", option="--host", other="--verify")),
        (["--all", "--os", "ubuntu22.04"], sentence("lock.not-with", option="--os", other="--all")),
        (["--all", "--for", "verl==0.7.1"], sentence("lock.not-with", option="--for NAME==RELEASE", other="--all")),
        (
            ["--all", "--host", "tests/support/hosts/a3_healthy.json"],
            sentence("lock.not-with", option="--host", other="--all"),
        ),
        (["--all", "--stack-that-is-none"], "--stack-that-is-none"),
        (["cpuu", "--all"], "cpuu"),
    ],
)
def test_words_that_do_not_go_together_are_wrong_usage(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", *words]) == 2
    captured = capsys.readouterr()
    assert said in captured.err and "Traceback" not in captured.err and captured.out == ""


def own_lock(home: Path, lock: Lock) -> None:
    put_lock(lock, home / "data/npuenv/locks")


def cpu_stack() -> Stack:
    stack = resolve(Request(stack="cpu", arch="x86_64", python="3.11"), load_matrix())
    assert isinstance(stack, Stack)
    return stack


def lock_by_hand(stack: Stack, files: dict[str, str]) -> Lock:
    """A lock of exactly the stack's pins. `files`: name -> sha256."""
    packages = [
        LockedPackage(pin.name, pin.version, (files.get(pin.name, "a" * 64),), pin.index)
        for pin in stack.pins
        if pin.is_python
    ]
    return Lock(stack.name, stack.platform.tag, "npuenv 1", tuple(sorted(packages, key=lambda p: p.name)),
                inputs=inputs_of(stack).digest)  # fmt: skip


def test_a_list_with_hashes_is_written_for_pip(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_by_hand(cpu_stack(), {})
    own_lock(home, lock)
    assert main([*CPU, "--format", "requirements", "-o", str(home / "out")]) == 0
    assert str(home / "out") in capsys.readouterr().out
    text = (home / "out" / f"cpu.{lock.platform}.txt").read_text()
    assert all(f"{package.name}=={package.version} \\\n" in text for package in lock.packages)
    assert text.count("--hash=sha256:") == len(lock.packages)


def test_a_pylock_is_written_for_a_folder_of_files(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stack, folder = cpu_stack(), home / "bundle"
    folder.mkdir()
    wheels = {pin.name: write_wheel(folder, pin.name, pin.version) for pin in stack.pins if pin.is_python}
    digests = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in wheels.items()}
    own_lock(home, lock_by_hand(stack, digests))
    words = [*CPU, "--format", "pylock", "--bundle", str(folder)]
    assert main(words) == 0
    rows = parse_toml(capsys.readouterr().out)["packages"]
    assert {row["wheels"][0]["path"] for row in rows} == {path.name for path in wheels.values()}
    assert main([*words, "-o", str(home)]) == 0
    row = parse_toml((home / "pylock.toml").read_text())["packages"][0]
    assert row["wheels"][0]["path"] == f"bundle/{row['wheels'][0]['name']}"
    wheels["torch"].unlink()
    assert main(words) == 2
    assert f"torch {stack.pin('torch').version}" in capsys.readouterr().err  # type: ignore[union-attr]


def test_a_project_of_uv_and_a_bill_of_materials_are_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stack, folder = cpu_stack(), home / "wheels"
    folder.mkdir()
    wheels = {pin.name: write_wheel(folder, pin.name, pin.version) for pin in stack.pins if pin.is_python}
    lock = lock_by_hand(stack, {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in wheels.items()})
    own_lock(home, lock)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert main([*CPU, "--format", "uv", "-o", str(home / "project")]) == 0
    assert says(capsys.readouterr().out, "cli.locked-for-uv", folder=str(home / "project"))
    rows = parse_toml((home / "project" / "uv.lock").read_text())["package"]
    assert {row["name"] for row in rows} == {*wheels, "cpu"}
    assert main([*CPU, "--format", "cyclonedx", "-o", str(home / "out")]) == 0
    document = json.loads((home / "out" / f"cpu.{lock.platform}.cdx.json").read_text())
    assert {each["name"] for each in document["components"]} == set(wheels)


def test_all_keeps_what_answers_and_proves_what_cannot_be(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home / "locks"
    put_lock(lock_by_hand(cpu_stack(), {}), folder)
    words = ["lock", "cpu", "--all", "--arch", "x86_64", "--python", "3.11", "-o", str(folder)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [(row["stack"], row["status"]) for row in document["rows"]] == [("cpu", "complete")]
    assert main(words) == 0
    assert says(capsys.readouterr().out, "lock.shelf-count", all=1, complete=1)
    assert not (folder / "README.md").exists()  # the page is about all published stacks


def test_renew_mends_a_lock_that_cannot_be_trusted(
    home: Path, fresh_uv_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As its refusal says; until then nothing else works with that stack."""
    stack, folder = cpu_stack(), home / "wheels"
    folder.mkdir()
    for name, version in {pin.name: pin.version for pin in stack.pins if pin.is_python}.items():
        write_wheel(folder, name, version)
    write_wheel(folder, "numpy", "2.4")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(fresh_uv_cache))
    own_lock(home, lock_by_hand(stack, {}))
    path = home / "data/npuenv/locks" / f"cpu.{stack.platform.tag}.toml"
    path.write_text(path.read_text().replace("a" * 64, "b" * 64, 1))
    assert main([*CPU]) == 2
    assert says(capsys.readouterr().err, "lock.renew", stack="cpu")
    assert main([*CPU, "--renew", "-o", str(home / "out")]) == 0  # to another place, as asked
    assert main([*CPU]) == 2
    capsys.readouterr()
    assert main([*CPU, "--renew"]) == 0
    captured = capsys.readouterr()
    assert parse_lock(captured.out) == read_lock(path) and str(path) in captured.err
    assert main([*CPU]) == 0


def test_all_without_an_index_says_how_far_it_came(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["lock", "cpu", "--all", "--arch", "x86_64", "--python", "3.11", "--offline", "-o", str(home / "locks")]
    assert main(words) == 3
    captured = capsys.readouterr()
    assert "0 complete" in captured.out and "1 not locked" in captured.out
    assert captured.err


def tiny_stack() -> Stack:
    reason = Reason(Message("plan.why-rest"))
    return Stack(
        "tiny", "cpu", Platform(platform.machine(), f"3.{sys.version_info[1]}"),
        (Pin("torx", "9.1", reason, reason, "wheel-exists", "special"),),
        ("upper",), (), (), (), {}, None, None, None, (), "measured-here", (),
    )  # fmt: skip


def test_a_folder_that_takes_no_lock_is_one_sentence(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own_lock(home, lock_by_hand(cpu_stack(), {}))
    (home / "file").write_text("")
    assert main([*CPU, "-o", str(home / "file")]) == 2
    captured = capsys.readouterr()
    assert says(captured.err, "lock.unwritable") and len(captured.err.strip().splitlines()) == 2


def test_the_json_of_a_lock_says_its_status(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = lock_by_hand(cpu_stack(), {})
    own_lock(home, lock)
    assert main([*CPU, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["status"], document["proof"]) == ("npuenv.lock/1", "complete", [])
    assert len(document["packages"]) == len(lock.packages)


def test_an_environment_is_held_against_its_lock(
    home: Path, cpu_environment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["lock", "cpu", "--installed", str(cpu_environment), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["complaints"]) == ("npuenv.installed/1", [])


def test_a_folder_without_the_packages_is_not_as_locked(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["lock", "cpu", "--arch", "x86_64", "--python", "3.11", "--installed", str(tmp_path)]
    assert main(words) == 2
    assert says(capsys.readouterr().err, "consistent.no-packages", path=tmp_path)
    (tmp_path / "other-1.0.dist-info").mkdir()
    assert main(words) == 1
    said = capsys.readouterr().out
    assert says(said, "consistent.not-as-locked", name="numpy") and says(said, "consistent.unexplained")
    assert main(["lock", "cpu", "--installed", str(tmp_path), "--all"]) == 2
    assert main(["lock", "cpu", "--installed", str(tmp_path), "--verify"]) == 2


def test_stdout_holds_the_lock_alone_where_it_has_to_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shipped = []

    def no_lock_but(stack: Stack, folder: Path) -> None:
        shipped.append(find_lock(stack, folder))

    monkeypatch.setattr("npuenv.app.resolution.find_lock", no_lock_but)
    monkeypatch.setattr("npuenv.lock.make.make_lock", lambda stack, resolver: shipped[-1])
    monkeypatch.setattr("npuenv.app.resolution.put_lock", lambda lock, folder: None)
    assert main(["lock", "cpu", "--arch", "x86_64", "--lang", "en"]) == 0
    said = capsys.readouterr()
    assert parse_lock(said.out).stack == "cpu"
    assert "locking cpu" in said.err
