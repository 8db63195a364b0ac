"""Where an environment may go, and which interpreter it is made from."""

from __future__ import annotations

import json
import os
import platform
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, NothingFits
from npuenv.core.messages import Message, say
from npuenv.host import Looked, PathState, Ran
from npuenv.host.local import LocalHost
from npuenv.install.environments import EnvironmentPlace, data_folder
from npuenv.install.planning import marker_text
from npuenv.install.target import check_content, check_target, damage_of, find_python, is_ours, kept_lock, require_same
from npuenv.lock.file import Lock, LockedPackage, write_lock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCK = Lock("tiny", "x86_64-cp311-glibc2.28", "m", (LockedPackage("six", "1", ("a" * 64,)),))


class Machine:
    """Interpreters by path with what they answer, and what `df` says; every folder is there and can be written to."""

    name = "machine"

    def __init__(self, pythons: Mapping[str, list[object]], free_kib: int = 10**9) -> None:
        self.pythons, self.free_kib = pythons, free_kib

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        if argv[0] == "df":
            head = "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
            return Ran(tuple(argv), 0, f"{head}/dev/x 1000000 1 {self.free_kib} 1% /\n", "")
        answer = self.pythons.get(argv[0])
        return Ran(tuple(argv), None, "", "") if answer is None else Ran(tuple(argv), 0, json.dumps(answer), "")

    def look(self, path: str) -> Looked:
        if path in self.pythons:
            return Looked(path, PathState.FILE)
        return Looked(path, PathState.FOLDER if path == "/" else PathState.ABSENT, is_writable=True)

    def environ(self) -> Mapping[str, str]:
        return {"PATH": "/a/bin:/b/bin", "HOME": "/h"}


def test_the_first_interpreter_on_path_that_fits_is_taken_by_its_real_place() -> None:
    machine = Machine({
        "/a/bin/python3": [3, 12, 1, "x86_64", "/real/python3.12"],
        "/b/bin/python3.11": [3, 11, 7, "x86_64", "/real/python3.11"],
    })  # fmt: skip
    assert find_python(machine, "3.11", "x86_64") == "/real/python3.11"


def test_an_interpreter_of_another_architecture_does_not_fit() -> None:
    machine = Machine({"/a/bin/python3.11": [3, 11, 7, "aarch64", "/real/python3.11"]})
    with pytest.raises(NothingFits) as caught:
        find_python(machine, "3.11", "x86_64")
    assert "/real/python3.11 (3.11.7 aarch64)" in say(caught.value.message)


def test_an_interpreter_that_ends_with_an_error_is_none() -> None:
    class Broken(Machine):
        def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
            return replace(super().run(argv), code=1)

    with pytest.raises(NothingFits) as caught:
        find_python(Broken({"/a/bin/python3.11": [3, 11, 7, "x86_64", "/real/python3.11"]}), "3.11", "x86_64")
    assert say(caught.value.message).endswith("found: none")


def test_no_interpreter_at_all_says_none() -> None:
    with pytest.raises(NothingFits) as caught:
        find_python(Machine({}), "3.11", "x86_64")
    assert say(caught.value.message).endswith("found: none")
    assert caught.value.exit_code == 4


def test_a_chosen_interpreter_that_does_not_fit_is_bad_input() -> None:
    machine = Machine({"/my/python": [3, 9, 1, "x86_64", "/my/python"]})
    with pytest.raises(BadInput) as caught:
        find_python(machine, "3.11", "x86_64", chosen="/my/python")
    assert "3.9.1" in say(caught.value.message)


def test_this_machines_own_interpreter_is_found() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = find_python(LocalHost(), version, platform.machine(), chosen=sys.executable)
    assert Path(found).is_file()


def test_a_disk_that_is_too_small_is_told_with_both_numbers() -> None:
    with pytest.raises(BadInput) as caught:
        check_target(Machine({}, free_kib=2048), EnvironmentPlace("/x/env"), LOCK)
    assert "2 MiB free" in say(caught.value.message) and "4 MiB" in say(caught.value.message)


def test_a_disk_with_just_enough_room_will_do() -> None:
    check_target(Machine({}, free_kib=4096), EnvironmentPlace("/x/env"), LOCK)
    with pytest.raises(BadInput):
        check_target(Machine({}, free_kib=4095), EnvironmentPlace("/x/env"), LOCK)


class WithEnvironments(Machine):
    """A machine with one environment in a folder of pyenv's or conda's."""

    def __init__(self, place: str) -> None:
        super().__init__({f"{place}/mine/bin/python3.11": [3, 11, 7, "x86_64", "/real/python3.11"]})
        self.place = place

    def look(self, path: str) -> Looked:
        return Looked(path, PathState.FOLDER, names=("mine",)) if path == self.place else super().look(path)

    def environ(self) -> Mapping[str, str]:
        return {**super().environ(), "CONDA_PREFIX": "/c"}


@pytest.mark.parametrize("place", ["/h/.pyenv/versions", "/h/miniconda3/envs", "/opt/conda/envs", "/c/envs"])
def test_interpreters_of_pyenv_and_conda_are_found(place: str) -> None:
    assert find_python(WithEnvironments(place), "3.11", "x86_64") == "/real/python3.11"


def test_a_new_and_an_empty_folder_will_do(tmp_path: Path) -> None:
    check_target(LocalHost(), EnvironmentPlace(str(tmp_path / "a/b/c")), LOCK)
    check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)


def test_a_folder_with_other_content_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInput) as caught:
        check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)
    assert "thesis.tex" in say(caught.value.message)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_a_file_is_no_target(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("x")
    with pytest.raises(BadInput):
        check_target(LocalHost(), EnvironmentPlace(str(place)), LOCK)


@pytest.mark.parametrize("status", ["building", "complete"])
def test_our_own_environment_is_known_by_its_marker(tmp_path: Path, status: str) -> None:
    (tmp_path / "npuenv-env.json").write_text(marker_text(LOCK, status))
    (tmp_path / "bin").mkdir()
    check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)
    assert is_ours(LocalHost(), EnvironmentPlace(str(tmp_path)))


def test_a_torn_marker_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "npuenv-env.json").write_text('{"stack": ')
    assert not is_ours(LocalHost(), EnvironmentPlace(str(tmp_path)))


def test_a_folder_stopped_before_its_first_file_is_ours(tmp_path: Path) -> None:
    (tmp_path / ".npuenv").mkdir()
    check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)


class Frozen(Machine):
    def look(self, path: str) -> Looked:
        return Looked(path, PathState.FOLDER if path in ("/", "/ro") else PathState.ABSENT)


def test_a_read_only_place_is_bad_input() -> None:
    with pytest.raises(BadInput) as caught:
        check_target(Frozen({}), EnvironmentPlace("/ro/env"), LOCK)
    assert caught.value.message == Message("plan.target-read-only", {"path": "/ro"})


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_DATA_HOME": "/data", "HOME": "/home/x"}, "/data/npuenv"),
        ({"XDG_DATA_HOME": "relative", "HOME": "/home/x"}, "/home/x/.local/share/npuenv"),
        ({"HOME": "/home/x"}, "/home/x/.local/share/npuenv"),
    ],
)
def test_the_data_folder_is_always_absolute(environ: dict[str, str], folder: str) -> None:
    assert data_folder(environ) == folder


def test_a_damaged_marker_with_nothing_else_to_prove_the_folder_is_refused_and_nothing_goes(tmp_path: Path) -> None:
    (tmp_path / "npuenv-env.json").write_text("garbage")
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(BadInput, match=r"plan\.target-unproven"):
        check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)
    (tmp_path / ".npuenv").mkdir()
    (tmp_path / ".npuenv/lock.toml").write_text(write_lock(LOCK))
    check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)
    assert damage_of(LocalHost(), EnvironmentPlace(str(tmp_path)))[0].key == "install.marker-damaged"
    require_same(
        LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK, is_replacing=False
    )  # the very lock that lies there
    other = replace(LOCK, stack="other")
    with pytest.raises(BadInput, match=r"install\.other-environment"):
        require_same(
            LocalHost(), EnvironmentPlace(str(tmp_path)), other, is_replacing=True
        )  # whose folder it is nobody knows
    managed = EnvironmentPlace(str(tmp_path), link=str(tmp_path.parent / "current"))
    with pytest.raises(BadInput, match=r"install\.other-environment"):
        require_same(LocalHost(), managed, other, is_replacing=False)
    require_same(LocalHost(), managed, other, is_replacing=True)
    assert sorted(os.listdir(tmp_path)) == [".npuenv", "mine.txt", "npuenv-env.json"]


def test_an_environment_that_was_the_users_before_is_never_made_anew(tmp_path: Path) -> None:
    (tmp_path / "npuenv-env.json").write_text(marker_text(LOCK, "building", "existing"))
    with pytest.raises(BadInput, match=r"plan\.target-existing") as caught:
        check_target(LocalHost(), EnvironmentPlace(str(tmp_path)), LOCK)
    assert caught.value.hint is not None and f"--into {tmp_path}/bin/python" in say(caught.value.hint)


def stand(root: Path, lock: Lock, kind: str = "venv") -> EnvironmentPlace:
    """A finished environment, by what it says of itself."""
    (root / ".npuenv").mkdir()
    (root / "npuenv-env.json").write_text(marker_text(lock, "complete", kind))
    (root / ".npuenv/lock.toml").write_text(write_lock(lock))
    document = {"schema": "npuenv.environment/1", "lock": lock.hash, "kind": kind}
    (root / ".npuenv/manifest.json").write_text(json.dumps(document))
    return EnvironmentPlace(str(root), kind=kind)


def test_a_finished_environment_of_another_kind_is_given_up_only_where_that_is_said(tmp_path: Path) -> None:
    target = stand(tmp_path, LOCK)
    require_same(LocalHost(), target, LOCK, is_replacing=False)
    conda = target._replace(kind="conda")
    with pytest.raises(BadInput, match=r"install\.other-kind") as caught:
        require_same(LocalHost(), conda, LOCK, is_replacing=False)
    assert caught.value.hint is not None and "--as venv" in say(caught.value.hint)
    require_same(LocalHost(), conda, LOCK, is_replacing=True)


def test_the_lock_that_lies_there_is_kept_where_it_names_the_same_set(tmp_path: Path) -> None:
    target = stand(tmp_path, LOCK)
    anew = replace(LOCK, made_with="uv 99.0", newest="2026-12-01")
    assert kept_lock(LocalHost(), target, anew) == LOCK
    other = replace(LOCK, packages=())
    assert kept_lock(LocalHost(), target, other) == other
    (tmp_path / ".npuenv/lock.toml").write_text("torn")
    assert kept_lock(LocalHost(), target, anew) == anew
    assert kept_lock(LocalHost(), EnvironmentPlace(str(tmp_path / "new")), anew) == anew


def test_content_is_judged_without_asking_whether_the_place_will_do(tmp_path: Path) -> None:
    check_content(Frozen({}, free_kib=1), EnvironmentPlace("/ro/env"))
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match=r"plan\.target-foreign"):
        check_content(LocalHost(), EnvironmentPlace(str(tmp_path)))


def test_a_folder_that_could_not_be_activated_or_that_npuenv_tidies_up_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(BadInput, match=r"plan\.target-colon"):
        check_content(LocalHost(), EnvironmentPlace(str(tmp_path / "a:b")))
    own = tmp_path / "npuenv/envs/tiny/mine"
    with pytest.raises(BadInput, match=r"plan\.target-managed"):
        check_content(LocalHost(), EnvironmentPlace(str(own)))
    check_content(LocalHost(), EnvironmentPlace(str(own), link=str(own.with_name("current"))))
    check_content(LocalHost(), EnvironmentPlace(str(tmp_path / "npuenv-envs")))
    own.mkdir(parents=True)
    check_content(LocalHost(), stand(own, LOCK))  # as `--repair` names one that is there
