"""Checks about the driver: one change to a healthy A2 host each."""

from __future__ import annotations

import pytest

from npuenv.checks import check_all
from npuenv.checks.npu.driver import CHECKS
from npuenv.core.fact import Evidence
from npuenv.core.finding import Status
from npuenv.core.messages import LANGUAGES, say
from npuenv.facts.machine import Account
from npuenv.facts.npu import Claim, KernelEvent
from npuenv.facts.npu.driver import Changed, Installer, VersionInfo
from npuenv.facts.npu.failures import SmiFailure
from npuenv.report.doctor import grouped
from tests.support.changes import HEALTHY, Change, both, cards, find, gone, lost, nodes, part, put, trouble, variables

CONTAINER = put(container="docker")
INIT = trouble(SmiFailure.INIT, -8005)
IN_USE = trouble(SmiFailure.IN_USE, -8020)
OTHER = Claim(0, 2679173, (0, 1, 2), False)
CONFLICT = KernelEvent("conflict", 0, "", "[uda_occupy_dev_by_ns 932] Conflict open udevid. (udevid=0; ns=0)")
UPGRADED = put(changed=Changed(100, 200))
BEFORE = put(changed=Changed(200, 100))
DRIVER = VersionInfo("25.5.1", "/usr/local/Ascend/driver/version.info", "[7.0.0,7.1.99]")
FIRMWARE = VersionInfo(
    "7.1.0.11.220", "/usr/local/Ascend/firmware/version.info", "", "[23.0.rc3,23.0.rc3.],[23.0.0,23.0.0.]"
)
NEW = DRIVER._replace(version="25.5.2")
BOB = Account(1000, 1000, "bob", (1000,), ("bob",))
IN_GROUP = Account(1000, 1000, "bob", (1000, 1001), ("bob", "HwHiAiUser"))
ROOT = Account(0, 0, "root", (0,), ("root",))
SHUT = {"Driver_Install_For_All": "no", "UserGroup": "HwHiAiUser", "Driver_Install_Status": "complete"}
NO_LIBRARIES = gone(
    "driver_libraries",
    Evidence("/usr/local/Ascend/driver/lib64/common", "absent"),
    Evidence("/usr/local/dcmi", "absent"),
)
DONE = Installer("driver", "installed", False, (), "Driver package installed successfully!")


def log(**values: object) -> Change:
    """The driver does not answer, and its installer's log says this."""
    return both(INIT, put(installer=DONE._replace(**values)))  # type: ignore[arg-type]


LIBRARIES = put(library_files={"/usr/local/Ascend/driver/lib64/driver": ("libascend_hal.so",)})
NOT_FOUND = "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory"
UNLOADED = part("import_torch_npu", is_ok=False, errors=("RuntimeError: autoload", NOT_FOUND))
NAMED = variables(LD_LIBRARY_PATH="/opt/lib:/usr/local/Ascend/driver/lib64/driver/")
LOST_INFO = both(CONTAINER, gone("install_info", Evidence("/etc/ascend_install.info", "absent")))
NO_DRIVER_FILE = both(CONTAINER, put(driver=None))
BY_RUNTIME = variables(ASCEND_VISIBLE_DEVICES="0-7")

CASES: list[tuple[str, Change, Status, str]] = [
    ("driver.library-path", both(LIBRARIES, UNLOADED), Status.FAIL, "/usr/local/Ascend/driver/lib64/driver"),
    ("driver.library-path", both(LIBRARIES, UNLOADED, NAMED), Status.OK, "find them"),
    ("driver.library-path", LIBRARIES, Status.OK, "find them"),
    ("driver.library-path", UNLOADED, Status.OK, "find them"),
    ("driver.library-path", both(UNLOADED, put(library_files=None)), Status.SKIP, "no driver library"),
    ("driver.library-path", lost("library_files"), Status.UNKNOWN, "library_files"),
    ("driver.library-path",
     both(LIBRARIES, UNLOADED, trouble(SmiFailure.LIBRARY, library="libdcmi.so")),
     Status.SKIP, "npu-smi"),
    ("container.mounts", LOST_INFO, Status.WARN, "/etc/ascend_install.info"),
    ("container.mounts", both(LOST_INFO, BY_RUNTIME), Status.OK, "mounted"),
    ("driver.installed", NO_DRIVER_FILE, Status.FAIL, "version file"),
    ("driver.installed", both(NO_DRIVER_FILE, BY_RUNTIME), Status.OK, "25.5.1"),
    ("driver.installed", both(NO_DRIVER_FILE, BY_RUNTIME, INIT), Status.FAIL, "version file"),
    ("driver.npu-smi", both(INIT, UPGRADED), Status.FAIL, "after boot"),
    ("driver.npu-smi", both(INIT, BEFORE), Status.FAIL, "Possible"),
    ("driver.npu-smi", both(INIT, UPGRADED, CONTAINER), Status.FAIL, "after boot"),
    ("driver.npu-smi", both(INIT, UPGRADED, put(modules=())), Status.FAIL, "no driver kernel"),
    ("driver.npu-smi", both(INIT, nodes(0, shut="/dev/davinci0")), Status.SKIP, "reported under: device access"),
    ("driver.npu-smi", both(IN_USE, put(claims=(OTHER,))), Status.FAIL, "2679173"),
    ("driver.npu-smi",
     both(IN_USE, put(claims=(OTHER._replace(namespace=130),))),
     Status.FAIL, "another container"),
    ("driver.npu-smi", both(IN_USE, put(claims=None)), Status.FAIL, "-8020"),
    ("driver.npu-smi", trouble(SmiFailure.TIMEOUT), Status.FAIL, "hung driver"),
    ("driver.npu-smi", trouble(SmiFailure.UNEXECUTABLE), Status.FAIL, "be executed"),
    ("driver.agrees", put(driver=NEW), Status.WARN, "25.5.2"),
    ("driver.agrees", both(put(driver=NEW), UPGRADED), Status.SKIP, "after boot"),
    ("driver.agrees", both(put(driver=NEW), UPGRADED, CONTAINER), Status.WARN, "25.5.2"),
    ("driver.rebooted", both(put(driver=NEW), UPGRADED), Status.FAIL, "25.5.1 is still running"),
    ("driver.rebooted", UPGRADED, Status.OK, "25.5.1 is running"),
    ("driver.rebooted", both(part("smi", driver="25.5.1.b010"), UPGRADED), Status.OK, "25.5.1.b010 is running"),
    ("driver.rebooted", both(part("smi", driver="strange"), UPGRADED), Status.SKIP, "host"),
    ("driver.rebooted", both(put(driver=NEW), UPGRADED, CONTAINER), Status.SKIP, "host"),
    ("driver.rebooted", put(changed=None), Status.SKIP, "host"),
    ("driver.rebooted", both(INIT, UPGRADED), Status.SKIP, "host"),
    ("driver.tool", part("smi", tool="24.1.0"), Status.WARN, "24.1.0"),
    ("driver.tool", part("smi", tool="25.5.0"), Status.OK, "25.5.0"),
    ("driver.tool", part("smi", tool=None), Status.SKIP, "both"),
    ("driver.tool", both(part("smi", tool="24.1.0"), CONTAINER), Status.WARN, "24.1.0"),
    ("driver.loaded", both(put(modules=(), smi=None, smi_trouble=None)), Status.FAIL, "none of its kernel modules"),
    ("driver.loaded", put(modules=()), Status.OK, "loaded"),
    ("driver.loaded", both(INIT, put(modules=())), Status.SKIP, "npu-smi"),
    ("driver.loaded", both(put(modules=(), smi=None, smi_trouble=None), CONTAINER), Status.SKIP, "host"),
    ("driver.libraries", NO_LIBRARIES, Status.FAIL, "lib64/common"),
    ("driver.libraries", both(NO_LIBRARIES, CONTAINER), Status.SKIP, "container"),
    ("driver.for-all", put(install_info=SHUT, account=BOB), Status.WARN, "HwHiAiUser"),
    ("driver.for-all", put(install_info=SHUT, account=IN_GROUP), Status.OK, "in"),
    ("driver.for-all", put(install_info=SHUT, account=ROOT), Status.OK, "accessible"),
    ("driver.for-all", both(put(install_info=SHUT, account=BOB), CONTAINER), Status.SKIP, "host"),
    ("driver.line", part("smi", driver="25.7.rc1"), Status.FAIL, "25.7.rc1"),
    ("driver.line", part("smi", driver="25.5.2"), Status.OK, "a2"),
    ("driver.line", part("smi", driver=None), Status.SKIP, "unknown"),
    ("driver.firmware", put(driver=DRIVER, firmware=FIRMWARE), Status.OK, "7.1.0.11.220"),
    ("driver.firmware",
     put(driver=DRIVER, firmware=FIRMWARE._replace(version="7.8.0.2.212")),
     Status.FAIL, "7.8.0.2.212"),
    (
        "driver.firmware",
        put(driver=DRIVER, firmware=VersionInfo("7.8.0.2.212", "/f", "", "[25.3.0,25.5.9]")),
        Status.OK,
        "7.8.0.2.212",
    ),
    ("driver.firmware",
     put(driver=DRIVER._replace(compatible_firmware=""), firmware=FIRMWARE),
     Status.SKIP, "requirement"),
    ("driver.installer", log(), Status.OK, "successfully"),
    ("driver.installer", log(outcome="failed", missing_tools=("ifconfig",)), Status.FAIL, "ifconfig"),
    ("driver.installer", log(outcome="failed", line="no space left"), Status.FAIL, "no space left"),
    ("driver.installer", log(outcome="unfinished", line="upgradePercentage:30%"), Status.WARN, "30%"),
    ("driver.installer", log(needs_reboot=True), Status.WARN, "requests a reboot"),
    ("driver.installer", put(installer=None), Status.SKIP, "the driver works"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES, ids=lambda value: getattr(value, "value", None))
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check)
    assert (finding.status, words in say(finding.says)) == (status, True), say(finding.says)
    if status in (Status.FAIL, Status.WARN):
        assert finding.fix is not None
    for lang in LANGUAGES:
        assert "{" not in say(finding.says, lang)
        assert finding.fix is None or "{" not in say(finding.fix.says, lang)


A5 = both(cards(name="Ascend950PR"), part("smi", driver="25.7.rc1"))


def only_first(change: Change) -> Change:
    """The table with its first card alone, so that one change makes it a table of one kind."""
    return lambda facts: change(part("smi", cards=facts.npu.smi.value.cards[:1])(facts))  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("change", "check", "status"),
    [
        (A5, "driver.line", Status.OK),
        (both(A5, part("smi", driver="25.5.2")), "driver.line", Status.FAIL),
        (both(A5, part("smi", driver="25.1.rc1")), "driver.line", Status.OK),
        (both(A5, put(topology_files=("950",))), "driver.topology-files", Status.OK),
        (both(A5, put(topology_files=None)), "driver.topology-files", Status.FAIL),
        (both(A5, put(topology_files=())), "driver.topology-files", Status.FAIL),
        (both(A5, put(topology_files=None), CONTAINER), "driver.topology-files", Status.FAIL),
        (put(topology_files=None), "driver.topology-files", Status.SKIP),
    ],
)
def test_cards_of_the_950_generation_have_a_driver_and_files_of_their_own(
    change: Change, check: str, status: Status
) -> None:
    assert find(only_first(change)(HEALTHY), check).status is status


def test_the_fix_of_a_missing_topology_folder_in_a_container_is_a_mount() -> None:
    facts = only_first(both(A5, put(topology_files=None), CONTAINER))(HEALTHY)
    cure = find(facts, "driver.topology-files").fix
    assert cure is not None and "/usr/local/Ascend/driver" in say(cure.says) and "Mount" in say(cure.says)


def test_the_kernels_conflict_is_shown_as_proof_that_the_cards_are_taken() -> None:
    facts = both(IN_USE, put(**{"npu.kernel": (CONFLICT,)}), put(claims=None))(HEALTHY)
    finding = find(facts, "driver.npu-smi")
    assert any("Conflict open udevid" in item.line for item in finding.evidence)


@pytest.mark.parametrize("check", [check for check in CHECKS if check.reads], ids=lambda check: check.id)
def test_an_input_that_is_unknown_makes_the_finding_unknown(check: object) -> None:
    assert hasattr(check, "reads") and hasattr(check, "id")
    names = ["npu.smi", "npu.smi_trouble"] if "npu.smi_trouble" in check.reads else list(check.reads)
    assert find(lost(*names)(HEALTHY), check.id).status is Status.UNKNOWN


def test_every_check_has_a_case_that_is_right_and_one_that_is_not() -> None:
    healthy = {item.check for item in check_all(HEALTHY, level=2, checks=CHECKS) if item.status is Status.OK}
    right = healthy | {check for check, _, status, _ in CASES if status is Status.OK}
    wrong = {check for check, _, status, _ in CASES if status in (Status.WARN, Status.FAIL)}
    elsewhere = {"driver.installed", "driver.complete", "container.mounts", "driver.topology-files"}
    ids = {check.id for check in CHECKS}
    assert ids - right - elsewhere == set()
    assert ids - wrong - elsewhere == set()


def test_a_healthy_host_stays_silent() -> None:
    assert {
        item.check
        for item in check_all(HEALTHY, level=2, checks=CHECKS)
        if item.status in (Status.WARN, Status.FAIL, Status.UNKNOWN)
    } == set()


def test_one_upgrade_without_a_reboot_moves_one_check() -> None:
    found = check_all(both(put(driver=NEW), UPGRADED)(HEALTHY), level=2, checks=CHECKS)
    assert [item.check for item in found if item.status not in (Status.OK, Status.SKIP)] == ["driver.rebooted"]


def test_an_interface_that_does_not_start_after_an_upgrade_is_told_once() -> None:
    found = check_all(both(INIT, UPGRADED)(HEALTHY), level=2, checks=CHECKS)
    loud = [item for item in found if item.status not in (Status.OK, Status.SKIP)]
    own = [item.check for item in loud if item.says.key != "check_npu.see-npu-smi"]
    assert own == ["driver.npu-smi"]
    assert {item.status for item in loud if item.check not in own} == {Status.UNKNOWN}


@pytest.mark.parametrize("place", ["docker", None])
def test_a_missing_manager_device_is_named_as_the_cause_of_the_interface_that_does_not_start(place: str | None) -> None:
    missing = nodes(0, missing=("/dev/davinci_manager",))
    facts = both(INIT, UPGRADED, put(container=place), missing)(HEALTHY)
    found = check_all(facts, level=2)
    assert [item.check for item in found if item.status is Status.FAIL] == ["devices.managers"]
    smi = find(facts, "driver.npu-smi")
    assert smi.status is Status.SKIP and say(smi.says).endswith("reported under: manager devices")
    unjudged = [group for group in grouped(found) if group.first.status is Status.UNKNOWN]
    assert {group.because for group in unjudged} == {"devices.managers"}


def test_cards_are_not_said_to_be_missing_where_the_interface_does_not_start() -> None:
    facts = both(INIT, CONTAINER, nodes())(HEALTHY)
    assert find(facts, "driver.npu-smi").status is Status.FAIL
    assert find(facts, "cards.present").says.key == "check_npu.see-npu-smi"


def test_the_path_of_libraries_keeps_what_the_session_has() -> None:
    change = both(trouble(SmiFailure.LIBRARY, library="libc_sec.so"), variables(LD_LIBRARY_PATH="/mine"))
    cure = find(change(HEALTHY), "driver.npu-smi").fix
    assert cure is not None and cure.commands[0][1].endswith("/driver:/mine")
