"""`npuenv preflight` as a user runs it: text in both languages, JSON, SARIF, exit codes, corrected copies, secrets."""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from npuenv.cli import main
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

KEY = "0123456789abcdef0123"
GOOD = """\
#!/bin/bash
export HCCL_CONNECT_TIMEOUT=3600
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files=$HOME/data/gsm8k/train.parquet \\
    data.val_files=$HOME/data/gsm8k/test.parquet \\
    data.train_batch_size=128 \\
    data.max_prompt_length=512 \\
    data.max_response_length=128 \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct \\
    actor_rollout_ref.model.use_remove_padding=False \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=20 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \\
    actor_rollout_ref.rollout.gpu_memory_utilization=0.6 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=40 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=40 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 "$@" 2>&1 | tee run.log
"""
CARDS = "4,5,6,7,0,1,2,3"
BAD = GOOD.replace(
    "export HCCL_CONNECT_TIMEOUT=3600", f"export CUDA_VISIBLE_DEVICES={CARDS}\nexport WANDB_API_KEY={KEY}"
)
AT = (
    "--for", "verl==0.7.1", "--hardware", "a2", "--card-memory", "64",
    "--cards-per-node", "8", "--nodes", "1", "--lang", "en",
)  # fmt: skip


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "good.sh"
    path.write_text(GOOD, encoding="utf-8")
    return path


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / "bad.sh"
    path.write_text(BAD, encoding="utf-8")
    path.chmod(0o755)
    return path


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_sound_launch_is_fine(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(good), *AT]) == 0
    assert "errors" not in capsys.readouterr().out.replace("errors: 0", "")


@pytest.mark.parametrize(("release", "judged_as"), [("0.7.0", ""), ("0.9.0", ""), ("0.10.0", "0.9.1")])
def test_a_release_that_launch_files_are_rendered_for_is_judged_as_the_one_before(
    release: str, judged_as: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render-launch", "--for", f"verl=={release}", "--force", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    at = ("--hardware", "a2", "--card-memory", "64", "--lang", "en")
    assert main(["preflight", str(tmp_path / "run.sh"), "--for", f"verl=={release}", *at]) == 0
    said = capsys.readouterr().out
    known = {"known": judged_as} if judged_as else {}
    is_near = says(said, "preflight_rules.release-near", framework="verl", release=release, **known)
    assert is_near == bool(judged_as)
    assert f"verl {release}, " in said and "errors: 0, warnings: 0" in said


@pytest.mark.parametrize("release", ["verl==9.9", "roll==7.7", "roll==0.1.0"])
def test_a_release_that_no_launch_files_are_rendered_for_is_refused(
    release: str, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(good), "--for", release]) == 2
    name, _, number = release.partition("==")
    assert says(capsys.readouterr().err, "preflight.no-such-release", framework=name, release=number)


def test_the_release_of_a_roll_stack_is_a_commit_that_counts_as_a_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["render-launch", "--for", "roll", "-o", str(tmp_path)]) == 0
    capsys.readouterr()
    path = next(tmp_path.glob("*.yaml"))
    assert main(["preflight", str(path), "--stack", "roll-cann9.1.0", "--json"]) == 0
    assert document(capsys)["release"] == "0.3.0"


def test_a_key_that_nobody_reads_is_told_where_it_stands(good: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good.write_text(GOOD.replace("    trainer.nnodes=1", "    +foo.bar=1 trainer.nnodes=1"), encoding="utf-8")
    assert main(["preflight", str(good), *AT]) == 0
    said = capsys.readouterr().out
    assert f"{good}:22: note preflight.key-unknown\n" in said
    assert says(said, "preflight_rules.key-own", release="0.7.1", key="foo.bar")


def test_an_error_names_its_line_the_reason_and_the_corrected_line(
    bad: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(bad), *AT]) == 1
    said = capsys.readouterr().out
    assert f"{bad}:2: error preflight.visibility\n" in said
    assert f"    found:   CUDA_VISIBLE_DEVICES={CARDS}\n    correct: export ASCEND_RT_VISIBLE_DEVICES={CARDS}\n" in said
    assert "      source: " in said
    assert "errors: 1," in said


def test_a_command_is_examined_word_by_word(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["CUDA_VISIBLE_DEVICES=0", "python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=1,2"]
    assert main(["preflight", *AT, "--json", "--", *words]) == 1
    found = document(capsys)
    places = {each["rule"]: each["place"] for each in found["problems"]}
    assert places["preflight.visibility"] == {"path": None, "line": 1, "word": 1}
    assert places["preflight.hydra-grammar"] == {"path": None, "line": 1, "word": 5}
    assert (found["source"], found["path"]) == ("command", None)


def test_chinese_has_the_same_keys_and_other_sentences(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = []
    for lang in ("en", "zh"):
        assert main(["preflight", str(bad), *AT[:-1], lang, "--json"]) == 1
        documents.append(document(capsys))
    english, chinese = documents
    assert [each["rule"] for each in english["problems"]] == [each["rule"] for each in chinese["problems"]]
    assert english["problems"][0].keys() == chinese["problems"][0].keys()
    assert english["problems"][0]["says"] != chinese["problems"][0]["says"]
    assert main(["preflight", str(bad), *AT[:-1], "zh"]) == 1
    assert f"应为：export ASCEND_RT_VISIBLE_DEVICES={CARDS}" in capsys.readouterr().out


def test_the_document_has_its_keys(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(bad), *AT, "--json"]) == 1
    found = document(capsys)
    assert list(found) == [
        "schema", "npuenv", "exit", "framework", "release", "source", "path", "machine", "settings", "open",
        "missing_files", "summary", "problems", "notes", "fix",
    ]  # fmt: skip
    assert (found["schema"], found["exit"], found["framework"], found["release"]) == (
        "npuenv.preflight/1", 1, "verl", "0.7.1",
    )  # fmt: skip
    assert found["machine"]["hardware"] == "a2"
    assert found["open"] == ["data.train_files", "data.val_files"]
    problem = found["problems"][0]
    assert list(problem) == ["rule", "severity", "says", "place", "settings", "source", "corrected", "changes"]
    assert problem["changes"][0] == {
        "key": "ASCEND_RT_VISIBLE_DEVICES", "value": CARDS, "variable": True, "renames": "CUDA_VISIBLE_DEVICES",
    }  # fmt: skip


def test_sarif_points_at_the_line(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(bad), *AT, "--format", "sarif"]) == 1
    run = document(capsys)["runs"][0]
    result = run["results"][0]
    assert (result["ruleId"], result["level"]) == ("preflight.visibility", "error")
    assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == "preflight.visibility"
    assert result["locations"][0]["physicalLocation"]["region"] == {"startLine": 2}


def test_junit_has_a_case_for_each_problem_and_each_silent_rule(
    bad: Path, good: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["preflight", str(bad), *AT, "--format", "junit"]) == 1
    (suite,) = ElementTree.fromstring(capsys.readouterr().out)
    failed = [case for case in suite if case.find("failure") is not None]
    assert [case.get("name") for case in failed] == [f"preflight.visibility {bad}:2"]
    failure = failed[0].find("failure")
    assert failure is not None and f"correct: export ASCEND_RT_VISIBLE_DEVICES={CARDS}" in (failure.text or "")
    names = {str(case.get("name")).split()[0] for case in suite}
    assert {"preflight.visibility", "preflight.engine"} <= names and "preflight.roll-batch" not in names
    assert (suite.get("tests"), suite.get("failures"), suite.get("name")) == (str(len(suite)), "1", str(bad))
    assert main(["preflight", str(good), *AT, "--format", "junit"]) == 0
    (suite,) = ElementTree.fromstring(capsys.readouterr().out)
    assert suite.get("failures") == "0" and not suite.findall("*/failure")


def test_every_launch_of_a_script_is_judged_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = "no-key-by-its-look"
    second = GOOD.replace("#!/bin/bash\n", "").replace("rollout.name=vllm", f"rollout.name=vllm +x.api_key={secret}")
    wrong = second.replace("rollout.name=vllm", "rollout.name=trtllm")
    sft = "torchrun -m verl.trainer.fsdp_sft_trainer data.x=1\n"
    path = tmp_path / "two.sh"
    path.write_text(GOOD + sft + wrong, encoding="utf-8")
    at = len((GOOD + sft).splitlines())
    assert main(["preflight", str(path), *AT]) == 1
    said = capsys.readouterr().out
    line = at + 1 + next(no for no, line in enumerate(wrong.splitlines()) if "trtllm" in line)
    assert f"{path}:{line}: error preflight.engine\n" in said
    assert "correct: actor_rollout_ref.rollout.name=vllm +x.api_key=***\n" in said and secret not in said
    assert says(said, "preflight.more-launches", path=path, count=2, lines=f"3, {at + 2}")
    assert says(said, "preflight.unjudged", line=at, program="verl.trainer.fsdp_sft_trainer")
    assert main(["preflight", str(path), *AT, "--fix", "-o", str(tmp_path / "right.sh")]) == 0
    right = (tmp_path / "right.sh").read_text(encoding="utf-8")
    assert right == GOOD + sft + second
    assert main(["preflight", str(tmp_path / "right.sh"), *AT]) == 0


def test_fix_writes_a_copy_beside_the_file_and_shows_the_diff(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", str(bad), *AT, "--fix"]) == 0
    said = capsys.readouterr().out
    copy = bad.with_name("bad.fixed.sh")
    assert copy.read_text(encoding="utf-8") == BAD.replace("CUDA_VISIBLE", "ASCEND_RT_VISIBLE")
    assert copy.stat().st_mode & stat.S_IXUSR
    assert bad.read_text(encoding="utf-8") == BAD
    assert f"\n-export CUDA_VISIBLE_DEVICES={CARDS}\n+export ASCEND_RT_VISIBLE_DEVICES={CARDS}\n" in said
    assert main(["preflight", str(copy), *AT]) == 0
    capsys.readouterr()
    assert main(["preflight", str(copy), *AT, "--fix", "--json"]) == 0
    again = document(capsys)["fix"]
    assert (again["written"], again["changes"], again["diff"], again["left"]) == (None, [], [], [])


def test_fix_of_a_command_shows_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["CUDA_VISIBLE_DEVICES=0", "python3", "-m", "verl.trainer.main_ppo", "trainer.nnodes=1"]
    main(["preflight", *AT, "--fix", "--json", "--", *words])
    added = [line for line in document(capsys)["fix"]["diff"] if line.startswith("+ASCEND")]
    assert added[0].startswith("+ASCEND_RT_VISIBLE_DEVICES=0 python3 -m verl.trainer.main_ppo trainer.nnodes=1")


def test_secrets_are_never_printed(bad: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more in (
        [],
        ["--json"],
        ["--format", "sarif"],
        ["--format", "junit"],
        ["--fix", "--force"],
        ["--fix", "--force", "--json"],
    ):
        main(["preflight", str(bad), *AT, *more])
        said = capsys.readouterr()
        assert KEY not in said.out + said.err
    assert KEY in bad.with_name("bad.fixed.sh").read_text(encoding="utf-8")
    main(["preflight", *AT, "--", "python3", "-m", "verl.trainer.main_ppo", f"+trainer.hub_token={KEY}", f"x={KEY},2"])
    out = capsys.readouterr().out
    assert KEY not in out
    assert "x=***,2" in out


def test_a_roll_yaml_is_examined_and_corrected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("pretrain: Qwen/X\nactor_train:\n  model_args:\n    flash_attn: fa2  # GPU\n", encoding="utf-8")
    main(["preflight", str(path), "--for", "roll==0.3.0", "--fix", "--json"])
    fix = document(capsys)["fix"]
    assert "+    attn_implementation: fa2  # GPU" in fix["diff"]


BAD_INPUT = [
    (["none.yaml"], "none.yaml"),
    (["."], "folder"),
    (["empty.yaml"], "empty"),
    (["broken.yaml"], "line 2"),
    (["two.yaml"], "2 YAML documents"),
    (["other.yaml"], "actor_rollout_ref"),
    (["binary.yaml"], sentence("preflight.not-text", path="binary.yaml")),
    (["--", "ls", "-l"], sentence("preflight.no-launch-words")),
    (["roll.yaml", "--for", "vrl"], "vrl"),
    (["roll.yaml", "--for", "verl==0.7.1"], sentence("preflight.other-framework", found="roll", asked="verl")),
    (["roll.yaml", "--for", "verl==9.9"], "9.9"),
    (["roll.yaml", "--hardware", "a7"], "a7"),
    (["roll.yaml", "--stack", "verl-0.7.1-cann8.5.O"], "verl-0.7.1-cann8.5.0"),
    (["roll.yaml", "--target", "nowhere"], "nowhere"),
    (["roll.yaml", "--target", "a", "--stack", "b"], "--stack"),
    (["roll.yaml", "-o", "x"], "--fix"),
    (["roll.yaml", "--json", "--format", "sarif"], "sarif"),
    (["roll.yaml", "--fix", "--format", "sarif"], "--fix"),
    (["roll.yaml", "--fix", "--format", "junit"], "--fix"),
    (["--", "python", "-m", "verl.trainer.fsdp_sft_trainer", "data.x=1"], "verl.trainer.fsdp_sft_trainer"),
    (["roll.yaml", "--cards-per-node", "0"], "0"),
    ([], "preflight"),
]


@pytest.mark.parametrize(("words", "named"), BAD_INPUT, ids=[" ".join(words) for words, _ in BAD_INPUT])
def test_bad_input_is_one_sentence(
    words: list[str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {
        "empty.yaml": b"", "broken.yaml": b"a: 1\n\tb: 2\n", "two.yaml": b"a: 1\n---\nb: 1\n", "other.yaml": b"a: 1\n",
        "binary.yaml": b"\x00\xff", "roll.yaml": b"pretrain: x\n",
    }  # fmt: skip
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert main(["preflight", "--lang", "en", *words]) == 2
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    assert named in (said.out if "--json" in words else said.err)
