"""Bundles made from a folder of tiny wheels: what goes in, that it is always the same, and that it installs offline."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from npuenv import __version__
from npuenv.app import BundleResult, bundling
from npuenv.app.bundling import verify_bundle
from npuenv.bundle import zipapp
from npuenv.bundle.fetch import ReleaseFile, best_file
from npuenv.bundle.layout import write_tar
from npuenv.bundle.make import build_requirements, check_place, gather, is_archive, make_bundle, staging
from npuenv.bundle.reader import open_bundle
from npuenv.bundle.self_package import BOOTSTRAP, own_requirements, own_wheel
from npuenv.cli import install
from npuenv.cli.bundle import command
from npuenv.core.errors import BadInput, NothingFits, StepFailed
from npuenv.core.messages import Message, say
from npuenv.core.plan import Run
from npuenv.install.executor import failure_reason
from npuenv.lock.file import Lock, Missing, read_lock
from npuenv.lock.uv import find_uv, write_wheel
from npuenv.matrix import load_matrix
from npuenv.resolve.types import GitSource, Platform, Request, Stack
from npuenv.terminal.run import Ui
from tests.bundle.conftest import FURTHER, HERE, OTHER, TAG, python_archive, repacked, write_sdist
from tests.support.sentences import says

if TYPE_CHECKING:
    from tests.bundle.conftest import Shop

OFFLINE = ("unshare", "-rn")


def tree(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def needs_unshare() -> None:
    if shutil.which("unshare") is None or subprocess.run([*OFFLINE, "true"], check=False).returncode != 0:
        pytest.skip("no network namespace can be made here")


@pytest.mark.slow
def test_a_bundle_for_another_architecture_holds_all_of_it(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shop.make(out)
    with open_bundle(out) as bundle:
        lock, rows = bundle.lock, bundle.manifest.files
        assert bundle.manifest.platform == f"{OTHER}-{TAG}-glibc2.28"
        assert bundle.request == Request(stack="tiny", arch=OTHER)
        for package in lock.packages:
            (row,) = [row for row in rows if row.name == package.name and row.kind in ("wheel", "sdist")]
            assert row.sha256 in package.sha256, package.name
        wheels = os.listdir(bundle.wheels)
        assert sorted(wheels) == sorted(
            [
                f"numbers-2.4-{TAG}-{TAG}-manylinux_2_28_{OTHER}.whl",
                f"torch-9.1+cpu-{TAG}-{TAG}-manylinux_2_28_{OTHER}.whl",
                "tools-0.3-py3-none-any.whl",
                "pure_source-1.2.tar.gz",
                next(path.name for path in shop.wheels.glob("setuptools-*")),
            ]
        )
        assert Path(bundle.zipapp).read_bytes() == zipapp.content()
        assert read_lock(out / bundle.manifest.lock_file) == lock
        tools = set(os.listdir(out / "tools"))
        assert {f"npuenv-{__version__}-py3-none-any.whl", "requirements.txt", "SHA256SUMS"} < tools
        for line in (*own_requirements(), BOOTSTRAP):
            name = canonicalize_name(Requirement(line).name)
            assert any(canonicalize_name(file.partition("-")[0]) == name for file in tools), name
        assert [row.name for row in bundle.manifest.needed if row.kind == "system"] == ["g++"]


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(shop: Shop, tmp_path: Path) -> None:
    shop.make(tmp_path / "one.tar")
    before = os.umask(0o077)
    try:
        shop.make(tmp_path / "elsewhere" / "two.tar")
    finally:
        os.umask(before)
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "elsewhere" / "two.tar").read_bytes()
    assert not staging(tmp_path / "one.tar").exists()


@pytest.mark.slow
def test_times_and_permissions_in_a_folder_are_fixed(shop: Shop, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        shop.make(tmp_path / "out")
    finally:
        os.umask(before)
    looked = {path.name: path.stat() for path in (tmp_path / "out").rglob("*") if path.name != "manifest.json"}
    assert {each.st_mtime for each in looked.values()} == {315532800}
    assert stat.S_IMODE(looked["install.sh"].st_mode) == stat.S_IMODE(looked["wheels"].st_mode) == 0o755
    assert stat.S_IMODE(looked["requirements.txt"].st_mode) == 0o644


@pytest.mark.slow
def test_an_archive_unpacks_to_the_folder(shop: Shop, tmp_path: Path) -> None:
    shop.make(tmp_path / "out")
    shop.make(tmp_path / "out.tar")
    subprocess.run(["tar", "-xf", str(tmp_path / "out.tar"), "-C", str(tmp_path)], check=True)
    top = tmp_path / f"npuenv-tiny.{OTHER}-{TAG}-glibc2.28"
    assert tree(top) == tree(tmp_path / "out")
    with open_bundle(top) as folder, open_bundle(tmp_path / "out.tar") as archive:
        assert folder.manifest == archive.manifest


@pytest.mark.slow
def test_a_run_after_an_interrupted_one_uses_what_is_whole_and_drops_the_rest(shop: Shop, tmp_path: Path) -> None:
    out = tmp_path / "out"
    contents = shop.gather()
    part = staging(out) / "wheels"
    part.mkdir(parents=True)
    shutil.copyfile(shop.wheels / "tools-0.3-py3-none-any.whl", part / "tools-0.3-py3-none-any.whl")
    (part / f"torch-9.1+cpu-{TAG}-{TAG}-manylinux_2_28_{OTHER}.whl").write_bytes(b"damaged")
    (part / "older-1-py3-none-any.whl").write_bytes(b"of another stack")
    (part / "pure_source-1.2.tar.gz.part").write_bytes(b"rest")
    (staging(out) / "gone").mkdir()
    make_bundle(contents, out, tell=shop.told.append)
    shop.make(tmp_path / "clean")
    assert tree(out) == tree(tmp_path / "clean")
    assert not (out / "gone").exists()


def test_a_lock_whose_file_is_not_offered_any_more_is_refused(shop: Shop, tmp_path: Path) -> None:
    wanted = shop.request()
    write_wheel(shop.wheels, "tools", "0.3", files={"tools.py": "C = 4\n"})
    with pytest.raises(NothingFits) as caught:
        gather(wanted, load_matrix())
    assert "tools 0.3" in say(caught.value.message)
    (shop.wheels / "tools-0.3-py3-none-any.whl").unlink()
    with pytest.raises(NothingFits) as caught:
        gather(wanted, load_matrix())
    assert "tools" in say(caught.value.message)


@pytest.mark.slow
def test_a_file_that_changes_between_question_and_copy_is_refused(shop: Shop, tmp_path: Path) -> None:
    contents = shop.gather()
    (shop.wheels / "tools-0.3-py3-none-any.whl").write_bytes(b"other")
    with pytest.raises(StepFailed) as caught:
        make_bundle(contents, tmp_path / "out", tell=shop.told.append)
    assert caught.value.message.key == "bundle.other-content"
    assert caught.value.message.args["file"] == "tools-0.3-py3-none-any.whl"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (["a-1-cp311-cp311-manylinux2014_aarch64.whl", "a-1-cp311-cp311-manylinux_2_28_aarch64.whl"], 1),
        (["a-1-cp311-cp311-manylinux_2_17_aarch64.whl", "a-1-cp311-abi3-manylinux_2_28_aarch64.whl"], 0),
        (["a-1-cp36-abi3-manylinux_2_17_aarch64.whl", "a-1-py3-none-any.whl"], 0),
        (["a-1-cp311-cp311-manylinux_2_34_aarch64.whl", "a-1.tar.gz"], 1),
        (["a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "a-1-cp312-cp312-manylinux_2_28_aarch64.whl"], None),
        (["a-1.tar.gz", "a-1-py2.py3-none-any.whl"], 1),
    ],
)
def test_the_file_is_the_one_that_an_installer_would_take(files: list[str], expected: int | None) -> None:
    offers = [ReleaseFile(file, f"/x/{file}", str(number), 1) for number, file in enumerate(files)]
    chosen = best_file(offers, Platform("aarch64", "3.11"))
    assert (chosen.file if chosen else None) == (None if expected is None else files[expected])


def test_only_a_file_with_a_hash_of_the_lock_is_taken() -> None:
    offers = [
        ReleaseFile("a-1-cp311-cp311-manylinux_2_28_aarch64.whl", "", "new", 1),
        ReleaseFile("a-1.tar.gz", "", "old", 1),
    ]
    platform = Platform("aarch64", "3.11")
    assert best_file(offers, platform, ("old",)) == offers[1]
    assert best_file(offers, platform, ("none",)) is None
    assert best_file([replace(offers[0], sha256="")], platform, ("old",)) is not None


def test_what_an_sdist_is_built_with_is_read_from_it(tmp_path: Path) -> None:
    assert build_requirements(write_sdist(tmp_path, "some", "1")) == ("setuptools",)
    (tmp_path / "bad.tar.gz").write_bytes(b"no archive")
    assert build_requirements(tmp_path / "bad.tar.gz") == ("setuptools>=40.8.0", "wheel")


# On the target


@pytest.mark.slow
def test_the_wheel_of_npuenv_is_complete_and_the_same_each_time() -> None:
    name, data = own_wheel()  # made once in a process
    assert own_wheel.__wrapped__() == (name, data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
        assert "trainer/__main__.py" in names and "npuenv/core/messages/bundle.toml" in names
        assert any(".data/data/share/npuenv/lockfiles/" in inside for inside in names)
        assert not any("__pycache__" in inside or inside.endswith(".pyc") for inside in names)
        metadata = archive.read(f"npuenv-{__version__}.dist-info/METADATA").decode()
        assert f"Version: {__version__}\n" in metadata and "Requires-Dist: click>=8.1\n" in metadata
        record = archive.read(f"npuenv-{__version__}.dist-info/RECORD").decode()
        assert len(record.splitlines()) == len(names)


@pytest.mark.slow
def test_everything_installs_without_a_network_sources_too(shop: Shop, tmp_path: Path) -> None:
    needs_unshare()
    if tuple(map(int, importlib.metadata.version("setuptools").split(".")[:2])) < (70, 1):
        pytest.skip("the setuptools here asks for `wheel` when it builds, which need not be installed")
    shop.arch = HERE
    for name in ("setuptools", "wheel"):
        next(shop.wheels.glob(f"{name}-*")).unlink()
    repacked(shop.wheels, "setuptools")
    shop.make(tmp_path / "out")
    with open_bundle(tmp_path / "out") as bundle:
        lines = [
            f"{package.name}=={package.version} {' '.join(f'--hash=sha256:{digest}' for digest in package.sha256)}\n"
            for package in bundle.lock.packages
        ]
        (tmp_path / "list.txt").write_text("".join(lines), encoding="utf-8")
        options = ("--offline", "--no-index", "--find-links", bundle.wheels, "--no-deps", "--require-hashes")
        argv = [*OFFLINE, find_uv(), "pip", "install", *options, "--python", sys.executable]
        env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "fresh")}
        target = ("--target", str(tmp_path / "target"), "-r", str(tmp_path / "list.txt"))
        ran = subprocess.run([*argv, *target], env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "target/pure.py").read_text(encoding="utf-8") == "VALUE = 7\n"
    assert (tmp_path / "target/torch/arch.txt").read_text(encoding="utf-8") == HERE


_PYTHON = """\
#!/bin/sh
[ "$1 $2" = '-m venv' ] || exit 0
mkdir -p "$4/bin"
printf '#!/bin/sh\\necho "$@" >>"{log}"\\n' >"$4/bin/python"
printf '#!/bin/sh\\necho "$@"\\n' >"$4/bin/npuenv"
chmod +x "$4/bin/python" "$4/bin/npuenv"
"""


@pytest.mark.slow
def test_the_script_makes_an_environment_and_hands_over(shop: Shop, tmp_path: Path) -> None:
    """With a stand-in for the interpreter that writes down what pip is asked."""
    shop.make(tmp_path / "out")
    log, python = tmp_path / "log", tmp_path / "stand-in"
    python.write_text(_PYTHON.format(log=log), encoding="utf-8")
    python.chmod(0o755)

    def start() -> subprocess.CompletedProcess[str]:
        env = {"PATH": os.environ["PATH"], "HOME": str(shop.home), "NPUENV_PYTHON": str(python)}
        argv = ["sh", str(tmp_path / "out/install.sh"), "--yes"]
        return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300)

    assert (ran := start()).stdout == f"install --offline {tmp_path}/out --yes\n", ran.stderr
    (asked,) = log.read_text(encoding="utf-8").splitlines()
    words = asked.split()
    assert Path(words[0]).parent.is_file() and words[1:3] == ["--isolated", "install"]
    assert {"--no-index", "--no-deps", "--require-hashes", f"{tmp_path}/out/tools"} < set(words)
    assert words[-2:] == ["-r", f"{tmp_path}/out/tools/requirements.txt"]
    assert start().returncode == 0 and len(log.read_text(encoding="utf-8").splitlines()) == 1
    (shop.home / f".local/share/npuenv/program/{__version__}/.whole").unlink()  # as after a kill
    assert start().returncode == 0 and len(log.read_text(encoding="utf-8").splitlines()) == 2
    wheel = next((tmp_path / "out/tools").glob("click-*"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert ((ran := start()).returncode, ran.stdout) == (2, "") and "damaged" in ran.stderr


@pytest.mark.slow
@pytest.mark.long
def test_the_script_starts_npuenv_where_there_is_nothing_but_a_python(shop: Shop, tmp_path: Path) -> None:
    needs_unshare()
    shop.arch = HERE
    for line in (*own_requirements(), *FURTHER, BOOTSTRAP):
        name = Requirement(line).name
        for stand_in in shop.wheels.glob(f"{name.replace('-', '_')}-*"):
            stand_in.unlink()
        repacked(shop.wheels, name)
    shop.make(tmp_path / "out")
    env = {"PATH": os.environ["PATH"], "HOME": str(shop.home), "NPUENV_PYTHON": sys.executable}
    argv = [*OFFLINE, "sh", str(tmp_path / "out/install.sh")]
    ran = subprocess.run([*argv, "--help"], env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert "npuenv install" in ran.stdout and "--offline" in ran.stdout
    program = shop.home / f".local/share/npuenv/program/{__version__}/bin/npuenv"
    assert program.exists()
    ran = subprocess.run([*argv, "--lang", "en"], env=env, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert "tiny" in ran.stderr  # the bundle was opened: the stack it names is not a published one
    # As after a kill: pip had put the program in, and not yet all that it imports.
    (program.parents[1] / ".whole").unlink()
    for part in program.parents[1].glob("lib/*/site-packages/click*"):
        shutil.rmtree(part)
    ran = subprocess.run([*argv, "--help"], env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    wheel = next((tmp_path / "out/tools").glob("click-*"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    ran = subprocess.run([*argv, "--help"], env=env, capture_output=True, text=True, timeout=300)
    assert (ran.returncode, ran.stdout) == (2, "") and f"damaged (tools/{wheel.name} in " in ran.stderr


@pytest.mark.parametrize("archive", ["", "cpython.tar.gz"])
def test_the_script_is_clean_shell(archive: str, shop: Shop, tmp_path: Path) -> None:
    checker = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if checker is None:
        pytest.skip("there is no shellcheck here")
    more = {"python_archive": python_archive(tmp_path / archive, machine=0xB7)} if archive else {}
    shop.make(tmp_path / "out", **more)
    ran = subprocess.run([checker, str(tmp_path / "out/install.sh")], capture_output=True, text=True)
    assert ran.stdout == ""


@pytest.mark.slow
def test_the_script_refuses_a_python_that_npuenv_does_not_run_on(shop: Shop, tmp_path: Path) -> None:
    shop.make(tmp_path / "out")
    old = tmp_path / "bin/python3"
    old.parent.mkdir()
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    for tool in ("sh", "dirname", "sha256sum", "mkdir"):
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    env = {"PATH": str(tmp_path / "bin"), "HOME": str(shop.home)}
    ran = subprocess.run([str(shutil.which("sh")), str(tmp_path / "out/install.sh")], env=env, capture_output=True,
                         text=True, timeout=300)  # fmt: skip
    assert ran.returncode == 2 and "NPUENV_PYTHON" in ran.stderr


@pytest.mark.slow
def test_the_script_takes_no_other_python_than_the_one_that_is_named(shop: Shop, tmp_path: Path) -> None:
    shop.make(tmp_path / "out")
    old = tmp_path / "old python"
    old.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    old.chmod(0o755)
    env = {"PATH": os.environ["PATH"], "HOME": str(shop.home), "NPUENV_PYTHON": str(old)}
    ran = subprocess.run(["sh", str(tmp_path / "out/install.sh")], env=env, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 2 and f"NPUENV_PYTHON, which is {old}, is none" in ran.stderr
    assert not (shop.home / ".local/share/npuenv/program" / __version__).exists()


# The command


def test_a_partial_lock_is_to_be_filled_for_the_bundles_platform(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def partial(stack: Stack, resolver: object, **more: Any) -> Lock:
        missing = (Missing("torch", "1", "index-out-of-reach", "pytorch-cpu"),)
        return Lock(stack.name, stack.platform.tag, "npuenv 0", (), missing)

    monkeypatch.setattr("npuenv.app.resolution.lock", partial)
    with pytest.raises(NothingFits) as caught:
        run_command("cpu", "--platform", OTHER, "--python", "3.12", "--pin", "numpy==2.3.5", "-o", str(tmp_path / "o"))
    assert caught.value.hint is not None
    filled = f"`npuenv lock cpu --fill --arch {OTHER} --python 3.12 --pin numpy==2.3.5`"
    assert filled in say(caught.value.hint)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_an_installation_that_reaches_no_index_is_shown_the_way_with_a_bundle(lang: str) -> None:
    action = Run(("uv", "pip", "install"))
    why = say(failure_reason("error: error sending request for url\n  Caused by: dns error", action, 2), lang)
    hint = say(Message("lock.provide-wheel", {"name": "torch"}), lang)
    for said in (why, hint):
        assert "`npuenv bundle`" in said and "`npuenv install --offline " in said
    assert "dns error" in why or "error sending request" in why
    other = say(failure_reason("  Hash mismatch for `six==1.16.0`", action, 2), lang)
    assert "bundle" not in other
    assert "--offline" in [word for option in install.command.params for word in option.opts]


def run_command(*argv: str) -> object:
    return command.main([*argv, "--lang", "en"], standalone_mode=False)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["cpu", "--platform", "aarch64", "--arch", "x86_64"], "bundle.two-platforms"),
        (["cpu", "--platform", "arm64", "--arch", "aarch64", "--cann-file", "/none"], "bundle.no-file"),
        (["cpu", "--source", "verl"], "NAME=PATH"),
        (["cpu", "-o", "{bundle}"], "bundle.another"),
        (["cpu", "-o", "{other}", "--dry-run"], "bundle.not-ours"),
        (["cpu", "-o", "x.zip"], "x.zip"),
        (["cpu", "-o", "x.zip", "--dry-run"], "x.zip"),
    ],
)
def test_wrong_input_is_one_sentence_before_any_index_is_asked(
    argv: list[str], part: str, home: Path, bundle_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/text").write_text("mine", encoding="utf-8")
    words = [word.format(bundle=bundle_folder, other=tmp_path / "other") for word in argv]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        run_command(*words)
    assert part == caught.value.message.key or part in say(caught.value.message)
    assert not list(tmp_path.glob("x.*"))


@pytest.mark.parametrize("name", ["x.zip", "x.tar.gz", "x.tgz", "x.tar.xz", "x.Tar.Zst", "x.7z", "x.whl", "x.run"])
def test_a_name_of_another_archive_is_refused_with_both_forms(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        check_place(tmp_path / name)
    assert caught.value.hint is not None
    for lang in ("en", "zh"):
        said = say(caught.value.message, lang) + say(caught.value.hint, lang)
        assert name in said and "x.tar " in said.replace("\uff0c", " ").replace(",", " ") and "manifest" not in said


@pytest.mark.parametrize("name", ["x", "x.tar", "x.TAR", "x-2.28", "npuenv-tiny.aarch64-cp311-glibc2.28", "zip"])
def test_any_other_name_is_a_bundles(name: str, tmp_path: Path) -> None:
    check_place(tmp_path / name)
    assert is_archive(tmp_path / name) == name.lower().endswith(".tar")


def test_a_place_that_holds_something_else_is_not_spoken_of_as_a_copied_bundle(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/text").write_text("mine", encoding="utf-8")
    for place in (tmp_path / "other", tmp_path / "other/text"):
        with pytest.raises(BadInput) as caught:
            check_place(place)
        assert caught.value.exit_code == 2 and caught.value.hint is not None
        said = say(caught.value.message) + say(caught.value.hint)
        assert str(place) in said and "-o" in said and "copy" not in said and "remove" not in said
    assert (tmp_path / "other/text").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("content", ["tar", "noise"])
def test_an_archive_that_is_no_bundle_is_left_alone_with_another_place_as_the_way_out(
    content: str, shop: Shop, tmp_path: Path
) -> None:
    out = tmp_path / "out.tar"
    out.write_bytes(b"noise" * 999)
    if content == "tar":
        (tmp_path / "some").mkdir()
        (tmp_path / "some/text").write_text("mine", encoding="utf-8")
        write_tar(tmp_path / "some", out, top="some")
    before = out.read_bytes()
    with pytest.raises(BadInput) as caught:
        verify_bundle(shop.request(out=out))
    assert caught.value.hint is not None and "-o" in say(caught.value.hint)
    assert "copy" not in say(caught.value.hint) and out.read_bytes() == before


@pytest.mark.slow
def test_the_command_says_what_goes_in_before_and_what_is_there_after(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from npuenv.cli import bundle as cli

    ui, out = Ui("en"), tmp_path / "out.tar"
    shop.git_sources = (GitSource("absent", "https://git.invalid/x", "v1", False),)
    request, progress = shop.request(left_out=frozenset({"absent"}), out=out), cli._BundleProgress(ui)
    plan = bundling._plan(request, progress)
    contents, said = plan.contents, capsys.readouterr().out
    assert "wheels: 3 files" in said and "source distributions: 1 files" in said and "absent: left out" in said
    assert says(said, "bundle.need-source", name="absent") and says(said, "bundle.need-system", names="g++")
    document: Any = cli._plan_document(plan)
    assert document["schema"] == "npuenv.bundle-plan/1" and document["bytes"] == contents.fetched
    with progress.fetching(plan) as tell:
        manifest = make_bundle(contents, out, tell=tell)
    captured = capsys.readouterr()
    num = len(contents.items)
    assert captured.out == "" and f"[{num}/{num}] 100 %" in captured.err
    result = BundleResult(out, manifest)
    cli._report(ui, result)
    said = capsys.readouterr().out
    assert manifest.digest in said and f"tar -xf out.tar && sh {contents.request.name}/install.sh" in said
    cli._report(replace(ui, is_json=True), result)
    told = json.loads(capsys.readouterr().out)
    assert (told["schema"], told["manifest_sha256"]) == ("npuenv.bundled/1", manifest.digest)
    assert verify_bundle(request) == manifest
    with pytest.raises(BadInput):
        verify_bundle(replace(request, request=Request(stack="tiny", arch=HERE)))
