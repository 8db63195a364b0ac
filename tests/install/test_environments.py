"""The environments on a machine: what is found, what a word means, what is deleted and what never is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from npuenv.cli import main
from npuenv.core.errors import BadInput, StepFailed
from npuenv.facts.manifest import MANIFEST, MARKER, VERIFIED, describe
from npuenv.host.local import LocalHost
from npuenv.install.environments import (
    CURRENT,
    PREVIOUS,
    clear,
    environments,
    find,
    left_over,
    points_to,
    previous_of,
    remains,
    remember,
    remove,
    roll_back,
    size_mib,
)
from tests.support.sentences import says

HOST = LocalHost()


def made(root: Path, *, stack: str = "tiny", status: str = "complete", kind: str = "venv") -> Path:
    """A folder that says of itself what a finished installation says."""
    lock = root.name
    (root / ".npuenv").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin/python").write_text("x" * 5000)
    marker = {"schema": 1, "stack": stack, "platform": "x86_64-cp311-glibc2.28", "lock": lock, "status": status}
    (root / MARKER).write_text(json.dumps(marker))
    manifest = {"lock": lock, "npuenv": "1.2", "kind": kind, "origin": "indexes", "steps": ["venv", "torch"]}
    (root / MANIFEST).write_text(json.dumps({**manifest, "request": {"framework": "cpu"}}))
    verified = {"lock": lock, "at": "2026-01-02T03:04:05Z", "files": 7, "packages": 2, "tree": "ab"}
    (root / VERIFIED).write_text(json.dumps(verified))
    return root


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Three environments of a stack: in force, before it, and an idle one; and a file and a folder that are none."""
    home = tmp_path / "data" / "envs" / "tiny"
    for name in ("aaa", "bbb", "ccc"):
        made(home / name)
    (home / CURRENT).symlink_to(home / "bbb")
    (home / PREVIOUS).symlink_to(home / "aaa")
    (home / "notes.txt").write_text("mine")
    (home / "foreign").mkdir()
    return tmp_path / "data"


def test_each_environment_is_found_once_with_its_role(data: Path) -> None:
    found = {Path(kept.described.root).name: kept.role for kept in environments(HOST, data)}
    assert found == {"aaa": "previous", "bbb": "current", "ccc": ""}


def test_what_an_environment_says_of_itself_is_read_whole(data: Path) -> None:
    own = describe(HOST, str(data / "envs/tiny/bbb"))
    assert own is not None
    assert (own.stack, own.lock, own.npuenv, own.kind, own.origin) == ("tiny", "bbb", "1.2", "venv", "indexes")
    assert own.request == {"framework": "cpu"}
    assert own.verified is not None
    assert (own.verified.at, own.verified.files, own.verified.packages) == ("2026-01-02T03:04:05Z", 7, 2)
    assert own.is_proven


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"lock": 3}', '{"lock": "other"}', '{"lock": "bbb"}'])
def test_a_torn_or_foreign_verification_proves_nothing(data: Path, torn: str) -> None:
    root = data / "envs/tiny/bbb"
    (root / VERIFIED).write_text(torn)
    own = describe(HOST, str(root))
    assert own is not None
    assert not own.is_proven


def test_a_manifest_of_a_former_lock_is_not_believed(data: Path) -> None:
    root = data / "envs/tiny/bbb"
    (root / MANIFEST).write_text(json.dumps({"lock": "older", "npuenv": "0.1", "steps": ["x"]}))
    own = describe(HOST, str(root))
    assert own is not None
    assert (own.npuenv, own.steps) == ("", ())


def test_a_folder_without_a_marker_is_no_environment(tmp_path: Path) -> None:
    assert describe(HOST, str(tmp_path)) is None


@pytest.mark.parametrize(("word", "name"), [("tiny", "bbb"), ("tiny/aaa", "aaa"), ("tiny/ccc", "ccc")])
def test_a_word_means_one_environment(data: Path, word: str, name: str) -> None:
    assert Path(find(HOST, data, word).described.root).name == name


def test_a_folder_means_its_environment_also_through_the_link(data: Path) -> None:
    assert Path(find(HOST, data, str(data / "envs/tiny/ccc")).described.root).name == "ccc"


@pytest.mark.parametrize("word", ["{home}/current", "{home}/current/", "{home}/foreign/../current"])
def test_the_link_to_the_one_in_force_means_the_environment_itself(data: Path, word: str) -> None:
    """Which is what people type: activation and README speak of `.../current`."""
    home = data / "envs/tiny"
    kept = find(HOST, data, word.format(home=home))
    assert (kept.described.root, kept.role) == (str(home / "bbb"), CURRENT)


def test_removing_by_the_link_takes_the_environment_and_the_link(data: Path) -> None:
    home = data / "envs/tiny"
    remove(find(HOST, data, str(home / CURRENT)), data)
    assert sorted(path.name for path in home.iterdir()) == ["aaa", "ccc", "foreign", "notes.txt", "previous"]


def test_an_environment_that_was_made_through_a_link_of_the_users_is_removed_itself(data: Path, tmp_path: Path) -> None:
    place = made(tmp_path / "big disk" / "env")
    (tmp_path / "env").symlink_to(place)
    remember(tmp_path / "env", data)
    remove(find(HOST, data, str(tmp_path / "env")), data)
    assert not place.exists()
    assert not list(place.parent.iterdir())
    assert (data / "environments.txt").read_text() == ""


def test_an_unknown_word_names_those_there_are(data: Path) -> None:
    with pytest.raises(BadInput) as caught:
        find(HOST, data, "tniy")
    assert caught.value.message.args["known"] == ("tiny/aaa", "tiny/bbb", "tiny/ccc")


def test_a_place_elsewhere_is_remembered_and_forgotten_with_its_removal(data: Path, tmp_path: Path) -> None:
    place = made(tmp_path / "my own")
    remember(place, data)
    remember(place, data)
    kept = find(HOST, data, str(place))
    assert kept.role == "elsewhere"
    assert (data / "environments.txt").read_text() == f"{place}\n"
    remove(kept, data)
    assert not place.exists()
    assert (data / "environments.txt").read_text() == ""


def test_what_lies_in_the_data_folder_needs_no_list(data: Path) -> None:
    remember(data / "envs/tiny/bbb", data)
    assert not (data / "environments.txt").exists()


def test_removing_the_one_in_force_takes_its_link_away_and_nothing_else(data: Path) -> None:
    remove(find(HOST, data, "tiny"), data)
    home = data / "envs/tiny"
    assert sorted(path.name for path in home.iterdir()) == ["aaa", "ccc", "foreign", "notes.txt", "previous"]


def test_an_environment_at_work_is_not_removed(data: Path) -> None:
    kept = find(HOST, data, "tiny/ccc")
    with (Path(kept.described.root) / ".npuenv/running").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(BadInput, match=r"store\.in-use"):
            remove(kept, data)
    assert (data / "envs/tiny/ccc/bin/python").exists()


def test_the_environment_of_an_existing_python_is_never_deleted(data: Path, tmp_path: Path) -> None:
    remember(made(tmp_path / "usr", kind="existing"), data)
    with pytest.raises(BadInput, match=r"store\.not-ours"):
        remove(find(HOST, data, str(tmp_path / "usr")), data)
    assert (tmp_path / "usr/bin/python").exists()


def test_left_over_is_the_idle_one_and_the_remains_of_a_deletion(data: Path) -> None:
    home = data / "envs/tiny"
    (home / ".removing-ddd").mkdir()
    (home / ".removing-eee").symlink_to("bbb")
    assert left_over(HOST, data) == (home / ".removing-ddd", home / ".removing-eee", home / "ccc")


def test_of_a_link_that_a_removal_left_only_the_link_goes(data: Path) -> None:
    home = data / "envs/tiny"
    (home / ".removing-eee").symlink_to("bbb")
    assert clear(home / ".removing-eee", data)
    assert not (home / ".removing-eee").is_symlink() and (home / "bbb/bin/python").exists()


def test_what_is_being_deleted_by_another_process_is_left_to_it(data: Path) -> None:
    home = data / "envs/tiny"
    dying = (home / "ccc").rename(home / ".removing-ccc")
    made(home / "ccc")
    with (dying / ".npuenv/running").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert not clear(dying, data)
        with pytest.raises(BadInput, match=r"store\.in-use"):
            remove(find(HOST, data, "tiny/ccc"), data)
    assert (dying / "bin/python").exists() and (home / "ccc/bin/python").exists()
    assert clear(dying, data) and not dying.exists()


def test_an_environment_made_again_after_an_interrupted_removal_can_be_removed(data: Path) -> None:
    home = data / "envs/tiny"
    (home / "ccc").rename(home / ".removing-ccc")
    made(home / "ccc")
    remove(find(HOST, data, "tiny/ccc"), data)
    assert remains(data) == () and not (home / "ccc").exists()


def test_a_removal_elsewhere_that_was_interrupted_is_ended_and_forgotten(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    place, whole = made(tmp_path / "mine" / "env"), shutil.rmtree
    remember(place, data)
    monkeypatch.setattr(shutil, "rmtree", interrupt)
    with pytest.raises(KeyboardInterrupt):
        remove(find(HOST, data, str(place)), data)
    monkeypatch.setattr(shutil, "rmtree", whole)
    assert remains(data) == (place.with_name(".removing-env"),)
    assert clear(place.with_name(".removing-env"), data)
    assert not list(place.parent.iterdir()) and (data / "environments.txt").read_text() == ""


def test_the_list_tells_of_remains_and_clean_takes_them_away(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "npuenv").symlink_to(data)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    home = tmp_path / "npuenv/envs/tiny"
    made(home / "ddd").rename(home / ".removing-ddd")
    (home / ".removing-eee").symlink_to("bbb")
    assert main(["env", "list", "--lang", "en"]) == 0
    assert says(capsys.readouterr().err, "install.remains", count=2)
    assert main(["env", "clean", "--yes", "--json"]) == 0
    gone = [str(home / name) for name in (".removing-ddd", ".removing-eee", "ccc")]
    assert json.loads(capsys.readouterr().out)["paths"] == gone
    assert not any(os.path.lexists(path) for path in gone) and (home / "bbb/bin/python").exists()
    assert main(["env", "list", "--lang", "en"]) == 0
    assert capsys.readouterr().err == ""


def test_beside_an_environment_elsewhere_nothing_of_the_users_counts_as_remains(data: Path, tmp_path: Path) -> None:
    place = made(tmp_path / "mine" / "env")
    remember(place, data)
    remember(Path("/"), data)
    for name in (".removing-env", ".removing-other"):
        (place.with_name(name)).mkdir()
        (place.with_name(name) / "thesis.txt").write_text("years of work")
    assert remains(data) == ()
    with pytest.raises(StepFailed):
        remove(find(HOST, data, str(place)), data)
    assert (place / "bin/python").exists() and (place.with_name(".removing-env") / "thesis.txt").exists()


def test_a_half_deleted_environment_is_not_listed(data: Path) -> None:
    home = data / "envs/tiny"
    (home / "ccc").rename(home / ".removing-ccc")
    assert [Path(kept.described.root).name for kept in environments(HOST, data)] == ["aaa", "bbb"]


def test_hard_links_count_once(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"x" * (3 << 20))
    (tmp_path / "two").hardlink_to(tmp_path / "one")
    assert size_mib(tmp_path) == 3


def test_a_rollback_and_another_end_where_they_began(data: Path) -> None:
    home = data / "envs/tiny"
    assert roll_back(home) == (home / "aaa", home / "bbb")
    assert (points_to(home / CURRENT), points_to(home / PREVIOUS)) == ("aaa", "bbb")
    roll_back(home)
    assert (points_to(home / CURRENT), points_to(home / PREVIOUS)) == ("bbb", "aaa")


@pytest.mark.parametrize("spoil", ["no link", "dangling", "the same"])
def test_without_a_former_environment_nothing_is_switched(data: Path, spoil: str) -> None:
    home = data / "envs/tiny"
    (home / PREVIOUS).unlink()
    if spoil == "dangling":
        (home / PREVIOUS).symlink_to(home / "gone")
    elif spoil == "the same":
        (home / PREVIOUS).symlink_to(home / "bbb")
    with pytest.raises(BadInput, match=r"store\.no-previous"):
        previous_of(home)
    with pytest.raises(BadInput):
        roll_back(home)
    assert points_to(home / CURRENT) == "bbb"


def damaged(root: Path) -> Path:
    """As `made`, with a manifest as installations write it, and a marker that nobody can read."""
    made(root, kind="venv")
    own = {"schema": "npuenv.environment/1", "stack": "tiny", "platform": "p", "lock": root.name, "kind": "venv"}
    (root / MANIFEST).write_text(json.dumps(own))
    (root / MARKER).write_bytes(b"\xff\x00{")
    return root


def test_with_a_marker_that_cannot_be_read_the_manifest_speaks(data: Path) -> None:
    root = damaged(data / "envs/tiny/ddd")
    found = {Path(kept.described.root).name: kept.described for kept in environments(HOST, data)}
    own = found["ddd"]
    assert (own.stack, own.lock, own.status, own.kind, own.is_proven) == ("tiny", "ddd", "damaged", "venv", False)
    remove(find(HOST, data, "tiny/ddd"), data)
    assert not root.exists()


def test_with_neither_marker_nor_manifest_the_lock_says_the_stack(data: Path) -> None:
    root = damaged(data / "envs/tiny/ddd")
    (root / MANIFEST).unlink()
    assert describe(HOST, str(root)) is None
    (root / ".npuenv/lock.toml").write_text('stack = "tiny"\nplatform = "p"\nseal = "12"\n')
    own = describe(HOST, str(root))
    assert own is not None and (own.stack, own.lock, own.status) == ("tiny", "", "damaged")
    (root / MARKER).unlink()
    assert describe(HOST, str(root)) is None  # without any marker it is nobody's


def test_what_is_not_provably_npuenvs_own_is_not_deleted(data: Path, tmp_path: Path) -> None:
    root = damaged(tmp_path / "mine")
    (root / MANIFEST).unlink()
    (root / ".npuenv/lock.toml").write_text('stack = "tiny"\nplatform = "p"\nseal = "12"\n')
    remember(root, data)
    with pytest.raises(BadInput, match=r"store\.unproven"):
        remove(find(HOST, data, str(root)), data)
    assert (root / "bin/python").exists()
    inside = data / "envs/tiny/ddd"
    root.rename(inside)
    remove(find(HOST, data, str(inside)), data)  # nobody but npuenv makes folders there
    assert not inside.exists()


def test_an_unfinished_installation_into_an_existing_python_is_not_deleted_either(data: Path, tmp_path: Path) -> None:
    root = made(tmp_path / "usr", status="building")
    (root / MANIFEST).unlink()
    marker = json.loads((root / MARKER).read_text())
    (root / MARKER).write_text(json.dumps({**marker, "kind": "existing"}))
    with pytest.raises(BadInput, match=r"store\.not-ours"):
        remove(find(HOST, data, str(root)), data)
    assert (root / "bin/python").exists()


def test_links_are_on_the_disk_when_a_rollback_has_returned(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda file: (events.append(os.readlink(f"/proc/self/fd/{file}")), fsync(file)))  # type: ignore[func-returns-value]
    monkeypatch.setattr(Path, "replace", lambda path, to: (events.append(path.name), replace(path, to)))  # type: ignore[func-returns-value]
    home = data / "envs/tiny"
    roll_back(home)
    assert events == ["current.new", str(home), "previous.new", str(home)]
