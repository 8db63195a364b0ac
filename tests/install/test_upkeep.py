"""Update, rollback, repair and `npuenv env` on the command line, with a stack of tiny wheels in a home of its own."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.app import InstallOptions, Progress, install
from npuenv.app.installation import manifest_request
from npuenv.bundle import reader as meant
from npuenv.bundle import reader as opened
from npuenv.bundle.layout import FileRow, Manifest, manifest_text, request_values, settle, write_tar
from npuenv.checks import Finding, Status
from npuenv.cli.progress import StepProgress
from npuenv.core.errors import BadInput
from npuenv.core.messages import Message, say
from npuenv.core.plan import Plan, Run, Step
from npuenv.facts.conditions import INSPECTOR
from npuenv.facts.manifest import LOCK, MANIFEST, MARKER, VERIFIED, described
from npuenv.host.local import LocalHost
from npuenv.host.writing import sha256_of
from npuenv.install import executor as work
from npuenv.install.executor import Event, StepEvent
from npuenv.lock.file import write_lock
from npuenv.lock.uv import find_uv, write_wheel
from npuenv.resolve.types import Request
from npuenv.terminal.run import Ui
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.app.progress import InstallJob, PackageChange
    from tests.install.conftest import Product, World


def tree(root: Path) -> str:
    """A hash over every path, link and content of an environment, npuenv's own notes and byte code left out."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in (".npuenv", "__pycache__"))
        for name in sorted(names):
            path = Path(folder, name)
            content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            digest.update(f"{path.relative_to(root)}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def test_an_update_without_news_says_so_and_changes_nothing(product: Product) -> None:
    before = tree(product.current)
    code, out, _ = product.run("install", "--update", "tiny")
    assert (code, says(out, "install.up-to-date")) == (0, True)
    assert tree(product.current) == before


def test_an_update_shows_the_difference_and_switches_only_when_the_new_one_is_proven(product: Product) -> None:
    old = product.current
    before = tree(old)
    product.release()
    code, out, _ = product.run("install", "--update", "--dry-run")
    assert code == 0
    assert "tools: 0.3 -> 0.4" in out
    assert product.current == old
    code, out, _ = product.run("install", "--update", "--yes")
    assert code == 0, out
    assert says(out, "install.can-roll-back", stack="tiny")
    assert product.current.name == product.lock.hash
    assert "C = 4" in next(product.current.glob("lib/python*/site-packages/tools.py")).read_text()
    assert tree(old) == before


def test_a_rollback_returns_to_the_same_tree(product: Product) -> None:
    old = product.current
    before = tree(old)
    product.release()
    product.run("install", "--update", "--yes")
    new = product.current
    code, out, _ = product.run("install", "--rollback")
    assert code == 0, out
    assert (product.current, tree(product.current)) == (old, before)
    product.run("install", "--rollback", "tiny")
    assert product.current == new


def test_an_update_that_fails_leaves_the_old_one_in_force(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = product.current
    product.release()
    next(product.world.wheels.glob("tools-0.4*")).unlink()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "empty cache"))
    code, _, err = product.run("install", "--update", "--yes")
    assert code == 1
    assert "tools" in err
    assert product.current == old
    assert product.run("install", "--repair")[0] == 0


def test_what_the_doctor_objects_to_never_comes_into_force(product: Product) -> None:
    old = product.current
    product.release()
    says = Message("check_stack.python-differs", {"stack": "tiny", "wanted": "3.11", "has": "3.9"})
    product.failed_checks = (Finding("stack.python", Status.FAIL, says, (), "source", None),)
    code, _, err = product.run("install", "--update", "--yes")
    assert code == 1
    assert "this is 3.9 [stack.python]" in err
    assert "npuenv doctor --python" in err
    assert product.current == old
    product.failed_checks = ()
    assert product.run("install", "--update", "--yes")[0] == 0
    assert product.current.name == product.lock.hash


@pytest.mark.slow
def test_a_former_environment_that_was_damaged_is_not_returned_to(product: Product) -> None:
    old = product.current
    product.release()
    product.run("install", "--update", "--yes")
    new = product.current
    next(old.glob("lib/python*/site-packages/tools.py")).write_text("C = 9\n")
    code, _, err = product.run("install", "--rollback")
    assert code == 2
    assert "tools.py" in err
    assert f"--repair --target {old}" in err
    assert product.current == new
    assert product.run("install", "--repair", "--target", str(old), "--yes")[0] == 0
    assert product.current == new
    assert product.run("install", "--rollback")[0] == 0
    assert product.current == old


@pytest.mark.slow
def test_a_repair_restores_from_the_own_lock_though_a_newer_one_is_out(product: Product) -> None:
    root = product.current
    before = tree(root)
    product.release()
    next(root.glob("lib/python*/site-packages/tools.py")).write_text("C = 9\n")
    next(root.glob("lib/python*/site-packages/numbers_a.py")).unlink()
    code, out, _ = product.run("install", "--repair")
    assert code == 0, out
    assert (product.current, tree(root)) == (root, before)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tools.py", "numbers-2.4.dist-info/METADATA"])
def test_a_repair_puts_a_file_in_place_of_a_link_and_leaves_alone_what_it_led_to(
    product: Product, tmp_path: Path, name: str
) -> None:
    before, place = tree(product.current), next(product.current.glob("lib/python*/site-packages")) / name
    outside = tmp_path / "outside"
    outside.write_bytes(place.read_bytes())
    place.unlink()
    place.symlink_to(outside)
    assert product.run("install", "--repair")[0] == 0
    assert (tree(product.current), place.is_symlink(), outside.exists()) == (before, False, True)


@pytest.mark.slow
def test_a_repair_takes_a_linked_folder_out_and_nothing_that_lies_in_it(product: Product, tmp_path: Path) -> None:
    before, site = tree(product.current), next(product.current.glob("lib/python*/site-packages"))
    (site / "torch").rename(tmp_path / "torch")
    (site / "torch").symlink_to(tmp_path / "torch")
    assert product.run("install", "--repair")[0] == 0
    assert tree(product.current) == before and not (site / "torch").is_symlink()
    assert any((tmp_path / "torch").iterdir())


def lost(root: Path) -> set[str]:
    """What the environment lacks of npuenv's own files, as the doctor tells it."""
    found = described(LocalHost(), str(root)).value
    assert found is not None
    return set(found.lost)


@pytest.mark.parametrize(
    "damage", [Path.unlink, lambda path: path.write_text("other"), lambda path: path.write_text("")]
)
def test_the_doctor_tells_each_file_of_npuenvs_own_that_a_repair_restores(
    product: Product, damage: Callable[[Path], object]
) -> None:
    root = product.current
    own = set(json.loads((root / MANIFEST).read_text())["files"])
    assert own > {"activate.sh", "activate.fish", "activate.csh", ".npuenv/entering.py", INSPECTOR, LOCK}
    assert lost(root) == set()
    mended = own - {LOCK}  # what a repair restores from
    for name in mended:
        damage(root / name)
    assert lost(root) == mended
    damage(root / MANIFEST)
    assert lost(root) == {MANIFEST}  # which alone knew of the others
    assert product.run("install", "--repair", "--yes")[0] == 0
    assert lost(root) == set() and set(json.loads((root / MANIFEST).read_text())["files"]) == own


def test_a_rollback_with_nothing_before_is_a_sentence(product: Product) -> None:
    code, _, err = product.run("install", "--rollback")
    assert code == 2
    assert says(err, "store.no-previous")


def test_env_list_and_show_tell_what_was_verified_when(product: Product) -> None:
    code, out, _ = product.run("env", "list", "--json")
    (row,) = json.loads(out)["environments"]
    assert code == 0
    assert (row["stack"], row["lock"], row["role"], row["status"]) == ("tiny", product.lock.hash, "current", "complete")
    code, out, _ = product.run("env", "show", "tiny", "--json")
    shown = json.loads(out)
    assert shown["verified"]["files"] > 3
    assert shown["verified"]["packages"] == 3
    assert shown["verified"]["at"].endswith("Z")
    assert shown["steps"][0] == "venv"
    assert shown["steps"][-1] == "finish"
    assert shown["is_proven"] is True
    assert shown["request"] == {"stack": "tiny"}


def test_env_remove_asks_first_and_clean_takes_only_the_idle(product: Product) -> None:
    old = product.current
    product.release()
    product.run("install", "--update", "--yes")
    (product.home / "previous").unlink()
    code, _, err = product.run("env", "clean")
    assert code == 2
    assert "--yes" in err
    assert old.exists()
    assert product.run("env", "clean", "--yes")[0] == 0
    assert not old.exists()
    new = product.current
    assert product.run("env", "remove", "tiny", "--yes")[0] == 0
    assert not new.exists()
    assert product.run("env", "list")[1].strip() == sentence("install.no-environment")


def test_a_folder_of_ones_own_cannot_be_updated_beside_itself(product: Product, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    assert product.run("install", "tiny", "--target", str(place), "--yes")[0] == 0
    product.release()
    code, _, err = product.run("install", "--update", "--target", str(place), "--yes")
    assert code == 2
    assert "OTHER-DIR" in err
    assert (place / "bin/python").exists()


@pytest.mark.parametrize(
    "words",
    [("--update", "--repair"), ("--only-step", "venv", "--from-step", "venv"), ("--into", "x", "--target", "y")],
)
def test_options_that_contradict_each_other_are_refused(product: Product, words: tuple[str, ...]) -> None:
    assert product.run("install", "tiny", *words)[0] == 2


def test_the_request_in_the_manifest_can_be_asked_again() -> None:
    said = manifest_request(Request(framework="cpu", pins={"torch": "2.13.0"}, is_newest=True))
    assert Request(**said) == Request(framework="cpu", pins={"torch": "2.13.0"}, is_newest=True)


def test_a_repair_without_the_own_lock_says_how_to_make_it_anew(product: Product) -> None:
    own, root = product.current / LOCK, product.current
    before = own.read_bytes()
    own.unlink()
    assert product.run("install", "--repair", "tiny", "--yes")[0] == 0  # the stack's present lock is the same
    assert (own.read_bytes(), product.current) == (before, root)
    own.unlink()
    product.release()
    code, _, err = product.run("install", "--repair", "tiny", "--yes")
    assert code == 2
    assert f"npuenv install tiny --target {product.home}" in err


def test_of_several_environments_the_hint_repeats_what_was_asked(product: Product, tmp_path: Path) -> None:
    assert product.run("install", "tiny", "--target", str(tmp_path / "mine"), "--yes")[0] == 0
    code, _, err = product.run("install", "--repair", "--yes")
    assert code == 2
    assert str(tmp_path / "mine") in err
    assert "npuenv install --repair" in err
    assert says(product.run("install", "--rollback")[2], "store.no-previous")


def test_the_last_step_alone_puts_nothing_unverified_in_force(product: Product) -> None:
    marker = product.current / MARKER
    finished = marker.read_text()
    marker.write_text(finished.replace("complete", "building"))
    (product.current / VERIFIED).unlink()
    code, _, err = product.run("install", "tiny", "--only-step", "finish", "--yes")
    assert code == 1
    assert "not verified" in err
    assert "building" in marker.read_text()
    assert product.run("install", "tiny", "--yes")[0] == 0
    assert marker.read_text() == finished


def garble(root: Path) -> None:
    (root / MARKER).write_bytes(b"\xfe garbage")


def test_with_a_damaged_marker_the_same_command_goes_on_and_writes_it_anew(product: Product) -> None:
    before, wanted = tree(product.current), (product.current / MARKER).read_text()
    garble(product.current)
    assert "damaged" in product.run("env", "list")[1]
    code, _, err = product.run("install", "tiny", "--yes")
    assert code == 0, err
    assert says(err, "install.marker-damaged", file=f"{product.current}/{MARKER}", path=product.current)
    assert (product.current / MARKER).read_text() == wanted and tree(product.current) == before
    garble(product.current)
    assert product.run("install", "--repair", "--yes")[0] == 0
    assert (product.current / MARKER).read_text() == wanted
    garble(product.current)
    assert product.run("env", "remove", "tiny", "--yes")[0] == 0


@pytest.mark.slow
def test_a_damaged_environment_of_another_lock_goes_only_with_replace(product: Product, tmp_path: Path) -> None:
    place = tmp_path / "mine"
    assert product.run("install", "tiny", "--target", str(place), "--yes")[0] == 0
    garble(place)
    product.release()
    before = tree(place)
    code, _, err = product.run("install", "tiny", "--target", str(place), "--yes")
    assert (code, "--replace" in err, tree(place)) == (2, True, before)
    assert product.run("install", "tiny", "--target", str(place), "--replace", "--yes")[0] == 0
    assert json.loads((place / MARKER).read_text())["lock"] == product.lock.hash


def test_what_is_only_shown_names_the_interpreter_that_the_real_run_takes(product: Product, tmp_path: Path) -> None:
    place = tmp_path / "new"
    real = os.path.realpath(product.current / "bin/python")
    for words in (("--dry-run", "--json"), ("--script",)):
        _, out, err = product.run("install", "tiny", "--target", str(place), *words)
        base = out.partition("--no-project")[2].partition("--python")[2].split()[0 if words == ("--script",) else 1]
        assert os.path.realpath(base.strip("\",'")) == real, (base, err)
        assert sys.prefix == sys.base_prefix or not base.strip("\",'").startswith(sys.prefix)
    code, _, err = product.run("install", "tiny", "--target", str(place), "--dry-run", "--base-python", "/bin/sh")
    assert code == 2 and "/bin/sh" in err


def test_a_narrow_terminal_breaks_no_word_of_the_list_and_a_wide_one_shows_a_table(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, num_lines in (("50", 3), ("400", 2)):
        monkeypatch.setenv("COLUMNS", width)
        code, out, _ = product.run("env", "list", "--lang", "en")
        words = out.split()
        assert code == 0 and {product.lock.hash, f"{product.lock.hash}:"} & set(words)
        assert str(product.current) in words and "complete" in words
        assert width == "50" or len(out.splitlines()) == num_lines
    out = product.run("env", "list", "--lang", "zh")[1]
    assert "已启用" in out and "完整" in out and "current " not in out and "complete" not in out
    shown = product.run("env", "show", "tiny", "--lang", "zh")[1]
    assert "用途: 已启用\n状态: 完整\n" in shown


@pytest.mark.slow
def test_a_repair_mends_what_was_altered_in_an_environment_of_the_users_and_nothing_else(
    product: Product, tmp_path: Path
) -> None:
    root = tmp_path / "mine"
    subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, root], check=True)
    own = write_wheel(product.world.wheels, "own", "1.0", files={"own.py": "O = 1\n"})
    install = [find_uv(), "pip", "install", "--quiet", "--offline", "--no-index", "--python", str(root / "bin/python")]
    subprocess.run([*install, own], check=True)
    assert product.run("install", "tiny", "--into", str(root / "bin/python"), "--yes")[0] == 0
    site = next(root.glob("lib/python*/site-packages"))
    before = (site / "tools.py").read_text()
    (site / "tools.py").write_text("C = 9\n")  # of the same size
    (site / "own.py").write_text("O = 2\n")
    code, _, err = product.run("install", "tiny", "--into", str(root / "bin/python"), "--yes")
    assert (code, "tools.py has another content" in err) == (1, True)
    assert product.run("install", "--repair", "--target", str(root), "--yes")[0] == 0
    assert ((site / "tools.py").read_text(), (site / "own.py").read_text()) == (before, "O = 2\n")


def test_a_long_step_says_now_and_then_that_it_is_alive_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    step = Step("torch", Message("plan.why-rest"), (), ())
    progress = StepProgress(Ui(lang="en", is_quiet=False))
    with progress.executing():
        for second in range(1, 100):
            if second == 60:
                progress.step(Event(StepEvent.LINE, step, 2, 5, "Prepared 3 packages\n", 60.0))
            progress.step(Event(StepEvent.WAITING, step, 2, 5, seconds=float(second)))
    lines = capsys.readouterr().out.splitlines()
    head = "[2/5] torch"
    assert lines == [
        *(sentence("install.still-at-work-silent", head=head, seconds=seconds) for seconds in (10, 40)),
        sentence("install.still-at-work", head=head, seconds=70, line="Prepared 3 packages"),
    ]


def test_an_execution_tells_that_it_waits_while_a_program_is_silent(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work, "_WAITING_S", 0.1)
    enough = tmp_path / "enough"
    run = Run(("sh", "-c", f'while [ ! -e "{enough}" ]; do sleep 0.02; done'))
    seconds: list[float] = []

    def tell(event: Event) -> None:
        if event.state is StepEvent.WAITING:
            seconds.append(event.seconds)
            if len(seconds) == 2:
                enough.touch()

    world.install(Plan((Step("slow", Message("plan.why-rest"), (run,), ()),)), tell=tell)
    assert len(seconds) >= 2 and seconds == sorted(seconds) and 0.1 <= seconds[0] < 600


def users_environment(root: Path) -> str:
    """The Python of an environment that npuenv did not make."""
    subprocess.run([find_uv(), "venv", "--quiet", "--python", sys.executable, root], check=True)
    return str(root / "bin/python")


def tools_of(root: Path) -> Path:
    return next(root.glob("lib/python*/site-packages")) / "tools.py"


@pytest.mark.slow
def test_into_names_the_environment_of_that_python_for_a_repair_too(product: Product, tmp_path: Path) -> None:
    strange, one, other = (users_environment(tmp_path / name) for name in ("strange", "one", "other"))
    for python in (one, other):
        assert product.run("install", "tiny", "--into", python, "--yes")[0] == 0
    for name in ("one", "other"):
        tools_of(tmp_path / name).write_text("C = 9\n")
    code, _, err = product.run("install", "tiny", "--repair", "--into", strange, "--yes")
    assert (code, says(err, "store.no-such", word=f"{tmp_path}/strange")) == (2, True)
    assert not tools_of(tmp_path / "strange").exists()
    assert product.run("install", "--repair", "--into", other, "--yes")[0] == 0
    texts = [tools_of(tmp_path / name).read_text() for name in ("one", "other")]
    assert texts == ["C = 9\n", "C = 3\n"]
    tools_of(product.current).write_text("C = 9\n")
    own = str(product.home / "current/bin/python")
    assert product.run("install", "--repair", "--into", own)[0] == 0
    assert tools_of(product.current).read_text() == "C = 3\n"
    code, _, err = product.run("install", "--repair", "--into", str(tmp_path))
    assert (code, says(err, "plan.into-no-python")) == (2, True)


@pytest.mark.slow
def test_the_users_environment_is_neither_updated_beside_itself_nor_rolled_back(
    product: Product, tmp_path: Path
) -> None:
    python = users_environment(tmp_path / "mine")
    assert product.run("install", "tiny", "--into", python, "--yes")[0] == 0
    product.release()
    assert product.run("install", "--update", "--yes", "tiny")[0] == 0
    before = tree(tmp_path / "mine")
    code, _, err = product.run("install", "--update", "tiny", "--into", python, "--yes")
    assert (code, says(err, "install.update-existing-hint", stack="tiny", python=python)) == (2, True)
    code, _, err = product.run("install", "--rollback", "tiny", "--into", python)
    assert (code, says(err, "store.no-previous", path=f"{tmp_path}/mine")) == (2, True)
    assert tree(tmp_path / "mine") == before and product.current.name == product.lock.hash


@pytest.mark.slow
def test_an_update_may_name_the_environment_in_force_by_its_python_or_its_folder(product: Product) -> None:
    old = product.current
    product.release()
    by_python = ("--into", str(product.home / "current/bin/python"))
    for words in (by_python, ("--target", str(old))):
        assert product.run("install", "--update", *words, "--yes")[0] == 0
        assert (product.current.name, tools_of(old).read_text()) == (product.lock.hash, "C = 3\n")
        assert product.run("install", "--rollback")[0] == 0


def bundled(product: Product, folder: Path) -> Path:
    """A bundle of the present lock in one file, without npuenv itself."""
    lock = product.lock
    (folder / "wheels").mkdir(parents=True)
    (folder / "lock.toml").write_text(write_lock(lock))
    for package in lock.packages:
        wheel = next(product.world.wheels.glob(f"{package.name}-{package.version}-*"))
        shutil.copy(wheel, folder / "wheels")
    rows = tuple(
        FileRow(name, "lock" if path.suffix == ".toml" else "wheel", path.stat().st_size, sha256_of(path))
        for path in sorted(folder.rglob("*.*"))
        if (name := path.relative_to(folder).as_posix())
    )
    request = request_values(Request(framework="cpu"))
    manifest = Manifest("0", lock.stack, lock.platform, lock.hash, "lock.toml", request, (), rows, (), ())
    (folder / "manifest.json").write_text(manifest_text(manifest))
    settle(folder, ())
    out = folder.with_name("bundle.tar")
    write_tar(folder, out, top="npuenv-tiny", first=("manifest.json",))
    return out


def test_an_update_from_an_archive_unpacks_it_once(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpacked: list[Path] = []
    whole = opened._unpacked

    def count(path: Path, *more: Any) -> Manifest:
        unpacked.append(path)
        return whole(path, *more)

    product.release()
    archive = bundled(product, tmp_path / "bundle")
    monkeypatch.setattr(opened, "_unpacked", count)
    for name in ("require_known", "require_matching"):  # the tables know nothing of this stack
        monkeypatch.setattr(meant, name, lambda *asked: None)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nothing"))
    code, _, err = product.run("install", "--update", "--offline", str(archive), "--yes")
    assert (code, product.current.name) == (0, product.lock.hash), err
    assert unpacked == [archive]
    shown = json.loads(product.run("env", "show", "tiny", "--json")[1])
    assert (shown["origin"], shown["request"]) == ("bundle", {"framework": "cpu"})


@pytest.mark.slow
def test_what_an_environment_is_for_is_known_however_it_was_asked_for(product: Product) -> None:
    product.release()
    assert product.run("install", "--update", "--for", "cpu", "--yes")[0] == 0  # it was installed by its stack's name
    for verb in ("--update", "--repair", "--rollback"):
        code, _, err = product.run("install", verb, "--for", "cpu", "--yes")
        assert code == 0, err
        assert product.run("install", verb, "--for", "roll", "--yes")[0] == 2


@pytest.mark.slow
def test_an_update_and_a_repair_keep_what_the_environment_was_asked_for(product: Product) -> None:
    def request() -> object:
        return json.loads(product.run("env", "show", "tiny", "--json")[1])["request"]

    assert product.run("install", "--for", "cpu", "--yes")[0] == 0
    before = request()
    assert product.run("install", "--repair", "--yes")[0] == 0
    assert (before, request()) == ({"framework": "cpu"}, {"framework": "cpu", "stack": "tiny"})
    product.release()
    assert product.run("install", "--update", "--yes")[0] == 0
    assert request() == {"framework": "cpu", "stack": "tiny"}


def test_an_unfinished_environment_of_a_known_stack_is_for_what_the_tables_say(product: Product) -> None:
    root = product.home.with_name("cpu") / "aaa"
    root.mkdir(parents=True)
    marker = {"schema": 1, "stack": "cpu", "platform": "p", "lock": "aaa", "status": "building"}
    (root / MARKER).write_text(json.dumps(marker))
    (root.parent / "current").symlink_to(root)
    code, _, err = product.run("install", "--repair", "--for", "cpu", "--yes")
    assert (code, f"{product.current}" in err, f"{root}" in err) == (2, True, True)


def test_an_update_of_a_conda_environment_makes_one_of_conda(
    product: Product, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda, heard = tmp_path / "conda", tmp_path / "heard"
    conda.write_text(f'#!/bin/sh\necho "$@" >>"{heard}"\nexit 1\n')
    conda.chmod(0o755)
    monkeypatch.setenv("CONDA_EXE", str(conda))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    manifest = product.current / MANIFEST
    manifest.write_text(manifest.read_text().replace('"kind": "venv"', '"kind": "conda"'))
    product.release()
    assert product.run("install", "--update", "--yes")[0] == 1
    assert heard.read_text().startswith("create ")


def test_a_part_of_an_update_promises_no_way_back(product: Product) -> None:
    product.release()
    code, out, err = product.run("install", "--update", "--yes", "--only-step", "venv")
    assert (code, "--rollback" in out) == (0, False), err
    assert "--rollback" in product.run("install", "--update", "--yes")[1]


def test_every_form_of_an_update_and_of_a_rollback_is_one_document(product: Product) -> None:
    old = product.current
    product.release()
    code, out, _ = product.run("install", "--update", "--dry-run", "--json")
    shown = json.loads(out)
    assert (code, shown["schema"], shown["target"]) == (0, "npuenv.update/1", str(product.home / product.lock.hash))
    assert shown["changes"] == [{"name": "tools", "before": "0.3", "after": "0.4"}]
    assert product.run("install", "--update", "--yes")[0] == 0
    new = product.current
    assert json.loads(product.run("install", "--update", "--json")[1])["changes"] == []
    for words, in_force in ((("--dry-run",), new), ((), old)):
        shown = json.loads(product.run("install", "--rollback", "--json", *words)[1])
        said = {"schema": "npuenv.rollback/1", "exit": 0, "target": str(old), "before": str(new)}
        assert shown == {**said, "dry_run": bool(words)}
        assert product.current == in_force


def test_a_rollback_where_nothing_is_in_force_says_so(product: Product) -> None:
    old = product.current
    product.release()
    assert product.run("install", "--update", "--yes")[0] == 0
    (product.home / "current").unlink()
    word = f"tiny/{product.lock.hash}"
    assert json.loads(product.run("install", "--rollback", word, "--dry-run", "--json")[1])["before"] is None
    code, out, _ = product.run("install", "--rollback", word)
    none = sentence("plan.none")
    assert (code, out, product.current) == (0, sentence("install.rolled-back", path=old, before=none) + "\n", old)


def test_a_no_changes_nothing_and_says_so_and_deleting_wants_a_word(
    product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    product.release()
    for words, answer in ((("install", "tiny"), "n\n"), (("env", "remove", "tiny"), "\n")):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        code, _, err = product.run(*words)
        assert (code, err.splitlines()[-1]) == (130, sentence("cli.declined"))
    assert product.current.is_dir() and not (product.home / product.lock.hash).exists()


@pytest.mark.slow
def test_a_script_is_made_of_a_plan_or_refused(product: Product, tmp_path: Path) -> None:
    for verb in ("--update", "--rollback"):
        code, out, err = product.run("install", verb, "--script")
        assert (code, out, says(err, "install.one-of", one="--script", other=verb)) == (2, "", True)
    tools_of(product.current).write_text("C = 9\n")
    code, out, _ = product.run("install", "--repair", "--script")
    ran = subprocess.run(["sh"], input=out, capture_output=True, text=True)
    assert (code, ran.returncode, tools_of(product.current).read_text()) == (0, 0, "C = 3\n"), ran.stderr


@pytest.mark.slow
def test_a_script_leaves_alone_what_came_to_its_place_after_it_was_made(product: Product, tmp_path: Path) -> None:
    place = tmp_path / "place"
    code, script, _ = product.run("install", "tiny", "--script", "--target", str(place))
    (place / "src").mkdir(parents=True)
    (place / "src/thesis.py").write_text("years of work\n")
    ran = subprocess.run(["sh"], input=script, capture_output=True, text=True)
    assert (code, ran.returncode, says(ran.stderr, "plan.script-foreign", path=place)) == (0, 2, True)
    assert (place / "src/thesis.py").read_text() == "years of work\n" and os.listdir(place) == ["src"]
    (place / "src/thesis.py").unlink()
    (place / "src").rmdir()
    product.release()
    assert product.run("install", "tiny", "--target", str(place), "--yes")[0] == 0
    before = tree(place)
    ran = subprocess.run(["sh"], input=script, capture_output=True, text=True)
    assert (ran.returncode, tree(place)) == (2, before)


@pytest.mark.parametrize("own", ["", "/own.pem"])
def test_git_gets_the_certificates_that_pip_is_set_up_with_unless_it_has_its_own(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str
) -> None:
    (tmp_path / "ca.pem").touch()
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("GIT_SSL_CAINFO", own)
    world.install(Plan((Step("show", Message("plan.why-rest"), (Run(("printenv", "GIT_SSL_CAINFO")),), ()),)))
    assert world.lines() == [own or str(tmp_path / "ca.pem")]


def test_an_interrupt_says_what_goes_on_because_another_user_runs_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(group: int, number: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    def interrupt(event: Event) -> None:
        if event.state is StepEvent.LINE:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "killpg", refuse)
    step = Step("system", Message("plan.why-rest"), (Run(("sh", "-c", "echo at work; exec sleep 60")),), ())
    with pytest.raises(work.LeftRunning) as caught:
        world.install(Plan((step,)), tell=interrupt)
    running = caught.traceback[-1].locals["running"]
    assert running.poll() is None
    assert caught.value.exit_code == 130 and says(say(caught.value.message), "execute.left-running", pid=running.pid)
    assert '"interrupted"' in (world.root / ".npuenv/journal.jsonl").read_text()
    os.kill(running.pid, signal.SIGKILL)
    assert running.wait(20) == -signal.SIGKILL


class Refusing(Progress):
    """Refuses every plan."""

    def __init__(self) -> None:
        self.jobs: list[InstallJob] = []

    def approve(self, job: InstallJob, changes: tuple[PackageChange, ...]) -> None:
        self.jobs.append(job)
        raise BadInput(Message("cli.cannot-ask"))


def test_a_plan_that_a_program_refuses_is_not_begun(product: Product, tmp_path: Path) -> None:
    refusing, root = Refusing(), tmp_path / "refused"
    with pytest.raises(BadInput, match=r"cli\.cannot-ask"):
        install(Request(stack="tiny"), InstallOptions(target=str(root)), refusing)
    assert [job.target.root for job in refusing.jobs] == [str(root)] and not root.exists()
