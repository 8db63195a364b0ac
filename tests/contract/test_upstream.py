"""What the comparison with verl rests on: what a script starts, and mistakes that are mistakes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contract.mutants import RULES, Mutant, chosen, mutants
from tests.contract.started import Started, started
from tests.contract.upstream import has_effect, rendered, scripts_of

if TYPE_CHECKING:
    from pathlib import Path


def run(folder: Path, text: str) -> Started:
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return started(folder / "run.sh", folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("python3 -m verl.trainer.main_ppo a.b='x y' \"$@\"\n", ("a.b=x y",)),
        ("set -u\nuv run --frozen python3 -m verl.trainer.main_ppo a.b=$NEEDED\n", ("a.b=needed",)),
        ("python3 verl/trainer/main_ppo.py a.b=~/c 2>&1 | tee /nowhere/x.log\n", ("a.b=~/c",)),
        ("torchrun --nnodes=1 -m verl.trainer.main_ppo a.b=1\n", ("a.b=1",)),
        ("ray job submit --x=1 -- python3 -m verl.trainer.main_ppo a.b=1\n", ("a.b=1",)),
        ("N=$(python3 -c 'print(2 * 4)')\npython3 -m verl.trainer.main_ppo a.b=$N\n", ("a.b=8",)),
    ],
)
def test_a_script_starts_what_the_shell_makes_of_it(tmp_path: Path, text: str, words: tuple[str, ...]) -> None:
    assert run(tmp_path, text) == Started((("verl.trainer.main_ppo", words),), "")


def test_what_the_shell_refuses_is_told_and_nothing_of_the_machine_is_run(tmp_path: Path) -> None:
    cut = run(tmp_path, "python3 -m verl.trainer.main_ppo a.b=1 \\\n\n  c.d=2\n")
    assert cut.launches == (("verl.trainer.main_ppo", ("a.b=1",)),) and "c.d=2" in cut.refused
    assert "EOF" in run(tmp_path, 'python3 -m verl.trainer.main_ppo a.b="1\n').refused
    (tmp_path / "mine").write_text("")
    assert run(tmp_path, "rm mine; mkdir /nowhere; pip install x; git clone y; curl z\n").refused == ""
    assert (tmp_path / "mine").exists()


def test_a_value_that_a_later_word_replaces_has_no_effect(tmp_path: Path) -> None:
    before = 'python3 -m verl.trainer.main_ppo a.b=1 c.d="$HOME" a.b=2\n'
    for word, effect in (("a.b=1", False), ("a.b=2", True)):
        mutant = Mutant("a rule", "run.sh", before.replace(word, "a.b=3"), False)
        assert has_effect(mutant, before, tmp_path) is effect


@pytest.mark.slow
def test_every_rule_changes_a_script_of_some_recipe_and_the_same_seed_draws_the_same() -> None:
    bases = rendered("0.9.1")
    drawn = list(mutants(bases, 2))
    assert drawn == list(mutants(bases, 2)) != list(mutants(bases, 2, seed=2))
    without = {"Megatron over cards that do not divide"}  # no recipe trains with it
    assert {each.rule for each in drawn} == set(RULES) - without
    assert all(each.text != bases[each.base] for each in drawn)
    assert len({each.rule for each in chosen(drawn, 20)}) == 20


def test_the_scripts_of_workflows_for_npus_are_known(tmp_path: Path) -> None:
    for name in ("examples/a.sh", "tests/b.sh"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("")
    (tmp_path / ".github/workflows").mkdir(parents=True)
    (tmp_path / ".github/workflows/e2e_ascend.yml").write_text("run: |\n  X=1 bash tests/b.sh\n")
    (tmp_path / ".github/workflows/e2e.yml").write_text("run: bash examples/a.sh\n")
    assert scripts_of(tmp_path) == {"examples/a.sh": False, "tests/b.sh": True}


def test_without_a_checkout_the_comparison_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    from tests.contract.upstream import main

    main(["--python", "/bin/true", "--only", "scripts"])
    assert "--verl DIR" in capsys.readouterr().out
