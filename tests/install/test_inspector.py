"""The inspector by itself: what it says of an environment, and what it leaves behind."""

from __future__ import annotations

import ast
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.core.seal import seal_of
from npuenv.facts.conditions import INSPECTOR
from npuenv.facts.manifest import describe
from npuenv.facts.target.dist_info import sha256
from npuenv.host.local import LocalHost
from npuenv.install import env_verifier as inspector
from npuenv.install.env_verifier import program
from npuenv.install.env_verifier.inspection import Inspection, unowned, write_json
from npuenv.install.env_verifier.program import distrust, imported
from npuenv.lock.uv import find_uv, write_wheel
from tests.support.inspecting import inspected

if TYPE_CHECKING:
    from pathlib import Path

    from tests.install.conftest import World

ALL = ("torch==9.1+cpu", "numbers==2.4", "tools==0.3")


def ask(world: World, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What the program says, in this process."""
    return subprocess.CompletedProcess((verb, *words), *inspected(verb, str(world.root), *words))


def ask_itself(world: World, verb: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The same of the file in the environment, by its Python."""
    argv = [str(world.root / "bin/python"), "-I", "-B", str(world.root / INSPECTOR), verb, str(world.root), *words]
    return subprocess.run(argv, capture_output=True, text=True)


def state(world: World, *words: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(ask(world, "state", *words).stdout)
    return found


def test_what_is_sent_is_one_program_of_the_standard_library_for_every_python_from_3_9_on() -> None:
    sent = re.findall(r"exec\(compile\(r\'\'\'(.*?)\'\'\', '(\S+)'", inspector.text(), re.DOTALL)
    before: set[str] = set()
    named: set[str] = set()
    for source, module in sent:
        tree = ast.parse(source, feature_version=(3, 9))
        conditions = {ast.unparse(node.test): node for node in tree.body if isinstance(node, ast.If)}
        assert all(condition.startswith(("TYPE_CHECKING", "__name__")) for condition in conditions)
        for_types = {each for node in conditions.values() for each in ast.walk(node)}
        nodes = [node for node in ast.walk(tree) if node not in for_types]
        imported = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        imported |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
        assert {name for name in imported if name.startswith("npuenv")} <= before, module
        named |= {name.partition(".")[0] for name in imported - before}
        before.add(module)
    assert len(sent) == 4 and sent[-1][1] == program.__name__
    assert {"subprocess", "sysconfig", "csv"} <= named <= set(sys.stdlib_module_names)


@pytest.mark.parametrize("size", [0, 1, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_hash_does_not_depend_on_the_size_that_is_expected(tmp_path: Path, size: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(size))
    digest = hashlib.sha256(path.read_bytes()).digest()
    wanted = "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert sha256(str(path)) == sha256(str(path), size) == sha256(str(path), max(0, size - 3)) == wanted


def test_a_verification_leaves_its_time_its_counts_and_a_hash_over_all_files(world: World) -> None:
    world.installed()
    verified = world.root / ".npuenv/verified.json"
    first = json.loads(verified.read_text())
    around, counts = {"hooks", "seal", "site", "venv"}, {"files", "hashed", "packages"}
    assert set(first) == {"at", "lock", "named", "strangers", "tree", *around, *counts}
    assert first["seal"] == seal_of(first) and {"pyvenv.cfg", "bin/activate"} <= set(first["venv"])
    assert first["named"] == ["numbers", "tools", "torch"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", first["at"])
    assert (first["packages"], first["files"]) == (3, first["hashed"])
    (world.site / "numbers_a.py").write_text("A = 2\n")
    assert ask_itself(world, "verify", first["lock"], *ALL).returncode == 1
    (world.site / "numbers_a.py").write_text("A = 1\n")
    assert ask_itself(world, "verify", first["lock"], *ALL).returncode == 0
    again = json.loads(verified.read_text())
    assert (again["tree"], again["hashed"]) == (first["tree"], 1)


def test_files_that_run_code_at_start_up_and_belong_to_nobody_are_named_with_the_verification(world: World) -> None:
    world.installed()
    (world.site / "mine.pth").write_text("import os\n")
    (world.site / "below").mkdir()
    (world.site / "below/unread.pth").write_text("import os\n")
    said = ask(world, "verify", "lock", *ALL)
    assert said.returncode == 0 and re.search("^note: .*/mine.pth ", said.stdout, re.MULTILINE)
    seen = json.loads((world.root / ".npuenv/verified.json").read_text())
    assert seen["strangers"] == ["mine.pth"]
    own = describe(LocalHost(), str(world.root))
    assert own is not None and own.verified is not None and own.verified.strangers == ("mine.pth",)
    assert own.as_json()["verified"]["strangers"] == ["mine.pth"]
    for number in range(30):
        (world.site / f"m{number:02}.pth").write_text("")
    assert ask(world, "verify", "lock", *ALL).returncode == 0
    assert len(json.loads((world.root / ".npuenv/verified.json").read_text())["strangers"]) == 20


@pytest.mark.slow
def test_another_document_in_its_place_is_no_verification(world: World) -> None:
    plan = world.installed()
    path = world.root / ".npuenv/verified.json"
    first = json.loads(path.read_text())
    path.write_text(json.dumps({"lock": first["lock"]}))
    assert state(world)["verified"] == ""
    assert "verify" in world.install(plan).done
    assert state(world)["verified"] == first["lock"]


@pytest.mark.slow
def test_what_a_verification_said_is_not_about_a_package_that_went_in_later(world: World) -> None:
    plan = world.installed()
    path = world.root / ".npuenv/verified.json"
    first = json.loads(path.read_text())
    old = {**first, "at": "2001-01-01T00:00:00Z"}
    path.write_text(json.dumps({**old, "seal": seal_of(old)}))
    assert world.install(plan).done == () and json.loads(path.read_text())["at"].startswith("2001")
    out = [find_uv(), "pip", "uninstall", "--quiet", "--python", str(world.root / "bin/python"), "tools"]
    subprocess.run(out, check=True)
    assert world.install(plan).done == ("torch+rest", "verify")
    again = json.loads(path.read_text())
    assert not again["at"].startswith("2001") and again["tree"] == first["tree"]
    assert world.install(plan).done == ()


def test_a_file_put_back_with_its_old_time_is_hashed_all_the_same(world: World) -> None:
    world.installed()
    path = world.site / "numbers_a.py"
    before = path.stat()
    path.write_text("A = 9\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert state(world)["damaged"] == {"numbers": "numbers_a.py has another content"}


def test_rehash_looks_at_every_file_again(world: World) -> None:
    world.installed()
    state(world)  # the first look at a copy hashes all of it
    assert state(world)["hashed"] == 0
    assert state(world, "--rehash")["hashed"] == state(world)["files"]


def test_what_the_plan_says_two_packages_own_belongs_to_the_later_one(world: World) -> None:
    world.installed()
    write_wheel(world.wheels, "later", "1.0", files={"numbers_a.py": "A = 'later'\n", "later.py": "L = 1\n"})
    argv = [
        "uv",
        "pip",
        "install",
        "--quiet",
        "--python",
        str(world.root / "bin/python"),
        "--no-index",
        "--link-mode",
        "copy",
    ]
    argv[0] = find_uv()
    subprocess.run([*argv, "--find-links", str(world.wheels), "later"], check=True)
    with (world.root / ".npuenv/lock.toml").open("a") as lock:
        lock.write('name = "later"\n')
    assert "later and numbers" in str(state(world)["damaged"])
    assert state(world, "--over", "later=numbers")["damaged"] == {}
    # The earlier one coming back is damage to the later one, and only that one goes.
    (world.site / "numbers_a.py").write_text("A = 1\n")
    assert list(state(world, "--over", "later=numbers")["damaged"]) == ["later"]  # type: ignore[call-overload]
    said = ask(world, "mend", "--over", "later=numbers").stdout
    assert "taking out later" in said and "taking out numbers" not in said
    assert (world.site / "numbers_a.py").read_text() == "A = 1\n"


def test_the_later_owner_counts_also_where_it_is_read_after_the_earlier_one(world: World) -> None:
    world.installed()
    write_wheel(world.wheels, "numbers-npu", "1.0", files={"numbers_a.py": "A = 'of another size'\n"})
    uv = find_uv()
    place = ["--python", str(world.root / "bin/python"), "--no-index", "--link-mode", "copy"]
    subprocess.run([uv, "pip", "install", "--quiet", *place, "--find-links", world.wheels, "numbers-npu"], check=True)
    with (world.root / ".npuenv/lock.toml").open("a") as lock:
        lock.write('name = "numbers-npu"\n')
    over = ("--over", "numbers-npu=numbers")
    assert "numbers and numbers-npu" in ask(world, "check", *ALL, "numbers-npu==1.0").stdout
    assert ask(world, "check", *over, "numbers==2.4").returncode == 0
    assert ask(world, "verify", "lock", *over, *ALL, "numbers-npu==1.0").returncode == 0
    assert state(world, *over)["damaged"] == {}


@pytest.mark.usefixtures("asked_here")
@pytest.mark.slow
def test_of_two_packages_that_quarrel_over_a_file_both_are_taken_out(world: World) -> None:
    world.installed()
    write_wheel(world.wheels, "stray", "1.0", files={"numbers_a.py": "A = 'stray'\n"})
    uv = find_uv()
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", world.root / "bin/python", "--no-index", "--link-mode", "copy",
         "--find-links", world.wheels, "stray"],
        check=True,
    )  # fmt: skip
    plan = world.plan()
    assert world.install(plan).done[0] == "mend"
    assert "stray" not in state(world)["dists"]  # type: ignore[operator]
    assert (world.site / "numbers_a.py").read_text() == "A = 1\n"


def test_files_of_nobody_are_notes_and_byte_code_is_not(world: World) -> None:
    world.installed()
    (world.site / "mine.txt").write_text("x")
    (world.site / "__pycache__").mkdir(exist_ok=True)
    (world.site / "__pycache__/tools.cpython-311.pyc").write_text("x")
    said = ask(world, "verify", "lock", *ALL)
    assert said.returncode == 0
    notes = [line for line in said.stdout.splitlines() if line.startswith("note: ")]
    own = [note.split()[1] for note in notes if "site-packages" in note]
    assert own == [str((world.site / "mine.txt").relative_to(world.root))]


def test_byte_code_of_a_damaged_source_goes_with_it(world: World) -> None:
    world.installed()
    code = f"import py_compile; py_compile.compile({str(world.site / 'numbers_a.py')!r})"
    subprocess.run([world.root / "bin/python", "-c", code], check=True)
    assert list(world.site.glob("__pycache__/numbers_a.*.pyc"))
    (world.site / "numbers_a.py").write_text("A = 7\n")
    assert ask(world, "mend").returncode == 0
    assert not list(world.site.glob("__pycache__/numbers_a.*.pyc"))


@pytest.mark.parametrize("keep", [0, 20, -1])
def test_a_record_of_which_only_the_beginning_is_there_is_damage(world: World, keep: int) -> None:
    world.installed()
    record = next(world.site.glob("numbers-*.dist-info/RECORD"))
    record.write_text(record.read_text()[:keep])
    damaged = state(world)["damaged"]
    assert isinstance(damaged, dict) and list(damaged) == ["numbers"] and damaged["numbers"].startswith("RECORD ")
    assert ask(world, "check", "numbers==2.4").returncode == 1


@pytest.mark.slow
def test_imports_are_tried_apart_with_their_version_and_a_time_limit(world: World) -> None:
    files = {"slow.py": "import time\ntime.sleep(600)\n", "broken.py": "import no_such_module\n", "bare.py": ""}
    write_wheel(
        world.wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": "__version__ = '0.3'\n", **files}
    )
    world.installed()

    def tried(*modules: str, limit_s: int = 90) -> str:
        words = [word for module in modules for word in ("--import", module)]
        return ask_itself(world, "verify", "lock", "--limit", str(limit_s), *words, *ALL).stdout

    assert "problem" not in tried("tools==0.3", "bare", "torch==9.1+cpu")
    assert "problem: tools calls itself 0.3 instead of 0.4" in tried("tools==0.4")
    assert "problem: import broken fails: ModuleNotFoundError: No module named 'no_such_module'" in tried("broken")
    assert re.search(r"^problem: import slow .*\b1 s$", tried("slow", limit_s=1), re.MULTILINE)


@pytest.mark.slow
def test_what_another_import_has_loaded_is_not_imported_again(world: World, tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'imports')!r}, 'a').write(__name__ + ' ')\n"
    write_wheel(
        world.wheels, "torch", "9.1+cpu", requires=["numbers"], files={"torch.py": f"{note}__version__ = '9.1+cpu'\n"}
    )
    more = {"tools.py": f"{note}import torch\n", "broken.py": f"{note}import torch, no_such_module\n"}
    write_wheel(world.wheels, "tools", "0.3", requires=["numbers>=2", "torch>=9"], files=more)
    world.installed()

    def tried(*modules: str) -> tuple[list[str], list[str]]:
        (tmp_path / "imports").write_text("")
        words = [word for module in modules for word in ("--import", module)]
        said = ask_itself(world, "verify", "lock", *words, *ALL).stdout.splitlines()
        loaded = (tmp_path / "imports").read_text().split()
        return loaded, [line for line in said if line.startswith("problem: ")]

    assert tried("torch==9.1+cpu", "tools==0.3") == (["tools", "torch"], [])
    assert tried("torch==9.2", "tools")[1] == ["problem: torch calls itself 9.1+cpu instead of 9.2"]
    loaded, problems = tried("torch==9.1", "broken")  # what failed has proven nothing of what it loaded
    assert sorted(loaded) == ["broken", "torch", "torch"] and len(problems) == 1 and "broken" in problems[0]


@pytest.mark.slow
def test_nothing_of_another_accelerator_loads_itself_in_a_tried_import(world: World) -> None:
    text = "import os\n__version__ = os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD']\n"
    write_wheel(world.wheels, "tools", "0.3", requires=["numbers>=2"], files={"tools.py": text})
    world.installed()
    assert "problem" not in ask_itself(world, "verify", "lock", "--import", "tools==0", *ALL).stdout


def test_an_import_that_lasts_too_long_is_a_problem() -> None:
    assert imported("this", [], 0.0) == ({}, "import this did not end within 0 s")


def test_an_editable_package_is_damaged_without_its_folder(tmp_path: Path) -> None:
    info = tmp_path / "lib/python3.11/site-packages/built-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("built-1.0.dist-info/RECORD,,\n")
    (info / "direct_url.json").write_text(json.dumps({"url": f"file://{tmp_path}/src", "dir_info": {"editable": True}}))
    found = json.loads(inspected("state", str(tmp_path))[1])
    assert found["damaged"] == {"built": f"its folder {tmp_path}/src is not there"}


def test_only_what_has_the_name_of_a_torn_file_is_one(tmp_path: Path) -> None:
    for name in (".tmpabc123", ".tmpabc123.of-mine", "my.tmpabc123"):
        (tmp_path / name).touch()
    inspection = Inspection(str(tmp_path), [])
    inspection.site = str(tmp_path / "site-packages")
    assert list(unowned(inspection)) == [str(tmp_path / ".tmpabc123")]


def test_a_cache_that_cannot_be_cleaned_ends_the_mending(tmp_path: Path) -> None:
    (tmp_path / "archive-v0/1/tools-0.3.dist-info").mkdir(parents=True)
    uv = tmp_path / "uv"
    uv.write_text(f'#!/bin/sh\n[ "$2" = dir ] || exit 2\necho {tmp_path}\n')
    uv.chmod(0o755)
    assert distrust(str(uv), ["tools"]) == 2


def test_a_link_that_is_a_folder_is_refused(tmp_path: Path, world: World) -> None:
    world.installed()
    (tmp_path / "current").mkdir()
    ran = ask(world, "switch", str(tmp_path / "current"))
    assert ran.returncode == 1 and ran.stdout.startswith(f"problem: {tmp_path}/current ")


def test_switching_to_what_is_in_force_changes_nothing(tmp_path: Path, world: World) -> None:
    world.installed()
    link = tmp_path / "current"
    assert ask(world, "switch", str(link)).returncode == 0
    assert link.readlink() == world.root and not (tmp_path / "previous").exists()
    assert ask(world, "switch", str(link)).returncode == 0
    assert not (tmp_path / "previous").exists()


def test_without_a_verb_that_it_knows_it_says_how_it_is_used(world: World) -> None:
    world.installed()
    assert ask_itself(world, "look").returncode == 2
    assert ask_itself(world, "verify").returncode == 2
    alone = json.loads(ask_itself(world, "state").stdout)
    assert alone["verified"] and (alone | {"hashed": 0}) == state(world)


@pytest.mark.slow
def test_a_package_that_the_user_added_and_altered_is_left_alone(world: World) -> None:
    world.installed()
    write_wheel(world.wheels, "mine", "1.0", files={"mine.py": "M = 1\n"})
    uv = find_uv()
    subprocess.run(
        [uv, "pip", "install", "--quiet", "--python", world.root / "bin/python", "--no-index", "--link-mode", "copy",
         "--find-links", world.wheels, "mine"],
        check=True,
    )  # fmt: skip
    (world.site / "mine.py").write_text("M = 'patched'\n")
    assert world.install(world.plan()).done == ()
    said = ask(world, "verify", "lock", *ALL)
    assert said.returncode == 0
    notes = [line for line in said.stdout.splitlines() if line.startswith("note: mine ")]
    assert len(notes) == 2 and "mine.py" not in notes[0] and "mine.py" in notes[1]
    assert (world.site / "mine.py").read_text() == "M = 'patched'\n"


def test_all_that_an_environment_says_of_itself_is_on_the_disk_before_it_comes_into_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, link = tmp_path / "envs/new", tmp_path / "envs/current"
    (root / ".npuenv").mkdir(parents=True)
    for name in ("npuenv-env.json", ".npuenv/lock.toml", ".npuenv/manifest.json", ".npuenv/verified.json"):
        (root / name).write_text("{}")
    events: list[str] = []
    fsync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))  # type: ignore[func-returns-value]
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append(f"rename {new}"), rename(old, new)))  # type: ignore[func-returns-value]
    assert program.switch(str(root), str(link)) == 0
    *before, renamed, after = events
    own = [f"{root}/{name}" for name in (".npuenv/lock.toml", ".npuenv/manifest.json", ".npuenv/verified.json")]
    assert {str(root / "npuenv-env.json"), *own, f"{root}/.npuenv", str(root), str(root.parent)} == set(before)
    assert (renamed, after) == (f"rename {link}", str(link.parent))
    events.clear()
    write_json(str(root / ".npuenv/verified.json"), {"a": 1})
    assert events == [f"{root}/.npuenv/verified.json.new", f"rename {root}/.npuenv/verified.json"]


def test_only_what_the_lock_names_is_mended_where_that_is_asked_for(world: World) -> None:
    world.installed()
    mine = write_wheel(world.wheels, "mine", "1.0", files={"mine.py": "M = 1\n", "numbers_a.py": "A = 7\n"})
    install = [
        find_uv(),
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--no-index",
        "--python",
        str(world.root / "bin/python"),
    ]
    subprocess.run([*install, mine], check=True, capture_output=True)
    assert sorted(state(world)["damaged"]) == ["numbers"]  # type: ignore[call-overload]
    (world.site / "mine.py").write_text("M = 2\n")
    assert sorted(state(world, "--only-locked")["damaged"]) == ["numbers"]  # type: ignore[call-overload]
    said = ask(world, "mend", "--only-locked").stdout
    assert "taking out numbers" in said and "mine" not in said.replace("numbers_a.py", "").partition("it belongs")[0]
    assert (world.site / "mine.py").read_text() == "M = 2\n" and (world.site / "numbers_a.py").read_text() == "A = 7\n"
    assert "numbers" not in state(world)["dists"] and "mine" in state(world)["dists"]  # type: ignore[operator]
