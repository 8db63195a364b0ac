"""The operating system's packages: only what lacks, under its name there, and only with consent."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npuenv.core.messages import say
from npuenv.install.prerequisites import PackageManager, look_at_system, system_steps
from tests.install.planning.plan_cases import Scripted, runs, stack_and_lock

if TYPE_CHECKING:
    from npuenv.resolve.types import Stack

WANTED = ("gcc", "g++", "libnuma-dev", "build-essential", "git")
OS_RELEASE = {
    "ubuntu22.04": 'ID=ubuntu\nVERSION_ID="22.04"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\nID_LIKE=debian\n',
    "ubuntu24.04": 'ID=ubuntu\nVERSION_ID="24.04"\nPRETTY_NAME="Ubuntu 24.04.1 LTS"\nID_LIKE=debian\n',
    "debian12": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "openeuler22.03": 'ID="openEuler"\nVERSION_ID="22.03"\nPRETTY_NAME="openEuler 22.03 (LTS-SP4)"\n',
    "openeuler24.03": 'ID="openEuler"\nVERSION_ID="24.03"\nPRETTY_NAME="openEuler 24.03 (LTS-SP1)"\n',
    "other": 'ID=gentoo\nPRETTY_NAME="Gentoo Linux"\n',
}
DPKG = ("dpkg-query", "-W", "-f", "${Package} ${Status}\\n", *WANTED)
# What dpkg-query prints for packages that are there, were removed with their settings kept, and were never there.
DPKG_SAYS = "gcc install ok installed\ng++ deinstall ok config-files\ngit install ok installed\n"
RPM_NAMES = ("gcc", "gcc-c++", "numactl-devel", "make", "git")
RPM = ("rpm", "-q", "--qf", "%{NAME} install ok installed\\n", *RPM_NAMES)
RPM_SAYS = (
    "gcc install ok installed\npackage gcc-c++ is not installed\npackage numactl-devel is not installed\n"
    "make install ok installed\ngit install ok installed\n"
)


def stack() -> Stack:
    return replace(stack_and_lock("cpu", "x86_64")[0], system_packages=WANTED)


def machine(system: str, *, uid: str = "1000", sudo: bool = True, dnf: bool = True, **more: object) -> Scripted:
    paths: dict[str, str | None] = {"/etc/os-release": OS_RELEASE[system]}
    paths |= {"/usr/bin/sudo": ""} if sudo else {}
    paths |= {"/usr/bin/dnf": ""} if dnf else {}
    answers = {("id", "-u"): (0, f"{uid}\n"), DPKG: (1, DPKG_SAYS), RPM: (2, RPM_SAYS)}
    return Scripted({**answers, **more}, paths, {"PATH": "/usr/bin"})  # type: ignore[dict-item]


@pytest.mark.parametrize("system", ["ubuntu22.04", "ubuntu24.04", "debian12"])
def test_apt_installs_what_lacks_without_a_question(system: str) -> None:
    seen = look_at_system(machine(system, uid="0"), stack())
    assert seen.missing == ("g++", "libnuma-dev", "build-essential")
    (step,) = system_steps(stack(), seen, is_allowed=True).steps
    assert [run.argv[:2] for run in runs(step)] == [("apt-get", "-o"), ("apt-get", "-o")]
    assert runs(step)[1].argv[3:] == ("install", "-y", "--no-install-recommends", *seen.missing)
    assert runs(step)[1].env == {"DEBIAN_FRONTEND": "noninteractive"}
    assert step.needs_root and step.needs_network
    assert step.done_when[0].of == ("dpkg", "g++", "libnuma-dev", "build-essential")


@pytest.mark.parametrize("system", ["openeuler22.03", "openeuler24.03"])
@pytest.mark.parametrize("has_dnf", [True, False])
def test_dnf_or_yum_installs_the_same_under_its_own_names(system: str, has_dnf: bool) -> None:
    seen = look_at_system(machine(system, uid="0", dnf=has_dnf), stack())
    assert seen.missing == ("gcc-c++", "numactl-devel")
    (step,) = system_steps(stack(), seen, is_allowed=True).steps
    (run,) = runs(step)
    assert run.argv[0] == ("dnf" if has_dnf else "yum")
    assert run.argv[-2:] == ("gcc-c++", "numactl-devel") and "-y" in run.argv
    assert step.done_when[0].of == ("rpm", "gcc-c++", "numactl-devel")


def test_sudo_never_asks_and_carries_the_variables_over() -> None:
    (step,) = system_steps(stack(), look_at_system(machine("debian12"), stack()), is_allowed=True).steps
    run = runs(step)[1]
    assert run.argv[:5] == ("sudo", "-n", "env", "DEBIAN_FRONTEND=noninteractive", "apt-get") and run.env == {}


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_without_consent_it_is_only_told_with_the_whole_command(lang: str) -> None:
    found = system_steps(stack(), look_at_system(machine("debian12"), stack()), is_allowed=False)
    assert found.steps == ()
    text = say(found.notes[0], lang)
    assert "--with-system" in text and "libnuma-dev" in text
    assert "apt-get -o DPkg::Lock::Timeout=120 update && env DEBIAN_FRONTEND=noninteractive apt-get" in text


def test_who_has_no_way_to_root_gets_the_administrators_command() -> None:
    found = system_steps(stack(), look_at_system(machine("openeuler22.03", sudo=False), stack()), is_allowed=True)
    assert found.steps == ()
    assert "administrator" in say(found.notes[0])
    assert say(found.notes[0]).endswith("dnf install -y --setopt=install_weak_deps=False gcc-c++ numactl-devel")


def test_nothing_is_done_where_nothing_lacks() -> None:
    all_there = "".join(f"{name} install ok installed\n" for name in WANTED)
    host = machine("debian12")
    host = replace(host, answers={**host.answers, DPKG: (0, all_there)})
    seen = look_at_system(host, stack())
    assert seen.missing == () and seen.is_known
    assert system_steps(stack(), seen, is_allowed=True) == system_steps(stack(), seen, is_allowed=False)
    assert system_steps(stack(), seen, is_allowed=True).steps == ()


def test_a_database_that_gives_no_answer_is_not_taken_for_an_empty_one() -> None:
    host = machine("debian12")
    host = replace(host, answers={**host.answers, DPKG: (127, "")})
    seen = look_at_system(host, stack())
    assert not seen.is_known and seen.missing == WANTED
    note = system_steps(stack(), seen, is_allowed=False).notes[0]
    assert note.key == "plan.system-unknown"


def test_a_system_whose_names_are_not_known_is_told_so_and_left_alone() -> None:
    seen = look_at_system(machine("other", uid="0"), stack())
    found = system_steps(stack(), seen, is_allowed=True)
    assert found.steps == () and "Gentoo Linux" in say(found.notes[0])


def test_a_stack_that_asks_for_nothing_needs_nothing() -> None:
    bare = replace(stack(), system_packages=())
    seen = look_at_system(machine("debian12"), bare)
    assert seen == PackageManager("Debian GNU/Linux 12 (bookworm)", "dpkg", "apt-get", (), True, "none")
