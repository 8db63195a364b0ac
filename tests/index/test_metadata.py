"""Requirements as metadata and requirement files state them."""

from __future__ import annotations

import pytest

from npuenv.index.metadata import (
    Unreadable,
    empty_build_requires,
    first_block,
    metadata_requires,
    requirement_lines,
    sdist_requires,
    specifier_of,
)

INFO = "Metadata-Version: 2.1\nName: p\nVersion: 1\nRequires-Python: >=3.9\n"


def test_requirements_are_given_in_normal_form_with_their_markers() -> None:
    texts = {
        "requirements.txt": "# head\nnumpy <2.0.0 , >= 1.26 # why\n\n--extra-index-url https://x.example/y\n"
        "-r more/extra.txt\nxgrammar == 0.1.25; platform_machine == 'x86_64'\n",
        "more/extra.txt": "-r ../base.txt\nray[default] >=2.41\n",
        "base.txt": "six",
    }
    assert requirement_lines(texts, "requirements.txt") == (
        "numpy<2.0.0,>=1.26",
        "six",
        "ray[default]>=2.41",
        'xgrammar==0.1.25; platform_machine == "x86_64"',
    )


def test_files_that_include_each_other_are_unreadable() -> None:
    with pytest.raises(Unreadable):
        requirement_lines({"a.txt": "-r b.txt", "b.txt": "-r a.txt"}, "a.txt")


def test_a_missing_file_and_a_bad_line_are_named() -> None:
    with pytest.raises(Unreadable, match=r"b\.txt"):
        requirement_lines({"a.txt": "-r b.txt"}, "a.txt")
    with pytest.raises(Unreadable, match="numpy <>"):
        requirement_lines({"a.txt": "numpy <> 2"}, "a.txt")


def test_metadata_gives_its_requirements_and_its_python() -> None:
    found = metadata_requires(INFO + "Requires-Dist: torch ==2.10.0\nRequires-Dist: x; extra == 'all'\n", "METADATA")
    assert found is not None
    assert found.requires == ("torch==2.10.0", 'x; extra == "all"')
    assert found.python == ">=3.9"


def test_metadata_without_a_name_is_unreadable() -> None:
    with pytest.raises(Unreadable):
        metadata_requires("<html>503</html>", "METADATA")


@pytest.mark.parametrize(
    ("info", "is_settled"),
    [
        (INFO, False),
        (INFO.replace("2.1", "2.4"), True),
        (INFO.replace("2.1", "2.4") + "Dynamic: requires-dist\n", False),
        (INFO + "Requires-Dist: numpy\n", True),
    ],
)
def test_an_sdist_that_leaves_its_requirements_to_the_build_says_nothing(info: str, is_settled: bool) -> None:
    assert (metadata_requires(info, "PKG-INFO") is not None) is is_settled
    assert metadata_requires(info, "METADATA") is not None


def test_an_sdist_without_requirements_in_its_metadata_has_them_in_its_file() -> None:
    found = sdist_requires({"PKG-INFO": INFO, "requirements.txt": "torch>=2.7.1\n"})
    assert (found.requires, found.file, found.python) == (("torch>=2.7.1",), "requirements.txt", ">=3.9")
    found = sdist_requires({"PKG-INFO": INFO + "Requires-Dist: numpy\n", "requirements.txt": "torch>=2.7.1\n"})
    assert (found.requires, found.file) == (("numpy",), "PKG-INFO")


def test_the_empty_build_reads_the_file_that_setup_names() -> None:
    setup = 'if _no_device():\n        requirements = _read_requirements(\n            "{}")\n    elif _is_cuda():\n'
    new = {"setup.py": setup.format("common.txt"), "requirements/common.txt": "regex", "requirements/cuda.txt": "torch"}
    assert empty_build_requires(new).requires == ("regex",)
    old = {"setup.py": setup.format("requirements-common.txt"), "requirements-common.txt": "psutil"}
    assert empty_build_requires(old).requires == ("psutil",)
    with pytest.raises(Unreadable, match=r"setup\.py"):
        empty_build_requires({"setup.py": "", "requirements/common.txt": "regex"})


def test_the_first_block_ends_in_front_of_the_first_stop() -> None:
    lines = ("regex", "Numba==0.61.2", "torch==2.9.1")
    assert first_block(lines, frozenset({"numba", "torch"})) == ("regex",)


def test_a_specifier_is_the_one_outside_of_extras() -> None:
    lines = ("torch==1; extra == 'old'", "torch_npu==2.10.0.post4", "numpy", "torch>=2.5.1; python_version > '3.9'")
    assert specifier_of(lines, "torch") == ">=2.5.1"
    assert specifier_of(lines, "torch-npu") == "==2.10.0.post4"
    assert (specifier_of(lines, "numpy"), specifier_of(lines, "absent")) == ("", "")
