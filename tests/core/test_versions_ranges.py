"""Whether two ranges meet: against every version of a dense pool, and against cases worked out by hand."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from npuenv.core import versions

hypothesis = pytest.importorskip("hypothesis", reason="the property is checked with hypothesis")
st = hypothesis.strategies

RELEASES = ("0", "0.9", "1.0", "1.0.0.1", "1.0.1", "1.1", "1.1.5", "1.2", "2", "3", "1!0", "1!1.0")
TAILS = ("", "a0", "a1", "a2", "b1", "rc1", "rc2", ".post0", ".post1", ".post2", ".post3", "rc1.post1")
POOL = [f"{release}{tail}{dev}" for release in RELEASES for tail in TAILS for dev in ("", ".dev0", ".dev1", ".dev2")]
NAMED = [f"{release}{tail}" for release in RELEASES for tail in ("", "a1", "rc1", ".post1", ".dev1", "rc1.post1")]


def specifiers() -> Any:
    version = st.sampled_from(NAMED)
    plain = st.builds(
        lambda operator, each: operator + each, st.sampled_from(["==", "!=", "<=", ">=", "<", ">"]), version
    )
    prefix = st.builds(
        lambda operator, each: f"{operator}{each}.*", st.sampled_from(["==", "!="]), st.sampled_from(RELEASES)
    )
    compatible = st.sampled_from([f"~={each}" for each in RELEASES if "." in each])
    return st.lists(st.one_of(plain, prefix, compatible), min_size=1, max_size=4).map(",".join)


@hypothesis.settings(deadline=None)
@hypothesis.given(specifiers(), specifiers())
def test_ranges_that_do_not_meet_share_no_version_of_the_pool(one: str, other: str) -> None:
    meet = versions.overlap(one, other)
    assert versions.overlap(other, one) is meet
    assert meet or [each for each in POOL if versions.accepts(one, each) and versions.accepts(other, each)] == []


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(specifiers() | st.just(""), st.sampled_from([*POOL, "1.0+cpu", "1.0.post1+cpu"]))
def test_a_plain_bound_takes_what_packaging_takes(spec: str, version: str) -> None:
    assert versions.accepts(spec, version) is SpecifierSet(spec).contains(Version(version), prereleases=True)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (">=4.13.0", "<=4.11.0.86"),
        ("<0.124.0", ">=0.133.0,<0.137.0"),
        ("==2.8.0", "==2.8.0.post1"),
        (">1.0", "<=1.0.post5"),  # `>1.0` takes no post-release of 1.0
        (">1.0.post1", "<1.0.post2"),
        ("<1.0", ">=1.0.dev0"),  # `<1.0` takes no pre-release of 1.0
        ("~=1.0.5", "!=1.0.*"),
        (">=5,<6", "!=5.*"),
        ("==1.0+cpu", "==1.0+cu121"),
        ("<0", ">=0"),
    ],
)
def test_ranges_that_never_meet(one: str, other: str) -> None:
    assert not versions.overlap(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<5,>=4.56.0", "<=4.57.1"),
        ("==5.5.3", "!=5.0.*,!=5.1.*,!=5.2.*,!=5.3.*,!=5.4.*,!=5.5.0,>=4.56.0"),
        ("", ">=1"),
        ("<2.0a0,>=1.25", "<2"),
        (">1.0.post1", "<=1.0.post2,!=1.0.post2"),  # 1.0.post2.dev0
        ("==2.8.0", "==2.8.0+cpu"),
        ("!=1.0.*,>=1.0", "<=1.1,!=1.1"),  # 1.1.dev0
        (">0.9", "<0.9.0.0.1"),
        ("===1.0", ">=1"),
        (">=0", "<1!0"),
        (">=2", "!=2.*"),  # the release at which the prefix ends
        (">=2", "!=2.*,!=3.*"),
    ],
)
def test_ranges_that_meet(one: str, other: str) -> None:
    assert versions.overlap(one, other)


def test_known_pairs_of_single_versions_meet_only_where_they_are_equal() -> None:
    for one, other in itertools.product(RELEASES, repeat=2):
        is_equal = versions.python_version(one) == versions.python_version(other)
        assert versions.overlap(f"=={one}", f"=={other}") is is_equal
