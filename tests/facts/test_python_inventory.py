"""The inventory on folders made for it: damaged metadata, two owners, files that are gone or changed, shadows."""

from __future__ import annotations

import base64
import hashlib
import json
import platform
import random
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from npuenv.core.fact import known
from npuenv.facts.python import ask
from npuenv.facts.python import packages as package_facts
from npuenv.facts.python.packages import Files, Hashes, Packages
from npuenv.host.local import LocalHost

TAG = f"cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-manylinux_2_28_{platform.machine()}"
SUFFIX = str(sysconfig.get_config_var("EXT_SUFFIX"))


class Site:
    """A folder of packages, and what the inventory says of it."""

    def __init__(self, folder: Path, python: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.python = folder, python
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("PYTHONPATH", str(folder))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def add(self, name: str, files: dict[str, str], *, version: str = "1.0", metadata: str = "", **extra: str) -> Path:
        """A wheel's worth: the files, METADATA, WHEEL and RECORD. `extra`: further files of the dist-info."""
        info = self.folder / f"{name}-{version}.dist-info"
        info.mkdir()
        rows = []
        for path, text in files.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(text)}")
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{metadata}\nbody: no\n"
        )
        (info / "INSTALLER").write_text("pip\n")
        for file, text in {"WHEEL": f"Wheel-Version: 1.0\nTag: {TAG}\n", **extra}.items():
            (info / file.replace("__", ".")).write_text(text)
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", f"{name}/x.pyc,,"]) + "\n")
        return info

    def answer(self) -> dict[str, Any]:
        found = ask(LocalHost(), self.python, "inventory", timeout_s=120.0)
        assert found.value is not None, found
        return found.value

    def packages(self) -> Packages:
        found = package_facts.packages(known(self.answer())).value
        assert found is not None
        return found

    def files(self) -> Files:
        found = package_facts.files(known(self.answer())).value
        assert found is not None
        return found


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter of this version without a package of its own: the tests' own one has a hundred to read."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder, symlinks=True, with_pip=False)
    return str(folder / "bin" / "python")


@pytest.fixture
def site(tmp_path: Path, bare_python: str, monkeypatch: pytest.MonkeyPatch) -> Site:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return Site(tmp_path / "site", bare_python, monkeypatch)


def test_a_healthy_folder_has_its_versions_and_no_complaint(site: Site) -> None:
    site.add("Some.Thing", {"some/__init__.py": "x = 1\n"}, metadata='Requires-Dist: numpy<2; extra == "x"\n')
    answer = site.answer()
    assert answer["distributions"]["some-thing"] == "1.0"
    packages = site.packages()
    assert packages.trouble == () and packages.leftovers == () and packages.shadows == ()
    assert "some-thing" not in packages.requires
    assert not [each for each in site.files().missing if each.owner == "some-thing"]


def test_requirements_are_read_up_to_the_description_and_over_folded_lines(site: Site) -> None:
    site.add(
        "one", {}, metadata="Requires-Dist: numpy (<2,\n >=1.20)\nRequires-Dist: torch==2.8.0\nRequires-Python: >=3.9\n"
    )
    assert site.packages().requires["one"] == ("numpy (<2, >=1.20)", "torch==2.8.0")
    assert site.packages().requires_python["one"] == ">=3.9"


def test_missing_emptied_and_altered_files_are_told_apart(site: Site) -> None:
    names = ("gone.py", "empty.py", "longer.py", "whole.py", "lib/libx.so")
    site.add("thing", {f"thing/{name}": "0123456789" for name in names})
    (site.folder / "thing/gone.py").unlink()
    (site.folder / "thing/empty.py").write_text("")
    (site.folder / "thing/longer.py").write_text("0123456789abc")
    (site.folder / "thing/lib/libx.so").write_text("0123")
    files = site.files()
    (missing,) = [each for each in files.missing if each.owner == "thing"]
    assert (missing.count, missing.native, missing.examples) == (1, 0, ("thing/gone.py",))
    assert [each.examples for each in files.emptied if each.owner == "thing"] == [
        ("thing/empty.py (0 bytes, 10 recorded)",)
    ]
    (altered,) = [each for each in files.altered if each.owner == "thing"]
    assert (altered.count, altered.native) == (2, 1)
    assert altered.examples[0] == "thing/lib/libx.so (4 bytes, 10 recorded)"


def test_what_images_leave_out_and_compiled_files_are_not_missed(site: Site) -> None:
    site.add("thing", {f"thing/{name}": "x" for name in ("tests/a.py", "a.pyi", "include/b.h", "libc.a", "keep.py")})
    for name in ("tests/a.py", "a.pyi", "include/b.h", "libc.a"):
        (site.folder / "thing" / name).unlink()
    assert not [each for each in site.files().missing if each.owner == "thing"]
    assert "thing" in [each.owner for each in site.files().spared]


def test_links_are_told_whether_the_file_is_one_or_a_folder_above_it(site: Site, tmp_path: Path) -> None:
    site.add("thing", {"thing/a.py": "x", "thing/lib/b.py": "y", "thing/c.py": "z"})
    (site.folder / "thing/lib").rename(tmp_path / "lib")
    (site.folder / "thing/lib").symlink_to(tmp_path / "lib")
    (site.folder / "thing/a.py").rename(tmp_path / "a.py")
    (site.folder / "thing/a.py").symlink_to(tmp_path / "a.py")
    (linked,) = [each for each in site.files().linked if each.owner == "thing"]
    assert set(linked.examples) == {"thing/a.py", "thing/lib/b.py"}


def test_scripts_beside_the_interpreter_are_looked_for(site: Site) -> None:
    info = site.add("tool", {})
    with (info / "RECORD").open("a") as record:
        record.write("../bin/tool,sha256=abc,12\n")
    assert [each.examples for each in site.files().missing if each.owner == "tool"] == [("../bin/tool",)]
    (site.folder.parent / "bin").mkdir()
    (site.folder.parent / "bin/tool").write_text("#!/bin/python")
    assert [each.examples for each in site.files().altered if each.owner == "tool"] == [
        ("../bin/tool (13 bytes, 12 recorded)",)
    ]


def test_names_with_commas_and_quotes_are_read_as_csv(site: Site) -> None:
    info = site.add("odd", {})
    (site.folder / 'a,"b".py').write_text("12345")
    (info / "RECORD").write_text('"a,""b"".py",sha256=abc,5\n')
    assert not [each for each in (*site.files().missing, *site.files().altered) if each.owner == "odd"]


def test_of_two_owners_the_one_whose_sizes_fit_has_won(site: Site) -> None:
    site.add("triton_ascend", {"triton/__init__.py": "ascend", "triton/same.py": "same"}, version="3.2.0")
    site.add("triton", {"triton/__init__.py": "community", "triton/same.py": "same"}, version="3.4.0")
    (row,) = site.answer()["shared_files"]
    assert row["owners"] == ["triton", "triton-ascend"] and row["count"] == 1
    assert row["fits"] == [1, 0]
    assert not [each for each in site.files().altered if "triton" in each.owner]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda info: (info / "METADATA").unlink(), "no METADATA"),
        (lambda info: (info / "METADATA").write_bytes(b"\xff\xfe\x00"), "METADATA without a name or a version"),
        (lambda info: (info / "RECORD").unlink(), "no RECORD"),
        (lambda info: ((info / "RECORD").unlink(), (info / "RECORD").mkdir()), "RECORD: Is a directory"),
        (lambda info: (info / "RECORD").write_text((info / "RECORD").read_text()[:-9]), "RECORD breaks off"),
        (lambda info: (info / "direct_url.json").write_text("{"), "direct_url.json cannot be read"),
    ],
)
@pytest.mark.one_in(3)
def test_damaged_metadata_is_named_and_stops_nothing(site: Site, damage: Any, said: str) -> None:
    site.add("whole", {})
    damage(site.add("broken", {"broken/__init__.py": ""}, version="2.0"))
    answer = site.answer()
    assert answer["distributions"]["broken"] == "2.0" and answer["distributions"]["whole"] == "1.0"
    assert [(each.name, each.what) for each in site.packages().trouble] == [("broken", said)]


def test_a_system_package_without_record_is_in_order(site: Site) -> None:
    info = site.add("packaged", {})
    (info / "RECORD").unlink()
    (info / "INSTALLER").write_text("debian\n")
    assert site.packages().trouble == ()


def test_what_cann_puts_on_the_path_is_left_to_cann(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASCEND_HOME_PATH", str(tmp_path / "toolkit"))
    cann = Site(tmp_path / "toolkit/python/site-packages", site.python, monkeypatch)
    info = cann.add("te", {"te/a.py": "x"}, metadata="Requires-Dist: never-there\n", WHEEL="Tag: cp27-cp27mu-any\n")
    (cann.folder / "te/a.py").unlink()
    (info / "RECORD").unlink()
    packages = cann.packages()
    assert cann.answer()["distributions"]["te"] == "1.0"
    assert packages.trouble == () and "te" not in packages.requires and packages.foreign_wheels == {}
    assert not [each for each in cann.files().missing if each.owner == "te"]


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_metadata_of_another_size_counts_where_npuenv_has_installed(site: Site, is_ours: bool) -> None:
    """Wheels are published like this: torch_npu 2.1.0.post13."""
    info = site.add("thing", {"thing.py": "x"})
    with (info / "RECORD").open("a") as record:
        record.write(f"{info.name}/METADATA,,5\n")
    mark = Path(site.python).parents[1] / ".npuenv"
    if is_ours:
        mark.mkdir()
    try:
        files = site.files()
    finally:
        if is_ours:
            mark.rmdir()
    owners = {name: [each.owner for each in getattr(files, name)] for name in ("spared", "altered")}
    assert ("thing" in owners["altered"], "thing" in owners["spared"]) == (is_ours, not is_ours)


def test_a_triton_under_another_name_is_owned(site: Site) -> None:
    site.add("pytorch_triton", {"triton/__init__.py": ""})
    assert site.packages().shadows == ()


def test_egg_info_as_file_and_as_folder_is_read(site: Site) -> None:
    (site.folder / "old-0.9.egg-info").write_text("Metadata-Version: 1.0\nName: old\nVersion: 0.9\n")
    (site.folder / "older.egg-info").mkdir()
    (site.folder / "older.egg-info/PKG-INFO").write_text("Name: older\nVersion: 0.1\n")
    found = site.answer()["distributions"]
    assert (found["old"], found["older"]) == ("0.9", "0.1")


def test_leftovers_of_pip_are_no_distributions(site: Site) -> None:
    site.add("~orch", {}, version="2.8.0")
    (site.folder / "~orch").mkdir()
    assert "~orch" not in site.answer()["distributions"]
    names = sorted(Path(path).name for path in site.packages().leftovers)
    assert names == ["~orch", "~orch-2.8.0.dist-info"]


def test_the_same_distribution_twice_counts_the_first(site: Site) -> None:
    site.add("torch", {}, version="2.7.1")
    site.add("torch", {}, version="2.8.0")
    assert site.answer()["distributions"]["torch"] == "2.7.1"
    (twice,) = [each for each in site.packages().twice if each.name == "torch"]
    assert twice.versions[:2] == ("2.7.1", "2.8.0") and len(set(twice.folders[:2])) == 1


@pytest.mark.parametrize(
    ("tag", "is_foreign"),
    [
        (TAG, False),
        ("py3-none-any", False),
        ("py2.py3-none-any", False),
        (f"cp36-abi3-manylinux_2_17_{platform.machine()}.manylinux2014_{platform.machine()}", False),
        (f"cp39-cp39-manylinux_2_17_{platform.machine()}", True),
        (f"cp399-abi3-linux_{platform.machine()}", True),
        ("py3-none-manylinux2014_" + ("aarch64" if platform.machine() == "x86_64" else "x86_64"), True),
        ("not a tag", False),
    ],
)
def test_a_wheel_for_another_python_or_machine_is_foreign(site: Site, tag: str, is_foreign: bool) -> None:
    site.add("thing", {}, WHEEL=f"Wheel-Version: 1.0\nTag: {tag}\n")
    assert ("thing" in site.packages().foreign_wheels) is is_foreign


def test_extensions_of_another_python_alone_are_foreign(site: Site) -> None:
    site.add("thing", {"thing/_x.cpython-38-x86_64-linux-gnu.so": "x"})
    site.add("both", {"both/_x.cpython-38-x86_64-linux-gnu.so": "x", f"both/_x{SUFFIX}": "x"})
    assert site.packages().foreign_extensions == {"thing": "thing/_x.cpython-38-x86_64-linux-gnu.so"}


def test_an_editable_installation_whose_source_is_gone_is_named(site: Site, tmp_path: Path) -> None:
    url = {"url": f"file://{tmp_path}/source", "dir_info": {"editable": True}}
    site.add("vllm", {}, direct_url__json=json.dumps(url))
    (site.folder / "vllm.pth").write_text(f"import sys\n{tmp_path}/source\n# note\n")
    packages = site.packages()
    assert packages.origins["vllm"].is_editable
    assert packages.gone_sources == {"vllm": f"{tmp_path}/source"}
    assert [each.gone for each in packages.links] == [(f"{tmp_path}/source",)]


def test_a_secret_in_the_address_of_a_source_is_not_kept(site: Site) -> None:
    url = {"url": "https://me:secret@git.example/x.git", "vcs_info": {"commit_id": "abc"}}
    site.add("x", {}, direct_url__json=json.dumps(url))
    assert site.packages().origins["x"].url == "https://git.example/x.git"
    assert site.packages().origins["x"].commit == "abc"


def test_a_folder_of_the_same_name_in_the_session_hides_a_package(site: Site) -> None:
    site.add("vllm", {"vllm/__init__.py": ""})
    Path("vllm").mkdir()
    Path("vllm/notes.py").write_text("")
    assert site.packages().shadows == ()  # a bare folder: the installed package is found all the same
    Path("vllm/__init__.py").write_text("")
    (shadow,) = site.packages().shadows
    assert (shadow.module, shadow.kind, shadow.over) == ("vllm", "cwd-package", str(site.folder))


def test_a_bare_folder_hides_an_editable_installation(site: Site, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "vllm").mkdir(parents=True)
    (source / "vllm/__init__.py").write_text("")
    url = {"url": f"file://{source}", "dir_info": {"editable": True}}
    site.add("vllm", {}, direct_url__json=json.dumps(url))
    Path("vllm").mkdir()
    Path("vllm/test_infer.py").write_text("")
    assert [each.kind for each in site.packages().shadows] == ["cwd-folder"]


def test_starting_inside_the_editable_source_is_no_shadow(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    (source / "vllm").mkdir(parents=True)
    (source / "vllm/__init__.py").write_text("")
    site.add("vllm", {}, direct_url__json=json.dumps({"url": f"file://{source}", "dir_info": {"editable": True}}))
    monkeypatch.chdir(source)
    assert site.packages().shadows == ()


def test_a_checkout_on_pythonpath_before_the_package_is_a_shadow(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.add("torch_npu", {"torch_npu/__init__.py": ""})
    checkout = tmp_path / "checkout"
    (checkout / "torch_npu").mkdir(parents=True)
    (checkout / "torch_npu/__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", f"{checkout}:{site.folder}")
    (shadow,) = site.packages().shadows
    assert (shadow.module, shadow.place, shadow.kind) == ("torch_npu", str(checkout), "package")


def test_a_package_without_metadata_is_owned_by_nobody(site: Site) -> None:
    (site.folder / "torch_npu").mkdir()
    (site.folder / "torch_npu/__init__.py").write_text("")
    (shadow,) = [each for each in site.packages().shadows if each.module == "torch_npu"]
    assert shadow.over == ""


def test_the_build_of_torch_and_of_vllm_ascend_is_read_from_their_source(site: Site) -> None:
    torch = "__version__ = '2.8.0'\ndebug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    site.add("torch", {"torch/__init__.py": "", "torch/version.py": torch})
    site.add("vllm_ascend", {"vllm_ascend/__init__.py": "", "vllm_ascend/_build_info.py": "__device_type__ = 'A2'\n"})
    assert site.packages().built == {"torch": {"cuda": "12.8", "hip": "None"}, "vllm_ascend": {"device_type": "A2"}}


def test_shared_libraries_of_a_package_are_listed(site: Site) -> None:
    site.add("torch", {"torch/__init__.py": "", f"torch/_C{SUFFIX}": "x", "torch/lib/libc10.so": "x", "torch/a.py": ""})
    assert [Path(path).name for path in site.packages().extensions["torch"]] == [f"_C{SUFFIX}", "libc10.so"]


def test_a_licence_folded_into_the_headers_does_not_end_them(site: Site) -> None:
    folded = "License: BSD\n  Copyright\n  \n  \x0c\n  All rights reserved\nRequires-Dist: numpy<2\n"
    site.add("folded", {"folded.py": ""}, metadata=folded)
    assert site.packages().requires["folded"] == ("numpy<2",)


@pytest.mark.parametrize("text", ["", "\0\0\0\0", "not a list\n"])
def test_a_record_that_names_no_file_is_trouble(site: Site, text: str) -> None:
    info = site.add("blank", {"blank.py": "x = 1\n"})
    (info / "INSTALLER").write_text("pip\n")
    (info / "RECORD").write_text(text)
    assert [each.what for each in site.packages().trouble] == ["RECORD names no file"]


@pytest.mark.parametrize("installer", ["", "pip"])
def test_metadata_of_any_bytes_stops_nothing(site: Site, installer: str) -> None:
    site.add("intact", {"intact.py": ""})
    draw = random.Random(1)
    names = ("RECORD", "METADATA", "INSTALLER", "WHEEL", "top_level.txt", "entry_points.txt", "direct_url.json")
    for number, name in enumerate(names):
        info = site.add(f"noise{number}", {f"noise{number}.py": ""})
        (info / "INSTALLER").write_text(installer)
        (info / name).write_bytes(draw.randbytes(3000) + b"\0,\n" + b"x" * 5000 + b"/a.py,sha256=a,1\n../" * 99)
    found = site.packages()
    assert found.trouble and "intact" not in {each.entry for each in found.trouble}
    assert site.files().looked


def test_an_origin_of_many_brackets_stops_nothing(site: Site) -> None:
    info = site.add("deep", {"deep.py": ""})
    (info / "direct_url.json").write_text("[" * 100_000)
    assert [each.what for each in site.packages().trouble] == ["direct_url.json cannot be read"]


def test_an_egg_info_in_a_checkout_on_the_path_makes_no_claim_on_the_python(site: Site) -> None:
    egg = site.folder / "checkout.egg-info"
    egg.mkdir()
    (egg / "PKG-INFO").write_text("Name: checkout\nVersion: 1\nRequires-Python: >=4\nRequires-Dist: nothing\n")
    found = site.packages()
    assert "checkout" not in found.requires_python and "checkout" not in found.requires


def test_contents_are_compared_with_the_recorded_hash(site: Site) -> None:
    site.add("thing", {"thing/a.py": "0123456789", "thing/b.py": "0123456789"})
    (site.folder / "thing/a.py").write_text("9876543210")
    answer = ask(LocalHost(), site.python, "hashes", timeout_s=120.0)
    found = package_facts.hashes(answer).value
    assert isinstance(found, Hashes) and found.is_complete
    (altered,) = [each for each in found.altered if each.owner == "thing"]
    assert altered.examples == ("thing/a.py",)
    assert not [each for each in site.files().altered if each.owner == "thing"]


def test_the_program_of_several_parts_runs_on_the_oldest_python_it_promises() -> None:
    from npuenv.facts.target import text

    source = text("inventory")
    compile(source, "inventory", "exec")
    # -I: what its parts import of npuenv comes with it.
    ran = subprocess.run([sys.executable, "-I", "-c", source], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("\nNPUENV-ANSWER {")
