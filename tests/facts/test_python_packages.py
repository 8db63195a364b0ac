"""Answers of the inventory, of the loader's look and of the hashes: right, odd, and of any other shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.core.fact import LINE_AT_MOST, Evidence, Fact, State, absent, known, unknown
from npuenv.facts import python as python_facts
from npuenv.facts.collect import collect
from npuenv.facts.collector import Collector, was_asked
from npuenv.facts.python import PythonFacts, find_python
from npuenv.facts.python import packages as elf_facts
from npuenv.facts.python import packages as package_facts
from npuenv.host import Ran
from tests.support.python_answers import SITE, elf, files, hashes, packages
from tests.support.scripted_host import ScriptedHost, inventory

PYTHON = "/opt/env/bin/python"
WHERE = Evidence(f"{PYTHON} (inventory)", "")
TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def whole() -> dict[str, Any]:
    torch = {"torch": "2.8.0+cpu", "torch-npu": "2.8.0.post2"}
    return inventory(torch, packages=packages(torch), files=files(), machine="aarch64")


def test_a_whole_answer_is_known() -> None:
    found = package_facts.packages(known(whole(), WHERE))
    assert found.value is not None and found.value.requires == {"torch-npu": ("torch==2.8.0",)}
    looked = package_facts.files(known(whole(), WHERE))
    assert looked.value is not None and looked.value.looked == 18000


def test_an_answer_of_an_older_inventory_was_not_asked() -> None:
    old = known(inventory({"torch": "2.8.0"}), WHERE)
    assert not was_asked(package_facts.packages(old)) and not was_asked(package_facts.files(old))


def test_what_could_not_be_read_stays_unknown() -> None:
    lost: Fact[dict[str, Any]] = unknown(WHERE)
    assert package_facts.packages(lost).state is State.UNKNOWN
    assert package_facts.hashes(lost).state is State.UNKNOWN


@settings(deadline=None)
@given(key=st.sampled_from(sorted(packages({}))), value=TREES)
def test_no_value_of_any_part_raises_or_becomes_another_type(key: str, value: Any) -> None:
    answer = whole()
    answer["packages"][key] = value
    found = package_facts.packages(known(answer, WHERE))
    assert (found.value is not None) == (found.state is State.KNOWN)
    if found.value is not None:
        assert all(isinstance(item, str) for item in (*found.value.path, *found.value.leftovers))


@settings(max_examples=40, deadline=None)
@given(part=st.sampled_from(["packages", "files"]), value=TREES)
def test_no_part_of_another_shape_raises(part: str, value: Any) -> None:
    answer = known({**whole(), part: value}, WHERE)
    for found in (package_facts.packages(answer), package_facts.files(answer)):
        assert (found.value is not None) == (found.state is State.KNOWN)


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=40) | TREES.map(json.dumps))
def test_no_text_of_the_loader_raises(text: str) -> None:
    host = ScriptedHost(commands={"npuenv-elf  /x.so": Ran((), 0, text, "")})
    found = elf_facts.elf(host, ["/x.so"], near=[], timeout_s=1.0)
    assert (found.value is not None) == (found.state is State.KNOWN)


def test_a_look_without_its_reader_is_absent_with_the_reason() -> None:
    host = ScriptedHost(commands={"npuenv-elf  /x.so": '{"error": "pyelftools is not here"}\n'})
    found = elf_facts.elf(host, ["/x.so"], near=[], timeout_s=1.0)
    assert found.state is State.ABSENT and found.evidence[0].line == "pyelftools is not here"


def test_a_capture_from_elsewhere_without_the_look_is_absent_or_unknown() -> None:
    assert elf_facts.elf(ScriptedHost(), ["/x.so"], near=[], timeout_s=1.0).state is State.ABSENT
    broken = ScriptedHost(commands={"npuenv-elf  /x.so": Ran((), 1, "", "npuenv-elf: /x.so: Input/output error")})
    found = elf_facts.elf(broken, ["/x.so"], near=[], timeout_s=1.0)
    assert found.state is State.UNKNOWN and "Input/output" in found.evidence[0].line


@pytest.mark.parametrize(
    ("paths", "what", "path"),
    [
        ({}, "no-folder", "/opt/env"),
        ({"/opt/env": "folder", "/opt/env/pyvenv.cfg": "home = /opt/py311/bin\n"}, "no-home", "/opt/py311/bin"),
        ({"/opt/env": "folder"}, "no-program", PYTHON),
    ],
)
def test_an_environment_that_does_not_run_says_why(paths: dict[str, str], what: str, path: str) -> None:
    host = ScriptedHost()
    for place, text in paths.items():
        host.folder(place) if text == "folder" else host.file(place, text)
    found = python_facts.broken(host, PYTHON, absent())
    assert found.value == python_facts.Broken(what, path)


def test_a_folder_in_order_does_not_explain_a_python_that_fails() -> None:
    host = ScriptedHost()
    host.folder("/opt/env", "bin", "pyvenv.cfg")
    host.folder("/usr/bin")
    host.file("/opt/env/pyvenv.cfg", "home = /usr/bin\n")
    host.file(PYTHON, "")
    assert python_facts.broken(host, PYTHON, absent()).state is State.ABSENT
    assert python_facts.broken(host, "python3", absent()).state is State.ABSENT


def collected(host: ScriptedHost, level: int, framework: str | None = None, *, hashes: bool = False) -> PythonFacts:
    only = frozenset({"python"})
    return collect(host, python=PYTHON, level=level, framework=framework, hashes=hashes, only=only).python


def scripted(**extra: Any) -> ScriptedHost:
    host = ScriptedHost(variables={"VIRTUAL_ENV": "/opt/env", "HOME": "/root"})
    host.answers(f"{PYTHON} inventory", {**whole(), **extra})
    for module in ("torch", "torch_npu"):
        host.answers(f"{PYTHON} imports {module}", {"ok": True, "version": "2.8.0", "errors": []})
    return host


def test_where_there_is_no_python3_one_that_says_its_version_is_asked() -> None:
    host = ScriptedHost()
    host.answers("python3.11 inventory", whole())
    for named, script, taken in (
        ("python3", host, "python3.11"),
        (PYTHON, host, PYTHON),
        ("python3", ScriptedHost(), "python3"),
    ):
        collector = Collector(script, 1, named)
        find_python(collector)
        assert collector.python == taken
    assert collect(host, only=frozenset({"python"})).python.interpreter.is_known


def test_the_file_that_python_does_not_get_past_is_the_last_that_was_begun() -> None:
    host = ScriptedHost()
    gave_up: Fact[Any] = unknown(Evidence("python3 (inventory)", "exit 5"))
    out = "\nNPUENV-HOOK /site/a.pth\nprinted by it\n\nNPUENV-HOOK /site/b.pth\n"
    host.commands["python3 -S start"] = Ran((), 5, out, "")
    found = python_facts.broken(host, "python3", gave_up)
    assert found.value == python_facts.Broken("hook", "/site/b.pth")
    assert found.evidence == (Evidence("/site/b.pth", "exit 5"),)
    for harmless in (out + '\nNPUENV-ANSWER {"started": true}\n', "", "Fatal Python error"):
        host.commands["python3 -S start"] = Ran((), 0, harmless, "")
        assert python_facts.broken(host, "python3", gave_up).state is State.ABSENT


def test_of_a_python_that_gave_no_answer_its_own_fact_and_the_reason_stay_apart() -> None:
    host = ScriptedHost(commands={f"{PYTHON} inventory": "NPUENV-ANSWER {"})
    found = collected(host, 1)
    assert (found.interpreter.state, found.broken.value) == (State.UNKNOWN, python_facts.Broken("garbled", PYTHON))


def test_level_0_runs_nothing() -> None:
    host = scripted()
    found = collected(host, 0)
    assert not was_asked(found.interpreter) and not was_asked(found.imports)
    assert host.asked == []


def test_level_1_asks_for_imports_and_the_loader_but_not_for_hashes() -> None:
    host = scripted()
    found = collected(host, 1)
    assert found.import_torch_npu.value is not None
    assert not was_asked(found.hashes) and not was_asked(found.devices)
    (asked,) = [words for words in host.asked if words.startswith("npuenv-elf")]
    assert asked.startswith(f"npuenv-elf /opt/env/lib:/usr/local/lib {SITE}/torch/_C")
    assert asked.endswith(f"{SITE}/torch_npu/lib/libtorch_npu.so")


def test_without_imports_no_installed_module_is_tried() -> None:
    host = scripted()
    found = collect(host, python=PYTHON, imports=False, only=frozenset({"python"})).python
    assert found.packages.value is not None and was_asked(found.elf)
    tried: tuple[Fact[Any], ...] = (found.import_torch, found.import_torch_npu, found.imports)
    assert not any(map(was_asked, tried))
    assert not [words for words in host.asked if " imports " in words]


def test_hashes_are_asked_for_by_level_2_or_by_name() -> None:
    for level, by_name in ((2, False), (1, True)):
        host = scripted()
        host.answers(f"{PYTHON} hashes", hashes(12))
        found = collected(host, level, hashes=by_name)
        assert found.hashes.value is not None and found.hashes.value.looked == 12


def test_only_installed_modules_of_what_is_judged_are_imported() -> None:
    some = {"numpy": "1.26.4", "pyarrow": "24.0.0", "click": "8.1.8"}
    for framework, wanted in (("cpu", {"numpy"}), ("verl", {"numpy", "pyarrow"})):
        host = ScriptedHost()
        host.answers(f"{PYTHON} inventory", inventory(some))
        for module in wanted:
            host.answers(f"{PYTHON} imports {module}", {"ok": True, "version": "1", "errors": []})
        found = collected(host, 1, framework)
        assert found.imports.value is not None and set(found.imports.value) == wanted


def test_a_module_that_hangs_leaves_the_others_known() -> None:
    host = ScriptedHost()
    host.answers(f"{PYTHON} inventory", inventory({"numpy": "1.26.4", "ray": "2.48.0"}))
    host.answers(f"{PYTHON} imports numpy", {"ok": True, "version": "1.26.4", "errors": []})
    host.fails(f"{PYTHON} imports ray", timed_out=True)
    found = collected(host, 1, "verl").imports
    assert found.value is not None and set(found.value) == {"numpy"}
    assert any(item.line == "timed out" and "import ray" in item.command for item in found.evidence)


def test_the_look_gives_what_the_document_says() -> None:
    row = {"path": "/a.so", "library": "libhccl.so", "lies_in": "/usr/local/Ascend/cann/lib64"}
    host = ScriptedHost(commands={"npuenv-elf  /a.so": elf(1, missing=[row])})
    found = elf_facts.elf(host, ["/a.so"], near=[], timeout_s=1.0)
    assert found.value is not None
    assert found.value.missing == (elf_facts.MissingLibrary("/a.so", "libhccl.so", "/usr/local/Ascend/cann/lib64"),)


def test_where_torch_hangs_nothing_that_rests_on_it_is_waited_for() -> None:
    host = ScriptedHost()
    host.answers(
        f"{PYTHON} inventory", inventory({"numpy": "1", "torch": "2.8.0", "vllm": "0.13.0", "tensordict": "1"})
    )
    host.answers(f"{PYTHON} imports numpy", {"ok": True, "version": "1", "errors": []})
    host.fails(f"{PYTHON} imports torch", timed_out=True)
    found = collected(host, 1, "verl")
    assert found.imports.value is not None and set(found.imports.value) == {"numpy"}
    assert not [words for words in host.asked if "vllm" in words or "tensordict" in words]


def asked(out: str, err: str = "", code: int = 0) -> Fact[Any]:
    """What the inventory's answer comes to when the interpreter prints this."""
    host = ScriptedHost()
    host.fails(f"{PYTHON} inventory", out=out, err=err, code=code)
    return python_facts.ask(host, PYTHON, "inventory", timeout_s=120.0)


def test_what_a_start_up_hook_prints_around_the_answer_is_left_out() -> None:
    text = "NPUENV-ANSWER " + json.dumps(whole())
    for out in (text, f"loading profile... {text}\n", f"a\nb{text}\r\nbye\n", f"NPUENV-ANSWER old\n{text}\n"):
        assert asked(out).value == whole()


def test_an_answer_that_is_no_json_says_so_and_stays_short() -> None:
    fact = asked("NPUENV-ANSWER {" + "x" * 50_000)
    assert fact.state is State.UNKNOWN
    assert fact.evidence[0].line.startswith("NPUENV-ANSWER {xxx") and len(fact.evidence[0].line) == LINE_AT_MOST
    found = python_facts.broken(ScriptedHost(), PYTHON, fact)
    assert found.value == python_facts.Broken("garbled", PYTHON)
    assert asked("NPUENV-ANSWER [1]").state is State.UNKNOWN


def test_a_python_that_cannot_read_the_question_is_asked_for_its_version() -> None:
    host = ScriptedHost()
    host.fails(f"{PYTHON} --version", err="Python 2.7.18\n", code=0)
    fact = asked("", '  File "npuenv", line 9\nSyntaxError: invalid syntax\n', 1)
    assert python_facts.broken(host, PYTHON, fact).value == python_facts.Broken("too-old", "2.7.18")
    assert python_facts.broken(ScriptedHost(), PYTHON, fact).state is State.ABSENT


def test_a_line_of_evidence_is_cut_where_it_is_long_and_kept_where_it_is_not() -> None:
    assert Evidence("x", "a" * LINE_AT_MOST).line == "a" * LINE_AT_MOST
    assert Evidence("x", "a" * 5000).line == "a" * (LINE_AT_MOST - 1) + "…"


def test_nothing_that_rests_on_a_torch_that_hangs_is_tried() -> None:
    host = scripted()
    host.fails(f"{PYTHON} imports torch", timed_out=True)
    found = collected(host, 2)
    assert found.import_torch.state is State.UNKNOWN
    assert found.import_torch_npu.state is State.ABSENT and found.devices.state is State.ABSENT
    assert not [words for words in host.asked if words.startswith((f"{PYTHON} imports torch_npu", f"{PYTHON} devices"))]
