"""Settings: what is accepted, and what a refusal says."""

from __future__ import annotations

import re

import pytest

from trainer import config, overrides
from trainer.config import BadSetting, Config, describe, differing, instead, parse
from trainer.config import read as given
from trainer.sections import READ_WITH, SETTINGS

DEVICES = ("auto", "cpu")


def read(*words: str) -> Config:
    return parse(words, devices=DEVICES)


def test_without_words_everything_is_at_its_default() -> None:
    assert read() == Config()


def test_words_change_only_what_they_name_and_the_last_one_counts() -> None:
    found = read("steps=5", "lr=1e-2", "scale_by_std=no", "task=copy", "steps=7", "device=cpu")
    assert (found.run.steps, found.optim.lr, found.algorithm.scale_by_std) == (7, 0.01, False)
    assert (found.task.task, found.run.device) == ("copy", "cpu")
    assert found.run.seed == Config().run.seed


def test_a_name_may_stand_after_its_section_and_only_after_its_own() -> None:
    assert read("optim.lr=0.5").optim.lr == 0.5
    with pytest.raises(BadSetting, match=r"'run\.lr'.* lr\?"):
        read("run.lr=0.5")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepz=5"], r"'stepz'.* steps\? `python -m trainer --help`"),
        (["qqqqqq=5"], "'qqqqqq'. `python -m trainer --help`"),
        (["steps"], "'steps' .* KEY=VALUE; `python -m trainer --help`"),
        (["steps=many"], "^steps=many .* 1 to "),
        (["steps=0"], "^steps=0 "),
        (["steps=2.5"], r"^steps=2\.5 "),
        (["steps="], "^steps= "),
        (["lr=nan"], "^lr=nan .* 0 to 10"),
        (["lr=-1"], "^lr=-1 "),
        (["lr=inf"], "^lr=inf "),
        (["task=gsm9k"], "^task=gsm9k .* successor, addition, copy"),
        (["device=tpu"], "^device=tpu .* auto, cpu"),
        (["fault=all"], "^fault=all .* none, lr-zero"),
        (["scale_by_std=maybe"], "^scale_by_std=maybe .* true, false"),
        (["hidden=130"], "^hidden=130 .* even multiple .*heads="),
        (["heads=4", "hidden=12"], "^hidden=12 .* even multiple .*heads=4"),
        (["heads=4", "kv_heads=3"], "^heads=4 .* multiple .*kv_heads=3"),
        (["dual_clip=0.5"], r"^dual_clip=0\.5 .* 1"),
        (["mini_batches=9", "prompts_per_step=2"], "^mini_batches=9 .* prompts_per_step=2"),
    ],
)
def test_a_refusal_names_the_value_and_what_would_do(words: list[str], says: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read(*words)
    assert re.search(says, str(caught.value))


@pytest.mark.parametrize(
    ("word", "count"),
    [("steps", 0), ("qqqqqq=5", 0), ("stepz=5", 1), ("run.lr=5", 1), ("actor_rollout_ref.actor.fsdp_config.x=5", 3)],
)
def test_an_unknown_setting_is_answered_with_three_names_at_most_and_the_place_of_all(word: str, count: int) -> None:
    with pytest.raises(BadSetting) as caught:
        read(word)
    said = str(caught.value)
    near = said.partition("Did you mean ")[2].partition("?")[0].split(" or ")
    assert len([each for each in near if each]) == count
    assert {*near} - {""} <= {*Config().flat(), *overrides.names()}
    assert "`python -m trainer --help`" in said
    assert len(said) < 300


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lerning_rate=1", "lr"),
        ("optim.learning_rate=1", "lr"),
        ("rollout.n=5", "actor_rollout_ref.rollout.n"),
        ("num_generations=4", "rollouts_per_prompt"),
        ("clip_ratio_c=3", "actor_rollout_ref.actor.clip_ratio_c"),
        ("rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_is"),
    ],
)
def test_another_trainers_name_and_the_end_of_a_key_of_verls_are_answered_with_ours(word: str, meant: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read(word)
    assert f" {meant}? " in str(caught.value)


def test_the_names_of_other_trainers_are_no_settings_and_stand_for_some() -> None:
    assert not {*config._ELSEWHERE} & {*Config().flat()}
    assert {*config._ELSEWHERE.values()} <= {*Config().flat()}


def test_every_setting_has_its_own_name() -> None:
    config = Config()
    sections = [getattr(config, name) for name in ("run", "task", "model", "rollout", "algorithm", "optim", "noise")]
    names = [name for part in [*sections, config.output, config.placement] for name in part.__slots__]
    assert len(names) == len(set(names)) == len(config.flat())


def test_every_default_is_accepted_when_it_is_written_out() -> None:
    assert read(*(f"{name}={value}" for name, value in Config().flat().items())) == Config()


def test_a_default_and_its_limits_are_told_for_every_setting() -> None:
    told = {line.partition("=")[0]: (line, about) for _, _, rows in describe(DEVICES) for line, about in rows}
    assert set(told) == set(Config().flat())
    assert told["lr"] == ("lr=0.0012  (0 to 10)", "the highest")
    assert told["device"][0] == "device=auto  (auto | cpu)"
    assert told["scale_by_std"][0] == "scale_by_std=true  (true | false)"
    assert [name for name, (_, about) in told.items() if not about] == []
    assert all("package ray" in told[name][1] for name in ("generators", "fault"))


def test_only_what_cannot_change_a_number_already_made_is_free_to_change() -> None:
    before = Config().lasting()
    assert "resume" not in before
    given = {**before, "steps": 7, "loggers": "wandb", "probe_packages": False, "lr": 0.5, "gone": 1}
    free, refused = differing(given, Config())
    assert free == {"steps": (7, before["steps"]), "loggers": ("wandb", ""), "probe_packages": (False, True)}
    assert refused == {"lr": (0.5, before["lr"]), "gone": (1, None)}
    del before["kl"]
    assert differing(before, Config())[1] == {"kl": (None, "low_var")}


def test_words_in_capitals_are_the_same_choices() -> None:
    assert read("resume=True", "scale_by_std=FALSE").run.resume == "true"


def test_a_word_is_put_in_the_place_of_those_that_set_the_same_in_either_spelling() -> None:
    words = ["save_every=5", "lr=0.1", "+trainer.save_freq=-1", "run.save_every=0", "data.train_batch_size=4"]
    changed = ["lr=0.1", "+trainer.save_freq=10", "data.train_batch_size=4", "save_every=10"]
    assert instead(words, "save_every", "10") == changed
    assert read(*changed).run.save_every == 10
    words = ["trainer.resume_mode=disable", "resume=false"]
    assert instead(words, "resume", "auto") == ["trainer.resume_mode=auto", "resume=auto"]
    assert read(*instead(words, "resume", "auto")).run.resume == "auto"
    assert instead([], "resume", "auto") == ["resume=auto"]


def test_cards_are_apart_by_their_numbers_and_not_by_how_they_are_written() -> None:
    for words in (
        ["train_cards=0-3", "infer_cards=[0,1,2,3]"],
        ["train_cards=0-3"],
        ["train_cards=0,1", "infer_cards=1,0"],
    ):
        assert not read(*words).has_generators, words
    assert read("train_cards=0-3", "infer_cards=[4,5]").has_generators
    assert read("generators=1").has_generators
    with pytest.raises(BadSetting, match=r"several engines .* train_cards"):
        read("engine=vllm", "path=x", "ranks=2")
    with pytest.raises(BadSetting, match="several engines "):
        read("engine=vllm", "path=x", "generators=2")
    assert read("engine=vllm", "path=x", "generators=1").has_generators
    with pytest.raises(BadSetting, match=r"generators=2 .* train_cards=0 "):
        read("train_cards=0", "infer_cards=1", "generators=2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nodes=2", "nodes=2 needs train_cards"),
        ("cards_per_node=8", "cards_per_node=8 needs train_cards"),
        ("ray=10.1.2.3:6379", "ray=10.1.2.3:6379 needs train_cards"),
        ("tensor_parallel=8", "tensor_parallel=8 needs engine=vllm: engine=builtin "),
        ("sleep=true engine=transformers path=x", "sleep=true needs engine=vllm: engine=transformers "),
        ("engine=vllm path=x temperature=0.005", "engine=vllm takes temperature=0.01 or more"),
        ("offload=true sharding=fsdp2", "offload=true needs ranks=2 "),
        ("offload=true sharding=fsdp2 train_cards=3", "offload=true needs ranks=2 or more"),
        ("fault=rank-dies", "fault=rank-dies needs ranks=2 or more"),
        ("fault=rank-differs train_cards=0", "fault=rank-differs needs ranks=2 or more"),
        (
            "kl_controller=adaptive kl_in=reward kl_horizon=25",
            "kl_horizon=25 must be",
        ),
    ],
)
def test_what_would_change_nothing_or_the_wrong_way_round_is_refused(words: str, says: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read(*words.split())
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "words",
    [
        "nodes=0 cards_per_node=0 ray=auto tensor_parallel=1 sleep=false",
        "train_cards=0-15 nodes=2 cards_per_node=8 ray=10.1.2.3:6379",
        "offload=true sharding=fsdp2 ranks=2",
        "offload=true sharding=fsdp2 train_cards=0-7 prompts_per_step=16",
        "fault=rank-differs train_cards=0-1",
        "kl_controller=adaptive kl_in=reward kl_horizon=26",
        "actor_rollout_ref.rollout.tensor_model_parallel_size=2 actor_rollout_ref.rollout.free_cache_engine=True",
    ],
)
def test_what_means_something_is_taken(words: str) -> None:
    read(*words.split())


def test_processes_that_a_launcher_has_started_are_ranks_unless_cards_or_ranks_are_given() -> None:
    def launched(*words: str) -> Config:
        return given(words, devices=DEVICES, launched=4).config

    assert launched().run.ranks == 4
    assert launched("ranks=1").run.ranks == 1
    assert launched("train_cards=0-1").run.ranks == 1
    for word, says in {
        "estimator=gae": "estimator=gae takes ranks=1",
        "prompts_per_step=15": "prompts_per_step=15 must be a multiple of ranks=4",
        "generators=3": "generators=3 is less than ranks=4",
    }.items():
        with pytest.raises(BadSetting, match=says):
            launched(word)


@pytest.mark.parametrize(
    ("words", "prompts"),
    [("ranks=2", 16), ("ranks=3", 18), ("ranks=16", 32), ("ranks=100", 200), ("ranks=5 mini_batches=4", 20)],
)
def test_prompts_that_nobody_gave_can_be_shared_by_any_number_of_ranks(words: str, prompts: int) -> None:
    assert read(*words.split()).rollout.prompts_per_step == prompts
    with pytest.raises(BadSetting, match=r"^mini_batches=20 is more"):
        read("mini_batches=20")


def test_epochs_alone_say_how_long_a_run_is_and_steps_beside_them_may_end_it_earlier() -> None:
    assert (read("epochs=2").run.steps, read("epochs=0").run.steps) == (1_000_000, Config().run.steps)
    for words in (["epochs=2", "steps=5"], ["trainer.total_epochs=2", "steps=5"]):
        assert (read(*words).run.epochs, read(*words).run.steps) == (2, 5)
    both = given(["trainer.total_epochs=2", "trainer.total_training_steps=5"], devices=DEVICES)
    assert (both.config.run.epochs, both.config.run.steps, both.ignored) == (2, 5, {})
    assert both.translated["trainer.total_epochs=2"].startswith("epochs=2 (or steps=5, ")


def warned(*words: str) -> list[str]:
    return list(given(words, devices=DEVICES).warnings)


def test_two_values_for_one_setting_are_told_whichever_way_it_is_named() -> None:
    for words in (["lr=0.1", "optim.lr=0.2"], ["data.seed=1", "++data.seed=2"]):
        (said,) = warned(*words)
        assert re.search(r"\b(lr|data\.seed)\b.*\b(0\.1|1) and (0\.2|2)\b", said), said
    assert warned("lr=0.1", "lr=0.1", "data.seed=1") == []


# For each setting that decides about others, words with which it is on.
ON = {
    "engine": "engine={} path=x", "estimator": "estimator={}",
    "correction": "correction=token",
    "kl_controller": "kl_controller={} kl_in=reward", "overlong_buffer": "overlong_buffer=1",
    "dynamic_sampling": "dynamic_sampling=true", "lora_rank": "lora_rank=1", "noise_stages": "noise_stages=1",
    "warm_start_steps": "warm_start_steps=1", "loss": "loss={}", "rejection": "rejection=token_k1",
}  # fmt: skip


def another(name: str) -> object:
    """A value of a setting that is not its default."""
    about, default = SETTINGS[name].metadata, SETTINGS[name].default
    if isinstance(default, str):
        return about["accepted"][-1] if "accepted" in about else "3"
    return not default if isinstance(default, bool) else about["low" if default == about["high"] else "high"]


@pytest.mark.parametrize("name", READ_WITH)
def test_what_nothing_reads_is_told_and_what_is_read_is_not(name: str) -> None:
    decides, *values = READ_WITH[name]
    value = values[0] if values else None
    own, other = Config().flat()[name], another(name)
    off = ["estimator=rloo"] if decides == "estimator" and value == "grpo" else []
    needs = ["reward_function=x.py:f", "reward_parts=a"] if value == "gdpo" else []
    words = [*off, f"{name}={other}"]
    if name in ("tensor_parallel", "sleep"):  # nothing may read these: the run would be another one than was meant
        with pytest.raises(BadSetting, match=f"{name}=.* needs engine=vllm"):
            read(*words)
    else:
        assert [said for said in warned(*words) if re.search(rf"\b{name}\b.*\b{decides}=", said)] != []
    needs = [word for word in needs if not word.startswith(name)]
    assert warned(*ON[decides].format(value).split(), *needs, words[-1]) == []
    assert warned(*off, f"{name}={own}") == []


@pytest.mark.parametrize(
    ("words", "updates", "name"),
    [
        ("warmup_steps=11", 10, "warmup_steps=11"),
        ("warmup_steps=10", 10, None),
        ("rollouts_per_prompt=1", 10, "rollouts_per_prompt=1"),
        ("rollouts_per_prompt=1 estimator=opo", 10, "rollouts_per_prompt=1"),
        ("rollouts_per_prompt=1 estimator=reinforce", 10, None),
        ("rollouts_per_prompt=1 estimator=gae", 10, None),
        ("rollouts_per_prompt=2", 10, None),
    ],
)
def test_what_is_accepted_and_will_hardly_be_meant_is_told(words: str, updates: int, name: str | None) -> None:
    said = config.doubts(read(*words.split()), optimizer_steps=updates, cores=2, load=0.0)
    assert [each.partition(" ")[0].rstrip(":") for each in said] == [name] * bool(name)


@pytest.mark.parametrize(
    ("words", "load", "is_told"),
    [
        ("num_threads=2", 0.3, False),
        ("num_threads=2", 1.2, True),
        ("num_threads=3", 0.0, True),
        ("num_threads=1", 9.0, False),
        ("num_threads=2 ranks=2", 0.0, True),
        ("num_threads=2 generators=1", 0.0, True),
    ],
)
def test_threads_that_must_wait_for_a_core_are_told_beforehand(words: str, load: float, is_told: bool) -> None:
    said = config.doubts(read(*words.split()), optimizer_steps=400, cores=2, load=load)
    assert [each.partition(" ")[0] for each in said] == [words.split()[0]] * is_told
