"""CANN's facts on texts and paths that no machine has shown yet: they never raise and never make a version up."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core import versions
from npuenv.core.fact import State
from npuenv.facts import cann
from npuenv.facts.cann import toolkit
from tests.support.scripted_host import ScriptedHost

ROOT = "/usr/local/Ascend/cann-8.5.0"
OLDER = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"
LATEST = "/usr/local/Ascend/ascend-toolkit/latest"
NOISE = st.text(st.characters(codec="utf-8"), max_size=400)
NAMES = st.text("abcdefghijklmnopqrstuvwxyz_-", min_size=1, max_size=12)
RELEASES = st.sampled_from(["8.0.0", "8.0.RC3", "8.2.RC1", "8.3.RC1.alpha001", "8.5.0", "9.0.0-beta.1", "9.1.0"])
FEW = settings(deadline=None)


@pytest.mark.parametrize(
    ("path", "home"),
    [
        (f"{ROOT}/lib64", ROOT),
        (ROOT, ROOT),
        ("/usr/local/Ascend/cann/opp", "/usr/local/Ascend/cann"),
        (f"{LATEST}/opp/built-in/op_impl/ai_core/tbe", LATEST),
        ("/usr/local/Ascend/nnae/8.1.RC1/lib64", "/usr/local/Ascend/nnae/8.1.RC1"),
        ("/data/cann/cann-9.0.0/lib64", "/data/cann/cann-9.0.0"),
        ("/home/dev/Ascend/ascend-toolkit/8.3.RC1/aarch64-linux/lib64", "/home/dev/Ascend/ascend-toolkit/8.3.RC1"),
        ("/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1/lib", ""),
        ("/usr/local/Ascend/driver/lib64", ""),
        ("/usr/local/Ascend", ""),
        ("/opt/canny/lib", ""),
        ("/usr/local/lib", ""),
        ("", ""),
    ],
)
def test_the_cann_folder_of_a_path(path: str, home: str) -> None:
    assert toolkit.home_of(path) == home


@FEW
@given(NOISE)
@pytest.mark.slow
def test_the_folder_of_any_path_is_the_beginning_of_that_path(path: str) -> None:
    home = toolkit.home_of(path)
    assert path == home or path.startswith(f"{home}/") or not home


@FEW
@given(NAMES, RELEASES, st.lists(NAMES, max_size=3))
def test_every_path_below_an_install_belongs_to_it(base: str, release: str, below: list[str]) -> None:
    home = f"/{base}/Ascend/cann-{release}"
    path = "/".join((home, *(name for name in below if not name.startswith("cann"))))
    found = toolkit.home_of(path)
    assert found == home or "nnal" in path or "driver" in path or "firmware" in path
    assert toolkit.is_versioned(home)


@FEW
@given(NOISE)
def test_a_version_file_of_any_text_names_a_release_or_none(text: str) -> None:
    release = toolkit.release_of({"Version": text, "version_dir": text})
    assert release == "" or (versions.is_cann(release) and release in text)


@FEW
@given(RELEASES, st.sampled_from(["", "cann-", "CANN-"]), st.sampled_from(["", '"']))
def test_the_release_is_read_from_the_folder_name_in_all_its_spellings(release: str, before: str, quote: str) -> None:
    fields = {"Version": "7.6.0.1.220", "version_dir": f"{quote}{before}{release}{quote}"}
    assert toolkit.release_of(fields) == release
    assert toolkit.release_of({"Version": release, "version_dir": "cann"}) == release


@pytest.mark.parametrize("count", ["7.6.0.1.220", "8.3.T5.0.B028", "1.83.T8.0.B128", "8.5.0.2.220"])
def test_the_count_of_a_part_is_never_taken_for_a_release(count: str) -> None:
    assert toolkit.release_of({"Version": count}) == ""


@FEW
@given(st.dictionaries(NAMES, RELEASES, min_size=1, max_size=6), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_what_is_written_into_version_cfg_is_read_back(wanted: dict[str, str], end: str, is_counted: bool) -> None:
    values = {name: f"7.6.0.1.220:{release}" if is_counted else release for name, release in wanted.items()}
    text = end.join(["# version: 1.0", *(f"{name}_running_version=[{value}]" for name, value in values.items())])
    read = cann.read_config(text)
    assert (read.running, read.upgrade, read.installed) == (wanted, {}, {})


@FEW
@given(NOISE)
def test_any_version_cfg_is_read_without_a_value_that_is_not_in_it(text: str) -> None:
    read = cann.read_config(text)
    for kind in (read.running, read.upgrade, read.installed):
        assert all(name in text and value in text for name, value in kind.items())


def _torn(text: str) -> st.SearchStrategy[str]:
    """The text cut off, with noise in it, with colour codes or with the line ends of another system."""
    cut = st.integers(0, len(text)).map(lambda at: text[:at])
    noisy = st.tuples(st.integers(0, len(text)), NOISE).map(lambda pair: text[: pair[0]] + pair[1] + text[pair[0] :])
    return st.one_of(cut, noisy, st.just(text.replace("\n", "\r\n")), st.just(f"\x1b[1m{text}\x1b[0m"), NOISE)


INFO = "package_name=Ascend-cann-toolkit\nversion=8.5.0\ninnerversion=V100R001C25SPC001B232\narch=aarch64\n"


@FEW
@given(_torn(INFO))
def test_a_torn_install_file_gives_a_version_that_is_in_it_or_unknown(text: str) -> None:
    host = ScriptedHost(variables={"ASCEND_HOME_PATH": ROOT})
    host.file(f"{ROOT}/aarch64-linux/ascend_toolkit_install.info", text)
    host.folder(ROOT, "aarch64-linux", "compiler", "opp", "runtime")
    host.folder(f"{ROOT}/aarch64-linux", "ascend_toolkit_install.info")
    fact = toolkit.cann(host, "aarch64")
    assert fact.state in (State.KNOWN, State.UNKNOWN)
    assert fact.value is None or fact.value.version in text


@FEW
@given(_torn("package_name=Ascend-cann-910b-ops\nversion=8.5.0\n"))
def test_a_torn_install_file_of_the_kernels_gives_a_version_that_is_in_it(text: str) -> None:
    host = ScriptedHost()
    host.file(f"{ROOT}/aarch64-linux/ascend_ops_install.info", text)
    fact = cann.ops(host, ROOT, "aarch64")
    assert fact.value is None or (fact.value.version in text and fact.value.chip in text)


@FEW
@given(st.dictionaries(st.sampled_from(["LD_LIBRARY_PATH", "PYTHONPATH", "PATH", "ASCEND_HOME_PATH"]), NOISE))
def test_any_environment_gives_entries_that_are_in_it(variables: dict[str, str]) -> None:
    fact = toolkit.entries(ScriptedHost(variables=variables))
    assert fact.state in (State.KNOWN, State.ABSENT)
    assert all(item.variable in variables and item.is_there is False for item in fact.value or ())


@FEW
@given(_torn("gcc (Ubuntu 11.4.0-1ubuntu1~22.04.3) 11.4.0\nCopyright (C) 2021\n"), st.sampled_from([0, 0, 1]))
def test_any_answer_of_a_compiler_gives_numbers_or_nothing(text: str, code: int) -> None:
    host = ScriptedHost()
    host.fails("gcc --version", out=text, code=code)
    fact = cann.compilers(host, 1.0)
    assert all(value in text and re.fullmatch(r"[0-9]+(\.[0-9]+)+", value) for value in (fact.value or {}).values())
    assert code == 0 or fact.value is None


@pytest.mark.parametrize("answer", ["", "latest\n", "/a\n/b\n", "readlink: missing operand\n"])
def test_a_link_that_cannot_be_followed_stays_untold(answer: str) -> None:
    host = ScriptedHost(variables={"ASCEND_HOME_PATH": LATEST})
    host.folder(LATEST, "compiler")
    host.fails(f"readlink -f {LATEST}", out=answer, code=0)
    fact = toolkit.entries(host)
    assert fact.value is not None and (fact.value[0].real, fact.value[0].is_there) == ("", True)


def test_a_latest_of_two_releases_belongs_to_none_of_them() -> None:
    host = ScriptedHost(variables={"ASCEND_HOME_PATH": LATEST})
    host.folder(LATEST, "compiler", "opp")
    for name, target in {"": LATEST, "/compiler": f"{OLDER}/compiler", "/opp": f"{ROOT}/opp"}.items():
        host.fails(f"readlink -f {LATEST}{name}", out=f"{target}\n", code=0)
    assert toolkit.real_home(host, LATEST) == (OLDER, ROOT)
    entries = toolkit.entries(host).value
    assert entries is not None and entries[0].real == ""


def test_an_unreadable_folder_of_the_session_is_neither_there_nor_gone() -> None:
    host = ScriptedHost(variables={"ASCEND_HOME_PATH": ROOT})
    host.unreadable(ROOT)
    entries = toolkit.entries(host).value
    assert entries is not None and (entries[0].real, entries[0].is_there) == ("", None)


def _custom(*, folders: dict[str, list[str]]) -> tuple[Any, ...]:
    host = ScriptedHost(variables={"ASCEND_CUSTOM_OPP_PATH": "/opt/a:/opt/b"})
    for path, names in folders.items():
        host.folder(path, *names)
    fact = cann.custom(host, f"{ROOT}/opp")
    assert fact.value is not None
    return tuple((item.path, item.is_there, item.chips) for item in fact.value.packages)


def test_custom_operators_that_are_gone_or_bring_no_kernels_name_no_chip() -> None:
    tbe = "/opt/b/op_impl/ai_core/tbe"
    assert _custom(folders={"/opt/b": ["op_api"]}) == (("/opt/a", False, None), ("/opt/b", True, None))
    seen = _custom(folders={"/opt/b": ["op_impl"], f"{tbe}/kernel": ["config", "ascend910_93"]})
    assert seen[1] == ("/opt/b", True, ("ascend910_93",))
    only_config = _custom(folders={"/opt/b": ["op_impl"], f"{tbe}/kernel": ["config"]})
    assert only_config[1] == ("/opt/b", True, None)
