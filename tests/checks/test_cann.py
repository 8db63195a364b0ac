"""CANN and NNAL on a healthy A2 host with one thing changed: what each check finds, and with which words."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import CHECKS, check_all
from npuenv.core.fact import Evidence, absent, known
from npuenv.core.finding import Status
from npuenv.core.messages import say
from npuenv.facts.cann import Atb, Custom, CustomOps, Kernels, Ops, Part, RunningParts, WrittenFolder
from npuenv.facts.cann.toolkit import CannFolder, CannPath, Closed, Installs
from npuenv.facts.npu.failures import SmiFailure
from tests.support.changes import HEALTHY, both, cards, find, lost, part, put, trouble, unread, variables
from tests.support.changes import packages as installed

if TYPE_CHECKING:
    from npuenv.facts.collect import Facts
    from tests.support.changes import Change

ROOT, OTHER = "/usr/local/Ascend/cann-8.5.0", "/usr/local/Ascend/cann-9.1.0"
OLD = "/usr/local/Ascend/ascend-toolkit/8.3.RC1"
ATB = "/usr/local/Ascend/nnal/atb/latest/atb/cxx_abi_1"
KERNELS = f"{ROOT}/opp/built-in/op_impl/ai_core/tbe/kernel"
OPS_INFO = f"{ROOT}/aarch64-linux/ascend_ops_install.info"
INFO = f"{ROOT}/aarch64-linux/ascend_toolkit_install.info"
STUBS, DRIVER = f"{ROOT}/aarch64-linux/devlib", "/usr/local/Ascend/driver/lib64/driver"
HERE = CannFolder(ROOT, "8.5.0", "cann", ("/usr/local/Ascend/cann",))
HOME = CannPath("ASCEND_HOME_PATH", 0, ROOT, ROOT, ROOT, True)


def entry(
    variable: str, path: str, home: str, *, position: int = 0, real: str | None = None, is_there: bool = True
) -> CannPath:
    return CannPath(variable, position, path, home, home if real is None else real, is_there)


def entries(*more: CannPath) -> Change:
    return put(entries=(HOME, *more))


def parts(**releases: str) -> Change:
    found = tuple(
        Part(name, "8.5.0.2.220", release, f"{ROOT}/{name}/version.info") for name, release in releases.items()
    )
    return put(**{"cann.parts": found, "cann.running": None})


def ops(version: str, *, chip: str = "910b", place: str = OPS_INFO) -> Change:
    return put(ops=Ops(version, chip, place))


def kernels(*chips: str, hollow: tuple[str, ...] = ()) -> Change:
    return put(kernels=Kernels(KERNELS, chips, hollow))


def custom(path: str, *, is_there: bool = True, chips: tuple[str, ...] | None = None) -> Change:
    return put(custom=CustomOps((Custom(path, "ASCEND_CUSTOM_OPP_PATH", is_there, chips),), ()))


def atb(**values: Any) -> Change:
    return put(atb=Atb(ATB, "1", True, True)._replace(**values))


def with_table(name: str) -> Change:
    """All cards of another chip."""

    def change(facts: Facts) -> Facts:
        assert facts.npu.smi.value is not None
        changed = tuple(dataclasses.replace(card, name=name) for card in facts.npu.smi.value.cards)
        return part("smi", cards=changed)(facts)

    return change


LIBRARY = entry("LD_LIBRARY_PATH", f"{OTHER}/lib64", OTHER)
SHUT = Closed("/root/Ascend", "ASCEND_HOME_PATH")

LATEST = "/usr/local/Ascend/ascend-toolkit/latest"
BROKEN_LINK = put(
    installs=Installs(
        (
            CannFolder(f"{LATEST[:-6]}8.0.0", "8.0.0", "ascend-toolkit", ()),
            CannFolder(OLD, "8.3.RC1", "ascend-toolkit", ()),
            HERE,
        ),
        (LATEST,),
        {},
    )
)
NO_TABLE = trouble(SmiFailure.INIT, -8005)

CASES: list[tuple[str, Change, Status, str]] = [
    ("cann.found", both(lost("toolkit"), put(closed=SHUT)), Status.FAIL, "/root/Ascend, where"),
    ("cann.found", lost("toolkit"), Status.UNKNOWN, "toolkit"),
    ("cann.found", part("toolkit", has_install_file=False), Status.WARN, "ascend_toolkit_install.info"),
    ("cann.found", both(put(toolkit=None), BROKEN_LINK), Status.FAIL, f"{LATEST} is a dangling link"),
    ("cann.found", both(put(toolkit=None), put(installs=Installs((), (LATEST,), {}))), Status.FAIL, "no CANN"),
    ("cann.found", BROKEN_LINK, Status.OK, "8.5.0"),
    ("cann.links", BROKEN_LINK, Status.WARN, "is a dangling"),
    ("cann.kernels", both(NO_TABLE, kernels()), Status.FAIL, "no compiled operators"),
    ("cann.kernels", both(NO_TABLE, kernels("ascend910b")), Status.UNKNOWN, "npu-smi does not report"),
    ("cann.kernels", both(NO_TABLE, lost("kernels")), Status.UNKNOWN, "cannot read"),
    ("cann.sourced", both(lost("toolkit"), put(closed=SHUT)), Status.SKIP, "cann.found"),
    ("cann.links", put(installs=Installs((HERE,), (), {})), Status.OK, ROOT),
    ("cann.links", put(installs=Installs((HERE,), ("/usr/local/Ascend/cann",), {})), Status.WARN, "is a dangling"),
    (
        "cann.links",
        put(installs=Installs((HERE,), (), {"/usr/local/Ascend/ascend-toolkit/latest": (OLD, f"{OLD}.1")})),
        Status.WARN,
        "to different installations",
    ),
    ("cann.one-version", entries(entry("LD_LIBRARY_PATH", f"{ROOT}/lib64", ROOT)), Status.OK, ROOT),
    ("cann.one-version", entries(LIBRARY), Status.FAIL, "cann-9.1.0"),
    ("cann.one-version", entries(entry("ASCEND_OPP_PATH", f"{OTHER}/opp", OTHER)), Status.FAIL, "ASCEND_OPP_PATH"),
    (
        "cann.one-version",
        entries(
            entry("LD_LIBRARY_PATH", f"{ROOT}/lib64", ROOT),
            entry("LD_LIBRARY_PATH", f"{OTHER}/lib64", OTHER, position=1),
        ),
        Status.WARN,
        "after those of",
    ),
    ("cann.one-version", entries(entry("PATH", f"{OTHER}/bin", OTHER)), Status.WARN, "PATH"),
    # The link `latest` of the older layout leads to the same install: no mixture.
    (
        "cann.one-version",
        entries(entry("LD_LIBRARY_PATH", "/a/ascend-toolkit/latest/lib64", "/a/ascend-toolkit/latest", real=ROOT)),
        Status.OK,
        ROOT,
    ),
    ("cann.one-version", put(entries=(LIBRARY,)), Status.SKIP, ""),
    ("cann.gone", entries(entry("LD_LIBRARY_PATH", f"{OLD}/lib64", OLD, is_there=False)), Status.WARN, "8.3.RC1"),
    ("cann.gone", put(entries=(HOME._replace(is_there=False),)), Status.OK, ""),
    (
        "cann.stand-ins",
        variables(LD_LIBRARY_PATH=f"{ROOT}/aarch64-linux/devlib:{ROOT}/lib64"),
        Status.FAIL,
        "devlib",
    ),
    (
        "cann.stand-ins",
        variables(LD_LIBRARY_PATH=f"{ROOT}/runtime/lib64/stub:/usr/local/Ascend/driver/lib64/driver"),
        Status.FAIL,
        "stub",
    ),
    (
        "cann.stand-ins",
        variables(LD_LIBRARY_PATH=f"/usr/local/Ascend/driver/lib64:{ROOT}/aarch64-linux/devlib"),
        Status.OK,
        "",
    ),
    ("cann.stand-ins", variables(LD_LIBRARY_PATH=f"{STUBS}:{DRIVER}:{STUBS}"), Status.FAIL, "devlib"),
    ("cann.stand-ins", variables(LD_LIBRARY_PATH=f"{DRIVER}:{STUBS}:{DRIVER}"), Status.OK, ""),
    ("cann.python-path", both(variables(PYTHONPATH="/workspace/verl"), entries()), Status.WARN, "tbe"),
    ("cann.python-path", both(variables(PYTHONPATH=None), entries()), Status.WARN, "tbe"),
    ("cann.python-path", variables(ASCEND_HOME_PATH=None), Status.SKIP, ""),
    (
        "cann.python-path",
        both(
            variables(PYTHONPATH=f"{ROOT}/python/site-packages:"),
            entries(entry("PYTHONPATH", f"{ROOT}/python/site-packages", ROOT)),
        ),
        Status.OK,
        "",
    ),
    ("cann.python-packages", installed(decorator=None, attrs=None), Status.WARN, "attrs, decorator"),
    ("cann.python-packages", installed(decorator="5.2.1"), Status.OK, ""),
    ("cann.python-packages", installed(torch_npu=None), Status.SKIP, ""),
    ("cann.gcc", put(compilers={"gcc": "7.5.0"}), Status.WARN, "7.5.0"),
    ("cann.gcc", put(compilers={"gcc": "12.3.1"}), Status.OK, "12.3.1"),
    ("cann.gcc", put(compilers={"cmake": "3.22.1"}), Status.SKIP, ""),
    (
        "cann.writable",
        put(writes=(WrittenFolder("HOME", "/root/atc_data", "read-only"),)),
        Status.WARN,
        "/root/atc_data",
    ),
    ("cann.writable", put(writes=(WrittenFolder("HOME", "/root/ascend", "writable"),)), Status.OK, ""),
    ("cann.parts", parts(compiler="8.5.0", opp="8.5.0"), Status.OK, "8.5.0"),
    ("cann.parts", parts(compiler="8.5.0", opp="8.3.RC1"), Status.FAIL, "opp from 8.3.RC1"),
    ("cann.parts", parts(compiler="8.5.0", opp="8.5.1"), Status.WARN, "8.5.1"),
    ("cann.parts", parts(compiler="8.5.0", opp_kernel="8.3.RC1"), Status.OK, ""),
    (
        "cann.parts",
        put(**{"cann.parts": None, "cann.running": RunningParts({"runtime": "8.0.0", "opp": "8.1.RC1"}, {}, {})}),
        Status.FAIL,
        "runtime from 8.0.0",
    ),
    ("cann.ops", ops("8.5.0"), Status.OK, "8.5.0"),
    ("cann.ops", ops("8.3.RC1"), Status.FAIL, "8.3.RC1"),
    ("cann.ops", ops("8.5.1"), Status.WARN, "8.5.1"),
    # Before 8.5 a toolkit takes older kernels, and newer ones not.
    ("cann.ops", ops("8.3.RC1", chip="", place=f"{ROOT}/opp_kernel/version.info"), Status.WARN, "8.3.RC1"),
    ("cann.ops", ops("9.0.0", chip="", place=f"{ROOT}/opp_kernel/version.info"), Status.FAIL, "9.0.0"),
    ("cann.kernels", kernels("ascend910b"), Status.OK, "ascend910b"),
    ("cann.kernels", kernels("ascend310p"), Status.FAIL, "ascend310p"),
    ("cann.kernels", kernels(), Status.FAIL, "not installed"),
    ("cann.kernels", kernels(hollow=("ascend910b",)), Status.FAIL, "almost empty"),
    ("cann.kernels", both(with_table("Ascend910"), kernels("ascend910b")), Status.FAIL, "needs ascend910_93"),
    ("cann.kernels", both(with_table("Ascend910"), kernels("ascend910_93", "ascend910b")), Status.OK, "ascend910_93"),
    ("cann.kernels", both(lost("kernels"), ops("8.5.0", chip="310p")), Status.FAIL, "310p"),
    ("cann.kernels", both(lost("kernels"), ops("8.5.0", chip="910B")), Status.OK, "ascend910b"),
    ("cann.kernels", both(lost("kernels"), put(ops=None)), Status.UNKNOWN, "cann.kernels"),
    ("cann.kernels", cards(name="Ascend1234"), Status.SKIP, ""),
    ("cann.custom-ops", custom("/ops/vendors/customize", chips=("ascend910b",)), Status.OK, "1"),
    ("cann.custom-ops", custom("/ops/vendors/CAM", is_there=False), Status.WARN, "/ops/vendors/CAM"),
    ("cann.custom-ops", custom("/ops/vendors/customize", chips=("ascend910_93",)), Status.WARN, "ascend910_93"),
    (
        "cann.custom-ops",
        put(custom=CustomOps((), (f"{ROOT}/opp/vendors/config.ini",))),
        Status.FAIL,
        "config.ini",
    ),
    ("nnal.sourced", both(variables(ATB_HOME_PATH="/gone"), atb(home="/gone", is_there=False)), Status.FAIL, "/gone"),
    ("nnal.sourced", variables(LD_LIBRARY_PATH=f"{ROOT}/lib64"), Status.WARN, "libatb.so"),
    ("nnal.sourced", both(atb(abi="1"), variables(LD_LIBRARY_PATH="/n/cxx_abi_0/lib")), Status.WARN, "cxx_abi_0"),
    ("nnal.sourced", both(atb(abi="0"), variables(LD_LIBRARY_PATH="/n/cxx_abi_1/lib:/x")), Status.WARN, "cxx_abi_1"),
    ("nnal.sourced", both(atb(abi=""), variables(LD_LIBRARY_PATH="/n/cxx_abi_1/lib")), Status.OK, ""),
    (
        "nnal.abi",
        both(atb(abi="1"), variables(LD_LIBRARY_PATH="/n/cxx_abi_0/lib"), put(torch_abi="1")),
        Status.FAIL,
        "cxx_abi_0",
    ),
    ("nnal.library", atb(has_library=False), Status.FAIL, "libatb.so"),
    ("nnal.library", atb(), Status.OK, "libatb.so"),
    ("nnal.library", atb(is_there=False), Status.SKIP, ""),
    ("nnal.abi", both(atb(), put(torch_abi="0")), Status.FAIL, "cxx_abi_0"),
    ("nnal.abi", both(atb(), put(torch_abi="1")), Status.OK, "cxx_abi_1"),
    ("nnal.abi", both(atb(abi=""), put(torch_abi="1")), Status.SKIP, ""),
    (
        "nnal.abi",
        both(atb(abi="0"), variables(LD_LIBRARY_PATH=""), put(torch_abi=None), installed(torch="2.7.1+cpu")),
        Status.FAIL,
        "cxx_abi_0",
    ),
    ("nnal.abi", both(atb(abi="0"), put(torch_abi=None), installed(torch="2.5.1")), Status.SKIP, ""),
    ("cann.found", part("toolkit", torn=INFO), Status.WARN, INFO),
    ("cann.found", part("toolkit", set_env=""), Status.WARN, "set_env.sh"),
    ("cann.found", part("toolkit", torn=""), Status.OK, "8.5.0"),
]
# Their cases stand with those of the other checks that were there from the start.
ELSEWHERE = {"cann.sourced", "cann.arch", "cann.driver", "nnal.present"}
MINE = [check for check in CHECKS if check.id.split(".")[0] in ("cann", "nnal")]


@pytest.mark.parametrize(
    ("check", "change", "status", "words"),
    CASES,
    ids=[f"{number}-{c[0]}-{c[2].value}" for number, c in enumerate(CASES)],
)
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check)
    assert (finding.status, words in say(finding.says)) == (status, True), (finding.status, say(finding.says))
    assert finding.source and say(finding.says, "zh")
    if status in (Status.FAIL, Status.WARN):
        assert finding.evidence and finding.fix is not None
        assert say(finding.fix.says) and say(finding.fix.says, "zh")


def test_every_check_has_a_case_that_is_not_fine_and_one_that_is() -> None:
    bad = {case[0] for case in CASES if case[2] in (Status.FAIL, Status.WARN)}
    fine = {case[0] for case in CASES if case[2] is Status.OK} | {"nnal.sourced"}
    assert {check.id for check in MINE} - ELSEWHERE == bad
    assert bad - fine == set()


def test_a_broken_link_is_led_to_the_newest_install_in_its_own_folder() -> None:
    cure = find(both(put(toolkit=None), BROKEN_LINK)(HEALTHY), "cann.found").fix
    assert cure is not None and cure.needs_root
    assert cure.commands == (("ln", "-sfn", OLD, LATEST),)


@pytest.mark.parametrize("check", [check for check in MINE if check.reads], ids=lambda check: check.id)
def test_what_could_not_be_read_is_unknown_and_never_fine(check: Any) -> None:
    for name in check.reads:
        assert find(lost(name)(HEALTHY), check.id).status is unread(check.id, name)


def test_libraries_under_another_name_of_the_same_install_count_as_sourced() -> None:
    latest = "/usr/local/Ascend/ascend-toolkit/latest"
    by_link = entry("LD_LIBRARY_PATH", f"{latest}/lib64", latest, real=ROOT)
    change = both(variables(LD_LIBRARY_PATH=f"{latest}/lib64"), entries(by_link))
    assert find(change(HEALTHY), "cann.sourced").status is Status.OK
    untold = both(variables(LD_LIBRARY_PATH=f"{latest}/lib64"), entries(by_link._replace(real="")))
    assert find(untold(HEALTHY), "cann.sourced").status is Status.FAIL


def test_the_cure_for_another_abi_names_the_option_of_the_script() -> None:
    finding = find(both(atb(), put(torch_abi="0"))(HEALTHY), "nnal.abi")
    assert finding.fix is not None
    assert finding.fix.commands == (("source", "/usr/local/Ascend/nnal/atb/set_env.sh", "--cxx_abi=0"),)


def test_without_cann_one_check_speaks() -> None:
    lines = Evidence("/usr/local/Ascend/cann", "absent")
    facts = dataclasses.replace(
        HEALTHY,
        cann=dataclasses.replace(
            HEALTHY.cann, **{field.name: absent(lines) for field in dataclasses.fields(HEALTHY.cann)}
        ),
        environment=known({"HOME": "/root"}, lines),
    )
    speaking = [check.id for check in MINE if find(facts, check.id).status not in (Status.OK, Status.SKIP)]
    assert speaking == ["cann.found"]


def test_kernels_that_are_hollow_or_of_another_chip_are_shown_where_they_lie() -> None:
    seen = Evidence(KERNELS, "ascend910b: 3 files")
    for found in (
        Kernels(KERNELS, (), ("ascend910b",)),
        Kernels(KERNELS, ("ascend310p",), ()),
        Kernels(KERNELS, (), ()),
    ):
        group = dataclasses.replace(HEALTHY.cann, kernels=known(found, seen))
        assert find(dataclasses.replace(HEALTHY, cann=group), "cann.kernels").evidence == (seen,)


@pytest.mark.parametrize(
    ("path", "commands"),
    [
        ("/root", ()),
        ("/home/npu", ()),
        ("/opt/Ascend", (("chmod", "-R", "a+rX", "/opt/Ascend"),)),
        ("/opt/Ascend/cann-8.5.0", (("chmod", "-R", "a+rX", "/opt/Ascend/cann-8.5.0"),)),
    ],
)
def test_only_a_folder_of_cann_is_opened_to_all_and_never_a_whole_home(
    path: str, commands: tuple[tuple[str, ...], ...]
) -> None:
    shut = SHUT._replace(path=path)
    cure = find(both(lost("toolkit"), put(closed=shut))(HEALTHY), "cann.found").fix
    assert cure is not None and cure.commands == commands and not cure.is_automatic
    assert say(cure.says) != say(cure.says, "zh")


def test_a_link_that_leads_nowhere_is_told_once_with_what_it_keeps_from_loading() -> None:
    link = "/usr/local/Ascend/ascend-toolkit/latest"
    install = CannFolder("/usr/local/Ascend/ascend-toolkit/8.0.0", "8.0.0", "ascend-toolkit", ())
    installs = Installs((install,), (link,), {})
    errors = ("ImportError: libhccl.so: cannot open shared object file: No such file or directory",)
    torch_npu = part("import_torch_npu", is_ok=False, errors=errors)
    facts = both(put(toolkit=None, installs=installs), torch_npu)(HEALTHY)
    found = {item.check: item for item in check_all(facts, level=2)}
    loud = {check for check, item in found.items() if item.status in (Status.FAIL, Status.WARN)}
    assert "cann.found" in loud and not loud & {"cann.links", "python.torch-npu-imports", "python.libraries"}
    assert found["python.torch-npu-imports"].says.args["cause"] == "cann.found"
    assert found["cann.links"].says.args["cause"] == "cann.found"
    beside = both(put(installs=installs))(HEALTHY)  # a CANN is found all the same: the link is only worth knowing
    assert find(beside, "cann.links").status is Status.WARN


def test_compilers_are_judged_from_the_level_on_that_asks_them() -> None:
    old = put(compilers={"gcc": "7.5.0"})(HEALTHY)
    assert [find(old, "cann.gcc", level=level).status for level in (0, 1)] == [Status.SKIP, Status.WARN]
