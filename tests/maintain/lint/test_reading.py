"""What is read from shell text, Dockerfiles and requirement files; rough input; the time it takes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest
from packaging.specifiers import SpecifierSet

from npuenv.core.errors import BadInput
from npuenv.core.finding import Location
from npuenv.core.messages import Message
from npuenv.core.shellscript import commands
from npuenv.core.shellwords import ARCH, UNKNOWN, expand, source_of
from npuenv.maintain.lint import gather, lint_paths
from npuenv.maintain.lint.dockerfile import image_of, read_dockerfile, read_shell_script
from npuenv.maintain.lint.requirement_files import logical_lines, parse_requirement
from npuenv.maintain.lint.values import Clone, PipInstall, disjoint, takes_newest, within
from npuenv.matrix import load_matrix

if TYPE_CHECKING:
    from pathlib import Path

    from npuenv.core.finding import Finding

PLACE = Location("f", 1)


def path_of(finding: Finding) -> str:
    return str(finding.location).rpartition(":")[0]


def words(text: str, env: dict[str, str] | None = None) -> list[tuple[str, ...]]:
    return [each.words for each in commands(source_of(text), env if env is not None else {}) if each.words]


def installs(text: str) -> list[PipInstall]:
    return [each for each in read_shell_script("s.sh", text).events if isinstance(each, PipInstall)]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("<2.0.0", ">=2.0.0", True),
        ("<=2.0.0", ">=2.0.0", False),
        ("==2.8.0", "==2.8.0.post1", True),
        ("==2.8.0", "==2.8.0+cpu", False),
        (">=2.47.1,<=2.48.0", "==2.48.*", False),
        ("<=4.11.0.86", ">=4.13.0", True),
        ("<2.0a0,>=1.25", ">=1.26", False),
        ("!=5.6.0,>=5.5.3,<5.11", "==5.6.0", True),
        ("", "==1", False),
        (">2,<3", ">2.1,<2.2", False),
        ("===abc", ">=1", False),  # cannot be told
    ],
)
def test_two_ranges_are_disjoint_where_no_version_is_in_both(one: str, other: str, expected: bool) -> None:
    assert disjoint(SpecifierSet(one), SpecifierSet(other)) is expected
    assert disjoint(SpecifierSet(other), SpecifierSet(one)) is expected


def test_a_range_is_within_another_only_where_all_of_it_is() -> None:
    assert within(SpecifierSet("<2.0.0"), SpecifierSet("<2"))
    assert within(SpecifierSet("==1.26.4"), SpecifierSet("<2"))
    assert not within(SpecifierSet(">=1.26"), SpecifierSet("<2"))
    assert takes_newest(SpecifierSet(">=15"))
    assert not takes_newest(SpecifierSet(">=15,<26"))


def test_a_word_keeps_what_is_not_decided_apart() -> None:
    env = {"X": "1"}
    assert expand('"v${X}"', env) == "v1"
    assert expand("'${X}'", env) == "${X}"
    assert expand("a$Y", env) == f"a{UNKNOWN}"
    assert expand("${Y:-2}", env) == "2"
    assert expand("k-$(uname -m).whl", env) == f"k-{ARCH}.whl"
    assert expand("$(python3 -c \"print(')')\")", env) == UNKNOWN
    assert expand("`uname -i`", env) == ARCH


def test_commands_are_cut_at_operators_and_not_inside_quotes() -> None:
    text = "a 'b && c' && d > out.txt 2>&1 || e; f | g  # no h\n(i)\n"
    assert words(text) == [("a", "b && c"), ("d", "2"), ("e",), ("f",), ("g",), ("i",)]


def test_a_here_document_is_not_read_as_commands() -> None:
    assert words("cat <<'END' > f\npip install torch==1\nEND\npip install pandas\n") == [
        ("cat",),
        ("pip", "install", "pandas"),
    ]


def test_a_branch_for_one_architecture_says_so() -> None:
    text = (
        'A=$(uname -m)\nif [ "$A" = "x86_64" ]; then pip install a; elif [ "$A" = "aarch64" ]; then pip install b; fi'
    )
    assert [(each.arch, each.certain) for each in installs(text)] == [("x86_64", True), ("aarch64", True)]


def test_the_other_branch_is_for_the_other_architecture() -> None:
    text = 'if [ "$(uname -i)" == "aarch64" ]; then pip install a; else pip install b; fi; pip install c'
    assert [(each.arch, each.certain) for each in installs(text)] == [("aarch64", True), ("x86_64", True), ("", True)]


def test_a_branch_that_a_default_decides_is_taken_and_the_other_is_not_read() -> None:
    text = 'C=""\nif [ -n "$C" ]; then pip install a; else pip install b; fi\n[ -z "$C" ] && pip install c'
    assert [each.requirements[0].name for each in installs(text)] == ["b", "c"]
    assert all(each.certain for each in installs(text))


@pytest.mark.parametrize(
    "text",
    [
        "if [ -f x ]; then pip install a; fi",
        "for v in 1 2; do pip install a; done",
        'case "$1" in x) pip install a ;; esac',
        "true || pip install a",
        "f() { pip install a; }",
        'if [ "$UNSET" = 1 ]; then pip install a; fi',
        "grep -q x y && pip install a",
    ],
)
def test_what_the_text_does_not_decide_is_not_certain(text: str) -> None:
    assert [each.certain for each in installs(text)] == [False]


def test_the_words_of_an_install_are_sorted_into_asks_files_folders_and_indexes() -> None:
    text = (
        "PIP_EXTRA_INDEX_URL=https://a.example/simple python3 -m pip -q install -U --no-deps"
        " 'ray[default]>=2.47' torch==2.8.0+cpu"
        " -r req.txt -e. ./mcore --index-url=https://b.example/simple -f https://c.example"
        " https://d.example/torch_npu-2.8.0-cp311-cp311-linux_aarch64.whl"
    )
    (found,) = installs(text)
    assert [(each.name, str(each.spec)) for each in found.requirements] == [
        ("ray", ">=2.47"),
        ("torch", "==2.8.0+cpu"),
        ("torch-npu", "==2.8.0"),
    ]
    assert found.files == ("/req.txt",)
    assert found.builds == ("/", "/mcore")
    assert found.indexes == ("https://a.example/simple", "https://b.example/simple", "https://c.example")
    assert found.no_deps


def test_uv_pip_is_pip() -> None:
    assert [each.requirements[0].text for each in installs("uv pip install --python 3.11 torch==2.8.0")] == [
        "torch==2.8.0"
    ]


def test_a_wheel_whose_name_is_not_decided_has_no_version() -> None:
    (found,) = installs("V=$(x)\npip install https://a.example/triton_ascend-3.2.0-$V.whl")
    assert [(each.name, each.spec) for each in found.requirements] == [("triton-ascend", None)]


def test_lines_inside_one_run_keep_their_numbers() -> None:
    text = "FROM a\nRUN x && \\\n  # remark\n\n  pip install a \\\n   b && \\\n  pip install c\n"
    (script,) = read_dockerfile("D", text)
    assert [each.place.line for each in script.events if isinstance(each, PipInstall)] == [5, 7]


def test_a_variable_ends_with_its_run_and_env_does_not() -> None:
    text = "FROM a\nENV E=1\nRUN export R=1 && pip install x==$R\nRUN pip install x==$R y==$E\n"
    (script,) = read_dockerfile("D", text)
    found = [requirement for each in script.events if isinstance(each, PipInstall) for requirement in each.requirements]
    assert [(each.name, each.exact) for each in found] == [("x", "1"), ("x", ""), ("y", "1")]


def test_a_stage_goes_on_from_the_one_it_is_built_on() -> None:
    image = "quay.io/ascend/cann:8.5.0-910b-ubuntu22.04-py3.11"
    text = f"FROM {image} AS base\nRUN pip install a\nFROM base\nRUN pip install b\n"
    last = read_dockerfile("D", text)[-1]
    assert [
        requirement.name for each in last.events if isinstance(each, PipInstall) for requirement in each.requirements
    ] == ["a", "b"]
    assert last.image is not None
    assert last.image.cann == "8.5.0"


def test_the_list_form_of_run_is_read() -> None:
    (script,) = read_dockerfile("D", 'FROM a\nRUN ["pip", "install", "torch==2.8.0"]\n')
    assert [
        requirement.exact for each in script.events if isinstance(each, PipInstall) for requirement in each.requirements
    ] == ["2.8.0"]


def test_a_cann_image_says_its_version_chip_system_and_python() -> None:
    image = image_of(PLACE, "swr.example/ascendhub/cann:9.2.0_20260930220649-910b-ubuntu22.04-py3.12-devel")
    assert (image.cann, image.chip, image.os, image.python) == ("9.2.0_20260930220649", "910b", "ubuntu22.04", "3.12")
    assert image_of(PLACE, "ubuntu:22.04").cann == ""


def test_a_checkout_of_a_ref_belongs_to_the_clone_in_that_folder() -> None:
    text = "git clone https://x/a\ngit clone https://x/b c\ncd a && git checkout v1 && cd ..\ngit -C c checkout v2\n"
    found = [each for each in read_shell_script("s.sh", text).events if isinstance(each, Clone)]
    assert [(each.repo, each.ref, each.place.line) for each in found] == [("a", "v1", 3), ("b", "v2", 4)]


def test_requirement_lines_are_joined_and_their_comments_dropped() -> None:
    text = "# a\nray \\\n  ==2.48.0  # why\n\npandas#not-a-comment\n"
    assert list(logical_lines(text)) == [(2, "ray    ==2.48.0"), (5, "pandas#not-a-comment")]


def test_a_requirement_that_hangs_on_the_python_version_is_left_out() -> None:
    assert parse_requirement("six; python_version > '3.11'", PLACE) is None
    assert parse_requirement("six; sys_platform == 'win32'", PLACE) is None
    found = parse_requirement("six; python_version >= '3.9' and platform_machine == 'aarch64'", PLACE)
    assert found is not None
    assert found.arch == "aarch64"


def test_a_requirements_file_that_includes_itself_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("-r other.txt\npandas\n")
    (tmp_path / "other.txt").write_text("-r requirements.txt\nnumpy\n")
    assert [each.name for each in gather(tmp_path).files[0].requirements] == ["pandas", "numpy"]


def test_an_include_outside_the_checkout_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("numpy\n")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/requirements.txt").write_text("-r ../secret.txt\n-r /etc/hostname\npandas\n")
    assert [each.name for each in gather(tmp_path / "in").files[0].requirements] == ["pandas"]


def test_setup_py_is_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (tmp_path / "setup.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom setuptools import setup\nsetup(install_requires=['a'])\n"
    )
    assert [each.name for each in gather(tmp_path).files[0].requirements] == ["a"]
    assert not mark.exists()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("setup.py", b"def (:\n"),
        ("setup.py", b"x = " + b"(" * 5000),
        ("setup.cfg", b"no section\n"),
        ("pyproject.toml", b"[project\n"),
        ("pyproject.toml", b"a." * 100_000 + b"b = 1\n"),
        ("Dockerfile", b"\x7fELF\0\0"),
        ("requirements.txt", b"numpy\n" * 1_000_000),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_rest_is_still_linted(
    name: str, content: bytes, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "requirements-a.txt").write_text("numpy<2\npyarrow>=15\n")
    found = lint_paths([tmp_path], load_matrix())
    assert [(path_of(each), each.check) for each in found] == [
        *sorted([(name, "lint.unreadable"), ("requirements-a.txt", "lint.undeclared-limit")])
    ]


@pytest.mark.parametrize(
    ("include", "why"),
    [
        ("../requirements.txt", "lint.outside"),
        ("/etc/requirements.txt", "lint.outside"),
        ("https://a.example/requirements.txt", "lint.outside"),
        ("requirements-of-nobody.txt", "lint.no-file"),
    ],
)
def test_an_include_that_is_not_read_is_said(include: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.8.0\n")
    file = tmp_path / "requirements" / "requirements-npu.txt"
    file.parent.mkdir()
    file.write_text(f"-r {include}\ntorch-npu==2.9.0\n")
    (found,) = lint_paths([file], load_matrix())
    assert (found.check, path_of(found), found.severity) == ("lint.unreadable", include, "warning")
    what = found.says.args["what"]
    assert isinstance(what, Message) and what.key == why


def test_an_include_inside_the_checkout_is_read_and_said_to_be_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch==2.8.0\n")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "requirements-npu.txt").write_text("-r ../requirements.txt\ntorch-npu==2.9.0\n")
    assert [each.check for each in lint_paths([tmp_path], load_matrix())] == ["lint.torch-pair"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy\n")
    (tmp_path / "requirements.txt").chmod(0)
    assert [each.check for each in lint_paths([tmp_path], load_matrix())] == ["lint.unreadable"]


def test_a_folder_by_the_name_of_a_file_and_a_dangling_link_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").mkdir()
    (tmp_path / "requirements.txt").symlink_to("nowhere")
    assert [(path_of(each), each.check) for each in lint_paths([tmp_path], load_matrix())] == [
        ("requirements.txt", "lint.unreadable")
    ]


def test_bytes_that_are_not_utf8_and_odd_line_ends_are_read(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xef\xbb\xbfnumpy<2  # \xe9\r\npyarrow>=15\r\n")
    assert [f"{each.location} {each.check}" for each in lint_paths([tmp_path], load_matrix())] == [
        "requirements.txt:2 lint.undeclared-limit"
    ]


def test_an_index_that_the_installing_script_names_counts_for_the_file(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch-npu==2.8.0.post1\n")
    assert [each.check for each in lint_paths([tmp_path], load_matrix())] == ["lint.other-index"]
    index = load_matrix().index_row("huawei-ascend")
    assert index is not None
    (tmp_path / "install.sh").write_text(f"pip install -r requirements.txt --extra-index-url {index.url}\n")
    assert lint_paths([tmp_path], load_matrix()) == ()


def test_a_pin_from_metadata_is_placed_at_the_line_that_brings_it(tmp_path: Path) -> None:
    text = (
        "FROM quay.io/ascend/cann:8.3.rc1-910b-openeuler24.03-py3.11\n"
        "RUN git clone -b v0.23.0 https://github.com/vllm-project/vllm-ascend && cd vllm-ascend && \\\n"
        "    pip install -r requirements.txt\n"
    )
    (tmp_path / "Dockerfile").write_text(text)
    (found,) = [each for each in lint_paths([tmp_path], load_matrix()) if each.check == "lint.torch-npu-cann"]
    assert (str(found.location), found.severity) == ("Dockerfile:3", "error")
    assert any("torch-npu==2.10.0.post4" in each.line for each in found.evidence)


def test_a_path_that_does_not_exist_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        lint_paths([tmp_path / "nowhere"], load_matrix())


def test_a_single_file_is_read_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "my.build").write_text(
        "FROM quay.io/ascend/cann:8.5.0-a3-ubuntu22.04-py3.11\nENV SOC_VERSION=ascend910b1\n"
    )
    assert [each.check for each in lint_paths([tmp_path / "my.build"], load_matrix())] == ["lint.soc-version"]


def test_a_complaint_is_said_once_for_a_path_named_twice(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("numpy<2\npyarrow>=15\n")
    assert len(lint_paths([tmp_path, tmp_path], load_matrix())) == 1


def test_two_thousand_files_take_less_than_two_seconds_of_computing(tmp_path: Path) -> None:
    for number in range(40):
        folder = tmp_path / f"package{number}"
        folder.mkdir()
        for name in range(49):
            (folder / f"module{name}.py").write_text("x = 1\n")
        (folder / "requirements.txt").write_text("numpy<2\npyarrow>=15\n")
    git = tmp_path / ".git"
    git.mkdir()
    (git / "requirements.txt").write_text("numpy<2\npyarrow>=15\n")
    began = time.process_time()  # not the clock: what else the machine does is no matter here
    found = lint_paths([tmp_path], load_matrix())
    assert time.process_time() - began < 2
    assert len(found) == 40
