"""Every rule on configurations that are files: one fault each, found by its rule alone, and none in right ones."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, known_releases, names_of, nearest_release
from npuenv.messages import say
from npuenv.preflight.fixing import fix
from npuenv.preflight.rules import RULES
from npuenv.preflight.rules.base import value
from npuenv.preflight.rules.cards import mapping_of
from npuenv.preflight.rules.keys import moves
from npuenv.preflight.types import Change, Launch, Machine, Place, Setting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.matrix.rows.keys import Bound, Choice

# The folder is no package, and the case files have a reader of their own.
_SPEC = importlib.util.spec_from_file_location("preflight_case_files", Path(__file__).with_name("case_files.py"))
assert _SPEC is not None and _SPEC.loader is not None
case_files = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = case_files
_SPEC.loader.exec_module(case_files)

FAULTS = [case for name in ("faults", "held_out", "held_out_2", "held_out_3") for case in case_files.cases_of(name)]
RIGHT = case_files.cases_of("right")


def launch_of(framework: str = "verl", release: str | None = "0.7.1", **settings: Any) -> Launch:
    """A launch from a few values, `__` in a name standing for a dot."""
    keys = {name.replace("__", "."): item for name, item in settings.items()}
    written = {key: Setting(key, item, str(item), Place("", 1)) for key, item in keys.items()}
    return Launch(framework, release, written, defaults_of(framework, release), {}, Machine(), "command")  # type: ignore[arg-type]


def rules_of(launch: Launch) -> set[str]:
    """The ids of all rules that speak, notes left out."""
    found: Iterator[Any] = (
        each for rule in RULES if launch.framework in rule.frameworks for each in rule.judge(launch)
    )
    return {problem.rule for problem in found if problem.severity != "note"}


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_a_planted_fault_is_found_by_its_rule_and_by_no_other(case: Any) -> None:
    assert {problem.rule for problem in case_files.alarms(case)} == {case.rule}


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_a_right_configuration_gives_no_alarm(case: Any) -> None:
    assert [(problem.rule, say(problem.says)) for problem in case_files.alarms(case)] == []


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_what_is_said_names_a_source_and_can_be_said_in_both_languages(case: Any) -> None:
    for problem in case_files.alarms(case):
        english, chinese = say(problem.says, "en"), say(problem.says, "zh")
        assert problem.source and english and chinese != english
        assert "{" not in english.replace("${", "") or "{" in str(problem.says.args)


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
def test_the_corrections_take_the_fault_away(case: Any) -> None:
    undecided = [problem.rule for problem in case_files.alarms(case) if not problem.changes]
    fixed = fix(case_files.read(case), case_files.asked(case))
    assert [problem.rule for problem in fixed.left if problem.severity != "note"] == undecided
    assert fixed.changes or undecided


def test_there_are_enough_faults_and_right_ones() -> None:
    assert len(FAULTS) >= 40 and len(RIGHT) >= 20
    assert len({case.id for case in FAULTS + RIGHT}) == len(FAULTS) + len(RIGHT)


def test_every_rule_has_a_case_or_a_test_with_files() -> None:
    # What the reader finds itself is no rule of the table.
    with_files = {"preflight.path", "preflight.columns", "preflight.reward-signature"}
    as_note = {"preflight.release", "preflight.memory-unjudged", "preflight.no-reader", "preflight.undecided"}
    families = {"preflight.roll-strategy": "preflight.roll-deepspeed"}
    wanted = {families.get(rule.id, rule.id) for rule in RULES} - with_files - as_note
    assert wanted <= {case.rule for case in FAULTS}


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        ("list(range(0,4))", (0, 1, 2, 3)),
        ("list(range(0,2)) + list(range(8,10))", (0, 1, 8, 9)),
        ("[0, 1] + [4 + 1]", (0, 1, 5)),
        ("list(range(8 * 2 - 2, 16))", (14, 15)),
        ("[-1]", (-1,)),
        ("list(range(0, 10**9))", None),
        ("list(range(0, 1000000000))", None),
        ("range(4)", None),
        ("[True]", None),
        ("[0.5]", None),
        ("[i for i in range(3)]", None),
        ("__import__('os').system('id')", None),
        ("list(open('/etc/passwd'))", None),
        ("", None),
        ([0, 1], None),
    ],
)
def test_a_device_mapping_is_read_and_never_run(text: object, cards: tuple[int, ...] | None) -> None:
    assert mapping_of(text) == cards


def test_a_default_that_points_to_another_key_is_followed() -> None:
    launch = launch_of(
        actor_rollout_ref__model__use_remove_padding=False, actor_rollout_ref__actor__ppo_mini_batch_size=32
    )
    assert value(launch, "actor_rollout_ref.actor.use_remove_padding") is False
    assert value(launch, "critic.ppo_mini_batch_size") == 32
    assert value(launch, "actor_rollout_ref.ref.strategy") == "fsdp"
    assert value(launch, "actor_rollout_ref.rollout.name", "nothing") == "nothing"


@pytest.mark.parametrize(
    ("release", "nearest"),
    [
        ("0.7.1", "0.7.1"),
        ("0.7.0", "0.6.1"),
        ("0.8.0.dev0", "0.7.1"),
        ("0.10.0", "0.9.1"),
        ("0.4.1", None),
        (None, None),
        ("mine", None),
    ],
)
def test_a_release_between_two_known_ones_is_as_the_older(release: str | None, nearest: str | None) -> None:
    assert nearest_release("verl", release) == nearest
    assert bool(defaults_of("verl", release)) == (nearest is not None)


def test_the_defaults_are_those_of_the_release() -> None:
    key = "actor_rollout_ref.model.use_remove_padding"
    assert [defaults_of("verl", release)[key] for release in known_releases("verl")] == [False, False, True, True, True]
    assert "ray_init.num_cpus" in names_of("verl", "0.5.0") and "ray_init.num_cpus" not in names_of("verl", "0.6.1")
    assert "actor_rollout_ref.actor.megatron.tensor_model_parallel_size" in names_of("verl", "0.7.1")


def test_an_old_name_is_taken_out_where_the_new_one_is_written_too() -> None:
    old, new = "critic.model.fsdp_config.param_offload", "critic.fsdp.param_offload"
    settings: dict[str, Any] = {old.replace(".", "__"): True, new.replace(".", "__"): False}
    launch = launch_of(release="0.8.0", **settings)
    found = [each for rule in RULES for each in rule.judge(launch) if rule.id == "preflight.key-moved"]
    assert [each.changes for each in found] == [(Change(old, None),)]


def test_an_unknown_release_is_said_once_and_as_a_note() -> None:
    launch = launch_of(release=None, trainer__n_gpus_per_node=8)
    found = [problem for rule in RULES if "verl" in rule.frameworks for problem in rule.judge(launch)]
    assert [problem.severity for problem in found if problem.rule == "preflight.release"] == ["note"]
    assert not {"preflight.key-unknown", "preflight.device"} & {problem.rule for problem in found}


def test_that_megatrons_memory_is_not_judged_is_a_note() -> None:
    launch = launch_of(actor_rollout_ref__actor__strategy="megatron")
    known = replace(launch, machine=Machine("a2", 8, 1, 64.0))
    found = [each for rule in RULES if "verl" in rule.frameworks for each in rule.judge(known)]
    assert [(each.severity, each.says.key) for each in found if each.rule == "preflight.memory-unjudged"] == [
        ("note", "preflight_rules.memory-megatron")
    ]


def test_an_open_value_is_not_judged() -> None:
    key = "actor_rollout_ref.rollout.gpu_memory_utilization"
    launch = launch_of()
    settings = {key: Setting(key, "$MEM", "$MEM", Place("", 1), is_open=True)}
    known = Launch("verl", "0.7.1", settings, launch.defaults, {}, Machine(), "command")
    assert "preflight.number" not in rules_of(known)


def test_the_corrected_values_are_computed() -> None:
    cases = {case.id: case for case in FAULTS}
    expected = {
        "micro-16-with-mini-16": ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 8),
        "batch-not-divisible": ("data.train_batch_size", 66),
        "max-model-len": ("actor_rollout_ref.rollout.max_model_len", 2560),
        "buffer-in-bytes": ("HCCL_BUFFSIZE", "2048"),
        "roll-max-model-len": ("actor_infer.strategy_args.strategy_config.max_model_len", 10240),
        "roll-batch": ("actor_train.training_args.gradient_accumulation_steps", 32),
        "roll-world-size-in-cards": ("WORLD_SIZE", "2"),
        "tensor-parallel-3": ("actor_rollout_ref.rollout.tensor_model_parallel_size", 2),
        "estimator-banana": ("algorithm.adv_estimator", "grpo"),
        "roll-deepspeed-on-0.3": ("actor_train.strategy_args.strategy_name", "fsdp2_train"),
    }
    for name, wanted in expected.items():
        (problem,) = case_files.alarms(cases[name])
        assert [(change.key, change.value) for change in problem.changes] == [wanted], name


def test_every_choice_and_bound_speaks_of_a_key_that_some_release_has() -> None:
    names = {name for release in known_releases("verl") for name in names_of("verl", release)}
    rows: list[Choice | Bound] = [*load_matrix().choices, *load_matrix().bounds]
    for row in rows:
        if row.framework == "verl" and "*" not in row.key:
            assert row.key in names, row.id


def test_a_rename_is_written_down_once_and_known_to_both_who_need_it() -> None:
    matrix = load_matrix()
    rendered = {name.rstrip(".") for row in matrix.launch_keys for name in (row.key, row.before) if name}
    assert [row.old for row in matrix.moved_keys if row.old in rendered or row.new in rendered] == []
    old = {row.old: (row.new, row.since) for row in moves()}
    assert old["ray_init"] == ("ray_kwargs.ray_init", "0.6.0")
    assert old["trainer.use_legacy_worker_impl"] == ("", "0.8.0")
    assert old["actor_rollout_ref.actor.fsdp_config.grad_offload"] == ("", "0.5.0")
    assert len(old) == len(moves())


ROLLOUT, BUCKET = "actor_rollout_ref.rollout", "update_weights_bucket_megabytes"


@pytest.mark.parametrize(
    ("release", "old", "new"),
    [
        ("0.8.0", f"{ROLLOUT}.{BUCKET}", f"{ROLLOUT}.checkpoint_engine.{BUCKET}"),
        ("0.6.1", f"{ROLLOUT}.checkpoint_engine.{BUCKET}", f"{ROLLOUT}.{BUCKET}"),
        ("0.5.0", "actor_rollout_ref.actor.fsdp_config.use_torch_compile", "actor_rollout_ref.actor.use_torch_compile"),
    ],
)
def test_what_launch_files_are_rendered_by_is_corrected_in_both_directions(release: str, old: str, new: str) -> None:
    for key, expected in ((old, [(new, old)]), (new, [])):
        settings: dict[str, Any] = {key.replace(".", "__"): True}
        launch = launch_of(release=release, **settings)
        found = [each for rule in RULES for each in rule.judge(launch) if rule.id == "preflight.key-moved"]
        assert [(change.key, change.renames) for each in found for change in each.changes] == expected
