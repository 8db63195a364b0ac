"""`npuenv render-launch` from the command line to files, sentences, JSON and exit codes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.cli import main
from npuenv.core import versions
from npuenv.core.messages import Message, say
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEMPLATE = "actor_train.data_args.template"


@pytest.fixture
def render(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., tuple[int, dict[str, Any]]]:
    def run(*words: str) -> tuple[int, dict[str, Any]]:
        code = main(["render-launch", *words, "-o", str(tmp_path / "out"), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


def test_roll_gets_its_yaml_script_placement_and_estimate(render: Any, tmp_path: Path) -> None:
    code, document = render("--for", "roll", "--release", "0.3.0")
    assert code == document["exit"] == 0
    assert document["written"] == document["files"] == ["agentic-frozen-lake.yaml", "run.sh"]
    assert document["placement"]["train"] == [0, 1, 2, 3]
    assert document["placement"]["layout"] == "split"
    assert document["estimate"]["verdict"] in ("feasible", "tight")
    assert (tmp_path / "out" / "run.sh").stat().st_mode & 0o111
    again = render("--for", "roll", "--release", "0.3.0")[1]
    assert again["written"] == []


@pytest.mark.parametrize("release", ["5d1e3c3d", "0.3.0", "8eb27cc2"])
@pytest.mark.parametrize(
    "recipe", ["agentic-frozen-lake", "rlvr-math-qwen3-8b", "rlvr-qwen2.5-7b-2x8", "rlvr-qwen2.5-7b-2x8-spread"]
)
@pytest.mark.one_in(3)
def test_every_published_sample_fits(render: Any, recipe: str, release: str) -> None:
    code, document = render("--for", "roll", "--recipe", recipe, "--release", release)
    assert (code, document["estimate"]["verdict"] in ("feasible", "tight")) == (0, True)


def test_two_nodes_get_the_scripts_of_ray_too(render: Any) -> None:
    _, document = render("--for", "roll", "--recipe", "rlvr-qwen2.5-7b-2x8", "--head", "10.0.0.1")
    assert {"ray_auto.sh", "ray_head.sh", "ray_worker.sh", "network.sh"} < set(document["files"])


def test_what_does_not_fit_is_written_only_with_force(render: Any, tmp_path: Path) -> None:
    wide = ("--for", "roll", "--release", "0.3.0", "--recipe", "rlvr-qwen2.5-7b-2x8", "reference.infer_batch_size=64")
    code, document = render(*wide)
    assert (code, document["written"], document["estimate"]["verdict"]) == (1, [], "infeasible")
    assert document["estimate"]["advice"]
    assert not (tmp_path / "out").exists()
    code, document = render(*wide, "--force")
    assert (code, "run.sh" in document["written"]) == (0, True)


def test_cards_and_layout_decide_the_placement(render: Any) -> None:
    _, split = render("--for", "roll", "--train-cards", "0-1", "--infer-cards", "2-7")
    assert (split["placement"]["train"], split["placement"]["reference"]) == ([0, 1], [2, 3, 4, 5, 6, 7])
    _, shared = render("--for", "roll", "--layout", "colocated", "--force")
    assert (shared["placement"]["layout"], shared["placement"]["infer"]) == ("colocated", list(range(8)))
    code, old = render("--for", "roll", "--layout", "colocated", "--release", "5d1e3c3d")
    assert (code, old["error"]["kind"]) == (2, "bad-input")
    _, planned = render("--for", "roll", "--cards-per-node", "4", "--layout", "split", "--force")
    assert (planned["placement"]["train"], planned["placement"]["infer"]) == ([0, 1], [2, 3])


def test_a_setting_reaches_the_file_even_as_the_first_word(render: Any, tmp_path: Path) -> None:
    code, _ = render("max_steps=7", "--for", "roll", "--model", "/data/models/mine", f"{TEMPLATE}=native")
    text = (tmp_path / "out" / "agentic-frozen-lake.yaml").read_text(encoding="utf-8")
    assert (code, "\nmax_steps: 7\n" in text, "\npretrain: /data/models/mine\n" in text) == (0, True, True)


def test_verl_gets_its_command_and_yaml(render: Any, tmp_path: Path) -> None:
    code, document = render("--for", "verl==0.7.1", "trainer.total_epochs=3")
    assert (code, document["files"], document["release"]) == (0, ["config.yaml", "run.sh"], "0.7.1")
    assert "trainer.total_epochs=3" in (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (("--for", "roll", "--recipe", "agentic-frozen"), "agentic-frozen-lake"),
        (("--for", "rol"), "roll"),
        (("--for", "verl", "--recipe", "quick-strat"), "quick-start"),
        (("roll-cann9.1",), "roll-cann9.1.0"),
        (("--for", "roll", "max_stesp=3"), "max_steps"),
        (("--for", "verl", "trainer.total_epoch=3"), "trainer.total_epochs"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(render: Any, words: tuple[str, ...], near: str) -> None:
    code, document = render(*words)
    assert (code, document["exit"]) == (2, 2)
    assert near in document["error"]["hint"]


@pytest.mark.parametrize("words", [("--nodes", "2"), ("--for", "verl"), ("--for", "roll")])
@pytest.mark.parametrize(("framework", "recipe"), [("verl", "grpo-qwen3-8b"), ("roll", "rlvr-math-qwen3-8b")])
def test_a_recipe_in_a_stacks_place_is_told_as_one(
    render: Any, framework: str, recipe: str, words: tuple[str, ...]
) -> None:
    code, document = render(*words, recipe)
    assert code == 2
    assert document["error"]["hint"] == sentence("launch_roll.recipe-as-stack-hint", framework=framework, recipe=recipe)


@pytest.mark.parametrize(
    "words",
    [
        ("--for", "roll", "--train-cards", "0-9"),
        ("--for", "roll", "--card-memory", "nan"),
        ("--for", "roll", "--nodes", "0"),
        ("--for", "roll", "exp_name=$(id)"),
        ("--for", "roll", "plainword=1", "word"),
        ("--for", "roll", "--release", "banana"),
        (),
    ],
)
def test_bad_input_is_one_sentence_and_exit_2(render: Any, words: tuple[str, ...]) -> None:
    code, document = render(*words)
    assert (code, document["schema"]) == (2, "npuenv.error/1")


@pytest.mark.parametrize(("framework", "recipe"), [("roll", "rlvr-math-qwen3-8b"), ("verl", "quick-start")])
def test_the_recipes_are_listed(capsys: pytest.CaptureFixture[str], framework: str, recipe: str) -> None:
    assert main(["render-launch", "--for", framework, "--list"]) == 0
    assert any(line.startswith(f"{recipe}: ") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("trainer.n_gpus_per_node=16", "--cards-per-node"),
        ("trainer.nnodes=2", "--nodes"),
        ("++trainer.nnodes=2", "--nodes"),
    ],
)
def test_what_the_cards_decide_is_said_with_their_options(render: Any, word: str, option: str) -> None:
    code, document = render("--for", "verl", word)
    assert (code, option in document["error"]["hint"]) == (2, True)


@pytest.mark.parametrize("word", ["strategy=fsdp2", "fsdp_config.param_offload=True"])
def test_what_the_job_says_takes_the_users_values(render: Any, tmp_path: Path, word: str) -> None:
    checkpointing = "actor_rollout_ref.model.enable_gradient_checkpointing=False"
    assert render("--for", "verl", f"actor_rollout_ref.actor.{word}", checkpointing, "--force")[0] == 0
    text = (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")
    assert f"actor_rollout_ref.actor.{word} " in text
    assert f"{checkpointing} " in text


@pytest.mark.parametrize(
    ("framework", "key"),
    [
        ("verl", "actor_rollout_ref.actor.fsdp_config.fsdp_size"),
        ("roll==0.3.0", "actor_train.strategy_args.strategy_config.fsdp_size"),
    ],
)
def test_a_copy_of_the_state_on_each_card_is_counted(render: Any, framework: str, key: str) -> None:
    _, whole = render("--for", framework, "--force")
    _, each = render("--for", framework, f"{key}=1", "--force")
    assert each["estimate"]["peak_gib"] > whole["estimate"]["peak_gib"] + 1


@pytest.mark.parametrize("release", ["verl==9.9", "roll==7.7", "roll==0.1.0"])
def test_a_release_far_from_all_known_ones_is_refused(render: Any, release: str) -> None:
    code, document = render("--for", release)
    known = "0.9.1" if release.startswith("verl") else "0.3.0"
    assert (code, known in document["error"]["hint"]) == (2, True)


def test_a_release_after_the_known_ones_is_rendered_with_a_note(render: Any) -> None:
    code, document = render("--for", "verl==0.10.0")
    assert (code, len(document["notes"])) == (0, 1)
    assert "0.10.0" in document["notes"][0]
    assert "0.9.1" in document["notes"][0]
    assert render("--for", "verl==0.9.1", "--force")[1]["notes"] == []


@pytest.mark.parametrize(
    ("framework", "word"),
    [
        ("verl", "actor_rollout_ref.rollout.name=banana"),
        ("verl", "actor_rollout_ref.actor.optim.lr=abc"),
        ("verl", "data.truncation=banana"),
        ("verl", "actor_rollout_ref.rollout.max_model_len=100"),
        ("verl", "algorithm.adv_estimator=gae"),
        ("roll", "adv_estimator=banana"),
    ],
)
def test_a_value_that_the_framework_refuses_is_not_rendered(
    render: Any, tmp_path: Path, framework: str, word: str
) -> None:
    code, document = render("--for", framework, word)
    assert (code, document["error"]["kind"]) == (2, "bad-input")
    assert word.partition("=")[0].rpartition(".")[2] in document["error"]["message"]
    assert not (tmp_path / "out").exists()


def test_another_model_gets_the_template_of_its_family(render: Any, tmp_path: Path) -> None:
    code, _ = render("--for", "roll", "--model", "/data/models/Qwen3-0.6B", "--force")
    text = (tmp_path / "out" / "agentic-frozen-lake.yaml").read_text(encoding="utf-8")
    assert (code, text.count("template: qwen3\n"), text.count("template: qwen2_5\n")) == (0, 3, 0)


def test_a_model_of_no_known_family_needs_its_template_said(render: Any, tmp_path: Path) -> None:
    code, document = render("--for", "roll", "--model", "/data/models/mine")
    assert (code, f"{TEMPLATE}=" in document["error"]["hint"]) == (2, True)
    assert render("--for", "roll", "--model", "/data/models/mine", f"{TEMPLATE}=glm4")[0] == 0
    text = (tmp_path / "out" / "agentic-frozen-lake.yaml").read_text(encoding="utf-8")
    assert text.count("template: glm4\n") == 3


def test_a_list_of_quoted_names_is_taken_and_quoted_for_the_shell(render: Any, tmp_path: Path) -> None:
    assert render("--for", "verl", """trainer.logger=["console", 'wandb']""")[0] == 0
    assert '"trainer.logger=[console,wandb]"' in (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")
    assert render("--for", "verl", """trainer.logger=["console","$(id)"]""")[0] == 2


def test_a_recipe_for_more_cards_than_most_nodes_have_says_so(render: Any) -> None:
    words = ("--for", "verl==0.7.1", "--recipe", "grpo-qwen2.5-7b", "--hardware", "a2")
    (note,) = render(*words)[1]["notes"]
    assert says(note, "launch_roll.unusual-cards", cards=16, usual=8)
    assert render(*words, "--cards-per-node", "8", "--force")[1]["notes"] == []
    assert render("--for", "verl==0.7.1", "--hardware", "a2", "--force")[1]["notes"] == []


def test_a_key_that_the_user_insists_on_keeps_its_mark(render: Any, tmp_path: Path) -> None:
    """Without a mark Hydra refuses a key that the release does not list; a single plus is refused where it does."""
    own, inner = "+trainer.my_key=3", "+data.apply_chat_template_kwargs.enable_thinking=False"
    assert render("--for", "verl==0.7.1", own, inner, "+trainer.total_epochs=2")[0] == 0
    script = (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")
    words = {line.strip(" \\") for line in script.splitlines()}
    assert {"++trainer.my_key=3", "++data.apply_chat_template_kwargs.enable_thinking=False"} <= words
    assert "++trainer.total_epochs=2" in words
    assert "trainer.nnodes=1" in words
    assert "  my_key: 3\n" in (tmp_path / "out" / "config.yaml").read_text(encoding="utf-8")


_ROLLOUT, _ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
_SAMPLES, _SFT = (
    ("--for", "roll", "--recipe", "rlvr-qwen2.5-7b-2x8"),
    ("--for", "verl", "--recipe", "sft-lora-qwen3-8b"),
)


@pytest.mark.parametrize(
    ("words", "setting", "takes"),
    [
        (("--for", "verl"), f"{_ROLLOUT}.gpu_memory_utilization=1.5", "0 < x <= 1"),
        (("--for", "verl"), f"{_ROLLOUT}.gpu_memory_utilization=0,8", "0 < x <= 1"),
        (("--for", "verl"), f"{_ROLLOUT}.n=0", "1 <= x"),
        (("--for", "verl"), f"{_ROLLOUT}.n=five", "1 <= x"),
        (("--for", "verl"), f"{_ROLLOUT}.tensor_model_parallel_size=two", "1 <= x"),
        (("--for", "verl"), f"{_ROLLOUT}.log_prob_max_token_len_per_gpu=16384x", "1 <= x"),
        (("--for", "verl"), f"{_ACTOR}.ppo_micro_batch_size_per_gpu=abc", "1 <= x"),
        *((("--for", "verl"), f"data.train_batch_size={x}", "1 <= x") for x in ("256x", "2.5", "", "null", "1,024")),
        (_SFT, "data.max_length=4k", "1 <= x"),
        (_SFT, "data.train_batch_size=null", "1 <= x"),
        (_SAMPLES, "rollout_batch_size=128x", "1 <= x"),
        (_SAMPLES, "response_length=null", "1 <= x"),
        (_SAMPLES, "actor_train.model_args.lora_rank=8x", "0 <= x"),
    ],
)
def test_what_is_not_the_number_that_a_key_takes_is_refused(
    render: Any, tmp_path: Path, words: tuple[str, ...], setting: str, takes: str
) -> None:
    code, document = render(*words, setting)
    key, _, text = setting.partition("=")
    what = sentence("preflight_rules.number", key=key, text=text, takes=takes)
    assert code == 2 and document["error"]["message"] == sentence("launch.not-run", what=what)
    assert not (tmp_path / "out").exists()


def test_a_node_has_no_more_cards_than_its_hardware_allows(render: Any) -> None:
    words = ("--for", "verl", "--hardware", "a3", "--cann", "8.5.0", "--cards-per-node")
    code, document = render(*words, "32")
    says_so = sentence("launch_roll.no-such-node", value=32, hardware="a3", most=16)
    assert code == 2 and document["error"]["message"] == says_so
    assert render(*words, "16")[0] == 0


def test_null_stays_where_verl_takes_it(render: Any, tmp_path: Path) -> None:
    words = (f"{_ACTOR}.use_dynamic_bsz=True", f"{_ACTOR}.ppo_micro_batch_size_per_gpu=null")
    assert render("--for", "verl", *words)[0] == 0
    assert f"{words[1]} " in (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")


def test_sglang_is_rendered_for_releases_that_run_it_on_an_npu(render: Any) -> None:
    words = ("--recipe", "grpo-qwen3-8b-sglang")
    code, document = render("--for", "verl==0.5.0", *words)
    assert code == 2 and "0.6.0" in document["error"]["message"] + document["error"]["hint"]
    assert render("--for", "verl==0.6.1", *words)[0] == 0


def test_recipes_that_are_not_rendered_are_not_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render-launch", "--for", "verl", "--list"]) == 0
    listed = {line.partition(":")[0] for line in capsys.readouterr().out.splitlines()}
    assert listed == {row.id for row in load_matrix().launch_recipes if not row.refused}


@pytest.mark.parametrize(
    "release", ["0.7.1", "0.9.1", *(pytest.param(each, marks=pytest.mark.slow) for each in ("0.5.0", "0.6.1", "0.8.0"))]
)
@pytest.mark.parametrize("row", load_matrix().launch_recipes, ids=lambda row: row.id)
@pytest.mark.one_in(4)
def test_every_verl_recipe_is_rendered_or_refused_with_its_reason(render: Any, row: Any, release: str) -> None:
    code, document = render("--for", "verl", "--release", release, "--recipe", row.id)
    names = {"recipe": row.id, "release": release, "script": row.script, "since": row.since}
    if row.refused:
        assert (code, document["error"]["message"]) == (2, say(Message(row.refused, names)))
        assert "--list" in document["error"]["hint"]
    elif not versions.accepts(f">={row.since}", release):
        assert (code, document["error"]["message"]) == (2, say(Message("launch.not-in-release", names)))
    else:
        assert (code, document["estimate"]["verdict"] in ("feasible", "tight")) == (0, True)
        assert {"config.yaml", "run.sh"} <= set(document["written"])


def test_supervised_training_has_no_card_that_generates(
    render: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sft = ("--for", "verl==0.9.1", "--recipe", "sft-lora-qwen3-8b")
    code, document = render(*sft, "--train-cards", "0-3")
    assert (code, document["placement"]["train"], document["placement"]["infer"]) == (0, [0, 1, 2, 3], [])
    text = (tmp_path / "out" / "run.sh").read_text(encoding="utf-8")
    assert "--nproc_per_node=4" in text and "ASCEND_RT_VISIBLE_DEVICES" in text
    code, document = render(*sft, "--infer-cards", "4-7")
    assert (code, "--infer-cards" in document["error"]["message"]) == (2, True)
    code, document = render(*sft, "--train-cards", "0-2")
    assert (code, "groups of 2" in document["error"]["message"]) == (2, True)
    code, document = render(*sft, "data.train_batch_size=6", "--train-cards", "0-7")
    assert (code, says(document["error"]["message"], "launch.size-examples", whole=6)) == (2, True)
    assert main(["render-launch", *sft, "-o", str(tmp_path / "told"), "--lang", "en"]) == 0
    assert says(capsys.readouterr().out, "launch_roll.placed", train="0-7", infer="-", reference="-")


def test_a_value_that_is_not_the_guides_is_said(render: Any) -> None:
    _, document = render("--for", "roll==0.3.0", "--recipe", "rlvr-qwen2.5-7b-2x8")
    assert [
        note
        for note in document["notes"]
        if says(note, "launch_roll.why-replaced", key="reference.infer_batch_size", value=2)
    ]


def test_a_recipes_variables_reach_the_processes_of_a_ray_that_is_started_by_hand(render: Any, tmp_path: Path) -> None:
    assert render("--for", "verl", "--recipe", "aqn-base", "--nodes", "2")[0] == 0
    network = (tmp_path / "out" / "network.sh").read_text(encoding="utf-8")
    assert 'export HCCL_BUFFSIZE="${HCCL_BUFFSIZE-512}"' in network


def test_a_plan_that_puts_a_split_recipe_together_says_so(render: Any) -> None:
    _, document = render("--for", "roll", "--nodes", "2", "--force")
    is_together = document["placement"]["layout"] == "colocated"
    assert (is_together, len(document["notes"])) == (True, 1)
    assert "--layout split" in document["notes"][0]
    assert render("--for", "roll", "--nodes", "2", "--layout", "colocated", "--force")[1]["notes"] == []


def test_a_name_is_offered_once(render: Any) -> None:
    _, document = render("--for", "verl", "--recipe", "quick-strat")
    assert document["error"]["hint"].count("quick-start,") == 1


def test_a_misspelt_key_is_answered_with_keys_like_it(render: Any) -> None:
    _, document = render("--for", "verl", "data.trunc=3")
    assert "data.truncation" in document["error"]["hint"]
    assert "actor_rollout_ref.actor._target_" not in document["error"]["hint"]


def test_an_engine_that_is_none_is_refused(render: Any) -> None:
    code, document = render("--for", "verl", "actor_rollout_ref.actor.strategy=banana")
    assert (code, "banana" in document["error"]["message"]) == (2, True)


def test_recipe_and_release_that_nobody_named_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render-launch", "--for", "verl", "--hardware", "a2", "-o", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    head = (tmp_path / "out" / "run.sh").read_text().splitlines()[1]
    took = re.search(r"verl (\S+), recipe (\S+),.* stack (\S+)$", head)
    assert took is not None
    assert says(said, "launch_roll.took", framework="verl", release=took[1], recipe=took[2], stack=took[3])


def test_a_folder_rendered_again_for_one_node_keeps_no_script_of_two(render: Any, tmp_path: Path) -> None:
    render("--for", "verl==0.9.0", "--recipe", "grpo-qwen3-8b", "--nodes", "2")
    (tmp_path / "out" / "mine.sh").write_text("#!/bin/sh\n")
    _, document = render("--for", "verl==0.9.0", "--recipe", "grpo-qwen3-8b", "--force")
    assert document["removed"] == ["network.sh", "ray_auto.sh", "ray_head.sh", "ray_worker.sh"]
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"run.sh", "config.yaml", "mine.sh"}


@pytest.mark.parametrize("release", ["483b8a009", "main@1dda039b9c63", "main"])
def test_a_commit_of_verl_gets_the_form_of_the_newest_release(render: Any, release: str) -> None:
    code, document = render("--for", "verl", "--release", release)
    assert (code, document["release"]) == (0, release)
    newest = known_releases("verl")[-1]
    args = {"framework": "verl", "release": release.rpartition("@")[2], "nearest": newest}
    assert say(Message("launch.judged-as", args)) in document["notes"]


@pytest.mark.parametrize(
    ("recipe", "release", "script", "option"),
    [
        ("grpo-qwen3-8b", "0.9.0", "gsm8k", "--local_save_dir"),
        ("sft-lora-qwen3-8b", "0.9.0", "gsm8k_multiturn_sft", "--local_save_dir"),
        ("grpo-qwen2.5-vl-7b", "0.5.0", "geo3k", "--local_dir"),
    ],
)
def test_the_file_says_how_its_data_is_made_and_takes_it_from_there(
    render: Any, tmp_path: Path, recipe: str, release: str, script: str, option: str
) -> None:
    words = ("--for", f"verl=={release}", "--recipe", recipe, "--force")
    told = say(Message("launch.prepared", {"script": script, "option": option, "folder": f"/data/{script}"}))
    render(*words)
    text = (tmp_path / "out" / "run.sh").read_text()
    assert told in text and f"data.train_files=/data/{script}/train.parquet" in text
    render(*words, "data.train_files=/mine/a.parquet", "data.val_files=/mine/b.parquet")
    assert "examples/data_preprocess" not in (tmp_path / "out" / "run.sh").read_text()
