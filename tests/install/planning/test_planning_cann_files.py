"""CANN from supplied files: which they are, whether they fit, and what their installers are told."""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, StepFailed
from npuenv.core.messages import say
from npuenv.core.plan import WriteFile
from npuenv.host.local import LocalHost
from npuenv.install.environments import EnvironmentPlace
from npuenv.install.prerequisites import cann_steps, expected_names, parse_cann_file, with_found_cann
from npuenv.matrix import load_matrix
from tests.install.planning.plan_cases import Scripted, carry_out, runs, stack_and_lock

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

TARGET = EnvironmentPlace("/t/env")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Ascend-cann-toolkit_8.5.0_linux-aarch64.run", ("toolkit", "", "8.5.0", "aarch64", "run")),
        ("Ascend-cann-toolkit_8.3.RC1.alpha003_linux-x86_64.run", ("toolkit", "", "8.3.RC1.alpha003", "x86_64", "run")),
        ("Ascend-cann-toolkit_9.1.0-beta.1_linux-aarch64.run", ("toolkit", "", "9.1.0-beta.1", "aarch64", "run")),
        ("Ascend-cann-910b-ops_8.5.0_linux-aarch64.run", ("ops", "910b", "8.5.0", "aarch64", "run")),
        ("Ascend-cann-A3-ops_9.1.0_linux-x86_64.run", ("ops", "a3", "9.1.0", "x86_64", "run")),
        ("Ascend-cann-kernels-910b_8.3.RC1_linux-aarch64.run", ("ops", "910b", "8.3.RC1", "aarch64", "run")),
        ("Ascend-cann-kernels-310P_8.0.0_linux-aarch64.run", ("ops", "310p", "8.0.0", "aarch64", "run")),
        ("Ascend-cann-kernels-310p_8.0.RC2_linux.run", ("ops", "310p", "8.0.RC2", "", "run")),
        ("Atlas-A3-cann-kernels_8.3.RC1_linux-aarch64.run", ("ops", "a3", "8.3.RC1", "aarch64", "run")),
        ("Ascend-cann-nnal_8.5.0_linux-aarch64.run", ("nnal", "", "8.5.0", "aarch64", "run")),
        ("Ascend-cann-nnal-8.5.0-linux.aarch64.rpm", ("nnal", "", "8.5.0", "aarch64", "rpm")),
    ],
)
def test_names_that_the_makers_give_are_recognised(name: str, expected: tuple[str, ...]) -> None:
    found = parse_cann_file(f"/some/where/{name}")
    assert found is not None
    assert (found.part, found.chip, found.version, found.arch, found.form) == expected


@pytest.mark.parametrize(
    "name",
    [
        "Ascend-hdk-310p-npu-driver_25.3.rc1_linux-aarch64.run",
        "Ascend-cann-toolkit_8.5.0_linux-aarch64.run.asc",
        "cann.run",
        "Ascend-cann-toolkit.run",
        "",
    ],
)
def test_other_names_are_none_of_canns(name: str) -> None:
    assert parse_cann_file(name) is None


@pytest.mark.parametrize(
    ("stack", "hardware", "ops"),
    [
        ("verl-0.7.1-cann8.5.0", "a2", "Ascend-cann-910b-ops_8.5.0_linux-aarch64.run"),
        ("verl-0.7.1-cann8.5.0", "a3", "Ascend-cann-A3-ops_8.5.0_linux-aarch64.run"),
        ("verl-0.7.0-cann8.3.RC1", "a2", "Ascend-cann-kernels-910b_8.3.RC1_linux-aarch64.run"),
        ("verl-0.7.0-cann8.3.RC1", "a3", "Atlas-A3-cann-kernels_8.3.RC1_linux-aarch64.run"),
    ],
)
def test_the_files_that_a_stack_takes_are_named_as_they_can_be_had(stack: str, hardware: str, ops: str) -> None:
    wanted, _ = stack_and_lock(stack)
    wanted = replace(wanted, platform=replace(wanted.platform, hardware=hardware))
    names = expected_names(wanted)
    assert names[1] == ops
    assert [found.part for name in names if (found := parse_cann_file(name))] == ["toolkit", "ops", "nnal"]
    assert expected_names(stack_and_lock("cpu", "x86_64")[0]) == ()


def test_every_hash_of_the_matrix_belongs_to_a_name_that_is_recognised() -> None:
    rows = load_matrix().cann_files
    assert len(rows) >= 4
    for row in rows:
        assert parse_cann_file(row.id) is not None and len(row.sha256) == 64 and int(row.sha256, 16) > 0


def here(root: Path) -> Stack:
    """The CANN 8.5.0 stack for this machine's architecture, with its CANN below `root`."""
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    return replace(
        stack, cann_root=str(root / "Ascend/cann-8.5.0"), platform=replace(stack.platform, arch=platform.machine())
    )


INSTALLER = """#!/bin/bash
# Notes its arguments, and leaves what the real one leaves.
echo "$(basename "$0") $*" >> "@LOG@"
[ "$1" = --check ] && exit 0
for word; do case "$word" in --install-path=*) place=${word#--install-path=};; esac; done
case "$0" in
    *toolkit*) folder="$place/cann-8.5.0/@ARCH@-linux"; mkdir -p "$folder"
        printf 'package_name=Ascend-cann-toolkit\\nversion=8.5.0\\n' > "$folder/ascend_toolkit_install.info"
        echo 'export ASCEND_HOME_PATH=here' > "$place/cann-8.5.0/set_env.sh";;
    *ops*) printf 'package_name=Ascend-cann-910b-ops\\nversion=8.5.0\\n' \\
        > "$place/cann-8.5.0/@ARCH@-linux/ascend_ops_install.info";;
    *nnal*) [ -n "$ASCEND_HOME_PATH" ] || { echo "ERROR: source the toolkit's set_env.sh first"; exit 1; }
        mkdir -p "$place/nnal/atb/latest"
        echo 'Ascend-cann-atb : 8.5.0' > "$place/nnal/atb/latest/version.info";;
esac
"""


def supplied(folder: Path, stack: Stack) -> list[str]:
    files = []
    for name in expected_names(stack):
        text = INSTALLER.replace("@LOG@", str(folder / "log")).replace("@ARCH@", platform.machine())
        # Two real names have a published hash, which these files cannot have.
        path = folder / name.replace("8.5.0", "8.5.0.B001")
        path.write_text(text)
        files.append(str(path))
    return files


def test_the_three_parts_go_in_in_order_each_checked_and_where_the_stack_looks(tmp_path: Path) -> None:
    stack, target = here(tmp_path), EnvironmentPlace(str(tmp_path / "env"))
    files = supplied(tmp_path, stack)
    found = cann_steps(LocalHost(), stack, files[::-1], target)
    assert [step.id for step in found.steps] == ["cann-toolkit", "cann-ops", "cann-nnal"] and found.notes == ()
    assert not any(step.needs_root for step in found.steps)  # this folder is the user's own
    outcome = carry_out(tmp_path / "env", *found.steps)
    assert outcome.done == ("cann-toolkit", "cann-ops", "cann-nnal")
    names = [Path(path).name for path in files]
    options = f"--install --quiet --install-path={tmp_path}/Ascend"
    assert (tmp_path / "log").read_text().splitlines() == [
        f"{name} {words}" for name in names for words in ("--check", options)
    ]
    assert carry_out(tmp_path / "env", *found.steps).done == ()
    assert cann_steps(LocalHost(), stack, files, target).steps == ()
    assert cann_steps(LocalHost(), stack, (), target) == cann_steps(LocalHost(), stack, files, target)


def test_a_file_that_changes_between_the_plan_and_its_execution_is_not_run(tmp_path: Path) -> None:
    stack, target = here(tmp_path), EnvironmentPlace(str(tmp_path / "env"))
    files = supplied(tmp_path, stack)
    steps = cann_steps(LocalHost(), stack, files, target).steps
    with open(files[0], "a", encoding="utf-8") as file:
        file.write("# altered\n")
    with pytest.raises(StepFailed):
        carry_out(tmp_path / "env", steps[0])
    assert not (tmp_path / "log").exists()


def test_what_lacks_and_was_not_supplied_is_told_by_the_name_of_its_file(tmp_path: Path) -> None:
    stack = here(tmp_path)
    found = cann_steps(LocalHost(), stack, (), TARGET)
    assert found.steps == ()
    assert [name for note in found.notes for name in expected_names(stack) if name in say(note)] == list(
        expected_names(stack)
    )
    one = cann_steps(LocalHost(), stack, supplied(tmp_path, stack)[:1], TARGET)
    assert [step.id for step in one.steps] == ["cann-toolkit"] and len(one.notes) == 2


@pytest.mark.parametrize(
    ("name", "key", "is_for"),
    [
        ("Ascend-cann-toolkit_8.3.RC1_linux-ARCH.run", "cann-other", "8.3.RC1"),
        ("Ascend-cann-toolkit_8.5.0_linux-OTHER.run", "cann-other", "OTHER"),
        ("Ascend-cann-310p-ops_8.5.0_linux-ARCH.run", "cann-other", "310p"),
        ("Ascend-cann-A3-ops_8.5.0_linux-ARCH.run", "cann-other", "a3"),
        ("cann.run", "cann-name", None),
        ("absent.run", "cann-absent", None),
        ("Ascend-cann-nnal_8.5.0_linux-ARCH.run", "cann-unreadable", None),
        ("Ascend-cann-nnal-8.5.0-linux.ARCH.rpm", "cann-package-place", None),
    ],
)
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_file_that_does_not_fit_is_refused_in_one_sentence(
    tmp_path: Path, name: str, key: str, is_for: str | None, lang: str
) -> None:
    arch = platform.machine()
    other = "x86_64" if arch == "aarch64" else "aarch64"
    path = tmp_path / name.replace("ARCH", arch).replace("OTHER", other)
    if key == "cann-unreadable":
        path.mkdir()
    elif name != "absent.run":
        path.write_text("x")
    with pytest.raises(BadInput) as caught:
        cann_steps(LocalHost(), here(tmp_path), [str(path)], TARGET)
    assert caught.value.message.key == f"plan.{key}"
    assert caught.value.message.args.get("is") == (other if is_for == "OTHER" else is_for)
    assert "\n" not in say(caught.value.message, lang)
    if name in ("absent.run", "cann.run"):
        assert caught.value.hint is not None and "\n" not in say(caught.value.hint, lang)


def test_a_file_with_another_hash_than_the_published_one_is_refused(tmp_path: Path) -> None:
    stack = here(tmp_path)
    path = tmp_path / expected_names(stack)[0]
    path.write_text("#!/bin/sh\n")
    with pytest.raises(BadInput) as caught:
        cann_steps(LocalHost(), stack, [str(path)], TARGET)
    assert hashlib.sha256(b"#!/bin/sh\n").hexdigest() in say(caught.value.message)


def test_a_file_whose_hash_cannot_be_made_is_refused() -> None:
    host, path = elsewhere("0", sudo=False)
    with pytest.raises(BadInput) as caught:
        cann_steps(Scripted({}, host.paths), stack_and_lock("verl-0.7.1-cann8.5.0")[0], [path], TARGET)
    assert caught.value.message.key == "plan.cann-unreadable"


def test_the_same_part_twice_and_cann_for_a_stack_without_it_are_refused(tmp_path: Path) -> None:
    stack = here(tmp_path)
    path = supplied(tmp_path, stack)[0]
    with pytest.raises(BadInput) as caught:
        cann_steps(LocalHost(), stack, [path, path], TARGET)
    assert caught.value.message.key == "plan.cann-twice"
    with pytest.raises(BadInput) as caught:
        cann_steps(LocalHost(), stack_and_lock("cpu", "x86_64")[0], [path], TARGET)
    assert caught.value.message.key == "plan.cann-not-needed"


def elsewhere(uid: str, *, sudo: bool) -> tuple[Scripted, str]:
    """A machine whose /usr/local/Ascend is not the user's, and the toolkit's file on it."""
    path = "/files/Ascend-cann-toolkit_8.5.0_linux-aarch64.run"
    row = next(row for row in load_matrix().cann_files if row.id == os.path.basename(path))
    answers: dict[tuple[str, ...], tuple[int, str]] = {
        ("sha256sum", path): (0, f"{row.sha256}  {path}\n"),
        ("id", "-u"): (0, f"{uid}\n"),
    }
    paths: dict[str, str] = {path: "#!/bin/bash\n"} | ({"/usr/bin/sudo": ""} if sudo else {})
    return Scripted(answers, paths, {"PATH": "/usr/bin"}), path


def test_the_usual_place_is_roots_and_what_root_installs_for_another_is_for_all() -> None:
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    host, path = elsewhere("1000", sudo=True)
    (step,) = cann_steps(host, stack, [path], TARGET).steps
    assert step.needs_root and step.why.key == "plan.why-cann" and "licence" in say(step.why)
    check, install = runs(step)[-2:]
    assert check.argv == ("sudo", "-n", "bash", path, "--check")
    assert install.argv[4:] == ("--install", "--quiet", "--install-path=/usr/local/Ascend", "--install-for-all")
    sums = next(action for action in step.do if isinstance(action, WriteFile))
    assert sums.text.endswith(f"  {path}\n")


def test_root_installs_for_itself_and_who_cannot_be_root_gets_the_command() -> None:
    stack, _ = stack_and_lock("verl-0.7.1-cann8.5.0")
    host, path = elsewhere("0", sudo=False)
    (step,) = cann_steps(host, stack, [path], TARGET).steps
    assert runs(step)[-1].argv == ("bash", path, "--install", "--quiet", "--install-path=/usr/local/Ascend")
    host, path = elsewhere("1000", sudo=False)
    found = cann_steps(host, stack, [path], TARGET)
    assert found.steps == ()
    assert f"bash {path} --check && bash {path} --install" in say(found.notes[0])


def test_cann_that_lies_elsewhere_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    stack = here(Path("/nowhere"))
    assert with_found_cann(LocalHost(), stack) == stack
    folder = tmp_path / f"Ascend/cann-8.5.0/{platform.machine()}-linux"
    folder.mkdir(parents=True)
    (folder / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=8.5.0\n")
    assert with_found_cann(LocalHost(), stack).cann_root == str(tmp_path / "Ascend/cann-8.5.0")
    (folder / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=9.0.0\n")
    assert with_found_cann(LocalHost(), stack) == stack
