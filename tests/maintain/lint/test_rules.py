"""Each rule on a small checkout that it complains of and on one that it passes over. The cases are files."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.messages import LANGUAGES, say
from npuenv.maintain.lint import lint_paths
from npuenv.matrix import load_matrix

CASES = sorted((Path(__file__).parent / "cases").glob("*.toml"))


def write(folder: Path, files: dict[str, str]) -> Path:
    """The files of a case; `@label@` in them stands for the address of that index."""
    for name, text in files.items():
        for index in load_matrix().indexes:
            text = text.replace(f"@{index.label}@", index.url)
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_bad_checkout_gets_exactly_the_complaints_of_the_rule_at_their_lines(path: Path, tmp_path: Path) -> None:
    case = load_toml(path)
    found = [each for each in lint_paths([write(tmp_path, case["bad"])], load_matrix()) if each.check == case["rule"]]
    assert [f"{each.location} {each.severity}" for each in found] == case["complaints"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_good_checkout_gets_no_complaint_of_the_rule(path: Path, tmp_path: Path) -> None:
    case = load_toml(path)
    found = lint_paths([write(tmp_path, case["good"])], load_matrix())
    assert [each for each in found if each.check == case["rule"]] == []


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_every_complaint_can_be_said_in_both_languages_and_names_its_evidence(path: Path, tmp_path: Path) -> None:
    for each in lint_paths([write(tmp_path, load_toml(path)["bad"])], load_matrix()):
        assert all(say(each.says, lang) for lang in LANGUAGES)
        assert each.evidence
        assert str(each.location).split(":")[0] in {item.line.split(":")[0] for item in each.evidence}


def test_every_rule_has_a_case() -> None:
    ids = {line.split('"')[1] for path in CASES for line in path.read_text(encoding="utf-8").splitlines()[:1]}
    catalogue = load_toml(Path(__file__).parents[3] / "npuenv/core/messages/lint.toml")
    words = {
        "no-path",
        "no-path-hint",
        "os-error",
        "too-large",
        "binary",
        "outside",
        "no-file",
        "no-pair",
        "unset",
        "default-branch",
    }
    variants = {"unreadable", "torch-npu-cann-not-pair", "moving-ref-tag"}
    assert ids == {f"lint.{key}" for key in catalogue.keys() - words - variants}
