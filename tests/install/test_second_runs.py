"""Installing where something stands already: what is asked about, what stays, what is not fetched, what is said."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.facts.manifest import MANIFEST, MARKER
from npuenv.lock.file import Missing
from npuenv.lock.uv import find_uv, write_wheel
from npuenv.resolve.types import BuildStep, GitSource
from tests.support.sentences import says

if TYPE_CHECKING:
    from pathlib import Path

    from tests.install.conftest import Product


def content(root: Path) -> dict[str, bytes]:
    """Every file but npuenv's own words, byte code, and what uv notes of a wheel's age, with its row of RECORD."""
    left_out = {".npuenv", "npuenv-env.json", "__pycache__", "uv_cache.json"}
    paths = (path for path in root.rglob("*") if not left_out & set(path.relative_to(root).parts))
    return {str(path.relative_to(root)): _without_age(path) for path in paths if path.is_file()}


def _without_age(path: Path) -> bytes:
    lines = path.read_bytes().splitlines(keepends=True)
    return b"".join(line for line in lines if path.name != "RECORD" or b"/uv_cache.json," not in line)


def users_environment(root: Path) -> str:
    """The Python of an environment that npuenv did not make."""
    subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, root], check=True)
    return str(root / "bin/python")


def put_in(python: str, wheel: Path) -> None:
    command = [find_uv(), "pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--python", python]
    subprocess.run([*command, wheel], check=True)


def tools_of(root: Path) -> Path:
    return next(root.glob("lib/python*/site-packages")) / "tools.py"


def program(folder: Path, name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that comes first on PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return path


def out_of_reach(product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wheel is left anywhere, and the index of torch does not answer."""
    for wheel in product.world.wheels.glob("*.whl"):
        wheel.unlink()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty cache"))


@pytest.mark.parametrize("is_reachable", [True, False])
@pytest.mark.slow
def test_the_same_set_in_a_lock_that_was_written_anew_is_the_same_environment(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_reachable: bool
) -> None:
    root, before, at = product.current, content(product.current), tools_of(product.current).stat().st_ctime_ns
    product.lock = replace(product.lock, made_with="uv 99.0", inputs="f" * 64, newest="2026-12-01")
    assert product.lock.hash == root.name
    if not is_reachable:
        out_of_reach(product, tmp_path, monkeypatch)
    for words in ((), ("--repair",)):
        code, _, err = product.run("install", "tiny", *words)
        assert (code, content(root), tools_of(root).stat().st_ctime_ns) == (0, before, at), err


@pytest.mark.slow
def test_an_environment_of_another_kind_goes_only_with_replace(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda = program(tmp_path / "bin", "conda", "echo out of reach >&2; exit 1", monkeypatch)
    monkeypatch.setenv("CONDA_EXE", str(conda))
    before = content(product.current)
    for words in (("--yes",), ("--dry-run",), ("--script",)):
        code, _, err = product.run("install", "tiny", "--as", "conda", *words)
        assert (code, says(err, "install.other-kind", kind="venv"), "--as venv" in err) == (2, True, True)
    assert content(product.current) == before
    code, _, err = product.run("install", "tiny", "--as", "conda", "--replace")
    assert (code, "no terminal" in err, content(product.current) == before) == (2, True, True)
    assert product.run("install", "tiny", "--as", "conda", "--replace", "--yes")[0] == 1  # out of reach


@pytest.fixture
def sourced(product: Product, tmp_path: Path) -> Path:
    """The stack builds on a repository; gives its folder."""
    origin = tmp_path / "origin"

    def git(*argv: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b.example", *argv], check=True, capture_output=True
        )

    git("init", "-q", "-b", "main", str(origin))
    (origin / "thing.py").write_text("T = 'git'\n")
    git("-C", str(origin), "add", ".")
    git("-C", str(origin), "commit", "-qm", "1")
    git("-C", str(origin), "tag", "v1")
    source = GitSource("thing", str(origin), "v1", False, how="pythonpath")
    product.change(
        git_sources=(source,),
        order=(*product.stack.order, BuildStep("thing", "git", ("thing",), product.stack.order[0].why)),
    )
    return origin


def supplied(folder: Path, text: str) -> tuple[Path, Path]:
    """A source with this text as a folder and as an archive."""
    folder.mkdir()
    (folder / "thing.py").write_text(text)
    path = folder.with_suffix(".tar.gz")
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, "thing")
    return folder, path


@pytest.mark.parametrize("is_linked", [False, True])
@pytest.mark.slow
def test_a_source_that_was_supplied_stays_with_the_users_work_until_another_is_supplied(
    product: Product, sourced: Path, tmp_path: Path, is_linked: bool
) -> None:
    folder, path = supplied(tmp_path / "one", "T = 1\n")
    given, kind = (folder, "folder ") if is_linked else (path, "sha256:")
    assert product.run("install", "tiny", "--source", f"thing={given}", "--yes")[0] == 0
    source = product.current / "src/thing"
    (source / "mine.py").write_text("my work\n")
    (row,) = json.loads((product.current / MANIFEST).read_text())["sources"]
    assert row["from"].startswith(kind)
    sourced.rename(tmp_path / "gone")
    for words in ((), ("--repair",), ("--yes",)):
        code, out, err = product.run("install", "tiny", *words)
        assert (code, says(out, "cli.was-installed", stack="tiny")) == (0, True), err
    assert says(product.run("install", "tiny", "--dry-run")[1], "plan.why-source-kept", name="thing")
    assert (source / "mine.py").read_text() == "my work\n"
    _, other = supplied(tmp_path / "other", "T = 2\n")
    code, out, err = product.run("install", "tiny", "--source", f"thing={other}")
    assert (code, says(out, "plan.why-source-given", name="thing", path=other)) == (2, True), err
    assert (source / "mine.py").exists()
    assert product.run("install", "tiny", "--source", f"thing={other}", "--yes")[0] == 0
    assert sorted(os.listdir(product.current / "src/thing")) == ["thing.py"]


@pytest.mark.slow
def test_a_supplied_source_that_is_gone_comes_from_its_repository_once_that_is_agreed_to(
    product: Product, sourced: Path, tmp_path: Path
) -> None:
    _, given = supplied(tmp_path / "one", "T = 1\n")
    assert product.run("install", "tiny", "--source", f"thing={given}", "--yes")[0] == 0
    source = product.current / "src/thing"
    (source / "thing.py").unlink()
    source.rmdir()
    assert product.run("install", "--repair", "tiny")[0] == 2
    assert product.run("install", "--repair", "tiny", "--yes")[0] == 0
    assert (source / "thing.py").read_text() == "T = 'git'\n"
    assert "from" not in json.loads((product.current / MANIFEST).read_text())["sources"][0]


@pytest.mark.slow
def test_a_supplied_source_stays_when_a_repair_was_stopped_and_goes_when_the_environment_is_made_anew(
    product: Product, sourced: Path, tmp_path: Path
) -> None:
    _, given = supplied(tmp_path / "one", "T = 1\n")
    assert product.run("install", "tiny", "--source", f"thing={given}", "--yes")[0] == 0
    source = product.current / "src/thing/thing.py"
    tools_of(product.current).unlink()
    assert product.run("install", "--repair", "tiny", "--only-step", "mend")[0] == 0
    assert product.run("install", "--repair", "tiny", "--yes")[0] == 0
    assert source.read_text() == "T = 1\n"
    (product.current / "bin/python").unlink()
    assert product.run("install", "--repair", "tiny", "--yes")[0] == 0
    assert source.read_text() == "T = 'git'\n"


@pytest.mark.slow
def test_what_an_installation_that_was_never_finished_was_given_does_not_stick(
    product: Product, sourced: Path, tmp_path: Path
) -> None:
    _, given = supplied(tmp_path / "one", "T = 1\n")
    words = ("install", "tiny", "--target", str(tmp_path / "new"), "--yes")
    for step in ("venv", "inspector", "thing-source"):
        assert product.run(*words, "--source", f"thing={given}", "--only-step", step)[0] == 0
    assert product.run(*words)[0] == 0
    assert (tmp_path / "new/src/thing/thing.py").read_text() == "T = 'git'\n"


@pytest.mark.slow
def test_what_damage_took_from_an_own_environment_is_put_back_without_a_question(product: Product) -> None:
    before = content(product.current)
    tools_of(product.current).unlink()
    (product.current / "activate.sh").write_text("altered\n")
    (product.current / ".npuenv/inspector.py").write_text("of another version\n")
    code, _, err = product.run("install", "tiny")
    assert (code, content(product.current)) == (0, before), err


def test_an_environment_that_has_to_be_made_anew_is_asked_about(product: Product) -> None:
    before = content(product.current)
    (product.current / "bin/python").unlink()
    code, out, err = product.run("install", "--repair", "tiny")
    assert (code, "no terminal" in err, out.count("rm -rf")) == (2, True, 1)
    assert content(product.current).keys() == before.keys() - {"bin/python", "bin/python3", *_others(product, before)}
    assert product.run("install", "--repair", "tiny", "--yes")[0] == 0


def _others(product: Product, before: dict[str, bytes]) -> set[str]:
    """Links to the interpreter, which lead nowhere without it."""
    return {name for name in before if name.startswith("bin/python") and not (product.current / name).exists()}


def test_packages_of_the_system_are_asked_about_though_the_environment_is_complete(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    for name in ("apt-get", "dnf", "yum"):
        program(tmp_path / "bin", name, f'echo "$*" >> {log}', monkeypatch)
    product.stack = replace(product.stack, system_packages=("npuenv-no-such-package",))
    code, out, err = product.run("install", "tiny", "--with-system")
    if "known" in err:
        pytest.skip("the names of this system's packages are not known")
    assert (code, "no terminal" in err, log.exists()) == (2, True, False)
    assert out.count("\n1. system: ") == 1 and "2. venv" not in out  # what is done already is not asked about


@pytest.mark.slow
def test_the_users_own_version_of_a_package_is_not_put_back_without_a_question(
    product: Product, tmp_path: Path
) -> None:
    python = users_environment(tmp_path / "mine")
    words = ("install", "tiny", "--into", python)
    assert product.run(*words, "--yes")[0] == 0
    assert says(product.run(*words)[1], "cli.was-installed", stack="tiny")
    put_in(python, write_wheel(tmp_path, "tools", "0.9", files={"tools.py": "C = 9\n"}))
    code, _, err = product.run(*words)
    assert (code, "tools 0.9 -> 0.3" in err, tools_of(tmp_path / "mine").read_text()) == (2, True, "C = 9\n")
    assert product.run(*words, "--yes")[0] == 0
    assert tools_of(tmp_path / "mine").read_text() == "C = 3\n"


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["METADATA", "RECORD", "*"])
def test_a_package_that_a_kill_cut_short_comes_back_into_an_environment_of_the_users(
    product: Product, tmp_path: Path, lost: str
) -> None:
    python = users_environment(tmp_path / "mine")
    words = ("install", "tiny", "--into", python, "--yes")
    assert product.run(*words)[0] == 0
    info = next(tools_of(tmp_path / "mine").parent.glob("tools-*.dist-info"))
    for path in info.glob(lost):
        path.unlink()
    assert product.run(*words)[0] == 0
    assert {path.name for path in info.iterdir()} >= {"METADATA", "RECORD"}


@pytest.mark.slow
def test_what_was_returned_from_does_not_come_back_into_force_without_a_question(product: Product) -> None:
    old = product.current
    product.release()
    assert product.run("install", "--update", "tiny", "--yes")[0] == 0
    new = product.current
    assert product.run("install", "--rollback", "tiny")[0] == 0
    for words in (("install", "tiny"), ("install", "--update", "tiny")):
        code, _, err = product.run(*words)
        assert (code, "no terminal" in err, product.current) == (2, True, old)
    code, _, err = product.run("install", "tiny", "--yes")
    assert (code, product.current, says(err, "install.comes-into-force", path=new, before=old)) == (0, new, True)


@pytest.mark.parametrize("by_link", [True, False])
def test_nothing_is_put_into_an_environment_of_npuenvs_own(product: Product, by_link: bool) -> None:
    root, before = product.current, content(product.current)
    product.release()
    python = str((product.home / "current" if by_link else root) / "bin/python")
    for words in (("--yes",), ("--dry-run",)):
        code, _, err = product.run("install", "tiny", "--into", python, *words)
        assert (code, says(err, "plan.into-made", exe=python)) == (2, True)
    assert content(root) == before
    assert product.run("env", "remove", "tiny", "--yes")[0] == 0


@pytest.mark.slow
def test_a_part_of_the_plan_does_not_say_that_the_environment_is_complete(product: Product) -> None:
    product.release()
    new = product.home / product.lock.hash
    code, out, _ = product.run("install", "tiny", "--yes", "--only-step", "venv")
    assert (code, says(out, "install.part-done", steps="venv"), "activate.sh" in out) == (0, True, False)
    code, out, _ = product.run("install", "tiny", "--yes", "--only-step", "inspector", "--json")
    shown = json.loads(out)
    assert (shown["is_proven"], shown["activate"], shown["steps_done"]) == (False, None, 1)
    code, out, _ = product.run("install", "tiny", "--yes", "--from-step", "mend", "--json")
    shown = json.loads(out)
    assert (shown["is_proven"], shown["activate"]) == (True, f"{new}/activate.sh")
    tools_of(new).write_text("C = 9\n")
    code, out, _ = product.run("install", "tiny", "--only-step", "mend")
    assert (code, says(out, "install.part-done", steps="mend")) == (0, True)
    assert product.run("install", "tiny", "--yes")[0] == 0
    assert says(product.run("install", "tiny", "--only-step", "verify")[1], "cli.was-installed", stack="tiny")


def test_what_is_only_shown_is_the_part_that_was_asked_for(product: Product, tmp_path: Path) -> None:
    place = ("--target", str(tmp_path / "new"))
    for words in (("--dry-run",), ("--script",), ("--yes",)):
        code, out, err = product.run("install", "tiny", *place, *words, "--only-step", "nosuch")
        assert (code, out, says(err, "execute.no-such-step", step="nosuch")) == (2, "", True)
    assert not (tmp_path / "new").exists()
    out = product.run("install", "tiny", *place, "--dry-run", "--from-step", "verify")[1]
    assert ("\n1. verify: " in out, "\n2. finish: " in out, "3. " in out) == (True, True, False)
    steps = json.loads(product.run("install", "tiny", *place, "--dry-run", "--json", "--only-step", "mend")[1])["steps"]
    assert [step["id"] for step in steps] == ["mend"]
    script = product.run("install", "tiny", *place, "--script", "--only-step", "venv")[1]
    assert "[1/1] venv" in script and "pip install" not in script
    out = product.run("install", "tiny", *place, "--only-step", "venv")[1]
    assert ("\n1. venv: " in out, "2. " in out) == (True, False)


@pytest.mark.parametrize("words", [(), ("--repair",), ("--only-step", "verify")])
def test_where_all_is_in_place_nothing_has_to_be_in_reach(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    out_of_reach(product, tmp_path, monkeypatch)
    code, _, err = product.run("install", "tiny", *words)
    assert code == 0, err


@pytest.mark.parametrize("damage", ["", "torch = 9\n"])
def test_nothing_is_taken_out_that_cannot_be_fetched_again(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    out_of_reach(product, tmp_path, monkeypatch)
    module = next(product.current.glob("lib/python*/site-packages/torch/__init__.py"))
    module.write_text((damage + "#" * 99)[: module.stat().st_size] if damage else damage)
    before = content(product.current)
    code, _, err = product.run("install", "--repair", "tiny")
    assert (code, "pytorch-cpu" in err, content(product.current)) == (4, True, before)


def test_a_repair_asks_only_for_what_is_damaged(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = content(product.current)
    next(product.world.wheels.glob("torch-*.whl")).unlink()  # and its index does not answer
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty cache"))
    module = tools_of(product.current)
    module.write_text(module.read_text() + "# a line of the user's\n")
    code, _, err = product.run("install", "--repair", "tiny", "--yes")
    assert (code, content(product.current)) == (0, before), err


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--source", "foo={here}"), "--source foo="),
        (("--base-python", "/bin/false"), "--base-python"),
        (("--offline", "{here}/absent.tar"), "npuenv bundle"),
        (("--cann-file", "{here}/absent.run"), "--cann-file"),
    ],
)
def test_an_option_that_cannot_be_taken_is_refused_with_what_to_do(
    product: Product, tmp_path: Path, words: tuple[str, ...], hint: str, lang: str
) -> None:
    asked = [word.format(here=tmp_path) for word in words]
    code, _, err = product.run("install", "tiny", "--dry-run", "--lang", lang, *asked)
    assert code == 2 and len(err.splitlines()) == 2 and hint in err.splitlines()[1], err
    assert "none" not in err or "--source" in asked


def test_a_script_is_refused_as_an_installation_is_where_the_lock_lacks_hashes(product: Product) -> None:
    torch = product.lock.package("torch")
    assert torch is not None
    gap = Missing("torch", torch.version, "index-out-of-reach", torch.index or "")
    packages = tuple(replace(each, sha256=()) if each.name == "torch" else each for each in product.lock.packages)
    product.lock = replace(product.lock, packages=packages, missing=(gap,))
    place = ("--target", str(product.data / "new"))
    refused = [product.run("install", "tiny", *place, word) for word in ("--yes", "--script")]
    assert [(code, out) for code, out, _ in refused] == [(4, "")] * 2
    assert refused[0][2] == refused[1][2] and "--fill" in refused[1][2]
    code, out, err = product.run("install", "tiny", *place, "--dry-run")
    assert (code, "venv" in out, says(err, "lock.partial", stack="tiny"), "--fill" in err) == (4, True, True, True)


@pytest.mark.slow
def test_room_is_asked_for_only_where_something_is_to_be_put_in(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = users_environment(tmp_path / "mine")
    words = ("install", "tiny", "--into", python)
    assert product.run(*words, "--yes")[0] == 0
    program(tmp_path / "bin", "df", "echo F; echo /dev/x 100000 90000 10240 90% /", monkeypatch)
    for each in (words, (*words, "--repair")):
        code, _, err = product.run(*each, "--yes")
        assert code == 0, err
    python = users_environment(tmp_path / "other")
    code, _, err = product.run("install", "tiny", "--into", python, "--yes")
    assert (code, "10 MiB free" in err, says(err, "plan.make-room"), "--target" in err) == (2, True, True, False)


def test_a_folder_that_an_installation_would_refuse_gets_no_plan_and_no_script(
    product: Product, tmp_path: Path
) -> None:
    place = tmp_path / "work"
    (place / "src").mkdir(parents=True)
    (place / "src/thesis.py").write_text("years of work\n")
    other = tmp_path / "other"
    assert product.run("install", "tiny", "--target", str(other), "--yes")[0] == 0
    product.release()
    for words in (("--dry-run",), ("--script",), ("--dry-run", "--json")):
        code, out, err = product.run("install", "tiny", "--target", str(place), *words)
        assert (code, "years" in out, says(out + err, "plan.target-foreign", names="src")) == (2, False, True)
        code, out, err = product.run("install", "tiny", "--target", str(other), *words)
        assert (code, says(out + err, "install.other-environment", stack="tiny")) == (2, True)
    assert product.run("install", "tiny", "--target", str(other), "--script", "--replace")[0] == 0
    assert json.loads((other / MARKER).read_text())["status"] == "complete"
