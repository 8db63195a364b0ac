"""Every rule on configurations that are files: one fault each, found by its rule alone, and none in right ones."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.core.finding import Location
from npuenv.core.messages import say
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import defaults_of, known_releases, names_of, nearest_release, releases_beside
from npuenv.preflight import configs
from npuenv.preflight.configs import counted_as
from npuenv.preflight.fixing import fix
from npuenv.preflight.launch import Change, Launch, LaunchSetting, Machine
from npuenv.preflight.rules import RULES
from npuenv.preflight.rules.base import as_number, value
from npuenv.preflight.rules.cards import mapping_of
from npuenv.preflight.rules.keys import moves
from tests.preflight import case_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npuenv.matrix.rows.launch import Bound, Choice

FAULTS = [case for name in ("faults", "held_out", "held_out_2", "held_out_3") for case in case_files.cases_of(name)]
RIGHT = case_files.cases_of("right")


def launch_of(framework: str = "verl", release: str | None = "0.7.1", **settings: Any) -> Launch:
    """A launch from a few values, `__` in a name standing for a dot."""
    keys = {name.replace("__", "."): item for name, item in settings.items()}
    written = {key: LaunchSetting(key, item, str(item), Location("", 1)) for key, item in keys.items()}
    return Launch(framework, release, written, defaults_of(framework, release), {}, Machine(), "command")  # type: ignore[arg-type]


def rules_of(launch: Launch) -> set[str]:
    """The ids of all rules that speak, notes left out."""
    found: Iterator[Any] = (
        each for rule in RULES if launch.framework in rule.frameworks for each in rule.judge(launch)
    )
    return {problem.check for problem in found if problem.severity != "note"}


@pytest.mark.parametrize("case", FAULTS, ids=lambda case: case.id)
@pytest.mark.one_in(2)
def test_a_planted_fault_is_found_by_its_rule_alone_and_said_in_both_languages_and_corrected(case: Any) -> None:
    assert {problem.check for problem in case_files.alarms(case)} == {case.rule}
    for problem in case_files.alarms(case):
        english, chinese = say(problem.says, "en"), say(problem.says, "zh")
        assert problem.source and english and chinese != english
        assert "{" not in english.replace("${", "") or "{" in str(problem.says.args)
    check_corrections(case)


@pytest.mark.parametrize("case", RIGHT, ids=lambda case: case.id)
def test_a_right_configuration_gives_no_alarm(case: Any) -> None:
    assert [(problem.check, say(problem.says)) for problem in case_files.alarms(case)] == []


def check_corrections(case: Any) -> None:
    """The corrections take the fault away, and bash takes the corrected script."""
    undecided = [problem.check for problem in case_files.alarms(case) if not problem.changes]
    fixed = fix(case_files.read(case), case_files.asked(case))
    assert [problem.check for problem in fixed.left if problem.severity != "note"] == undecided
    assert fixed.changes or undecided
    assert not case.base.endswith(".sh") or case_files.bash_takes(fixed.after)


def test_there_are_enough_faults_and_right_ones() -> None:
    assert len(FAULTS) >= 40 and len(RIGHT) >= 20
    assert len([case for case in FAULTS if case.base.endswith(".sh")]) > 40
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
        ("0.7.0", "0.7.0"),
        ("0.8.0.dev0", "0.7.1"),
        ("0.10.0", "0.9.1"),
        ("0.0.9", None),
        (None, None),
        ("mine", None),
        ("40456706", None),  # a commit of digits alone
    ],
)
def test_a_release_between_two_known_ones_is_as_the_older(release: str | None, nearest: str | None) -> None:
    assert nearest_release("verl", release) == nearest
    assert bool(defaults_of("verl", release)) == (nearest is not None)


@pytest.mark.parametrize(
    ("release", "beside"),
    [
        ("0.7.1", ("0.7.1",)),
        ("0.7.1.post1", ("0.7.1",)),
        ("0.7.1+npu", ("0.7.1",)),
        ("0.8.0.dev0", ("0.7.1", "0.8.0")),
        ("0.10.0", ("0.9.1",)),
        ("0.0.9", ()),
        (None, ()),
    ],
)
def test_a_release_lies_between_two_known_ones(release: str | None, beside: tuple[str, ...]) -> None:
    assert releases_beside("verl", release) == beside


@pytest.mark.parametrize(
    ("name", "version", "is_far"),
    [
        ("0.3.0", "0.3.0", False),
        ("v0.4.0", "0.4.0", False),
        ("0.2.9", "0.2.9", False),
        ("0.1.2", "0.1.2", True),
        ("8eb27cc2", "0.3.0", False),
        ("main @8eb27cc2", "0.3.0", False),
        ("5d1e3c3d", "0.2.0", False),
        ("88c80761928c9b1692751e0b7a650a39bfc240cd", "0.2.0", False),
        ("0123456789", "0123456789", True),
        ("9.9", "9.9", True),
    ],
)
def test_a_commit_of_roll_counts_as_a_version(name: str, version: str, is_far: bool) -> None:
    assert counted_as("roll", name) == version
    assert configs.is_far("roll", name) == is_far


@pytest.mark.parametrize(("name", "is_far"), [("0.9.0", False), ("0.0.9", True), ("1.0.0", True), ("4045d670", True)])
def test_a_commit_of_verl_counts_as_none(name: str, is_far: bool) -> None:
    assert (counted_as("verl", name), configs.is_far("verl", name)) == (name, is_far)


@pytest.mark.parametrize(
    ("release", "key", "said"),
    [
        # recorded: refused, whatever a neighbour has
        ("0.9.0", "data.max_respone_length", [("error", "key-near")]),
        ("0.6.0", "ray_init.num_cpus", [("error", "key-moved")]),
        ("0.7.0", "trainer.use_legacy_worker_impl", []),
        ("0.9.0", "trainer.use_legacy_worker_impl", [("error", "key-gone")]),
        # between two recorded ones: both refuse it, or one alone
        ("0.8.0.dev0", "data.max_respone_length", [("error", "key-near")]),
        ("0.8.0.dev0", "ray_init.num_cpus", [("error", "key-moved")]),
        ("0.8.0.dev0", "trainer.use_legacy_worker_impl", [("warning", "key-between")]),
        ("0.8.0.dev0", "data.max_response_length", []),
        # behind the newest: nobody knows
        ("0.10.0", "data.max_respone_length", [("warning", "key-near")]),
        ("0.10.0", "trainer.use_legacy_worker_impl", [("warning", "key-gone")]),
        (None, "data.max_respone_length", []),
    ],
)
def test_a_key_is_refused_where_no_release_beside_has_it(
    release: str | None, key: str, said: list[tuple[str, str]]
) -> None:
    settings: dict[str, Any] = {key.replace(".", "__"): 1}
    found = [each for rule in RULES if "key-" in rule.id for each in rule.judge(launch_of(release=release, **settings))]
    keys = [(each.severity, each.says.key.removeprefix("preflight_rules.")) for each in found]
    assert [each for each in keys if each[1] != "key-mandatory"] == said


def test_a_key_out_of_a_file_is_taken_and_one_of_the_command_over_it_too() -> None:
    key = "trainer.noise_injection.enabled"
    launch = launch_of(trainer__noise_injection__enabled=True, data__max_respone_length=5)
    for files, severity, says in (
        (set[str](), "error", "noise-refused"),
        ({key, "data.max_respone_length"}, "warning", "noise-ignored"),
    ):
        known = replace(launch, from_files=frozenset(files))
        found = [
            each
            for rule in RULES
            if rule.id in ("preflight.noise-injection", "preflight.key-unknown")
            for each in rule.judge(known)
        ]
        assert [each.says.key for each in found if each.check == "preflight.noise-injection"] == [
            f"preflight_rules.{says}"
        ]
        assert [each.severity for each in found if each.check == "preflight.key-unknown"] == [severity]


@pytest.mark.parametrize("text", [float("inf"), float("nan"), "1e400", "9" * 400 + "."])
def test_what_is_no_finite_number_is_none(text: object) -> None:
    assert as_number(text) is None


def own_keys(launch: Launch) -> list[str]:
    """The keys that a note says to be read by no release."""
    found = [each for rule in RULES if rule.id == "preflight.key-unknown" for each in rule.judge(launch)]
    return [str(each.says.args["key"]) for each in found if each.says.key == "preflight_rules.key-own"]


def added(key: str, text: str) -> LaunchSetting:
    return LaunchSetting(key, text, text, Location("", 1), "+")


def test_a_key_that_left_the_configuration_may_be_forced_in() -> None:
    key = "trainer.use_legacy_worker_impl"
    launch = replace(launch_of(release="0.9.0"), settings={key: added(key, "true")})
    (found,) = (each for rule in RULES if rule.id == "preflight.key-moved" for each in rule.judge(launch))
    assert (found.severity, found.says.key) == ("note", "preflight_rules.key-own")


@pytest.mark.parametrize(("text", "is_said"), [("many", True), ("8x", True), ("0.5_4.0", False)])
def test_a_text_that_begins_with_a_digit_may_be_a_number_to_somebody(text: str, is_said: bool) -> None:
    launch = launch_of(trainer__save_freq=text)
    assert ("preflight.number" in rules_of(launch)) is is_said


def test_memory_that_is_not_enough_is_said_with_what_takes_it() -> None:
    (problem,) = case_files.alarms(next(case for case in FAULTS if case.id == "h100-memory-model"))
    assert getattr(problem.says.args["reason"], "key", "") == "placement.infeasible"


def test_a_key_that_was_forced_in_and_that_nobody_lists_is_a_note() -> None:
    nobodys = ["foo.bar", "actor_rollout_ref.model.attn_implementation"]
    free = "actor_rollout_ref.model.override_config.attn_implementation"  # below a part for the user's own keys
    settings = {key: added(key, "flash_attention_2") for key in (*nobodys, free)}
    verls = ["reward.reward_kwargs.overlong_buffer_cfg.len", "actor_rollout_ref.actor.fsdp_config.mixed_precision.x"]
    settings |= {key: added(key, "1") for key in verls}  # read, although no configuration lists them
    settings["data.seed"] = LaunchSetting("data.seed", "x", "${actor_rollout_ref.actor.clip_ratio}", Location("", 1))
    launch = replace(launch_of(), settings=settings)
    assert own_keys(launch) == nobodys
    assert not rules_of(launch) & {"preflight.key-unknown"}
    settings["data.seed"] = LaunchSetting("data.seed", "x", "${foo.bar}", Location("", 1))
    assert own_keys(launch) == nobodys[1:]


def test_the_defaults_are_those_of_the_release() -> None:
    key = "actor_rollout_ref.model.use_remove_padding"
    assert [defaults_of("verl", release)[key] for release in ("0.5.0", "0.6.1", "0.7.0", "0.9.1")] == [
        False,
        False,
        True,
        True,
    ]
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
    assert [problem.severity for problem in found if problem.check == "preflight.release"] == ["note"]
    assert not {"preflight.key-unknown", "preflight.device"} & {problem.check for problem in found}


NOTE = "preflight.memory-unjudged"
PATH, MICRO_BATCH = "actor_rollout_ref.model.path", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
JOB: dict[str, Any] = {
    PATH: "Qwen/Qwen3-8B",
    "actor_rollout_ref.rollout.name": "vllm",
    MICRO_BATCH: 4,
    "trainer.n_gpus_per_node": 8,
}


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("actor_rollout_ref.actor.strategy", "megatron", "memory-unsupported"),
        ("actor_rollout_ref.rollout.name", "sglang", "memory-unsupported"),
        ("rollout.n_gpus_per_node", 8, "memory-apart"),
        (PATH, "meta/Foo-72B", "memory-unestimated"),
    ],
)
def test_why_memory_is_not_judged_is_a_note(key: str, value: object, said: str) -> None:
    (note,) = memory_of({key: value}, 64.0)
    assert (note.severity, note.check, note.says.key) == ("note", NOTE, f"preflight_rules.{said}")
    assert [each.check for each in memory_of({key: value}, None)] == [NOTE] * (key == PATH)


def test_the_memory_of_a_model_whose_layers_differ_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"layer_types": ["linear_attention"]}', encoding="utf-8")
    (note,) = memory_of({PATH: str(tmp_path)}, 64.0)
    assert (note.check, note.says.args["reason"].key) == (NOTE, "placement.config-mixed")


@pytest.mark.parametrize("size", [3, 64])
def test_a_size_that_the_heads_forbid_is_not_a_lack_of_memory(size: int) -> None:
    """Micro batches of 64 do not fit either; the size is corrected first."""
    (note,) = memory_of({"actor_rollout_ref.rollout.tensor_model_parallel_size": size, MICRO_BATCH: 64}, 64.0)
    assert (note.check, note.says.args["reason"].key) == (NOTE, "placement.heads")


@pytest.mark.parametrize(("memory", "says"), [(64.0, "memory"), (4.0, "memory-no-settings")])
def test_a_lack_of_memory_says_what_to_try_only_where_something_helps(memory: float, says: str) -> None:
    (error,) = memory_of({MICRO_BATCH: 64}, memory)
    assert (error.check, error.says.key) == ("preflight.memory", f"preflight_rules.{says}")


def test_an_engine_without_room_for_one_sequence_is_a_lack_of_memory() -> None:
    (error,) = memory_of({"actor_rollout_ref.rollout.gpu_memory_utilization": 0.05}, 64.0)
    assert (error.check, error.says.args["reason"].key) == ("preflight.memory", "placement.small-cache")


def memory_of(changed: dict[str, Any], memory: float | None) -> list[Any]:
    """What the rules about memory find in a job of eight cards with other values."""
    launch = launch_of(**{name.replace(".", "__"): each for name, each in {**JOB, **changed}.items()})
    launch = replace(launch, machine=Machine("a2", 8, 1, memory))
    found = (each for rule in RULES if "verl" in rule.frameworks for each in rule.judge(launch))
    return [each for each in found if each.check.startswith("preflight.memory")]


def test_an_open_value_is_not_judged() -> None:
    key = "actor_rollout_ref.rollout.gpu_memory_utilization"
    launch = launch_of()
    settings = {key: LaunchSetting(key, "$MEM", "$MEM", Location("", 1), is_open=True)}
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


@pytest.mark.parametrize("row", load_matrix().refused_values, ids=lambda row: row.id)
def test_a_row_of_refused_values_is_about_something_and_has_one_remedy(row: Any) -> None:
    assert bool(row.keys) != bool(row.variables)
    assert not (row.fix and row.removes) and not (row.values and row.pattern)
    assert re.compile(row.pattern)
