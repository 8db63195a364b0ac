"""What `check` refuses beyond wrong types: each case is one edit of a copy of the tables."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput
from npuenv.core.messages import LANGUAGES, Message, say
from npuenv.maintain.check import check, tables_of
from npuenv.matrix import Matrix, load_matrix

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MATRIX = load_matrix()
AT = 'id = "contradiction.a3-soc-version"'


def refused(tmp_path: Path, file: str, old: str, new: str) -> tuple[str, str, str]:
    """Key, row and offending value of the error after one edit."""
    folder = tmp_path / "matrix"
    shutil.copytree(MATRIX.folder, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    text = (folder / file).read_text(encoding="utf-8")
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(BadInput) as error:
        check(Matrix(folder))
    message = error.value.message
    assert message.args["file"] == file
    assert all(file in say(message, lang) for lang in LANGUAGES)
    return message.key, str(message.args["row"]), str(message.args["what"])


@pytest.mark.parametrize(
    ("file", "old", "new", "expected"),
    [
        (
            "contradictions.toml", AT, 'id = "cann.8.5.0"',
            ("matrix.duplicate", "cann.8.5.0", "cann.8.5.0"),
        ),
        (
            "vllm_ascend.toml", 'released = "2025-05-08"', 'released = "2025-5-08"',
            ("matrix.not-a-day", "vllm-ascend.0.7.3", "released = '2025-5-08'"),
        ),
        (
            "vllm_ascend.toml", 'released = "2025-05-08"', 'released = "2025-02-30"',
            ("matrix.not-a-day", "vllm-ascend.0.7.3", "released = '2025-02-30'"),
        ),
        (
            "vllm_ascend.toml", 'released = "2025-05-08"', 'released = "2031-05-08"',
            ("matrix.after-seen", "vllm-ascend.0.7.3", "released = '2031-05-08'"),
        ),
        (
            "contradictions.toml", 'one_source = "verl-qwen3.5 install guide (2026-02)"', 'one_source = " "',
            ("matrix.no-source", "contradiction.torch-npu-2.8.0.post1-on-cann-8.5.0", "one_source"),
        ),
        (
            "contradictions.toml", 'why = "contradiction.same-family"', 'why = "contradiction.same-familiy"',
            ("matrix.no-sentence", "contradiction.a3-soc-version", "contradiction.same-familiy"),
        ),
        (
            "contradictions.toml", '.0.9.1", "vllm-ascend.0.23.0"', '.0.9.1", "vllm-ascend.0.23"',
            ("matrix.dangling", "contradiction.vllm-ascend-flashcomm", "vllm-ascend.0.23"),
        ),
        (
            "vllm_ascend.toml", 'version = "0.7.3.post1"', 'version = "0.7.2"',
            ("matrix.not-in-order", "vllm-ascend.0.7.3.post1", "0.7.2"),
        ),
        (
            "vllm_ascend.toml", 'version = "0.7.3.post1"', 'version = "0.7.3.0"',
            ("matrix.not-in-order", "vllm-ascend.0.7.3.post1", "0.7.3.0"),
        ),
        (
            "torch_npu.toml", 'index = "default"', 'index = "defualt"',
            ("matrix.dangling", "torch-npu.2.12.0", "index defualt"),
        ),
        (
            "triton_ascend.toml", 'index = "default"', 'index = "defualt"',
            ("matrix.dangling", "triton-ascend.3.2.0rc2", "index defualt"),
        ),
        (
            "vllm_ascend.toml", 'os = ["ubuntu22.04", "openeuler22.03"]', 'os = ["ubuntu22.04", "openeuler22"]',
            ("matrix.dangling", "vllm-ascend.0.7.3", "openeuler22"),
        ),
        (
            "vllm_ascend.toml", 'hardware = ["a2"]', 'hardware = ["a22"]',
            ("matrix.dangling", "vllm-ascend.0.7.3", "a22"),
        ),
        (
            "frameworks/verl.toml", 'what = ["torch-npu"]', 'what = ["torch-nnpu"]',
            ("matrix.dangling", "verl-cann9.1.0", "step torch-npu: torch-nnpu"),
        ),
    ],
)  # fmt: skip
@pytest.mark.one_in(3)
def test_one_wrong_field_is_refused_with_its_row(
    tmp_path: Path, file: str, old: str, new: str, expected: tuple[str, str, str]
) -> None:
    assert refused(tmp_path, file, old, new) == expected


def test_a_cann_version_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "matrix"
    shutil.copytree(MATRIX.folder, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    path = folder / "torch_npu.toml"
    path.write_text(path.read_text(encoding="utf-8").replace('"8.5.X"', '"8,5.X"', 1), encoding="utf-8")
    with pytest.raises(BadInput) as error:
        check(Matrix(folder))
    assert error.value.message.key == "versions.not-cann"


@pytest.mark.parametrize("lacking", LANGUAGES)
@pytest.mark.long
def test_a_sentence_that_one_language_lacks_is_refused(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "contradiction.same-family"

    def said(message: Message, lang: str) -> str:
        if (message.key, lang) == (key, lacking):
            raise KeyError(message.key)
        return say(message, lang)

    check(MATRIX)
    monkeypatch.setattr(sys.modules[tables_of.__module__], "say", said)
    with pytest.raises(BadInput) as error:
        check(MATRIX)
    assert (error.value.message.key, error.value.message.args["what"]) == ("matrix.no-sentence", key)


def test_every_table_of_the_folder_is_checked() -> None:
    files = {path.relative_to(MATRIX.folder).with_suffix("").as_posix() for path in MATRIX.folder.rglob("*.toml")}
    checked = {name for name, _ in tables_of(MATRIX)} | {"keys/verl", "keys/roll"}  # lists of keys, not of rows
    assert {"built" if name.startswith("built/") else name for name in files} == checked
