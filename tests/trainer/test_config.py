"""Settings: what is accepted, and what a refusal says."""

from __future__ import annotations

from dataclasses import fields

import pytest

from trainer.config import CHOICES, LIMITS, BadSetting, Config, parse

DEVICES = ("auto", "cpu")


def read(*words: str) -> Config:
    return parse(words, devices=DEVICES)


def test_without_words_everything_is_at_its_default() -> None:
    assert read() == Config()


def test_words_change_only_what_they_name_and_the_last_one_counts() -> None:
    found = read("steps=5", "lr=1e-2", "scale_by_std=no", "task=copy", "steps=7", "device=cpu")
    assert (found.steps, found.lr, found.scale_by_std, found.task, found.device) == (7, 0.01, False, "copy", "cpu")
    assert found.seed == Config().seed


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["stepz=5"], "There is no setting 'stepz'. Did you mean steps? Accepted: task, distractors"),
        (["qqqqqq=5"], "There is no setting 'qqqqqq'. Accepted: task,"),
        (["steps"], "'steps' is no setting: write KEY=VALUE"),
        (["steps=many"], "steps=many is not accepted. Accepted: a whole number from 1 to"),
        (["steps=0"], "steps=0 is not accepted"),
        (["steps=2.5"], "steps=2.5 is not accepted"),
        (["steps="], "steps= is not accepted"),
        (["lr=nan"], "lr=nan is not accepted. Accepted: a number from 0 to 10"),
        (["lr=-1"], "lr=-1 is not accepted"),
        (["lr=inf"], "lr=inf is not accepted"),
        (["task=gsm9k"], "task=gsm9k is not accepted. Accepted: successor, addition, copy"),
        (["device=tpu"], "device=tpu is not accepted. Accepted: auto, cpu"),
        (["fault=all"], "fault=all is not accepted. Accepted: none, shuffled-reward"),
        (["scale_by_std=maybe"], "Accepted: true, false"),
        (["hidden=130"], "hidden=130 must be an even multiple of heads="),
        (["heads=4", "hidden=12"], "hidden=12 must be an even multiple of heads=4"),
        (["heads=4", "kv_heads=3"], "heads=4 must be a multiple of kv_heads=3"),
        (["dual_clip=0.5"], "dual_clip=0.5 must be above 1"),
        (["mini_batches=9", "prompts_per_step=2", "rollouts_per_prompt=4"], "mini_batches=9 is more than the 8"),
    ],
)
def test_a_refusal_names_the_value_and_what_would_do(words: list[str], says: str) -> None:
    with pytest.raises(BadSetting) as caught:
        read(*words)
    assert says in str(caught.value)


def test_every_setting_has_limits_or_choices() -> None:
    for field in fields(Config):
        assert isinstance(field.default, bool) or field.name in {*LIMITS, *CHOICES, "device"}, field.name


def test_every_default_is_accepted_when_it_is_written_out() -> None:
    assert read(*(f"{field.name}={field.default}" for field in fields(Config))) == Config()
