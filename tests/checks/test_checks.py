"""Each check on a healthy A2 host with one thing changed: what it finds, and with which words."""

from __future__ import annotations

import dataclasses
import importlib
from pathlib import Path
from typing import Any

import pytest

from npuenv.checks import CHECKS, REPORTED_BY, check_all, exit_code
from npuenv.checks.base import Check, CheckResult, Context
from npuenv.checks.npu.boards import has_sign_of_cards
from npuenv.core.errors import ExitCode
from npuenv.core.fact import Evidence, Fact, State, unknown
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.collect import Facts, collect
from npuenv.facts.hccn.tool import HccnConf
from npuenv.facts.machine import Space
from npuenv.facts.network import Proxy
from npuenv.facts.npu.driver import VersionInfo
from npuenv.facts.npu.failures import SmiFailure, SmiTrouble
from npuenv.facts.npu.smi import NpuProcess
from npuenv.facts.python import SharedFiles
from npuenv.host.recorded import load_capture
from tests.support.changes import (
    HEALTHY,
    HOSTS,
    WHY,
    Change,
    both,
    cards,
    find,
    gone,
    lost,
    nodes,
    packages,
    part,
    put,
    trouble,
    unread,
    variables,
)

NO_CARDS = both(nodes(), put(smi=None, smi_trouble=None, driver=None, pci_devices=(), devices=None))
CONTAINER = put(container="docker")
INIT = trouble(SmiFailure.INIT, -8005)
IMPORT_ERRORS = (
    "RuntimeError: Failed to load the backend extension",
    "ImportError: libhccl.so: cannot open shared object file",
)

CASES: list[tuple[str, Change, Status, str]] = [
    ("machine.arch", put(arch="ppc64le"), Status.FAIL, "ppc64le"),
    ("machine.glibc", put(glibc="2.27"), Status.FAIL, "2.28"),
    ("machine.glibc", put(glibc="2.28"), Status.OK, "2.28"),
    ("machine.glibc", put(glibc=None), Status.FAIL, "glibc"),
    ("machine.shared-memory", put(shared_memory=Space(65536, 65536)), Status.FAIL, "64 MiB"),
    ("machine.shared-memory", put(shared_memory=Space(4 << 20, 4 << 20)), Status.WARN, "4.0 GiB"),
    ("machine.shared-memory", put(shared_memory=None), Status.WARN, "/dev/shm"),
    ("machine.open-files", put(open_files=1024), Status.WARN, "1024"),
    ("machine.open-files", put(open_files=-1), Status.OK, "enough"),
    ("machine.locked-memory", put(locked_memory=65535), Status.WARN, "63 KiB"),
    ("machine.disk", put(disk=Space(9 << 20, 1 << 20)), Status.FAIL, "1.0 GiB"),
    ("machine.disk", put(disk=Space(99 << 20, 10 << 20)), Status.WARN, "10.0 GiB"),
    ("machine.disk", put(disk=None), Status.UNKNOWN, "home"),
    ("cards.present", NO_CARDS, Status.FAIL, "none on the PCI bus"),
    ("cards.present", both(NO_CARDS, put(pci_devices=None)), Status.FAIL, "bus not checked"),
    ("cards.present", both(NO_CARDS, lost("pci_devices")), Status.FAIL, "bus not checked"),
    ("cards.present", both(NO_CARDS, put(pci_devices=("d802", "d802"))), Status.FAIL, "2 NPUs on the PCI bus"),
    ("cards.present", both(lost("smi"), nodes(0, 1)), Status.WARN, "2 device nodes"),
    ("cards.present", both(NO_CARDS, lost("smi", "smi_trouble", "nodes", "pci_devices")), Status.UNKNOWN, "could not"),
    ("cards.present", both(NO_CARDS, put(smi=None, smi_trouble=None), lost("nodes")), Status.UNKNOWN, "could not"),
    ("cards.present", both(NO_CARDS, lost("smi", "smi_trouble")), Status.UNKNOWN, "could not"),
    ("cards.healthy", cards(health="Critical"), Status.FAIL, "0.0"),
    ("cards.healthy", cards(health="Alarm"), Status.WARN, "alarm"),
    ("cards.healthy", cards(health=None), Status.UNKNOWN, "0.0"),
    ("cards.healthy", part("smi", is_complete=False), Status.UNKNOWN, "truncated"),
    ("cards.supported", cards(name="910B"), Status.FAIL, "910B"),
    ("cards.supported", cards(name="Ascend1234"), Status.UNKNOWN, "Ascend1234"),
    ("cards.free", part("smi", processes=(NpuProcess(4, 0, 77, "python", 100),)), Status.WARN, "NPU 4"),
    ("devices.openable", nodes(0, shut="Permission denied"), Status.FAIL, "/dev/davinci0"),
    ("devices.managers", nodes(0, missing=("/dev/hisi_hdc",)), Status.FAIL, "/dev/hisi_hdc"),
    ("devices.agree", nodes(0, 1), Status.WARN, "8 chips"),
    ("devices.computes", part("devices", computes_correctly=False, worst_error=None), Status.FAIL, "off by inf"),
    ("devices.computes", part("devices", copies_exactly=False), Status.FAIL, "differs from"),
    ("devices.computes", part("devices", count=0), Status.FAIL, "no device"),
    ("devices.computes", part("devices", error="RuntimeError: 507033"), Status.FAIL, "507033"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES="0,3,7"), Status.OK, "0,3,7"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES="0,8"), Status.FAIL, "0 to 7"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES="1,1"), Status.FAIL, "twice"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES="all"), Status.FAIL, "not a list"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES="3,1"), Status.WARN, "order"),
    ("session.visible-devices", variables(ASCEND_RT_VISIBLE_DEVICES=""), Status.WARN, "hides"),
    (
        "session.visible-devices",
        both(variables(ASCEND_RT_VISIBLE_DEVICES="4,7"), CONTAINER, nodes(0, 3, 4, 7)),
        Status.FAIL,
        "in this container",
    ),
    (
        "session.visible-devices",
        both(variables(ASCEND_RT_VISIBLE_DEVICES="0"), lost("nodes", "smi"), put(pci_devices=("d802",))),
        Status.UNKNOWN,
        "is unknown",
    ),
    ("driver.npu-smi", trouble(SmiFailure.IN_USE, -8020), Status.FAIL, "another container"),
    ("driver.npu-smi", trouble(SmiFailure.LIBRARY, library="libc_sec.so"), Status.FAIL, "libc_sec.so"),
    ("driver.npu-smi", trouble(SmiFailure.TIMEOUT), Status.FAIL, "hung driver"),
    ("driver.npu-smi", trouble(SmiFailure.UNREADABLE), Status.UNKNOWN, "what it printed"),
    ("driver.npu-smi", put(smi=None, smi_trouble=None), Status.FAIL, "not installed"),
    ("driver.npu-smi", INIT, Status.FAIL, "Possible causes:"),
    (
        "driver.npu-smi",
        both(INIT, nodes(0, shut="Permission denied")),
        Status.SKIP,
        "reported under: device access",
    ),
    ("driver.npu-smi", both(INIT, CONTAINER, nodes()), Status.FAIL, "no card was passed"),
    ("driver.npu-smi", both(INIT, put(modules=())), Status.FAIL, "no driver kernel"),
    ("driver.installed", put(driver=None), Status.FAIL, "version file"),
    ("driver.complete", put(install_info={"Driver_Install_Status": "failed"}), Status.WARN, "failed"),
    ("driver.complete", part("smi", is_install_incomplete=True), Status.WARN, "incompletely"),
    ("driver.agrees", part("smi", driver="25.0.rc1"), Status.WARN, "25.5.1"),
    ("driver.agrees", part("smi", driver="25.5.1.b010"), Status.OK, "25.5.1"),
    ("driver.agrees", part("smi", driver="x9.y"), Status.UNKNOWN, "comparable"),
    (
        "driver.firmware",
        both(part("driver", compatible_firmware="[7.0.0,7.1.99]"), put(firmware=VersionInfo("7.1.0.11.220", "f", ""))),
        Status.OK,
        "7.1.0.11.220",
    ),
    (
        "driver.firmware",
        both(part("driver", compatible_firmware="[7.0.0,7.1.99]"), put(firmware=VersionInfo("7.8.0.2.212", "f", ""))),
        Status.FAIL,
        "7.8.0.2.212",
    ),
    ("container.mounts", CONTAINER, Status.OK, "mounted"),
    (
        "container.mounts",
        both(
            CONTAINER,
            gone("driver_libraries", Evidence("/usr/local/Ascend/driver/lib64/common", "absent")),
        ),
        Status.FAIL,
        "lib64/common",
    ),
    ("container.mounts", both(CONTAINER, put(smi=None)), Status.WARN, "npu-smi"),
    ("cann.found", put(toolkit=None), Status.FAIL, "no CANN"),
    ("cann.sourced", variables(ASCEND_HOME_PATH=None), Status.FAIL, "not set up"),
    (
        "cann.sourced",
        both(variables(ASCEND_HOME_PATH="/gone"), part("toolkit", answered_by="/x")),
        Status.FAIL,
        "/gone",
    ),
    ("cann.sourced", variables(ASCEND_OPP_PATH=None), Status.FAIL, "ASCEND_OPP_PATH is not set"),
    ("cann.sourced", put(opp=None), Status.FAIL, "not a folder"),
    ("cann.sourced", part("toolkit", missing_parts=("runtime",)), Status.FAIL, "lacks runtime"),
    ("cann.sourced", variables(LD_LIBRARY_PATH="/usr/lib"), Status.FAIL, "LD_LIBRARY_PATH"),
    ("cann.arch", put(arch="x86_64"), Status.FAIL, "aarch64"),
    ("cann.driver", both(part("smi", driver="24.1.0"), part("toolkit", version="9.1.0")), Status.FAIL, "too old"),
    ("cann.driver", both(part("smi", driver="26.1.0"), part("toolkit", version="8.5.0")), Status.WARN, "newer"),
    ("cann.driver", part("toolkit", version="7.9.9"), Status.UNKNOWN, "not in npuenv's tables"),
    ("cann.driver", part("toolkit", version="weird.x"), Status.UNKNOWN, "cannot parse"),
    ("cann.driver", part("toolkit", version="8.3.RC1"), Status.OK, "no official"),
    ("nnal.present", put(nnal=None), Status.WARN, "NNAL"),
    ("nnal.present", part("nnal", version="8.3.RC1"), Status.WARN, "same release"),
    ("nnal.sourced", variables(ATB_HOME_PATH=None), Status.WARN, "ATB_HOME_PATH"),
    ("nnal.sourced", variables(LD_LIBRARY_PATH="/n/atb/cxx_abi_1/lib:/n/atb/cxx_abi_0/lib"), Status.WARN, "cxx_abi_1"),
    ("python.found", put(interpreter=None), Status.FAIL, "no Python"),
    ("python.version", part("interpreter", version="3.9.18"), Status.FAIL, "3.9"),
    ("python.version", part("interpreter", version="3.15.0"), Status.FAIL, "3.15"),
    ("python.torch-pair", packages(torch="2.9.0"), Status.FAIL, "2.8.0"),
    ("python.torch-pair", packages(torch=None), Status.FAIL, "without torch"),
    ("python.torch-npu-cann", packages(torch_npu="2.7.1"), Status.WARN, "8.3.RC1"),
    ("python.torch-npu-cann", packages(torch_npu="2.8.0.post99"), Status.UNKNOWN, "post99"),
    ("python.torch-imports", part("import_torch", is_ok=False, errors=IMPORT_ERRORS), Status.FAIL, "libhccl.so"),
    ("python.torch-imports", part("import_torch", is_ok=False, crash="ended by signal 11"), Status.FAIL, "signal 11"),
    (
        "python.torch-npu-imports",
        part("import_torch_npu", is_ok=False, errors=("ImportError: x",)),
        Status.FAIL,
        "ImportError: x",
    ),
    ("python.numpy", packages(numpy="2.1.3"), Status.FAIL, "numpy<2"),
    ("python.numpy", both(packages(numpy="2.1.3"), part("toolkit", version="9.1.0")), Status.OK, "no limit"),
    ("python.limits", packages(pyarrow="26.0.1"), Status.FAIL, "pyarrow<26"),
    ("python.triton", part("interpreter", triton_backends=("amd", "nvidia")), Status.FAIL, "overwritten"),
    ("python.triton", part("toolkit", version="7.0.0"), Status.WARN, "7.0.0"),
    ("python.triton", packages(**{"triton": "3.5.0", "triton-ascend": "3.2.1"}), Status.WARN, "last wins"),
    (
        "python.triton",
        both(
            packages(triton="3.4.0"),
            part("interpreter", shared_files=(SharedFiles(("triton", "triton-ascend"), 412, ("triton/a.py",)),)),
        ),
        Status.FAIL,
        "412",
    ),
    (
        "python.one-owner",
        part("interpreter", shared_files=(SharedFiles(("cv2-a", "cv2-b"), 2, ("cv2/a.so",)),)),
        Status.WARN,
        "cv2-a",
    ),
    ("python.one-owner", part("interpreter", installed_twice={"numpy": ("1.26.4", "2.1.0")}), Status.WARN, "numpy"),
    ("python.torchvision", packages(torchvision="0.22.1"), Status.FAIL, "0.23.0"),
    ("python.vllm-pair", packages(vllm="0.11.0"), Status.FAIL, "0.13.0"),
    ("python.vllm-pair", packages(vllm_ascend="0.99.0"), Status.UNKNOWN, "0.99.0"),
    ("python.ray-token", both(packages(ray="2.59.0"), put(spans=("NNODES=2",))), Status.WARN, "2.59.0"),
    ("session.proxy", put(proxies=(Proxy("http_proxy", "http://:x", "", None),)), Status.WARN, "http_proxy"),
    (
        "session.proxy",
        both(put(proxies=(Proxy("http_proxy", "http://p:1", "p", 1),)), put(proxies_listen={"http_proxy": False})),
        Status.FAIL,
        "nothing listens",
    ),
    (
        "session.proxy",
        both(put(proxies=(Proxy("http_proxy", "http://p:1", "p", 1),)), put(proxies_listen={"http_proxy": True})),
        Status.OK,
        "reachable",
    ),
    ("session.allocator", variables(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"), Status.WARN, "all processes"),
    ("session.allocator", variables(PYTORCH_NPU_ALLOC_CONF="expandable_segments"), Status.FAIL, "key:value"),
    (
        "session.allocator",
        variables(PYTORCH_NPU_ALLOC_CONF="expandable_segments:True,max_split_size_mb:32"),
        Status.FAIL,
        "exclusive",
    ),
    ("session.allocator", variables(PYTORCH_NPU_ALLOC_CONF="no_such_key:1"), Status.WARN, "no_such_key"),
    ("session.interface", variables(NCCL_SOCKET_IFNAME="eth0"), Status.WARN, "NCCL_SOCKET_IFNAME"),
    (
        "network.tls-agrees",
        put(conf=HccnConf({0: {"tls_enable": "1"}, 1: {"tls_enable": "0"}}, ())),
        Status.FAIL,
        "off for 1",
    ),
    (
        "network.tls-agrees",
        put(conf=HccnConf({card: {"tls_enable": "0"} for card in range(8)}, ())),
        Status.OK,
        "off for all 8",
    ),
    ("network.tls-agrees", put(conf=HccnConf({0: {"tls_enable": "0"}, 1: {}}, ())), Status.UNKNOWN, "devices 1"),
    ("session.hccl", variables(HCCL_BUFFSIZE="2147483648"), Status.WARN, "1..65536 MB"),
    ("session.hccl", variables(HCCL_CONNECT_TIMEOUT="ten"), Status.FAIL, "120..7200 s"),
    ("session.hccl", variables(HCCL_EXEC_TIMEOUT="3600", HCCL_BUFFSIZE=""), Status.OK, ""),
    ("session.task-queue", variables(TASK_QUEUE_ENABLE="2"), Status.WARN, "peak memory"),
    ("session.task-queue", variables(TASK_QUEUE_ENABLE="on"), Status.FAIL, "not one of 0, 1, 2"),
    ("session.task-queue", variables(TASK_QUEUE_ENABLE="1"), Status.OK, "=1"),
    ("network.tls-agrees", put(conf=HccnConf({0: {"tls_enable": "yes"}}, ())), Status.UNKNOWN, "cannot parse"),
]


@pytest.mark.parametrize(
    ("check", "change", "status", "words"), CASES, ids=[f"{c[0]}-{c[2].value}-{c[3]}" for c in CASES]
)
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check)
    assert (finding.status, words in say(finding.says)) == (status, True), (finding.status, say(finding.says))
    assert finding.source and (status is Status.OK or say(finding.says, "zh") != say(finding.says))
    if status is Status.FAIL and check != "machine.arch":
        assert finding.fix is not None and say(finding.fix.says) and say(finding.fix.says, "zh")
    if status in (Status.FAIL, Status.WARN):
        assert finding.evidence, "a problem names what it saw"


@pytest.mark.parametrize("name", ["a2_healthy", "a3_healthy"])
def test_a_healthy_host_has_no_problem_and_nothing_unknown(name: str) -> None:
    facts = collect(load_capture(HOSTS / f"{name}.json"), level=2)
    findings = check_all(facts, framework="vllm-ascend", level=2)
    odd = [(item.check, item.status) for item in findings if item.status not in (Status.OK, Status.SKIP)]
    assert odd == []
    assert exit_code(findings, framework="vllm-ascend") is ExitCode.FINE
    assert sum(item.status is Status.OK for item in findings) >= 38


@pytest.mark.parametrize("area", sorted({check.id.partition(".")[0] for check in CHECKS}))
def test_an_input_that_is_unknown_makes_the_finding_unknown_and_never_ok(area: str) -> None:
    pairs = [(check, name) for check in CHECKS if check.id.startswith(f"{area}.") for name in check.reads]
    for check, name in pairs:
        finding = find(lost(name)(HEALTHY), check.id, level=max(2, check.level))
        assert finding.status is unread(check.id, name), check.id
        if finding.status is Status.UNKNOWN:
            assert name in say(finding.says) and WHY in finding.evidence, check.id
        else:
            assert REPORTED_BY[name] in say(finding.says), check.id


def test_a_python_that_cannot_be_read_is_said_once_and_leaves_the_framework_undecided() -> None:
    facts = blind_python(HEALTHY)
    findings = check_all(facts, framework="verl", level=2)
    unknown = [item.check for item in findings if item.status is Status.UNKNOWN]
    assert unknown == ["python.found"]
    assert exit_code(findings, framework="verl") is ExitCode.UNKNOWN
    because = [
        item.check for item in findings if item.status is Status.SKIP and item.says.args.get("cause") == unknown[0]
    ]
    assert {"python.version", "python.torch-pair", "python.libraries", "python.torch-imports"} <= set(because)


def blind_python(facts: Facts) -> Facts:
    """A Python that did not answer, as the collector leaves it: every fact of it is unknown for the same reason."""
    why = Evidence("/opt/env/bin/python (inventory)", "killed by the guardian")
    fields: dict[str, Fact[Any]] = {field.name: unknown(why) for field in dataclasses.fields(facts.python)}
    return dataclasses.replace(facts, python=dataclasses.replace(facts.python, **fields))


def cases_of_all_areas() -> list[tuple[Any, ...]]:
    """(check, change, status, words) of this file and of its neighbours, which have the same table for their areas."""
    rows = []
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        names = vars(importlib.import_module(f"tests.checks.{path.stem}"))
        rows += [row for name in ("CASES", "A3_CASES") for row in names.get(name, ()) if len(row) == 4]
    return rows


def test_every_check_has_a_case_that_is_not_ok_and_one_that_is() -> None:
    cases = cases_of_all_areas()
    tried = {case[0] for case in cases if case[2] is not Status.OK}
    fine = {item.check for item in check_all(HEALTHY, level=2) if item.status is Status.OK}
    fine |= {case[0] for case in cases if case[2] is Status.OK}
    # Judged in tests of their own, which give them what the table cannot: a level, a framework, a stack.
    elsewhere = {"devices.burn-in", "devices.dmi", "stack.cann", "stack.python", "stack.settings", "python.stack"}
    elsewhere |= {"cards.whole", "driver.topology-files", "python.made"}
    # One function judges every import; these two are not installed on the healthy host.
    fine |= {"python.verl-imports", "python.torchaudio-imports"}
    assert {check.id for check in CHECKS} - tried - elsewhere == set()
    assert {check.id for check in CHECKS} - fine - elsewhere == set()


def test_the_drivers_of_the_950_line_are_not_measured_against_the_range_of_the_others() -> None:
    table = HEALTHY.npu.smi.value
    assert table is not None
    cards = tuple(dataclasses.replace(card, name="Ascend950PR") for card in table.cards)
    change = both(part("smi", cards=cards, driver="25.1.rc1"), part("toolkit", version="9.1.0"))
    assert find(change(HEALTHY), "cann.driver").status is Status.SKIP
    same_number = both(part("smi", driver="25.1.rc1"), part("toolkit", version="9.1.0"))
    assert find(same_number(HEALTHY), "cann.driver").status is Status.FAIL


def test_a_torch_npu_that_does_not_know_the_chip_is_a_failure() -> None:
    table = HEALTHY.npu.smi.value
    assert table is not None
    chips = tuple(dataclasses.replace(card, name="Ascend950PR") for card in table.cards)
    on_950 = both(part("smi", cards=chips), part("toolkit", version="9.1.0"))
    refused = find(both(on_950, packages(torch="2.9.0", torch_npu="2.9.0"))(HEALTHY), "python.torch-npu-cann")
    assert refused.status is Status.FAIL and refused.says.key == "check_python.torch-npu-cann-chip"
    assert refused.fix is not None
    known = find(both(on_950, packages(torch="2.9.0", torch_npu="2.9.0.post6"))(HEALTHY), "python.torch-npu-cann")
    assert known.status is Status.OK


def test_a_driver_that_is_too_old_is_shown_beside_cann() -> None:
    found = find(both(part("smi", driver="24.1.0"), part("toolkit", version="9.1.0"))(HEALTHY), "cann.driver")
    assert found.evidence == (*HEALTHY.cann.toolkit.evidence, *HEALTHY.npu.smi.evidence)


def test_a_driver_that_cannot_be_read_is_unknown_and_not_passed_over() -> None:
    assert find(lost("smi", "driver")(HEALTHY), "cann.driver").status is Status.UNKNOWN
    assert find(lost("driver")(HEALTHY), "cann.driver").status is Status.OK  # npu-smi says it as well


def test_ids_are_unique_and_of_the_form_area_what() -> None:
    ids = [check.id for check in CHECKS]
    assert len(set(ids)) == len(ids)
    assert all(len(name.split(".")) == 2 for name in ids)


def test_cpu_needs_no_card_and_says_so() -> None:
    findings = check_all(NO_CARDS(HEALTHY), framework="cpu", level=2)
    about_cards = [
        item for item in findings if item.check.split(".")[0] in ("cards", "devices", "driver", "cann", "nnal")
    ]
    assert {item.status for item in about_cards} == {Status.SKIP}
    assert exit_code(findings, framework="cpu") is ExitCode.FINE


def test_a_host_without_cards_has_one_problem_and_points_to_the_cpu_trial() -> None:
    facts = collect(load_capture(HOSTS / "no_card.json"), level=2)
    findings = check_all(facts, level=2)
    bad = [item for item in findings if item.status is Status.FAIL]
    assert [item.check for item in bad] == ["cards.present"]
    assert bad[0].fix is not None and bad[0].fix.commands == (("npuenv", "up", "--for", "cpu"),)
    assert exit_code(findings) is ExitCode.PROBLEMS


def test_a_container_whose_cards_are_taken_names_that_as_the_driver_problem() -> None:
    facts = collect(load_capture(HOSTS / "container_8020.json"), level=1)
    findings = check_all(facts, level=1)
    bad = [item for item in findings if item.status is Status.FAIL]
    assert [item.check for item in bad] == ["driver.npu-smi"]
    assert any("-8020" in item.line for item in bad[0].evidence)


def test_a_check_that_crashes_is_a_finding_of_its_own_and_hides_no_other() -> None:
    def burst(context: Context) -> CheckResult:
        raise ZeroDivisionError("oops")

    broken = Check("test.broken", (), "here", burst)
    first, second = check_all(HEALTHY, level=2, checks=(broken, CHECKS[0]))
    assert first.status is Status.UNKNOWN and "ZeroDivisionError: oops" in first.evidence[0].line
    assert second.status is Status.OK


def test_a_question_beyond_the_level_is_skipped_with_the_level() -> None:
    finding = next(item for item in check_all(HEALTHY, level=1) if item.check == "devices.computes")
    assert finding.status is Status.SKIP and "--level 2" in say(finding.says)


def test_exit_code_puts_problems_before_unknowns_and_unknowns_count_only_where_required() -> None:
    blind = check_all(lost("toolkit")(HEALTHY), level=2)
    assert exit_code(blind) is ExitCode.FINE
    assert exit_code(check_all(lost("npu.nodes")(HEALTHY), level=2)) is ExitCode.UNKNOWN, "of cards"
    assert exit_code(blind, framework="verl") is ExitCode.UNKNOWN
    assert exit_code(blind, framework="cpu") is ExitCode.FINE
    worse = check_all(both(lost("toolkit"), put(glibc="2.17"))(HEALTHY), level=2)
    assert exit_code(worse, framework="verl") is ExitCode.PROBLEMS


def test_a_library_of_the_driver_that_is_missing_is_not_blamed_on_cann() -> None:
    errors = ("ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",)
    broken = part("import_torch", is_ok=False, errors=errors)
    nowhere = both(broken, gone("driver_libraries"))
    changes = (broken, nowhere, both(nowhere, CONTAINER))
    here, on_host, inside = (find(change(HEALTHY), "python.torch-imports").fix for change in changes)
    assert on_host is not None and on_host.says.key == "check_python.fix-driver-install"
    assert inside is not None and inside.says.key == "check_python.fix-driver-mount"
    assert here is not None and here.says.key == "check_python.fix-driver-path"
    folders = "/usr/local/Ascend/driver/lib64/common:/usr/local/Ascend/driver/lib64/driver"
    assert here.commands[0][0] == "export" and here.commands[0][1].startswith(f"LD_LIBRARY_PATH={folders}")


def test_only_folders_of_libraries_are_put_on_the_path_to_them() -> None:
    broken = part(
        "import_torch", is_ok=False, errors=("ImportError: libascend_hal.so: cannot open shared object file",)
    )
    found = both(broken, put(driver_libraries=("/driver/tools", "/driver/lib64/driver")))
    cure = find(found(HEALTHY), "python.torch-imports").fix
    assert cure is not None and cure.commands[0][1].partition(":")[0] == "LD_LIBRARY_PATH=/driver/lib64/driver"


def test_a_missing_cann_library_leads_to_the_script_where_cann_is_and_to_an_installation_where_it_is_not() -> None:
    broken = part("import_torch", is_ok=False, errors=IMPORT_ERRORS)
    here = find(broken(HEALTHY), "python.torch-imports")
    assert here.fix is not None and here.fix.commands == (("source", "/usr/local/Ascend/cann-8.5.0/set_env.sh"),)
    nowhere = both(broken, put(toolkit=None))(HEALTHY)
    followed = find(nowhere, "python.torch-imports")
    assert followed.status is Status.SKIP and followed.says.args["cause"] == "cann.found"
    alone = find(nowhere, "python.torch-imports", framework="cpu")  # there CANN is not judged
    assert alone.fix is not None and alone.fix.says.key == "check_python.fix-cann-install"
    unset = both(broken, variables(ASCEND_HOME_PATH=None))(HEALTHY)
    assert find(unset, "python.torch-imports").says.args["cause"] == "cann.sourced"


def test_a_fix_for_torch_never_fetches_a_plain_torch() -> None:
    finding = find(packages(torch="2.9.0")(HEALTHY), "python.torch-pair")
    assert finding.fix is not None
    (command,) = finding.fix.commands
    assert "torch==2.8.0+cpu" in command and "torch" not in command and "--extra-index-url" in command


def test_an_environment_without_pip_gets_commands_for_uv() -> None:
    finding = find(packages(torch="2.9.0", pip=None)(HEALTHY), "python.torch-pair")
    assert finding.fix is not None and finding.fix.commands[0][:5] == (
        "uv",
        "pip",
        "install",
        "--python",
        "/opt/env/bin/python",
    )


def test_turning_tls_off_and_joining_a_group_are_marked_as_decisions() -> None:
    mixed = find(
        put(conf=HccnConf({0: {"tls_enable": "1"}, 1: {"tls_enable": "0"}}, ()))(HEALTHY), "network.tls-agrees"
    )
    shut = find(nodes(0, shut="Permission denied")(HEALTHY), "devices.openable")
    assert mixed.fix is not None and mixed.fix.is_dangerous and mixed.fix.commands == ()
    assert shut.fix is not None and shut.fix.is_dangerous


def test_facts_of_a_healthy_host_are_all_known_or_absent() -> None:
    states = {field.name: getattr(HEALTHY, field.name) for field in dataclasses.fields(HEALTHY)}
    assert [name for name, fact in states.items() if isinstance(fact, Fact) and fact.state is State.UNKNOWN] == []


@pytest.mark.parametrize("sign", ["nodes", "smi", "pci_devices", "driver", "smi_trouble", "devices"])
def test_each_sign_of_cards_alone_is_enough(sign: str) -> None:
    names = ("nodes", "smi", "pci_devices", "driver", "smi_trouble", "python.devices")
    bare = both(*(put(**{name: None}) for name in names))(HEALTHY)
    assert not has_sign_of_cards(bare)
    name = "python.devices" if sign == "devices" else sign
    group = "python" if sign == "devices" else "npu"
    values = {"smi_trouble": SmiTrouble(SmiFailure.INIT, "x"), "pci_devices": ("0000:01:00.0",)}
    value = values.get(sign) or getattr(getattr(HEALTHY, group), sign).value
    assert has_sign_of_cards(put(**{name: value})(bare)) == (value is not None)
