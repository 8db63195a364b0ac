"""The order of CANN, driver and firmware versions, and the bridge to packaging."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet

from npuenv.core import versions
from npuenv.core.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

CANN = [
    "8.0.RC3.alpha003",
    "8.0.RC3",
    "8.0.0",
    "8.3.RC1",
    "8.3.RC2",
    "8.5.0.alpha001",
    "8.5.0",
    "8.5.2",
    "9.0.0",
    "9.1.0-beta.1",
    "9.1.0",
]
DRIVER = [
    "22.0.4.1",
    "23.0.7",
    "24.1.rc3",
    "24.1.rc3.7",
    "25.0.RC1",
    "25.0.0",
    "25.5.1",
    "25.5.2",
    "26.0.RC1",
    "26.0.RC3",
]


@pytest.mark.parametrize(("older", "newer"), list(itertools.pairwise(CANN)))
def test_cann_versions_are_in_release_order(older: str, newer: str) -> None:
    assert versions.cann(older) < versions.cann(newer)
    assert not versions.cann(newer) < versions.cann(older)


@pytest.mark.parametrize(("older", "newer"), list(itertools.pairwise(DRIVER)))
def test_driver_versions_are_in_release_order(older: str, newer: str) -> None:
    assert versions.driver(older) < versions.driver(newer)


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("8.5.0.B160", "8.5.0"),
        ("9.2.0_20260930220649", "9.2.0"),
        ("8.3.rc1", "8.3.RC1"),
        ("9.1.0.beta.1", "9.1.0-beta.1"),
    ],
)
def test_cann_build_and_case_do_not_count_but_stay_for_display(shown: str, same: str) -> None:
    assert versions.cann(shown) == versions.cann(same)
    assert hash(versions.cann(shown)) == hash(versions.cann(same))
    assert str(versions.cann(shown)) == shown


def test_driver_build_does_not_count() -> None:
    assert versions.driver("25.0.rc1.b010") == versions.driver("25.0.RC1")


def test_two_part_driver_is_its_series() -> None:
    assert versions.driver("25.0").series == (25, 0)
    assert versions.driver("25.0") < versions.driver("25.2")


@pytest.mark.parametrize(
    ("name", "is_one"), [("0.9.1", True), ("0.7.0rc1", True), ("40456706", False), ("main", False)]
)
def test_a_release_has_a_dot_because_a_commit_may_be_digits_alone(name: str, is_one: bool) -> None:
    assert versions.is_release(name) is is_one


def test_firmware_orders_by_number_not_by_text() -> None:
    assert versions.firmware("7.8.0.2.212") < versions.firmware("7.8.0.10.1")
    assert versions.firmware("7.1.0.11.220") < versions.firmware("7.8.0.2.212")


@pytest.mark.parametrize("text", ["", "eight", "8", "8.5.0.post1", "8.5.0 ; rm", "8.5.0.B"])
def test_what_is_no_cann_version_is_refused(text: str) -> None:
    with pytest.raises(BadInput) as refused:
        versions.cann(text)
    assert refused.value.message.args["text"] == text
    assert versions.is_cann(text) is False


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (versions.cann, "8.5.{}"),
        (versions.cann, "8.5.RC{}"),
        (versions.driver, "25.0.{}"),
        (versions.firmware, "7.8.0.{}"),
        (versions.python_version, "2.{}"),
        (versions.python_version, "2.8.0.post{}"),
        (versions.specifier, "=={}"),
    ],
)
def test_a_number_of_thousands_of_digits_is_no_version(read: Callable[[str], object], text: str) -> None:
    long = text.format("9" * 5000)
    with pytest.raises(BadInput):
        read(long)
    assert not versions.is_cann(long) and not versions.is_release(long)


@pytest.mark.parametrize("text", ["7.8", "7.8.0.rc1", "x"])
def test_what_is_no_firmware_version_is_refused(text: str) -> None:
    with pytest.raises(BadInput):
        versions.firmware(text)


@pytest.mark.parametrize(
    ("spec", "version", "taken"),
    [
        ("==2.8.0", "2.8.0+cpu", True),
        ("==2.8.0", "2.8.0.post1", False),
        ("==2.8.0+cpu", "2.8.0", False),
        (">=3.2.0rc1", "3.2.0rc4", True),
        ("<2", "2.0.0rc1", False),
        (">=0.8.0,<=0.10.0,!=0.9.0", "0.9.0", False),
        (">=0.8.0,<=0.10.0,!=0.9.0", "0.9.1", True),
        ("==2.13.0.*", "2.13.0+cpu", True),
    ],
)
def test_specifier_takes_versions_as_installers_do(spec: str, version: str, taken: bool) -> None:
    assert versions.accepts(spec, version) is taken


def test_bounds_are_met_as_packaging_meets_them() -> None:
    releases = [f"2.8{patch}{end}" for patch in ("", ".0", ".1") for end in ("", "rc1", ".post1", ".dev1", "rc1.post1")]
    specs = [f"{sign}{release}" for sign in ("==", "!=", "<", "<=", ">", ">=") for release in releases]
    has = [f"{release}{label}" for release in (*releases, "2.7", "2.9") for label in ("", "+cpu", "+a.1")]
    differ = [
        (spec, version)
        for spec in (*specs, "==2.8.*", "!=2.8.0.*")
        for version in has
        if versions.accepts(spec, version) is not SpecifierSet(spec).contains(version, prereleases=True)
    ]
    assert differ == []


def test_unreadable_python_version_and_specifier_are_refused() -> None:
    with pytest.raises(BadInput):
        versions.python_version("two")
    with pytest.raises(BadInput):
        versions.specifier("2.8.0 or so")


@pytest.mark.parametrize(
    ("requirement", "name"),
    [("ray[default]>=2.41.0", "ray"), ("Torch_NPU==2.8.0", "torch-npu"), ("opencv.python  <5", "opencv-python")],
)
def test_requirement_name_is_normal(requirement: str, name: str) -> None:
    assert versions.requirement_name(requirement) == name


@pytest.mark.parametrize(
    ("requirement", "spec"),
    [
        ("ray[default]>=2.41.0", ">=2.41.0"),
        ("numpy<2.0.0; python_version < '3.12'", "<2.0.0"),
        ("torch (==2.8.0)", "==2.8.0"),
        ("wheel", ""),
        ("  a.b_c [x, y] ~= 1.2 ", "~= 1.2"),
    ],
)
def test_requirement_spec_is_what_stands_behind_the_name(requirement: str, spec: str) -> None:
    assert versions.requirement_spec(requirement) == spec


@pytest.mark.parametrize(
    ("text", "other", "both"),
    [
        ("fastapi<0.124", "fastapi[standard]>=0.133", "fastapi[standard]<0.124"),
        ("fastapi<0.124", "fastapi>=0.133", "fastapi<0.124"),
        ("Ray_X[a]==1", "ray-x[b,c]", "ray-x[b,c]==1"),
    ],
)
def test_extras_are_taken_from_the_other_requirement(text: str, other: str, both: str) -> None:
    assert versions.with_extras_of(text, other) == both


@pytest.mark.parametrize(
    ("named", "version", "is_covered"),
    [
        ("8.5.X", "8.5.2", True),
        ("8.5.X", "8.3.RC1", False),
        ("8.5.0", "8.5.0.B160", True),
        ("8.5.0", "8.5.1", False),
    ],
)
def test_series_covers_its_releases_and_a_release_itself(named: str, version: str, is_covered: bool) -> None:
    assert versions.covers_cann(named, version) is is_covered


@pytest.mark.parametrize(
    ("spec", "version"), [("==2.9.0", "2.9.0"), ("==2.*", ""), (">=2", ""), ("==2.9.0,!=2.9.1", ""), ("", "")]
)
def test_exact_gives_the_version_of_one_exact_pin(spec: str, version: str) -> None:
    assert versions.exact(spec) == version
