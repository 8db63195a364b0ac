"""Files that few lines blow up to what takes minutes or all memory: refused at once, or left undecided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npuenv.core.errors import BadInput, ExitCode
from npuenv.core.finding import Location
from npuenv.core.shellwords import LONGEST
from npuenv.preflight.composing import ReadOptions
from npuenv.preflight.hydra import NotHydra, fill, read_override
from npuenv.preflight.launch import MOST_LETTERS, MOST_VALUES, LaunchSetting, TooLarge
from npuenv.preflight.reading import read_file
from npuenv.preflight.yaml_text import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

ASKED = ReadOptions(lambda framework, release: {})
START = "python3 -m verl.trainer.main_ppo data.x="


def nested_aliases(levels: int, width: int) -> str:
    """Each list holds the one before it several times."""
    lines = [f"a0: &a0 [{','.join('x' * width)}]"]
    lines += [f"a{at}: &a{at} [{','.join([f'*a{at - 1}'] * width)}]" for at in range(1, levels)]
    return "\n".join(lines) + "\n"


def nested_merges(levels: int) -> str:
    """Each mapping takes over the one before it several times."""
    lines = ["a0: &a0 {x: 1, y: 2}"]
    lines += [
        f"a{at}: &a{at} {{b: *a{at - 1}, c: *a{at - 1}, <<: [*a{at - 1}, *a{at - 1}]}}" for at in range(1, levels)
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (nested_aliases(11, 9), "values"),
        (nested_merges(40), "values"),
        (nested_aliases(100, 1), "levels"),
        ("a: &a [" + "1," * 200 + "]\nb: [" + "*a," * (MOST_VALUES // 200) + "]", "values"),
        ("a: " + "[\n" * 1000, "levels"),
        ("a: &a\n  b: *a\n", "levels"),
        ("a: &a [*a]\n", "levels"),
        ("a: " + "1" * 100_000, "digits"),
        ("a: [0x" + "f" * 100_000 + "]", "digits"),
        ("a: -1." + "1" * 100_000, "digits"),
        ("a: " + "x" * MOST_LETTERS, "letters"),
    ],
    ids=lambda value: value if len(value) < 10 else "",
)
def test_a_yaml_larger_than_any_configuration_is_refused(text: str, what: str) -> None:
    with pytest.raises(TooLarge) as caught:
        read_yaml(text, "job.yaml")
    assert caught.value.exit_code is ExitCode.INPUT
    assert caught.value.message.args["path"] == "job.yaml"
    assert getattr(caught.value.message.args["what"], "key", "") == f"preflight.large-{what}"


def test_aliases_and_long_texts_within_the_bounds_are_read() -> None:
    entries = read_yaml(nested_aliases(4, 5) + "b: '" + "1" * 400 + "'\nc: x" + "1" * 400 + "\n", "job.yaml")
    assert [len(str(entry.value)) for entry in entries[-2:]] == [400, 401]


@pytest.mark.parametrize(
    "lines",
    [
        ["a=x", *["a=$a$a"] * 40, f"{START}$a"],
        ['a="x"', *['a="${a}${a}"'] * 40, f"{START}$a"],
        ["a=x", *["a=${b:-$a}${b:-$a}"] * 40, f"{START}$a"],
        ["a=xx", *["a+=$a"] * 40, f"{START}1"],
    ],
)
def test_a_variable_that_doubles_without_end_is_undecided(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "run.sh"
    path.write_text("\n".join(lines) + "\n")
    launch = read_file(path, ASKED).launch
    assert all(setting.is_open or len(str(setting.value)) < 1000 for setting in launch.settings.values())


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (["a=(x y)", *['a+=("${a[@]}" "${a[@]}")'] * 30, f'{START}1 "${{a[@]}}"'], "words"),
        (["""a='bash -c "$a"'""", 'bash -c "$a"'], "scripts"),
    ],
)
def test_a_script_that_grows_without_end_is_refused(tmp_path: Path, lines: list[str], what: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(TooLarge) as caught:
        read_file(path, ASKED)
    assert getattr(caught.value.message.args["what"], "key", "") == f"preflight.large-{what}"


@pytest.mark.parametrize("name", ["run.sh", "job.yaml"])
def test_a_file_without_an_end_cannot_be_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(BadInput) as caught:
        read_file(tmp_path / name, ASKED)
    assert caught.value.message.key == "preflight.unreadable"


def test_interpolations_that_multiply_without_end_are_open(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    lists = [f"  a{at}: {[f'${{actor_rollout_ref.a{at - 1}}}'] * 9}" for at in range(1, 15)]
    path.write_text("\n".join(["actor_rollout_ref:", "  a0: 1", *lists]))
    settings = read_file(path, ASKED).launch.settings
    assert settings["actor_rollout_ref.a14"].is_open


def test_a_text_that_an_interpolation_makes_too_long_is_open() -> None:
    half = "x" * (LONGEST // 2)
    texts = {"a": half, "b": f"{half}${{a}}"}
    settings = {key: LaunchSetting(key, text, text, Location("", 1)) for key, text in texts.items()}
    assert [each.is_open for each in fill(settings, {}, {}).values()] == [False, True]


def test_defaults_that_lead_to_each_other_on_endless_paths_are_refused(tmp_path: Path) -> None:
    for at in range(30):
        (tmp_path / f"c{at}.yaml").write_text(f"defaults: [c{at + 1}@a, c{at + 1}@b]\nactor_rollout_ref: {{a: 1}}\n")
    (tmp_path / "c30.yaml").write_text("x: 1\n")
    with pytest.raises(TooLarge) as caught:
        read_file(tmp_path / "c0.yaml", ASKED)
    assert getattr(caught.value.message.args["what"], "key", "") == "preflight.large-files"


@pytest.mark.parametrize(
    ("value", "why"),
    [("1" * 100_000, "digits"), ("[1," + "2" * 301 + "]", "digits"), ("[" * 50_000, "levels"), ("{a:" * 99, "levels")],
)
def test_a_word_of_a_command_has_bounds_too(value: str, why: str) -> None:
    with pytest.raises(NotHydra) as caught:
        read_override(f"a={value}")
    assert caught.value.why == why


@pytest.mark.parametrize("text", ["[" * 100_000, '{"env_vars": {"A": ' + "1" * 10_000 + "}}"])
def test_variables_of_a_job_that_cannot_be_read_stop_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(f"ray job submit --runtime-env-json='{text}' -- {START}1\n")
    assert read_file(path, ASKED).launch.environ == {}


def test_too_large_is_bad_input() -> None:
    assert issubclass(TooLarge, BadInput)
