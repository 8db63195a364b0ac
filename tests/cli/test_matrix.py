"""`npuenv matrix` as a user runs it, offline: text in both languages, JSON, exit codes."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from npuenv.cli import main
from npuenv.core.errors import CannotTell
from npuenv.core.messages import Message
from npuenv.maintain.refresh import Proposal
from npuenv.matrix import load_matrix
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")
FOLDER = load_matrix().folder


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A copy of the tables to spoil."""
    copy = tmp_path / "tables"
    shutil.copytree(FOLDER, copy, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return copy


def spoil(tables: Path, file: str, old: str, new: str) -> None:
    text = (tables / file).read_text(encoding="utf-8")
    assert old in text
    (tables / file).write_text(text.replace(old, new, 1), encoding="utf-8")


# As the table of contradictions has it.
TWO_RELEASES, BELIEVED = "torch_npu of vllm-ascend 0.11.0rc3 and 0.11.0", "2.7.1; 2.7.1.post1 is on no index"


@pytest.mark.slow
def test_check_names_the_side_that_is_believed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "check", "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert f"  {TWO_RELEASES}\n    {sentence('matrix.believed', side=BELIEVED)}\n" in said
    assert f"    {sentence('matrix.rejected', side='2.7.1.post1')}\n" in said
    assert "unresolved: 0)" in said
    assert "source: " not in said


@pytest.mark.slow
def test_check_verbose_adds_sources_reasons_and_what_is_settled(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "check", "-v", "--lang", "en"]) == 0
    said = capsys.readouterr().out
    assert says(said, "contradiction.metadata-is-what-gets-installed")
    assert says(said, "matrix.settled-by", by="contradiction.vllm-ascend-0.18.0-one-off-builds")
    assert "source: verl-qwen3.5 install guide (2026-02)" in said


@pytest.mark.slow
def test_check_speaks_chinese(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "check", "--lang", "zh"]) == 0
    said = capsys.readouterr().out
    assert sentence("matrix.believed", "zh", side=BELIEVED) in said
    assert "无人处理：0" in said


def test_check_quiet_says_nothing_where_nothing_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "check", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_check_json_is_one_document_with_ids_of_every_language(capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    for lang in ("en", "zh"):
        assert main(["matrix", "check", "--json", "--lang", lang]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    english, chinese = documents
    assert (english["schema"], english["exit"]) == ("npuenv.matrix/1", 0)
    assert english["tables"]["contradictions"] == english["summary"]["contradictions"] == len(english["contradictions"])
    assert english["summary"]["unsettled"] == 0
    assert [each["id"] for each in english["contradictions"]] == [each["id"] for each in chinese["contradictions"]]
    assert [each["by"] for each in english["found"]] == [each["by"] for each in chinese["found"]]
    assert english["contradictions"][0]["why"] != chinese["contradictions"][0]["why"]
    assert {each["standing"] for each in english["found"]} == {"settled", "open"}


@pytest.mark.slow
def test_a_contradiction_that_nobody_wrote_down_is_exit_1(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spoil(tables, "vllm_ascend.toml", 'torch_npu = "2.8.0.post2"', 'torch_npu = "2.8.0.post4"')
    words = ["matrix", "check", "--tables", str(tables)]
    assert main([*words, "--quiet", "--lang", "en"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert says(said[0], "matrix.found-policy-torch-npu", row="vllm-ascend.0.13.0rc3", table="2.8.0.post4")
    assert says("\n".join(said[1:3]), "matrix.unsettled")
    assert main([*words, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    (unsettled,) = [each for each in document["found"] if each["standing"] == "unsettled"]
    assert (unsettled["kind"], unsettled["by"]) == ("policy-torch-npu", [])


def test_tables_that_are_not_valid_are_exit_2_with_file_and_row(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(tables, "contradictions.toml", 'believe = "other"', 'believe = "rumour"')
    assert main(["matrix", "check", "--tables", str(tables), "--lang", "en"]) == 2
    said = capsys.readouterr()
    assert "contradictions.toml, row contradiction.torch-npu-2.8.0.post1-on-cann-8.5.0" in said.err
    assert "rumour" in said.err
    assert said.out == ""
    assert main(["matrix", "check", "--tables", str(tables), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit"], document["error"]["kind"]) == ("npuenv.error/1", 2, "bad-input")


def test_a_folder_without_tables_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "check", "--tables", str(tmp_path / "nowhere")]) == 2
    assert "hardware.toml" in capsys.readouterr().err


def test_a_misspelt_verb_leads_to_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "chekc", "--lang", "en"]) == 2
    said = capsys.readouterr().err
    assert says(said, "cli.no-command", name="matrix chekc")
    assert "npuenv matrix check" in said


def test_the_group_itself_lists_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "--help"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: npuenv matrix")
    assert all(f"\n  {verb} " in said for verb in ("check", "lint", "refresh"))
    assert main(["matrix"]) == 2


@pytest.mark.parametrize("verb", ["check", "lint", "refresh"])
def test_help_of_each_verb_says_its_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", verb, "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 " in said
    assert "--lang" in said


def test_lint_of_requirements_that_clash_is_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("torch==2.8.0\ntorch-npu==2.9.0\n", encoding="utf-8")
    assert main(["matrix", "lint", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit"]) == ("npuenv.matrix-lint/1", 1)
    assert document["summary"]["errors"] == sum(each["severity"] == "error" for each in document["complaints"]) > 0
    first = document["complaints"][0]
    assert (first["path"].endswith("requirements.txt"), first["line"] in (1, 2)) == (True, True)
    for lang, word in (("en", "error"), ("zh", "错误")):
        assert main(["matrix", "lint", str(tmp_path), "--lang", lang]) == 1
        assert f"requirements.txt:{first['line']}: {word} {first['rule']}\n" in capsys.readouterr().out


def test_lint_of_requirements_that_fit_is_exit_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "requirements.txt"
    path.write_text("tqdm>=4\n", encoding="utf-8")
    assert main(["matrix", "lint", str(path), "--lang", "en"]) == 0
    assert capsys.readouterr().out == f"{sentence('matrix.lint-clean')}\n"


def test_lint_of_nothing_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "lint", str(tmp_path / "nowhere")]) == 2
    assert str(tmp_path / "nowhere") in capsys.readouterr().err
    assert main(["matrix", "lint"]) == 2


PROPOSAL = Proposal(
    "torch_npu.toml", "torch-npu.2.8.0", "changed", "index", '"default"', '"mirror"', 'index = "mirror"', "an index"
)


@pytest.mark.parametrize(("proposals", "code"), [((), 0), ((PROPOSAL,), 1)])
def test_refresh_prints_the_diff_and_says_whether_there_is_one(
    proposals: tuple[Proposal, ...], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The indexes are replaced: what they say has tests of its own."""
    asked = []

    def propose(matrix: object, settings: object, names: tuple[str, ...], *_: object, **__: object) -> object:
        asked.append(names)
        return proposals

    monkeypatch.setattr("npuenv.maintain.refresh.propose", propose)
    assert main(["matrix", "refresh", "torch-npu", "--lang", "en"]) == code
    said = capsys.readouterr()
    assert ('+index = "mirror"' in said.out.splitlines()) is bool(proposals)
    assert ("Nothing new." in said.err) is not bool(proposals)
    assert main(["matrix", "refresh", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["exit"]) == ("npuenv.matrix-refresh/1", code)
    assert [each["row"] for each in document["proposals"]] == [each.row_id for each in proposals]
    assert asked == [("torch-npu",), ()]


def test_refresh_without_the_index_is_exit_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def propose(*_: object, **__: object) -> object:
        raise CannotTell(Message("cli.interrupted"))

    monkeypatch.setattr("npuenv.maintain.refresh.propose", propose)
    assert main(["matrix", "refresh", "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "cannot-tell"


def test_refresh_of_an_unknown_name_is_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", "refresh", "numpy"]) == 2
    assert "numpy" in capsys.readouterr().err
