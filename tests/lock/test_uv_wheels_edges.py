"""Which wheels an old C library still takes, and what an empty stand-in says of itself."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from npuenv.lock.uv import platform_tags, wheel_fits, write_wheel
from npuenv.resolve.types import Platform

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("tag", "is_taken"), [("2_28", True), ("2_29", False), ("2_6", True), ("2_5", True), ("2_4", False)]
)
def test_manylinux_begins_with_its_first_c_library_and_ends_with_the_platforms(tag: str, is_taken: bool) -> None:
    tags = platform_tags(Platform(arch="x86_64", python="3.11", glibc="2.28"))
    assert wheel_fits(f"a-1.0-cp311-cp311-manylinux_{tag}_x86_64.whl", tags) is is_taken


def test_the_metadata_of_a_stand_in(tmp_path: Path) -> None:
    with zipfile.ZipFile(write_wheel(tmp_path, "Some.Name", "1.0", requires=["torch>=2"])) as wheel:
        said = wheel.read("some_name-1.0.dist-info/METADATA").decode()
    assert said == "Metadata-Version: 2.1\nName: Some.Name\nVersion: 1.0\nRequires-Dist: torch>=2\n"
