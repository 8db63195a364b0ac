"""The doctor's report as text: order, folding, width, colour, what must not reach a terminal."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from npuenv.core.fact import Evidence
from npuenv.core.finding import Finding, Fix, Status
from npuenv.core.messages import Message, clean
from npuenv.facts.collect import collect
from npuenv.report.terminal import Manner, Page, render_report
from tests.support.scripted_host import ScriptedHost
from tests.support.sentences import says, sentence

if TYPE_CHECKING:
    from collections.abc import Callable

    from npuenv.facts.collect import Facts

    Make = Callable[..., Finding]

TERMINAL = Page(width=100, is_terminal=True)
SAYS = Message("doctor.title")


NOTHING_ASKED = collect(ScriptedHost(variables={"HOME": "/root", "PATH": "/usr/bin"}), only=frozenset())


def _finding(line: str) -> Finding:
    says = Message("doctor.source", {"source": "says"})
    return Finding("driver.npu-smi", Status.FAIL, says, (Evidence("a command", line),), "a document", None)


def _render(facts: Facts, *findings: Finding, page: Page = TERMINAL, **manner: object) -> list[str]:
    return render_report(findings, facts, page, Manner(**manner)).splitlines()  # type: ignore[arg-type]


def test_the_worst_comes_first_and_a_cause_before_what_follows_from_it(blank: Facts, found: Make) -> None:
    lines = _render(
        blank,
        found("devices.computes"),
        found("machine.glibc", Status.WARN),
        found("python.torch-npu-imports"),
        found("cann.found"),
        found("driver.npu-smi"),
        page=Page(),
    )
    heads = [line.split(":")[0] for line in lines if line[:4] in ("FAIL", "warn")]
    assert heads == [
        "FAIL    npu-smi",
        "FAIL    CANN",
        "FAIL    import torch_npu",
        f"FAIL    {sentence('check_npu.title-devices-computes')}",
        "warn    C library",
    ]


def test_findings_that_share_reason_and_evidence_are_told_once_and_name_their_cause(blank: Facts, found: Make) -> None:
    same = [found(f"cards.{name}", Status.UNKNOWN, "ret is -8005") for name in ("healthy", "free", "supported")]
    other = found("devices.agree", Status.UNKNOWN, "another line")
    lines = _render(blank, found("driver.npu-smi", Status.FAIL, "ret is -8005"), *same, other)
    merged = [line for line in lines if line.startswith("? unknown") and "chip gener" in line]
    assert len(merged) == 1 and says(merged[0], "doctor.because", name="npu-smi")
    assert sum("ret is -8005" in line for line in lines) == 1
    assert sum("another line" in line for line in lines) == 1
    assert sum("ret is -8005" in line for line in _render(blank, *same)) == 1


def test_what_could_not_be_read_is_told_once_however_many_facts_hang_on_it(blank: Facts, found: Make) -> None:
    from npuenv.checks import CHECKS

    def unread(check: str, *facts: str) -> Finding:
        reason = Message("checks.unknown-input", {"facts": facts})
        return replace(found(check, Status.UNKNOWN, "no interpreter"), says=reason)

    names = [check.id for check in CHECKS if check.id.startswith("python.")][:12]
    findings = [
        unread(name, *["python.interpreter", "python.elf"][: 1 + number % 2]) for number, name in enumerate(names)
    ]
    lines = [line for line in _render(blank, *findings, page=Page()) if line.startswith("unknown")]
    assert len(lines) == 1 and ", 5 more: " in lines[0]
    assert lines[0].endswith(sentence("checks.unknown-input", facts=("python.interpreter",)))


NOT_HELD = "not in the capture"  # as the facts have it


def test_what_an_old_capture_does_not_hold_is_told_once(blank: Facts, found: Make) -> None:
    reason = Message("checks.unknown-input", {"facts": ("cann.parts",)})
    findings = [
        replace(found(check, Status.UNKNOWN), says=reason, evidence=(Evidence(f"/a/file/{check}", NOT_HELD),))
        for check in ("cann.found", "cann.arch", "machine.glibc")
    ]
    lines = _render(blank, *findings, page=Page())
    assert next(line for line in lines if line.startswith("unknown")).startswith("unknown C library, CANN, CANN arch")
    assert sum(NOT_HELD in line for line in lines) == 1


def test_verbose_tells_each_finding_by_itself_with_id_and_source(blank: Facts, found: Make) -> None:
    same = [found(f"cards.{name}", Status.UNKNOWN, "ret is -8005") for name in ("healthy", "free")]
    text = "\n".join(_render(blank, *same, found("machine.arch", Status.OK), is_verbose=True))
    assert text.count("ret is -8005") == 2
    assert all(f"[{name}] source: a document" in text for name in ("cards.healthy", "cards.free", "machine.arch"))


def test_two_unknowns_with_one_evidence_and_two_reasons_stay_apart(blank: Facts, found: Make) -> None:
    one = found("cards.healthy", Status.UNKNOWN, "a line", says="first")
    two = found("cards.free", Status.UNKNOWN, "a line", says="second")
    heads = [line for line in _render(blank, one, two) if line.startswith("? unknown")]
    assert len(heads) == 2


@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_line_but_a_command_is_wider_than_the_terminal(blank: Facts, found: Make, width: int, lang: str) -> None:
    long = "卡 0 与卡 1 的 TLS 设置不一致，" * 6 + "x" * 300 + " and some words " * 10
    command = ("hccn_tool", "-i", "0", *(["--long-option"] * 20))
    findings = [
        found("network.tls-agrees", Status.FAIL, long, fix=Fix(Message("doctor.source", {"source": long}), (command,))),
        *(found(f"machine.{name}", Status.OK) for name in ("arch", "glibc", "disk", "open-files", "shared-memory")),
    ]
    lines = _render(blank, *findings, page=Page(width, True), lang=lang)
    commands = [line for line in lines if "--long-option" in line]
    assert len(commands) == 1 and commands[0].endswith("--long-option") and "$ hccn_tool -i 0" in commands[0]
    assert [line for line in lines if cell_len(line) > width and line not in commands] == []


def test_a_pipe_gets_whole_lines_without_tree_or_colour(blank: Facts, found: Make) -> None:
    line = "word " * 60 + "end"
    text = render_report([found("driver.npu-smi", Status.FAIL, line)], blank, Page(width=40), Manner())
    assert f"  a command -> {line}\n" in text
    assert not re.search("[├└│→✘\x1b]", text)


def test_colour_is_codes_on_a_terminal_and_nothing_else(blank: Facts, found: Make) -> None:
    finding = found("driver.npu-smi", fix=Fix(SAYS, (("npu-smi", "info"),)))
    plain, colored = (render_report([finding], blank, TERMINAL._replace(has_color=c), Manner()) for c in (False, True))
    assert "\x1b" not in plain
    assert "\x1b[1;31m" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain


def test_a_terminal_without_tree_characters_gets_ascii(blank: Facts, found: Make) -> None:
    finding = found("driver.npu-smi", fix=Fix(SAYS, (("npu-smi", "info"),)))
    lines = _render(blank, finding, page=Page(80, True, is_unicode=False))
    assert lines[1].startswith("x FAIL") and any(line.startswith("+-- a command -> a line") for line in lines)
    tree = [line for line in lines if not line.startswith("Problems")]
    assert all(line.isascii() for line in tree)


def test_what_a_program_printed_can_neither_paint_nor_move_nor_reorder(blank: Facts, found: Make) -> None:
    evil = "a\x1b[2J\x1b]0;title\x07b\rc\u202edc\x00"
    cure = Fix(SAYS, (("pip", "install", "x\x1b[31m\ny"),))
    for page in (TERMINAL, Page()):
        text = render_report([found("driver.npu-smi", Status.FAIL, evil, fix=cure)], blank, page, Manner())
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
        assert "a\\x1b[2J\\x1b]0;title\\x07b c\\u202edc\\x00" in text
        assert "$ pip install 'x\\x1b[31m\\x0ay'" in text


def test_long_evidence_is_cut_and_verbose_shows_all_of_it(blank: Facts, found: Make) -> None:
    finding = found("driver.npu-smi", Status.FAIL, "word " * 400)
    brief = _render(blank, finding, page=Page(60, True))
    assert len(brief) < 14 and any(line.endswith("…") for line in brief)
    told = "".join(_render(blank, finding, page=Page(60, True), is_verbose=True))
    assert told.count("word") == finding.evidence[0].line.count("word") > "".join(brief).count("word")


def test_a_healthy_machine_with_a_hundred_checks_fits_on_one_screen(blank: Facts, found: Make) -> None:
    from npuenv.checks import CHECKS

    ok = [found(check.id, Status.OK) for check in CHECKS]
    for page in (TERMINAL, Page()):
        lines = _render(blank, *ok, page=page)
        assert len(lines) <= 24
        assert max(map(cell_len, lines)) <= 100
    assert any(re.search(r"Python: .*, \d+ more$", line) for line in lines)


def test_quiet_tells_failures_alone(blank: Facts, found: Make) -> None:
    cure = Fix(SAYS, (("npu-smi", "info"),))
    findings = found("driver.npu-smi", fix=cure), found("cann.found", Status.WARN), found("machine.arch", Status.OK)
    lines = _render(blank, *findings, page=Page(), is_quiet=True)
    assert [line.split(":")[0] for line in lines] == [
        "FAIL    npu-smi",
        "  a command -> a line",
        "  fix",
        "    $ npu-smi info",
        "Problems",
    ]


def test_quiet_tells_what_is_unknown_where_nothing_fails(blank: Facts, found: Make) -> None:
    findings = found("cann.found", Status.UNKNOWN), found("machine.arch", Status.WARN)
    assert _render(blank, *findings, page=Page(), is_quiet=True)[0].startswith("unknown CANN: ")


def test_the_last_line_says_what_to_do_next(blank: Facts, found: Make) -> None:
    automatic = Fix(SAYS, (("pip", "uninstall", "-y", "triton"),), is_automatic=True)
    for_shell = Fix(SAYS, (("export", "A=1"),))
    last = _render(blank, found("cann.found", fix=for_shell), found("python.triton", fix=automatic), again="N D")[-1]
    assert last == sentence("doctor.next-fix", command="N D --fix", count=2)
    dangerous, of_root = replace(automatic, is_dangerous=True), replace(automatic, needs_root=True)
    for cure, can_fix in (
        (dangerous, True),
        (of_root, True),
        (automatic, False),
        (Fix(SAYS, (("npu-smi", "info"),)), True),
    ):
        lines = _render(blank, found("python.triton", fix=cure), can_fix=can_fix, again="N D")
        assert lines[-1] == sentence("doctor.next-mend", command="N D")
    assert _render(blank, found("cann.found", Status.UNKNOWN))[-1] == sentence("doctor.next-unknown")
    deeper = _render(blank, found("cann.found", Status.OK), deeper="N --level 2")
    assert deeper[-1] == sentence("doctor.next-deeper", command="N --level 2")
    assert _render(blank, found("cann.found", Status.OK))[-1].startswith("No failure")


def test_a_cure_that_needs_root_shows_roots_prompt(blank: Facts, found: Make) -> None:
    lines = _render(blank, found("cann.found", fix=Fix(SAYS, (("ldconfig",),), needs_root=True)))
    assert any(line.endswith("# ldconfig") for line in lines)


def test_commands_carry_the_machines_own_names_again(blank: Facts, found: Make) -> None:
    finding = found("cann.found", fix=Fix(SAYS, (("source", "/home/user1/set_env.sh"),)))
    lines = _render(blank, finding, restore=lambda text: text.replace("user1", "ann"))
    assert any(line.endswith("$ source /home/ann/set_env.sh") for line in lines)


def test_every_area_of_a_check_has_a_name_and_a_layer() -> None:
    from npuenv.checks import CHECKS
    from npuenv.checks.base import CATALOGUES
    from npuenv.core.messages import say
    from npuenv.report.doctor import LAYERS

    areas = {check.id.partition(".")[0] for check in CHECKS} | set(CATALOGUES)
    assert areas <= set(LAYERS)
    for lang in ("en", "zh"):
        assert all(say(Message(f"doctor.area-{area}"), lang) for area in areas)


@settings(deadline=None)
@given(st.text(max_size=200), st.integers(40, 120), st.sampled_from(["en", "zh"]))
@pytest.mark.slow
def test_any_evidence_is_shown_whole_within_the_width_and_cleaned_of_control(text: str, width: int, lang: str) -> None:
    report = render_report([_finding(text)], NOTHING_ASKED, Page(width, True), Manner(lang, is_verbose=True))
    lines = report.splitlines()
    assert not any(unicodedata.category(each) in ("Cc", "Cf", "Zl", "Zp") for line in lines for each in line)
    assert max(map(cell_len, lines)) <= width
    told = "".join(line[4:] for line in lines if line.startswith(("├── a command", "│   ")))
    assert "".join(told.split()) == "".join(f"acommand{' → ' if text else ''}{clean(text)}".split())


def test_clean_text_is_left_as_it_is() -> None:
    assert clean("plain, 中文 and é") == "plain, 中文 and é"


def test_a_terminal_shows_the_machines_own_names_everywhere_and_a_pipe_in_commands_alone(
    blank: Facts, found: Make
) -> None:
    finding = found("cann.found", line="/home/user1/x", says="/home/user1 is", fix=Fix(SAYS, (("ls", "/home/user1"),)))

    def restore(text: str) -> str:
        return text.replace("user1", "ann")

    assert "user1" not in "\n".join(_render(blank, finding, restore=restore))
    piped = "\n".join(_render(blank, finding, page=Page(), restore=restore))
    assert "/home/user1 is" in piped and "-> /home/user1/x" in piped and "$ ls /home/ann" in piped


def test_stand_ins_in_commands_that_stay_are_explained(blank: Facts, found: Make) -> None:
    finding = found("cann.found", fix=Fix(SAYS, (("scp", "/home/user2/x", "host1:"),)))
    assert _render(blank, finding)[-1] == sentence("doctor.stand-ins", names="host1, user2")
    restored = _render(blank, finding, restore=lambda text: text.replace("user2", "ann"))
    assert not any(says(line, "doctor.stand-ins") for line in restored)
    assert not any(says(line, "doctor.stand-ins") for line in _render(blank, found("cann.found", line="/home/user1")))


def test_what_a_higher_level_asks_is_counted_apart_from_what_does_not_apply(blank: Facts, found: Make) -> None:
    def skipped(name: str, **args: object) -> Finding:
        return replace(found("cann.found", Status.SKIP), says=Message(f"checks.{name}", args))

    levels = [skipped("skip-level", level="1"), skipped("skip-level", level=2), skipped("skip-level", level=1)]
    lines = _render(blank, *levels, skipped("skip-cpu"), page=Page())
    assert f"skip    {sentence('doctor.skipped', count=1)}" in lines
    needs = ", ".join(sentence("doctor.need-level", count=count, level=level) for count, level in ((2, 1), (1, 2)))
    assert f"skip    {sentence('doctor.skipped-level', parts=needs)}" in lines
    assert not any(says(line, "doctor.skipped") for line in _render(blank, *levels, page=Page()))


def test_what_to_do_next_about_a_capture_is_a_new_capture(blank: Facts, found: Make) -> None:
    last = _render(blank, found("cann.found"), page=Page(), capture="n.json", again="N D")[-1]
    assert "there" in last and "`N D --save FILE`" in last


def test_what_resolves_for_a_capture_names_its_file(blank: Facts, found: Make) -> None:
    resolve, install = (("npuenv", verb, "--host", "this", "--for", "verl") for verb in ("resolve", "install"))
    finding = found("cann.found", fix=Fix(Message("check_python.fix-parts"), (resolve, install)))
    args = {"name": "verl", "command": "npuenv install --host this --for verl", "python": "/opt/bin/python"}
    asked: dict[str, Any] = {"page": Page(), "nothing_of": "verl", "python": "/opt/bin/python"}
    here, there = (_render(blank, finding, **asked, capture=capture) for capture in ("", "a b.json"))
    assert "    $ npuenv resolve --host this --for verl" in here
    assert "    $ npuenv resolve --host 'a b.json' --for verl" in there
    assert any("`npuenv resolve --host 'a b.json' --for FRAMEWORK`" in line for line in there)
    assert "    $ npuenv install --host this --for verl" in there
    assert sentence("doctor.nothing-of", **args) in here
    assert sentence("doctor.nothing-of-there", **args) in there
