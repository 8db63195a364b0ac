"""Facts out of many short questions: what is asked at which level, and what hangs, is refused or is not recorded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.core.documents import load_toml
from npuenv.core.fact import State
from npuenv.facts import collect as collecting
from npuenv.facts import npu
from npuenv.facts.npu import driver
from npuenv.facts.npu.smi import SmiTable, parse_info
from npuenv.host import Looked, NotRecorded, PathState, Ran
from tests.support.scripted_host import ScriptedHost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.facts.npu import NpuFacts

# The scripted host leaves the word `-c` out of what it is asked.
HERE = Path(__file__).parent / "cases"
A2 = "info_910B2_24.1.0_idle8"
A3 = "info_A3_25.3.rc1_16chips_busy"
A5 = "info_950PR_25.7.rc1_alarm"


def text_of(folder: str, name: str) -> str:
    text: str = load_toml(HERE / folder / f"{name}.toml")["output"]
    return text


def host_with(table: str, answers: Mapping[str, str] | None = None) -> ScriptedHost:
    host = ScriptedHost()
    host.commands["npu-smi info"] = text_of("smi", table)
    host.commands.update({f"npu-smi info {words}": text for words, text in (answers or {}).items()})
    return host


def collect(host: ScriptedHost, level: int) -> NpuFacts:
    return collecting.collect(host, level=level, python="/opt/env/bin/python", only=frozenset({"npu"})).npu


def asked(host: ScriptedHost) -> list[str]:
    return [words for words in host.asked if words.startswith("npu-smi")]


def test_level_0_runs_no_program() -> None:
    host = host_with(A2)
    facts = collect(host, 0)
    assert not any(words.startswith(("npu-smi", "dmesg", "lspci", "stat")) for words in host.asked)
    assert facts.smi.evidence[0].line == "needs --level 1" == facts.health.evidence[0].line


def test_level_1_asks_for_the_table_and_for_nothing_of_healthy_cards() -> None:
    host = host_with(A2)
    facts = collect(host, 1)
    assert asked(host) == ["npu-smi info"]
    assert facts.ecc.evidence[0].line == "needs --level 2"
    assert facts.health.state is State.ABSENT


def test_level_1_asks_ill_cards_for_their_reason() -> None:
    alarm = text_of("npu_health", "health_alarm_910A_23.0.5")
    host = host_with(A5, {"-t health -i 0": alarm, "-t health -i 1": alarm})
    facts = collect(host, 1)
    assert asked(host) == ["npu-smi info", "npu-smi info -t health -i 0", "npu-smi info -t health -i 1"]
    assert facts.health.value is not None
    assert [(item.npu, item.chip, item.codes[1]) for item in facts.health.value] == [
        (0, 0, "8C03A000"),
        (1, 0, "8C03A000"),
    ]
    assert "ascend_monitor adda heart beat lost error" in facts.health.evidence[0].line


def test_level_2_asks_every_chip_of_a3_and_every_card_once_for_its_board() -> None:
    host = host_with(A3)
    collect(host, 2)
    health = [words for words in asked(host) if "-t health" in words]
    boards = [words for words in asked(host) if words.endswith("-t board -i 3")]
    assert len(health) == 16 and "npu-smi info -t health -i 7 1" in health
    assert len(boards) == 1
    assert sum("spod-info" in words for words in asked(host)) == 16
    assert not any("current-fault-event" in words for words in asked(host))


def test_cards_of_the_950_generation_are_asked_without_chips_and_for_their_faults() -> None:
    event = text_of("npu_events", "fault_event_950_doc")
    none = "Fault Event Count              : 0\n"
    host = host_with(A5, {"-t current-fault-event -i 0": event, "-t current-fault-event -i 1": none})
    facts = collect(host, 2)
    health = [words for words in asked(host) if "-t health" in words]
    assert health == [f"npu-smi info -t health -i {number}" for number in range(3)]
    assert facts.faults.value is not None
    assert [(item.npu, item.code) for item in facts.faults.value] == [(0, "81AF8000")]


def test_no_present_fault_is_an_answer_and_not_silence() -> None:
    none = "Fault Event Count              : 0\n"
    host = host_with("info_950_doc", {"-t current-fault-event -i 0": none})
    facts = collect(host, 2)
    assert (facts.faults.state, facts.faults.value) == (State.KNOWN, ())


def test_after_two_questions_without_an_end_nothing_more_is_asked() -> None:
    host = host_with(A2)
    for number in range(8):
        host.fails(f"npu-smi info -t health -i {number} 0", timed_out=True)
    facts = collect(host, 2)
    assert len(asked(host)) == 3
    assert facts.health.state is State.UNKNOWN and facts.ecc.state is State.UNKNOWN
    assert facts.silent.value is not None and [item.kind for item in facts.silent.value] == ["timeout", "timeout"]


def test_a_card_that_left_the_bus_is_silent_and_the_others_are_read() -> None:
    ecc = text_of("npu_ecc", "ecc_910A_23.0.5")
    answers = {f"-t ecc -i {number}": ecc for number in range(8)}
    answers["-t ecc -i 5"] = text_of("npu_refusal", "err_invalid_card_id_23.0.5")
    facts = collect(host_with(A2, answers), 2)
    assert facts.ecc.value is not None and len(facts.ecc.value) == 7
    assert facts.silent.value is not None
    assert [(item.kind, item.line) for item in facts.silent.value] == [("invalid-card", "Invalid card id.")]
    assert facts.silent.evidence[0].command == "npu-smi info -t ecc -i 5"


def test_a_card_whose_answer_cannot_be_read_is_kept_by_its_name_and_reason() -> None:
    ecc = text_of("npu_ecc", "ecc_910A_23.0.5")
    host = host_with(A2, {f"-t ecc -i {number}": ecc if number != 5 else "Double Bit Err\n" for number in range(8)})
    facts = collect(host, 2)
    assert facts.unread.value is not None and facts.unread.value.keys() == {"ecc"}
    assert {card: line.command for card, line in facts.unread.value["ecc"].items()} == {"5": "npu-smi info -t ecc -i 5"}
    for number in (5, 6):
        host.fails(f"npu-smi info -t ecc -i {number}", timed_out=True)
    facts = collect(host, 2)
    assert facts.unread.value is not None
    told = {card: line.command[-1] for card, line in facts.unread.value["ecc"].items()}
    assert told == {"5": "5", "6": "6", "7": "5"}, "what was not asked any more has the question that did not end"


def test_a_query_that_this_card_does_not_know_is_absent_and_nobody_is_silent() -> None:
    refused = text_of("npu_refusal", "spod_unsupported_950_doc")
    answers = {f"-t spod-info -i {card} {chip}": refused for card in range(8) for chip in range(2)}
    facts = collect(host_with(A3, answers), 2)
    assert facts.spods.state is State.ABSENT
    assert "does not support querying" in facts.spods.evidence[0].line
    assert facts.silent.value == ()


def test_an_answer_that_cannot_be_read_is_unknown() -> None:
    answers = {f"-t ecc -i {number}": "garbage\n" for number in range(8)}
    facts = collect(host_with(A2, answers), 2)
    assert facts.ecc.state is State.UNKNOWN


class Forgetful(ScriptedHost):
    """A recording that holds the table and nothing else."""

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        if " ".join(argv) not in self.commands:
            raise NotRecorded(" ".join(argv))
        return super().run(argv, timeout_s=timeout_s, env=env)


def test_what_a_capture_does_not_hold_is_unknown_also_for_silence() -> None:
    facts = collect(Forgetful(commands={"npu-smi info": text_of("smi", A2)}), 2)
    for fact in (facts.health, facts.ecc, facts.boards, facts.chips, facts.topology, facts.mapped, facts.silent):
        assert fact.state is State.UNKNOWN


def test_without_a_table_the_details_are_absent_with_the_tools_own_words() -> None:
    host = ScriptedHost()
    host.fails("npu-smi info", out="dcmi module initialize failed. ret is -8005\n", code=187)
    facts = collect(host, 2)
    assert facts.ecc.state is State.ABSENT and "-8005" in facts.ecc.evidence[0].line
    assert "/var/log/ascend_seclog/ascend_install.log" in host.asked
    assert "/var/log/ascend_seclog/ascend_install.log" not in ask_again_healthy()


def ask_again_healthy() -> list[str]:
    host = host_with(A2)
    collect(host, 2)
    return host.asked


def test_the_drivers_account_is_read_at_level_1_only_where_the_cards_are_taken() -> None:
    host = ScriptedHost()
    host.fails("npu-smi info", out=text_of("smi", "err_device_used_8020"), code=172)
    host.file(npu.CLAIMS, text_of("npu_claims", "one_container_holds_all"))
    facts = collect(host, 1)
    assert facts.claims.value is not None and facts.claims.value[0].root_pid == 2679173
    healthy = host_with(A2)
    collect(healthy, 1)
    assert npu.CLAIMS not in healthy.asked


def table_of(name: str) -> SmiTable:
    read = parse_info(text_of("smi", name))
    assert isinstance(read, SmiTable)
    return read


def status(name: str, uid: int = 1000, state: str = "S (sleeping)") -> str:
    return f"Name:\t{name}\nUmask:\t0022\nState:\t{state}\nPPid:\t1\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n"


def test_a_process_is_here_only_when_its_name_agrees() -> None:
    table = table_of("info_910B3_25.2.0_one_proc")
    for name, is_here in (("python", True), ("sshd", False)):
        host = ScriptedHost()
        host.file("/proc/1601114/status", status(name))
        (holder,) = npu.holders(host, table).value or ()
        assert (holder.is_here, holder.uid) == (is_here, 1000 if is_here else None)
        assert (holder.npu, holder.pid, holder.memory_mib, holder.is_in_container) == (4, 1601114, 18429, False)


def test_a_process_that_waits_for_its_parent_is_a_zombie() -> None:
    host = ScriptedHost()
    host.file("/proc/1601114/status", status("python", state="Z (zombie)"))
    (holder,) = npu.holders(host, table_of("info_910B3_25.2.0_one_proc")).value or ()
    assert holder.is_zombie


def test_a_process_without_a_name_is_in_another_container_and_not_looked_up() -> None:
    host = ScriptedHost()
    found = npu.holders(host, table_of("info_910B3_25.0.rc1.b010_busy")).value or ()
    assert len(found) == 8 and all(holder.is_in_container and not holder.is_here for holder in found)
    assert host.asked == []


BOOT = "cpu 1 2 3\nbtime 1700000000\nprocesses 5\n"


@pytest.mark.parametrize(("written", "is_after"), [("1700000001", True), ("1699999999", False)])
def test_a_driver_written_after_the_boot_is_changed(written: str, is_after: bool) -> None:
    host = ScriptedHost()
    host.file("/proc/stat", BOOT)
    host.commands["stat %Y /d/version.info"] = f"{written}\n"
    fact = driver.changed(host, "/d/version.info")
    assert fact.value is not None and fact.value.is_after_boot is is_after
    assert [item.line for item in fact.evidence] == ["btime 1700000000", written]


def test_times_that_cannot_be_read_are_unknown_and_a_missing_program_is_absent() -> None:
    host = ScriptedHost()
    host.file("/proc/stat", BOOT)
    assert driver.changed(host, "/d").state is State.ABSENT
    host.fails("stat %Y /d", err="stat: cannot statx '/d': Permission denied\n")
    assert driver.changed(host, "/d").state is State.UNKNOWN
    host.file("/proc/stat", "cpu 1 2 3\n")
    assert driver.changed(host, "/d").state is State.UNKNOWN
    host.unreadable("/proc/stat")
    assert driver.changed(host, "/d").state is State.UNKNOWN


def test_an_installers_log_for_root_alone_is_absent_and_garbage_is_unknown() -> None:
    host = ScriptedHost()
    host.unreadable(driver.LOG)
    assert driver.installer(host).state is State.ABSENT
    host.paths[driver.LOG] = Looked(driver.LOG, PathState.UNREADABLE, error="Input/output error")
    assert driver.installer(host).state is State.UNKNOWN
    host.file(driver.LOG, "nothing of an installer\n")
    assert driver.installer(host).state is State.UNKNOWN
    host.file(driver.LOG, text_of("npu_installer", "driver_missing_tools"))
    fact = driver.installer(host)
    assert fact.value is not None and fact.value.missing_tools == ("ifconfig",)


def test_the_kernel_log_of_another_user_is_absent_and_a_failure_is_unknown() -> None:
    words = "dmesg --level=emerg,alert,crit,err,warn"
    host = ScriptedHost()
    assert npu.events(host).state is State.ABSENT
    host.fails(words, err="dmesg: read kernel buffer failed: Operation not permitted\n")
    assert npu.events(host).state is State.ABSENT
    host.fails(words, timed_out=True)
    assert npu.events(host).state is State.UNKNOWN
    host.commands[words] = text_of("npu_kernel", "abnormal")
    assert [event.device for event in npu.events(host).value or ()] == [5]


def test_a_dmesg_without_levels_is_asked_again_without_them() -> None:
    host = ScriptedHost()
    host.fails("dmesg --level=emerg,alert,crit,err,warn", err="dmesg: unrecognized option '--level'\n")
    host.commands["dmesg"] = text_of("npu_kernel", "conflict")
    assert [event.kind for event in npu.events(host).value or ()] == ["conflict", "conflict"]


def test_claims_are_for_root_and_an_unreadable_account_is_unknown() -> None:
    host = ScriptedHost()
    assert npu.claims(host).state is State.ABSENT
    host.unreadable(npu.CLAIMS)
    assert npu.claims(host).state is State.ABSENT
    host.file(npu.CLAIMS, "what is this\n")
    assert npu.claims(host).state is State.UNKNOWN
    host.file(npu.CLAIMS, "")
    assert npu.claims(host).value == ()


def test_ascend_dmi_runs_its_two_diagnoses_and_keeps_what_it_says() -> None:
    host = ScriptedHost()
    assert npu.dmi(host).state is State.ABSENT
    host.commands["ascend-dmi -v"] = "7.3.0\n"
    host.commands["ascend-dmi --dg --se healthCheck -q"] = text_of("npu_dmi", "health_check")
    host.fails("ascend-dmi --dg -i aicore -q", out=text_of("npu_dmi", "aicore_timeout"), code=1)
    fact = npu.dmi(host)
    assert fact.value is not None
    assert (fact.value.items["driver"], fact.value.items["aicore"], fact.value.code) == ("HEALTH", "FAIL", 1)
    assert fact.value.notes["aicore"][1] == "Device 4: a timeout error occurred."


def test_a_diagnosis_that_cannot_be_read_keeps_its_tail_and_judges_nothing() -> None:
    host = ScriptedHost()
    host.commands["ascend-dmi -v"] = "7.3.0\n"
    host.fails("ascend-dmi --dg --se healthCheck -q", out="Unknown option\n", code=3)
    host.fails("ascend-dmi --dg -i aicore -q", timed_out=True)
    fact = npu.dmi(host)
    assert fact.state is State.UNKNOWN
    assert [item.line for item in fact.evidence] == ["Unknown option", "timed out"]


def test_cards_in_use_are_not_burnt() -> None:
    host = host_with("info_910B3_25.2.0_one_proc")
    facts = collect(host, 3)
    assert facts.burn.state is State.ABSENT and facts.dmi.state is State.ABSENT
    assert not any("devices" in words or "ascend-dmi" in words for words in host.asked)


def test_of_one_card_of_eight_whose_answer_cannot_be_read_it_is_said() -> None:
    ecc = text_of("npu_ecc", "ecc_910A_23.0.5")
    answers = {f"-t ecc -i {number}": ecc for number in range(8)} | {"-t ecc -i 5": ecc[:40]}
    facts = collect(host_with(A2, answers), 2)
    assert facts.ecc.value is not None and len(facts.ecc.value) == 7
    assert facts.unread.value is not None
    assert {card: line.command for card, line in facts.unread.value["ecc"].items()} == {"5": "npu-smi info -t ecc -i 5"}


def test_a_list_of_faults_that_is_cut_is_not_an_empty_one() -> None:
    event = text_of("npu_events", "fault_event_950_doc").splitlines()[0] + "\n"
    none = "Fault Event Count              : 0\n"
    answers = {"-t current-fault-event -i 0": event} | {f"-t current-fault-event -i {card}": none for card in (1, 2)}
    facts = collect(host_with(A5, answers), 2)
    assert facts.unread.value is not None and "0" in facts.unread.value["faults"]


def test_cards_are_in_the_order_of_their_numbers_and_not_of_their_names() -> None:
    host = ScriptedHost()
    host.folder("/dev", "davinci0", "davinci1", "davinci10", "davinci2", "davinci_manager", "devmm_svm", "hisi_hdc")
    found = driver.nodes(host).value
    assert found is not None
    assert [node.path for node in found.cards] == [f"/dev/davinci{number}" for number in (0, 1, 2, 10)]
