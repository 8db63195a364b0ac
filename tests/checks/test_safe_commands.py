"""The commands that cures name: they exist, they can work, and none of them fetches a build for GPUs."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import click
import pytest

from npuenv.checks import PYTHON as CHECKS
from npuenv.checks import check_all
from npuenv.checks.base import Context
from npuenv.checks.python.installed import install_here, resolve_here, safe_install
from npuenv.cli.app import npuenv as cli
from npuenv.core.fact import Evidence, known
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.python import Import
from npuenv.facts.python.packages import MetadataTrouble, Owned
from npuenv.matrix import load_matrix
from tests.support.changes import HEALTHY, Change, both, find, packages, part, put, variables
from tests.support.sentences import catalogue

if TYPE_CHECKING:
    from npuenv.core.fact import Fact
    from npuenv.facts.collect import Facts

SHOWN = re.compile(r"`(npuenv [^`]*)`")
GONE_VLLM = "ModuleNotFoundError: No module named 'vllm'"
FORCE = ("--force-reinstall", "--no-deps")


def options_that_lack(words: list[str]) -> list[str]:
    """The long options of a command line of npuenv that the named command does not have."""
    command = cli.get_command(click.Context(cli), words[1])
    assert command is not None, words
    if isinstance(command, click.Group):
        command, words = command.commands[words[2]], words[1:]
    known_here = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    return [word for word in words[2:] if word.startswith("--") and word not in known_here]


def test_every_command_of_npuenv_in_a_sentence_has_the_options_it_is_shown_with() -> None:
    shown = [
        (key, command)
        for key, texts in catalogue().items()
        for text in texts.values()
        for command in SHOWN.findall(text)
        if "{" not in command
    ]
    assert len(shown) > 20
    wrong = [(name, text) for name, text in shown if re.search(r"--[a-z]", text) and options_that_lack(text.split())]
    assert wrong == []


def of(facts: Facts, framework: str | None = None) -> Context:
    return Context(facts, load_matrix(), framework)


@pytest.mark.parametrize("name", ["verl", "roll", "vllm-ascend", "torch-npu", "cpu", None])
def test_commands_that_name_a_set_say_for_what_and_have_their_options(name: str | None) -> None:
    for command in (install_here(of(HEALTHY, name)), resolve_here(of(HEALTHY, name))):
        assert options_that_lack(list(command)) == []
        assert "--for" in command
    assert "cpu" not in resolve_here(of(HEALTHY, name))


BROKEN = ("torch", "vllm", "numpy")
FAULTS: dict[str, Change] = {
    "metadata": part(
        "python.packages", trouble=tuple(MetadataTrouble(f"{name}-1", name, "no METADATA") for name in BROKEN)
    ),
    "another Python's torch": part("python.packages", foreign_wheels={"torch": "cp313-cp313-linux_x86_64"}),
    "another Python's vllm": part("python.packages", foreign_extensions={"vllm": "vllm/_C.cpython-313.so"}),
    "torch requirement": both(
        packages(numpy="1.26.4", vllm="0.9.1", verl="0.8.0"),
        part("python.packages", requires={"numpy": ("torch>=99",), "verl": ("vllm>=99",)}),
    ),
    "torch altered": part("python.files", altered=(Owned("torch", 2, 1, ("torch/lib/libtorch.so",)),)),
    "vllm gone": put(import_torch=Import("torch", False, "", ("ModuleNotFoundError: No module named 'torch._C'",), "")),
    "vllm not found": put(imports={"vllm_ascend": Import("vllm_ascend", False, "", (GONE_VLLM,), "")}),
    "vllm of another release": packages(**{"vllm": "0.9.1", "vllm-ascend": "0.23.0"}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_cure_installs_a_bare_torch_or_vllm(fault: str) -> None:
    found = check_all(FAULTS[fault](HEALTHY), level=3, checks=CHECKS)
    cures = [item.fix for item in found if item.fix is not None]
    assert cures != []
    for argv in (argv for cure in cures for argv in cure.commands if argv[0] != "npuenv" and "install" in argv):
        for word in argv:
            assert not re.match(r"vllm([=<>!~].*)?$", word), argv
            assert not re.match(r"torch([=<>!~].*)?$", word) or ("+cpu" in word and "--extra-index-url" in argv), argv


def test_torch_is_installed_in_the_version_that_torch_npu_asks_for_and_without_cuda() -> None:
    context = of(packages(**{"torch": None, "torch-npu": "2.8.0.post2"})(HEALTHY))
    fix = safe_install(context, "python.import-module", "torch")
    assert fix.commands[0][-1] == "torch==2.8.0+cpu"
    assert "--extra-index-url" in fix.commands[0]
    exact = safe_install(context, "python.reinstall", "torch==2.9.0+cu128", "numpy<2", options=FORCE)
    assert exact.commands[0][-2:] == ("torch==2.9.0+cpu", "numpy<2")
    assert "torch==2.9.0+cpu numpy<2" in say(exact.says)


def test_torch_without_torch_npu_or_version_is_no_package_to_install_alone() -> None:
    context = of(packages(**{"torch": None, "torch-npu": None})(HEALTHY), "verl")
    fix = safe_install(context, "python.import-module", "torch")
    assert fix.commands == (("npuenv", "install", "--host", "this", "--for", "verl"),)


@pytest.mark.parametrize("name", ["torch-npu", "torchvision", "vllm-ascend"])
def test_what_would_draw_in_the_newest_torch_is_not_installed_without_a_version(name: str) -> None:
    context = of(HEALTHY, "vllm-ascend")
    opened = safe_install(context, "python.import-module", name)
    assert opened.commands == (("npuenv", "install", "--host", "this", "--for", "vllm-ascend"),)
    assert safe_install(context, "python.again", name, options=FORCE).commands[0][-1] == name


def test_vllm_is_built_and_never_installed_from_its_wheels() -> None:
    context = of(HEALTHY, "vllm-ascend")
    fix = safe_install(context, "python.again", "vllm==0.18.0+empty", options=FORCE)
    assert fix.commands == ()
    assert (fix.says.key, fix.says.args["wanted"]) == ("check_python.fix-vllm-plain", "vllm==0.18.0")


def test_the_plugin_is_changed_where_it_is_the_odd_one_out() -> None:
    there = {"vllm": "0.18.0+empty", "vllm-ascend": "0.23.0", "torch": "2.9.0", "torch-npu": "2.9.0"}
    facts = packages(**there)(HEALTHY)
    pair = find(facts, "python.vllm-pair")
    assert pair.status is Status.FAIL
    assert pair.fix is not None
    assert pair.fix.commands[0][-1] == "vllm-ascend==0.18.0"
    assert find(facts, "python.vllm-ascend-needs").status is Status.SKIP


def test_vllm_is_changed_where_torch_does_not_go_with_it_either() -> None:
    there = {"vllm": "0.18.0+empty", "vllm-ascend": "0.23.0", "torch": "2.10.0", "torch-npu": "2.10.0.post4"}
    pair = find(packages(**there)(HEALTHY), "python.vllm-pair")
    assert pair.fix is not None
    assert pair.fix.commands == ()
    assert "Build vllm==0.23.0" in say(pair.fix.says)


def test_a_missing_torch_is_told_once() -> None:
    gone = Import("torch_npu", False, "", ("ModuleNotFoundError: No module named 'torch'",), "")
    facts = both(packages(torch=None), put(import_torch_npu=gone))(HEALTHY)
    assert find(facts, "python.torch-npu-imports").status is Status.SKIP
    assert find(facts, "python.torch-pair").status is Status.FAIL


def with_limits(**values: Fact[int]) -> Facts:
    changed: dict[str, Any] = dict(values)
    return dataclasses.replace(HEALTHY, machine=dataclasses.replace(HEALTHY.machine, **changed))


def limit(soft: int, line: str) -> Fact[int]:
    return known(soft, Evidence("/proc/self/limits", line))


@pytest.mark.parametrize(
    ("line", "commands"),
    [
        ("Max open files 1024 1048576 files", (("ulimit", "-n", "65536"),)),
        ("Max open files 1024 unlimited files", (("ulimit", "-n", "65536"),)),
        ("Max open files 1024 20000 files", ()),
    ],
)
def test_the_limit_of_files_is_raised_in_the_shell_only_below_the_hard_one(
    line: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    finding = find(with_limits(open_files=limit(1024, line)), "machine.open-files")
    assert finding.fix is not None
    assert finding.fix.commands == commands
    assert ("20000" in say(finding.fix.says)) is (not commands)


def test_the_limit_of_locked_memory_is_raised_in_the_shell_only_where_the_hard_one_is_open() -> None:
    shut = with_limits(locked_memory=limit(65536, "Max locked memory 65536 65536 bytes"))
    free = with_limits(locked_memory=limit(65536, "Max locked memory 65536 unlimited bytes"))
    fixes = [find(facts, "machine.locked-memory").fix for facts in (shut, free)]
    assert [fix.commands for fix in fixes if fix is not None] == [(), (("ulimit", "-l", "unlimited"),)]


def test_unsorted_devices_are_sorted_and_not_given_up() -> None:
    finding = find(variables(ASCEND_RT_VISIBLE_DEVICES="3,1,2,0")(HEALTHY), "session.visible-devices")
    assert finding.fix is not None
    assert finding.fix.commands == (("export", "ASCEND_RT_VISIBLE_DEVICES=0,1,2,3"),)
