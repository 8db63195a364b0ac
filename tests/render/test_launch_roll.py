"""ROLL's launch files: the published samples for each form of release, and what is refused."""

from __future__ import annotations

import ast
import functools
import io
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from npuenv.core import documents as _toml
from npuenv.core.errors import BadInput
from npuenv.matrix import load_matrix
from npuenv.preflight.memory.types import Cards, Model, Placement, written_cards
from npuenv.render.launch import roll_recipe as recipes
from npuenv.render.launch.job import LaunchOptions, chosen_placement, parse_cards, parse_overrides
from npuenv.render.launch.roll import render_roll
from npuenv.render.launch.roll_recipe import is_read, mapping_text
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.sentences import says
from tests.trainer.engines.vllm_signatures import fields

MATRIX = load_matrix()
ROWS = {row.id: row for row in MATRIX.roll_recipes}
RECIPES = list(ROWS)
RELEASES = ["5d1e3c3d", "51c123f1", "0.3.0", "8eb27cc2"]
MODEL = Model("sample", 7.6e9, 28, 3584, 18944, 28, 4, 128, 152064, False)
FROZEN_LAKE, MATH, TWO_NODES = "agentic-frozen-lake", "rlvr-math-qwen3-8b", "rlvr-qwen2.5-7b-2x8"


def stack_of(name: str) -> Stack:
    found = resolve(Request(stack=name), MATRIX)
    assert isinstance(found, Stack)
    return found


STACKS = {row.stack: stack_of(row.stack) for row in MATRIX.roll_releases}


def render(name: str, release: str, *words: str, placement: Placement | None = None, **options: Any) -> dict[str, str]:
    allows = options.pop("allows_local_code", False)
    recipe = recipes.filled(name, release, overrides=parse_overrides(words), allows_local_code=allows)
    placed = placement or recipes.published_placement(recipe.row)
    job = recipes.job_of(recipe, MODEL, recipes.published_cards(recipe.row), num_train=len(placed.train))
    job = recipes.placed_job(job, recipe, placed)
    return render_roll(job, placed, recipe, stack=STACKS[recipe.release.stack], **options)


def content(files: dict[str, str]) -> dict[str, Any]:
    [name] = [name for name in files if name.endswith(".yaml")]
    return parsed(files[name])


@functools.cache
def parsed(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(io.StringIO(text))
    return found


@functools.cache
def as_published(name: str, release: str, *, allows_local_code: bool = False) -> dict[str, str]:
    """A sample's files without any wish of a user's, rendered once for all tests."""
    return render(name, release, allows_local_code=allows_local_code)


def keys(tree: Any, above: str = "") -> list[str]:
    if not isinstance(tree, dict) or not tree:
        return [above]
    return [key for name, value in tree.items() for key in keys(value, f"{above}.{name}" if above else str(name))]


def cards_of(text: str) -> list[int]:
    """What ROLL's evaluation of a device mapping gives, for the two functions and the sum that it is made of."""
    found: list[int] = []
    for part in text.split(" + "):
        bounds = re.fullmatch(r"list\(range\((\d+),(\d+)\)\)", part)
        assert bounds, text
        found += range(*(ast.literal_eval(bound) for bound in bounds.groups()))
    return found


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.one_in(3)
def test_every_sample_keeps_its_plan_and_its_sums(name: str, release: str) -> None:
    tree, row = content(as_published(name, release)), ROWS[name]
    train = cards_of(tree["actor_train"]["device_mapping"])
    assert written_cards(train) == row.train
    assert written_cards(cards_of(tree["actor_infer"]["device_mapping"])) == row.infer
    assert written_cards(cards_of(tree["reference"]["device_mapping"])) == row.reference
    step = tree["actor_train"]["training_args"]
    update = step["per_device_train_batch_size"] * step["gradient_accumulation_steps"] * len(train)
    rollouts = tree["rollout_batch_size"] * tree.get("num_return_sequences_in_group", 1)
    assert (update, rollouts // update, rollouts % update) == {
        FROZEN_LAKE: (512, 2, 0), MATH: (256, 1, 0), TWO_NODES: (256, 2, 0), f"{TWO_NODES}-spread": (256, 2, 0),
    }[name]  # fmt: skip
    limit = tree["actor_infer"]["strategy_args"]["strategy_config"]["max_model_len"]
    assert limit == {FROZEN_LAKE: 8192, MATH: 10240}.get(name, 8000)


@pytest.mark.parametrize("name", RECIPES)
def test_deepspeed_is_for_releases_below_0_3_and_fsdp2_for_the_others(name: str) -> None:
    old, new = content(as_published(name, "5d1e3c3d")), content(as_published(name, "0.3.0"))
    assert old["actor_train"]["strategy_args"]["strategy_name"] == "deepspeed_train"
    offloads = "_cpuoffload" if "2x8" in name else ""
    assert old["actor_train"]["strategy_args"]["strategy_config"] == f"${{deepspeed_zero3{offloads}}}"
    assert f"../config/deepspeed_zero3{offloads}@_here_" in old["defaults"]
    assert old["defaults"][-1] == "_self_"
    strategy = new["actor_train"]["strategy_args"]
    assert strategy["strategy_name"] == "fsdp2_train"
    assert strategy["strategy_config"] == {
        "fsdp_size": len(cards_of(new["actor_train"]["device_mapping"])),
        "param_dtype": "bf16",
        "reduce_dtype": "float32",
        "reshard_after_forward": True,
        "offload_policy": "2x8" in name,
    }
    assert "deepspeed" not in str(new)
    assert ("defaults" in new) == (name == FROZEN_LAKE)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.one_in(3)
def test_every_key_is_one_that_roll_reads(name: str, release: str) -> None:
    tree = content(as_published(name, release, allows_local_code=True))
    strange = [key for key in keys(tree) if not is_read(key) and key.split(".")[0] not in ("defaults", "hydra")]
    assert strange == []
    assert "num_gpus_per_node" not in tree


def test_the_settings_of_the_generating_engine_are_arguments_of_the_oldest_and_the_newest_vllm() -> None:
    """ROLL passes them on to vllm."""
    prefix = f"{recipes.INFER_CONFIG}."
    given = {key.removeprefix(prefix) for row in MATRIX.roll_recipes for key in row.values if key.startswith(prefix)}
    assert "gpu_memory_utilization" in given
    assert given <= fields("EngineArgs")


@pytest.mark.parametrize("name", [TWO_NODES, pytest.param(f"{TWO_NODES}-spread", marks=pytest.mark.slow)])
def test_a_value_that_is_not_the_guides_says_so_in_the_file(name: str) -> None:
    new, old, own = (
        as_published(name, "0.3.0"),
        as_published(name, "5d1e3c3d"),
        render(name, "0.3.0", "reference.infer_batch_size=1"),
    )
    text = " ".join(new[f"{name}.yaml"].replace("#", " ").split())
    assert (
        says(text, "launch_roll.why-replaced", key="reference.infer_batch_size", value=2, guide=8),
        content(new)["reference"]["infer_batch_size"],
    ) == (True, 2)
    assert content(old)["reference"]["infer_batch_size"] == 8
    for files in (old, own):
        assert not says(" ".join(files[f"{name}.yaml"].replace("#", " ").split()), "launch_roll.why-replaced")


def flat(tree: dict[str, Any]) -> dict[str, Any]:
    """Dotted key -> value; what refers to a key of the same file has that key's value."""
    found = {}
    for key in keys(tree):
        value: Any = tree
        for part in key.split("."):
            value = value[part]
        found[key] = value

    def meant(value: Any) -> Any:
        while isinstance(value, str) and value.startswith("${") and value[2:-1] in found:
            value = found[value[2:-1]]
        return value

    return {key: meant(value) for key, value in found.items()}


SAMPLES = _toml.parse_toml(Path(__file__).with_name("roll_samples.toml").read_text(encoding="utf-8"))
EXPORTS = SAMPLES.pop("exports")


@functools.cache
def published(name: str) -> dict[str, Any]:
    """A sample's values, as `flat` gives those of a file; what its shell exports counts with its variables."""
    row = ROWS[name]
    tree: dict[str, Any] = {}
    exports = {f"system_envs.{variable}": text for variable, text in EXPORTS.items()}
    for key, text in {**exports, **SAMPLES[row.like or name]}.items():
        *above, last = key.split(".")
        place = tree
        for part in above:
            place = place.setdefault(part, {})
        place[last] = YAML(typ="safe").load(f"a: {text}")["a"]
    return flat(tree)


# What the rendering decides for every recipe, each with a comment or a note of its own; variables are the stack's.
_BY_PLAN = ("defaults", "num_gpus_per_node", "device_mapping", "system_envs", "max_model_len")


@pytest.mark.parametrize("allows", [True, False])
@pytest.mark.parametrize("name", RECIPES)
def test_every_value_is_the_samples_or_a_departure_that_the_file_names(name: str, allows: bool) -> None:
    files = as_published(name, "5d1e3c3d", allows_local_code=allows)
    text = " ".join(files[f"{name}.yaml"].replace("#", " ").split())
    ours, theirs = flat(content(files)), published(name)
    differing = {key for key in ours.keys() | theirs.keys() if ours.get(key, key) != theirs.get(key, key)}
    differing = {key for key in differing if not any(part in _BY_PLAN for part in key.split("."))}
    row = ROWS[name]
    chain = [row, *([ROWS[row.like]] if row.like else [])]
    if not allows and any(each.local_code for each in chain):
        assert says(text, "launch_roll.note-local-code")
        differing -= {key for each in chain for key in each.local_code}
    departures = {each.key: each for part in chain for each in part.departure}
    assert differing <= departures.keys()
    for each in departures.values():
        how = "left-out" if each.key not in ours else "changed" if each.sample else "added"
        args = {"left-out": {"key": each.key}, "changed": {"sample": each.sample}, "added": {}}[how]
        assert says(text, f"launch_roll.departed-{how}", **args), each
        assert says(text, each.why), each
        assert YAML(typ="safe").load(f"a: {each.sample or '~'}")["a"] == theirs.get(each.key), each
    assert says(text, "launch_roll.note-count")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", RECIPES)
def test_every_variable_of_the_samples_is_set_or_the_file_names_it(name: str, release: str) -> None:
    files = as_published(name, release)
    tree, text = content(files), files[f"{name}.yaml"]
    groups = (tree, tree["actor_train"], tree["actor_infer"])
    written = {key for group in groups for key in group.get("system_envs", {})}
    written |= set(re.findall(r"export (\w+)=", files["run.sh"]))
    meant = {key.rpartition(".")[2] for key in published(name) if key.startswith("system_envs.")}
    unnamed = [variable for variable in meant - written if not re.search(rf"\b{variable}\b", text)]
    assert unnamed == []


def test_a_departure_is_the_users_own_matter_once_the_user_has_set_its_key() -> None:
    key = "actor_train.data_args.file_name"
    files = render(TWO_NODES, "5d1e3c3d", f"{key}=[mine.jsonl]")
    assert not says(" ".join(files[f"{TWO_NODES}.yaml"].replace("#", " ").split()), "launch_roll.departed-changed")


def test_what_roll_drops_is_not_taken_for_a_key() -> None:
    assert not is_read("actor_train.model_args.flash_attn")
    assert not is_read("actor_train.data_args.dataset_dir")
    assert not is_read("validation.eval_steps")
    assert is_read("rewards.math_rule.data_args.template")
    assert is_read("actor_train.system_envs.ANY_NAME")


def test_variables_are_quoted_texts_and_apart_by_role() -> None:
    text = render(MATH, "8eb27cc2", "actor_train.system_envs.MY_LEVEL=2")["rlvr-math-qwen3-8b.yaml"]
    tree = YAML(typ="safe").load(io.StringIO(text))
    for group in (tree, tree["actor_train"], tree["actor_infer"]):
        assert group["system_envs"]
        assert {type(value) for value in group["system_envs"].values()} == {str}
    assert tree["actor_train"]["system_envs"]["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"
    assert tree["actor_infer"]["system_envs"]["PYTORCH_NPU_ALLOC_CONF"] == ""
    assert tree["actor_train"]["system_envs"]["TASK_QUEUE_ENABLE"] == "2"
    assert tree["actor_infer"]["system_envs"]["TASK_QUEUE_ENABLE"] == "1"
    assert tree["actor_train"]["system_envs"]["MY_LEVEL"] == "2"
    assert "TASK_QUEUE_ENABLE" not in tree["system_envs"]


def test_code_rewards_come_only_when_they_are_allowed() -> None:
    without, with_code = (
        content(as_published(TWO_NODES, "0.3.0")),
        content(as_published(TWO_NODES, "0.3.0", allows_local_code=True)),
    )
    assert list(without["rewards"]) == ["math_rule"]
    assert without["actor_train"]["data_args"]["domain_interleave_probs"] == {"math_rule": 1.0}
    assert with_code["rewards"]["code_sandbox"]["use_local"] is True
    assert with_code["actor_train"]["data_args"]["domain_interleave_probs"] == {"math_rule": 0.5, "code_sandbox": 0.5}
    assert "--allow-local-code" in as_published(TWO_NODES, "0.3.0")[f"{TWO_NODES}.yaml"]


def test_a_colocated_run_keeps_its_state_in_the_hosts_memory() -> None:
    every = tuple(range(8))
    tree = content(render(FROZEN_LAKE, "0.3.0", placement=Placement(every, every, every)))
    assert tree["actor_train"]["strategy_args"]["strategy_config"]["offload_policy"] is True
    assert tree["actor_train"]["training_args"]["gradient_accumulation_steps"] == 32
    assert tree["actor_infer"]["device_mapping"] == "list(range(0,8))"


def test_roles_that_share_cards_take_free_ports_of_card_and_host() -> None:
    every, name = tuple(range(8)), "HCCL_HOST_SOCKET_PORT_RANGE"
    together = content(render(FROZEN_LAKE, "0.3.0", placement=Placement(every, every, every)))["system_envs"]
    assert (together[name], together["HCCL_NPU_SOCKET_PORT_RANGE"]) == ("auto", "auto")
    assert name not in content(as_published(FROZEN_LAKE, "0.3.0"))["system_envs"]


def test_other_cards_keep_the_sequences_of_an_update() -> None:
    tree = content(render(FROZEN_LAKE, "0.3.0", placement=Placement((0, 1), (2, 3), (2, 3))))
    assert tree["actor_train"]["training_args"]["gradient_accumulation_steps"] == 128
    own = content(render(FROZEN_LAKE, "0.3.0", f"{recipes.TRAIN}=4"))
    assert own["actor_train"]["training_args"]["gradient_accumulation_steps"] == 32


EIGHT = tuple(range(8))
LIMIT = "actor_infer.strategy_args.strategy_config"


@pytest.mark.parametrize(
    ("name", "release", "words", "placement", "key"),
    [
        (FROZEN_LAKE, "5d1e3c3d", [], Placement(EIGHT, EIGHT, EIGHT), "device-overlap"),
        (FROZEN_LAKE, "0.3.0", [], Placement((0, 1, 2, 3), (3, 4, 5, 6), (4,)), "device-partly"),
        (FROZEN_LAKE, "0.3.0", [], Placement((0, 1, 2, 3), (4, 8), (4,)), "device-beyond"),
        (FROZEN_LAKE, "0.3.0", [], Placement((0, 1, 2), (4,), (4,)), "no-accumulation"),
        (FROZEN_LAKE, "0.3.0", ["rollout_batch_size=1000"], None, "roll-batch"),
        (FROZEN_LAKE, "0.3.0", ["rollout_batch_size=1536"], None, "env-groups"),
        (FROZEN_LAKE, "0.3.0", ["val_batch_size=512"], None, "env-groups"),
        (FROZEN_LAKE, "0.3.0", ["train_env_manager.num_groups_partition=[127]"], None, "env-partition"),
        (FROZEN_LAKE, "0.3.0", ["train_env_manager.tags=[FrozenLake, SimpleSokoban]"], None, "env-partition"),
        (FROZEN_LAKE, "0.3.0", ["train_env_manager.tags=[FrozenLak]"], None, "env-tag"),
        (FROZEN_LAKE, "0.3.0", ["sequence_length=128"], None, "new-tokens"),
        (FROZEN_LAKE, "0.3.0", [f"{LIMIT}.tensor_parallel_size=3"], None, "tensor-parallel"),
        (MATH, "0.3.0", [f"{LIMIT}.max_model_len=8000"], None, "length"),
        (MATH, "0.3.0", [f"{LIMIT}.gpu_memory_utilization=1.7"], None, "number"),
        (MATH, "0.3.0", ["rollout_batch_size=-5"], None, "number"),
        (MATH, "0.3.0", [f"{recipes.ACCUMULATION}=24"], None, "roll-batch"),
        (MATH, "0.3.0", ["actor_train.data_args.domain_interleave_probs.math_rule=0.9"], None, "domain-probabilities"),
        (MATH, "0.3.0", ["actor_train.data_args.domain_interleave_probs.code=0.1"], None, "domain-reward"),
        (MATH, "0.3.0", ["actor_train.strategy_args.strategy_name=megatron_train"], None, "roll-megatron"),
        (MATH, "0.3.0", ["actor_train.strategy_args.strategy_name=deepspeed_train"], None, "roll-deepspeed"),
        (MATH, "0.3.0", ["rewards.math_rule.worker_cls=x.CodeSandboxRewardWorker"], None, "local-code"),
        (MATH, "0.3.0", ["actor_train.device_mapping=list(range(0,4))"], None, "own-option"),
        (MATH, "0.3.0", ["actor_train.model_args.flash_attn=fa2"], None, "unknown-key"),
        (MATH, "0.3.0", ["seed=[1"], None, "no-yaml"),
        (MATH, "0.3.0", ["seed.more=1"], None, "not-a-group"),
        ("rlvr-math-qwen3", "0.3.0", [], None, "unknown-recipe"),
        (MATH, "0000000", [], None, "unknown-release"),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, release: str, words: list[str], placement: Placement | None, key: str
) -> None:
    with pytest.raises(BadInput) as error:
        render(name, release, *words, placement=placement)
    said = error.value.message
    rules: Any = said.args.get("what") if said.key == "launch.not-run" else ()
    assert said.key == f"launch_roll.{key}" or f"preflight_rules.{key}" in [each.key for each in rules]


@pytest.mark.parametrize("value", ["a'b", 'a"b', "a\nb", "$(id)", "`id`", "a\\b", "a\x1b[0m"])
def test_a_value_that_could_break_out_is_refused(value: str) -> None:
    with pytest.raises(BadInput) as error:
        parse_overrides([f"exp_name={value}"])
    assert error.value.message.key == "render.unsafe-value"
    with pytest.raises(BadInput):
        render(MATH, "0.3.0", model=value)
    with pytest.raises(BadInput):
        render(TWO_NODES, "0.3.0", head=value)


def test_the_nearest_key_is_named() -> None:
    with pytest.raises(BadInput) as error:
        render(MATH, "0.3.0", "actor_train.training_args.learning_rat=1e-5")
    assert error.value.hint is not None
    assert error.value.hint.args["near"] == "actor_train.training_args.learning_rate"


@pytest.mark.parametrize(
    ("name", "engine", "version"),
    [
        ("0.2.1", "deepspeed-zero3", "0.2.1"),
        ("v0.3.0", "fsdp2", "0.3.0"),
        ("main @8eb27cc2", "fsdp2", "0.3.0"),
        ("main @942703db", "deepspeed-zero3", "0.2.0"),
        ("51c123f1", "deepspeed-zero3", "0.2.0"),
        ("0.4.0", "fsdp2", "0.4.0"),
    ],
)
def test_a_release_is_known_by_version_or_commit(name: str, engine: str, version: str) -> None:
    form = recipes.release_of(name, MATRIX.roll_releases)
    assert form.engine == engine
    assert recipes.filled(MATH, name, overrides={}).version == version


def test_a_mapping_is_written_in_runs_of_neighbours() -> None:
    assert mapping_text((0, 1, 2, 3, 8, 9, 10, 11)) == "list(range(0,4)) + list(range(8,12))"
    assert mapping_text((5,)) == "list(range(5,6))"


def test_card_lists_are_read_and_refused() -> None:
    cards = Cards("a2", 8, 2)
    assert parse_cards("0-3, 8,10-11", cards) == (0, 1, 2, 3, 8, 10, 11)
    for text, key in (("", "bad-cards"), ("3-1", "bad-cards"), ("0-16", "no-card"), ("1,0-2", "card-twice")):
        with pytest.raises(BadInput) as error:
            parse_cards(text, cards)
        assert error.value.message.key == f"launch_roll.{key}"


def test_what_is_not_said_about_cards_follows_from_the_rest() -> None:
    cards = Cards("a2", 4)
    said: dict[str, Any] = {"train": None, "infer": None, "reference": None, "layout": None}
    assert chosen_placement(LaunchOptions(**said), cards) is None
    split = chosen_placement(LaunchOptions(**{**said, "train": "0-1"}), cards)
    assert split == Placement((0, 1), (2, 3), (2, 3))
    shared = chosen_placement(LaunchOptions(**{**said, "train": "0-1", "layout": "colocated"}), cards)
    assert shared == Placement((0, 1), (0, 1), (0, 1))
    for given in ({"reference": "0"}, {"train": "0-3"}, {"train": "0", "infer": "0", "layout": "split"}):
        with pytest.raises(BadInput):
            chosen_placement(LaunchOptions(**{**said, **given}), cards)


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_rendering_is_the_same_twice_and_says_what_made_it(lang: str) -> None:
    first = render(TWO_NODES, "0.3.0", lang=lang)
    assert first == render(TWO_NODES, "0.3.0", lang=lang)
    assert first[f"{TWO_NODES}.yaml"].startswith("# npuenv ")
    assert first["run.sh"].splitlines()[1].startswith("# npuenv ")
    assert "roll-cann9.1.0" in first["run.sh"].splitlines()[1]


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("name", RECIPES)
def test_the_script_is_clean_posix_shell(name: str, lang: str, tmp_path: Path) -> None:
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    script = tmp_path / "run.sh"
    script.write_text(render(name, "0.3.0", lang=lang)["run.sh"], encoding="utf-8")
    ran = subprocess.run([checker, "-s", "sh", script], capture_output=True, text=True, check=False)
    assert ran.stdout == ""
    assert ran.returncode == 0


def run(tmp_path: Path, name: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The script in a tree whose pipeline prints how it was called; `python` is a program that prints."""
    tree, tools = tmp_path / "tree", tmp_path / "tools"
    (tree / "examples").mkdir(parents=True, exist_ok=True)
    tools.mkdir(exist_ok=True)
    for pipeline in ("agentic", "rlvr"):
        (tree / "examples" / f"start_{pipeline}_pipeline.py").write_text("", encoding="utf-8")
    fake = tools / "python"
    fake.write_text('#!/bin/sh\necho "$@"\npwd\nenv | sort\n', encoding="utf-8")
    fake.chmod(0o755)
    for file, text in as_published(name, "0.3.0").items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    whole = {"PATH": f"{tools}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path), "ROLL_ROOT": str(tree), **environ}
    return subprocess.run(
        ["sh", tmp_path / "run.sh"], env=whole, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_script_puts_the_tree_first_and_no_empty_entry_on_the_path(tmp_path: Path) -> None:
    ran = run(tmp_path, FROZEN_LAKE)
    lines = ran.stdout.splitlines()
    assert lines[0] == f"examples/start_agentic_pipeline.py --config_path npuenv --config_name {FROZEN_LAKE}"
    assert lines[1] == str(tmp_path / "tree")
    assert f"PYTHONPATH={tmp_path / 'tree'}" in lines
    copied = tmp_path / "tree" / "examples" / "npuenv" / f"{FROZEN_LAKE}.yaml"
    assert copied.read_bytes() == (tmp_path / f"{FROZEN_LAKE}.yaml").read_bytes()
    assert f"ACL_OP_COMPILER_CACHE_DIR={tmp_path}/.cache/npuenv/operators" in lines
    longer = run(tmp_path, FROZEN_LAKE, PYTHONPATH="/own", ASCEND_GLOBAL_LOG_LEVEL="0").stdout.splitlines()
    assert f"PYTHONPATH={tmp_path / 'tree'}:/own" in longer
    assert "ASCEND_GLOBAL_LOG_LEVEL=0" in longer


def test_many_nodes_need_a_rank_and_a_head_and_count_nodes(tmp_path: Path) -> None:
    assert (run(tmp_path, TWO_NODES).returncode, "RANK" in run(tmp_path, TWO_NODES).stderr) == (2, True)
    assert "MASTER_ADDR" in run(tmp_path, TWO_NODES, RANK="1").stderr
    ran = run(tmp_path, TWO_NODES, RANK="1", MASTER_ADDR="10.9.8.7", HCCL_SOCKET_IFNAME="=eth7")
    found = dict(line.split("=", 1) for line in ran.stdout.splitlines()[2:] if "=" in line)
    assert {name: found[name] for name in ("WORLD_SIZE", "RANK", "MASTER_PORT", "HCCL_EXEC_TIMEOUT")} == {
        "WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "6379", "HCCL_EXEC_TIMEOUT": "1091",
    }  # fmt: skip
    assert found["HCCL_SOCKET_IFNAME"] == "=eth7"


def test_a_folder_that_is_not_rolls_tree_is_named(tmp_path: Path) -> None:
    ran = run(tmp_path, FROZEN_LAKE, ROLL_ROOT=str(tmp_path / "elsewhere"))
    assert ran.returncode == 2
    assert str(tmp_path / "elsewhere") in ran.stderr


def test_gloo_and_tensorpipe_take_the_interface_by_its_plain_name() -> None:
    script = as_published(TWO_NODES, "0.3.0")["run.sh"]
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        assert f'{name}="${{{name}:-$name}}"' in script


def test_the_room_of_a_shared_reference_is_said_for_the_waking_engine_only() -> None:
    [text] = [text for name, text in as_published(FROZEN_LAKE, "0.3.0").items() if name.endswith(".yaml")]
    words = " ".join(text.replace("#", " ").split())
    assert says(words, "launch_roll.why-shared")


def test_where_ray_runs_already_neither_rank_nor_head_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "ray").write_text('#!/bin/sh\n[ "$*" = status ]\n', encoding="utf-8")
    (tmp_path / "tools" / "ray").chmod(0o755)
    ran = run(tmp_path, TWO_NODES)
    assert (ran.returncode, ran.stdout.splitlines()[0].split()[0]) == (0, "examples/start_rlvr_pipeline.py")
    # ROLL takes no number here: with one, it would be a script of every node.
    assert "MASTER_ADDR" in run(tmp_path, TWO_NODES, RANK="1").stderr
