"""The checks of the target's packages: a healthy host with one thing changed, and what is found then."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from npuenv.checks import PYTHON as CHECKS
from npuenv.checks import check_all
from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.core.finding import Status
from npuenv.core.messages import LANGUAGES, say
from npuenv.facts.cann.toolkit import CannFolder, Installs
from npuenv.facts.collector import not_asked
from npuenv.facts.machine import CxxLibrary
from npuenv.facts.python import Broken, Import, SharedFiles
from npuenv.facts.python.packages import (
    Link,
    MetadataTrouble,
    MissingLibrary,
    MissingSymbols,
    MissingVersion,
    Origin,
    Owned,
    Shadow,
    Twice,
)
from npuenv.matrix import load_matrix
from npuenv.resolve import resolve
from npuenv.resolve.types import Request, Stack
from tests.support.changes import HEALTHY, WHY, Change, both, cards, find, lost, packages, part, put, unread, variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npuenv.facts.collect import Facts

SITE = "/opt/env/lib/python3.11/site-packages"
NPU_SO, VA_SO = f"{SITE}/torch_npu/lib/libtorch_npu.so", f"{SITE}/vllm_ascend/vllm_ascend_C.so"
CANN_LIB = "/usr/local/Ascend/cann-8.5.0/lib64"


def fails(module: str, *errors: str, crash: str = "") -> Change:
    """One of the modules fails at import, with these errors from the outermost to the innermost."""

    def change(facts: Facts) -> Facts:
        found = Import(module, False, "", errors, crash)
        if module in ("torch", "torch_npu"):
            return put(**{f"import_{module}": found})(facts)
        return put(imports={**(facts.python.imports.value or {}), module: found})(facts)

    return change


def pkg(**values: object) -> Change:
    return part("python.packages", **values)


def files(**values: object) -> Change:
    return part("python.files", **values)


def elf(**values: object) -> Change:
    return part("python.elf", **values)


def python(**state: object) -> Change:
    """The interpreter did not run; `state` gives what is known of its folder."""

    def change(facts: Facts) -> Facts:
        found: dict[str, Fact[Any]] = {
            name: absent(WHY) if value is None else known(value, WHY) for name, value in state.items()
        }
        group = dataclasses.replace(facts.python, interpreter=absent(WHY), **found)
        return dataclasses.replace(facts, python=group)

    return change


STRAY = "/opt/stray/libstdc++.so.6"


@pytest.mark.parametrize(
    ("error", "key"),
    [
        ("ImportError: /x/libc10.so: undefined symbol: _ZNSt3pmr15memory_resourceE", "import-shadow"),
        (
            "OSError: /x/y.so: undefined symbol: _ZTVN10__cxxabiv117__class_type_infoE, version CXXABI_1.3",
            "import-shadow",
        ),
        (f"ImportError: {STRAY}: version `GLIBCXX_3.4.30' not found (required by /x/libc10.so)", "import-version"),
        ("ImportError: /x/y.so: undefined symbol: _ZN3c1012OperatorNameE", "import-symbol"),
    ],
)
@pytest.mark.parametrize("level", [None, 19])
def test_a_cxx_library_that_shadows_the_systems_is_named_with_its_folder(
    error: str, key: str, level: int | None
) -> None:
    library = CxxLibrary(STRAY, level, is_from_path=True)
    change = both(fails("torch", error), put(libstdcxx=library), variables(LD_LIBRARY_PATH="/a:/opt/stray/:/b"))
    finding = find(change(HEALTHY), "python.torch-imports")
    assert (finding.status, finding.says.key) == (Status.FAIL, f"check_python.{key}")
    assert finding.fix is not None
    is_shadow = finding.fix.says.key == "check_machine.fix-cxx-path"
    assert is_shadow is (key != "import-symbol")
    assert not is_shadow or finding.fix.says.args == {"folder": "/opt/stray"}
    own = both(change, put(libstdcxx=CxxLibrary("/usr/lib64/libstdc++.so.6", 30, False)), variables(LD_LIBRARY_PATH=""))
    elsewhere = find(own(HEALTHY), "python.torch-imports")
    assert elsewhere.fix is not None and elsewhere.fix.says.key != "check_machine.fix-cxx-path"


def requires(owner: str, *texts: str) -> Change:
    return pkg(requires={owner: texts})


CASES: list[tuple[str, Change, Status, str]] = [
    ("python.found", python(broken=Broken("no-home", "/opt/py311/bin")), Status.FAIL, "/opt/py311/bin"),
    ("python.found", python(broken=Broken("no-folder", "/opt/env")), Status.FAIL, "/opt/env"),
    ("python.found", python(broken=Broken("no-program", "/opt/env/bin/python")), Status.FAIL, "dangling link"),
    ("python.found", python(broken=None), Status.FAIL, "no Python"),
    ("python.found", python(broken=Broken("too-old", "2.7.18")), Status.FAIL, "Python 2.7.18"),
    ("python.found", python(broken=Broken("garbled", "/opt/env/bin/python")), Status.UNKNOWN, "cannot parse"),
    ("python.found", lost("interpreter"), Status.UNKNOWN, "no answer"),
    (
        "python.active",
        variables(VIRTUAL_ENV="/opt/env", CONDA_PREFIX="/opt/conda", PATH="/opt/conda/bin:/opt/env/bin:/usr/bin"),
        Status.WARN,
        "/opt/conda/bin is ahead",
    ),
    ("python.active", variables(VIRTUAL_ENV="/opt/env", PATH="/opt/env/bin:/usr/bin"), Status.OK, "/opt/env/bin"),
    ("python.active", variables(VIRTUAL_ENV="/opt/env", PATH="/usr/bin"), Status.OK, "not on PATH"),
    ("python.active", variables(VIRTUAL_ENV=None, CONDA_PREFIX=None), Status.SKIP, "no active"),
    ("python.readable", pkg(unreadable={SITE: "Permission denied"}), Status.FAIL, SITE),
    ("python.readable", files(unreadable=("torch/lib",)), Status.FAIL, "torch/lib"),
    (
        "python.metadata",
        pkg(trouble=(MetadataTrouble("torch-2.8.0.dist-info", "torch", "no METADATA"),)),
        Status.FAIL,
        "torch-2",
    ),
    (
        "python.metadata",
        pkg(trouble=(MetadataTrouble("six-1.0.dist-info", "six", "no RECORD"),)),
        Status.WARN,
        "six-1.0",
    ),
    ("python.leftovers", pkg(leftovers=(f"{SITE}/~orch",)), Status.WARN, "~orch"),
    ("python.editable", pkg(gone_sources={"vllm": "/vllm-workspace/vllm"}), Status.FAIL, "vllm"),
    ("python.editable", pkg(links=(Link("x.pth", ("/gone",), ("/gone",), ""),)), Status.WARN, "x.pth"),
    ("python.editable", pkg(origins={"verl": Origin("file:///verl", "", True)}), Status.OK, "1"),
    (
        "python.shadowed",
        pkg(shadows=(Shadow("vllm", "/home/user1", "cwd-folder", "/src"),)),
        Status.FAIL,
        "/home/user1",
    ),
    ("python.shadowed", pkg(shadows=(Shadow("torch_npu", "/src", "package", SITE),)), Status.FAIL, "/src"),
    (
        "python.shadowed",
        pkg(shadows=(Shadow("torch_npu", SITE, "package", ""),)),
        Status.WARN,
        "no installed package",
    ),
    ("python.abi", pkg(foreign_wheels={"tensordict": "cp313-cp313-manylinux_2_28_aarch64"}), Status.FAIL, "tensordict"),
    ("python.abi", pkg(foreign_extensions={"rpds-py": "rpds/rpds.cpython-313.so"}), Status.FAIL, "rpds-py"),
    ("python.abi", pkg(requires_python={"vllm": ">=3.12"}), Status.WARN, "vllm"),
    ("python.abi", pkg(requires_python={"vllm": "no specifier"}), Status.OK, "3.11"),
    (
        "python.torch-build",
        both(packages(torch="2.8.0"), pkg(built={"torch": {"cuda": "12.8", "hip": "None"}})),
        Status.WARN,
        "12.8",
    ),
    (
        "python.torch-build",
        both(packages(torch="2.8.0", nvidia_cublas_cu12="12.8.4.1"), pkg(built={})),
        Status.WARN,
        "nvidia-cublas-cu12",
    ),
    ("python.torch-build", packages(torch="2.8.0+cu128"), Status.SKIP, "python.torch-pair"),
    ("python.torch-pair", packages(torch="2.8.0+cu128"), Status.WARN, "2.8.0+cu128"),
    ("python.torch-build", packages(nvidia_cublas_cu12="12.8.4.1"), Status.OK, "not a GPU"),
    (
        "python.torch-npu-imports",
        both(
            fails("torch_npu", "ImportError: libhccl.so: cannot open shared object file: No such file or directory"),
            elf(missing=(MissingLibrary(NPU_SO, "libhccl.so", CANN_LIB),)),
        ),
        Status.FAIL,
        f"libhccl.so, which is in {CANN_LIB}",
    ),
    (
        "python.torch-npu-imports",
        fails("torch_npu", "ImportError: /x/libtorch_npu.so: undefined symbol: _ZN3atb15CreateOperationE"),
        Status.FAIL,
        "_ZN3atb15CreateOperationE",
    ),
    (
        "python.torch-npu-imports",
        fails("torch_npu", "ImportError: /x/libgomp-6e1a1d1b.so.1: cannot allocate memory in static TLS block"),
        Status.FAIL,
        "static TLS",
    ),
    (
        "python.torch-npu-imports",
        fails("torch_npu", "RuntimeError: Two accelerators cannot be used at the same time in PyTorch: npu and npu"),
        Status.FAIL,
        "registered twice",
    ),
    (
        "python.torch-npu-imports",
        fails("torch_npu", "ModuleNotFoundError: No module named 'torch_npu._C'"),
        Status.FAIL,
        "submodule torch_npu._C",
    ),
    (
        "python.torch-npu-imports",
        fails("torch_npu", "ModuleNotFoundError: No module named 'yaml'"),
        Status.FAIL,
        "yaml",
    ),
    ("python.torch-imports", fails("torch", crash="ended by signal 11"), Status.FAIL, "signal 11"),
    (
        "python.torch-imports",
        fails("torch", "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory, You"),
        Status.FAIL,
        "libascend_hal.so",
    ),
    (
        "python.numpy-imports",
        fails("numpy", "ImportError: numpy.core.multiarray failed to import"),
        Status.FAIL,
        "with numpy 1.26.4",
    ),
    (
        "python.pyarrow-imports",
        fails("pyarrow", "ImportError: pyarrow requires NumPy 2.0 or newer"),
        Status.FAIL,
        "numpy",
    ),
    (
        "python.pyarrow-imports",
        both(packages(pyarrow="26.0.1"), fails("pyarrow", "ImportError: pyarrow requires NumPy 2.0 or newer")),
        Status.SKIP,
        "python.limits",
    ),
    (
        "python.tensordict-imports",
        fails("tensordict", "ImportError: /x/tensordict/_C.so: undefined symbol: PyThreadState_GetUnchecked"),
        Status.FAIL,
        "PyThreadState_GetUnchecked",
    ),
    (
        "python.transformers-imports",
        fails("transformers", "PackageNotFoundError: No package metadata was found for flash_attn"),
        Status.FAIL,
        "flash_attn",
    ),
    ("python.ray-imports", fails("ray", "ModuleNotFoundError: No module named 'rpds.rpds'"), Status.FAIL, "rpds.rpds"),
    (
        "python.torchvision-imports",
        fails("torchvision", "RuntimeError: operator torchvision::nms does not exist"),
        Status.FAIL,
        "nms",
    ),
    (
        "python.torchvision-imports",
        both(
            fails("torch", "ImportError: libhccl.so: cannot open shared object file"),
            fails("torchvision", "RuntimeError: x", "ImportError: libhccl.so: cannot open shared object file"),
        ),
        Status.SKIP,
        "python.torch-imports",
    ),
    (
        "python.torchaudio-imports",
        both(packages(torchaudio="2.8.0"), fails("torchaudio", "OSError: undefined symbol: x")),
        Status.FAIL,
        "torchaudio",
    ),
    (
        "python.triton-imports",
        fails("triton", "ImportError: cannot import name 'AscendBackend' from 'triton.backends'"),
        Status.FAIL,
        "AscendBackend",
    ),
    (
        "python.vllm-imports",
        fails("vllm", "ImportError: cannot import name 'SamplingParams' from 'vllm' (unknown location)"),
        Status.FAIL,
        "empty package",
    ),
    (
        "python.vllm-imports",
        both(
            fails("vllm", "ImportError: vllm is an empty shell: its __init__.py is missing"),
            files(missing=(Owned("vllm", 3, 0, ("vllm/__init__.py",)),)),
        ),
        Status.SKIP,
        "python.files",
    ),
    (
        "python.vllm-ascend-imports",
        fails("vllm_ascend", "ImportError: /lib/libc.so.6: version `GLIBC_2.32' not found (required by /x.so)"),
        Status.FAIL,
        "GLIBC_2.32",
    ),
    (
        "python.verl-imports",
        both(packages(verl="0.7.0"), fails("verl", "ModuleNotFoundError: No module named 'codetiming'")),
        Status.FAIL,
        "codetiming",
    ),
    ("python.limits", packages(pyarrow="26.0.1"), Status.FAIL, "pyarrow<26"),
    ("python.limits", packages(vllm="0.9.1+empty", transformers="4.54.0"), Status.FAIL, "transformers<4.54"),
    ("python.limits", packages(torch="2.1.0", numpy="2.0.0"), Status.FAIL, "numpy<2"),
    ("python.requirements", requires("vllm-ascend", "torch==2.7.1"), Status.OK, "satisfied"),
    (
        "python.requirements",
        both(packages(vllm_ascend="0.11.0rc1.dev0"), requires("vllm-ascend", "torch==2.7.1", "torch-npu==2.7.1")),
        Status.FAIL,
        "torch==2.7.1",
    ),
    ("python.requirements", requires("pip", "click<8"), Status.WARN, "click<8 (found: 8.1.8)"),
    ("python.requirements", requires("pip", "never-there>=1"), Status.WARN, "never-there>=1"),
    ("python.requirements", requires("pip", 'never-there; python_version < "3.8"'), Status.OK, ""),
    ("python.requirements", requires("pip", "never-there; broken marker", "@@", ""), Status.OK, ""),
    ("python.requirements", requires("pip", "click==not.a.version!"), Status.OK, ""),
    ("python.requirements", requires("torch", "nvidia-cublas-cu12==12.8", "triton==3.4.0"), Status.OK, ""),
    (
        "python.requirements",
        both(packages(triton_ascend="3.2.1"), requires("triton-ascend", "numpy==1.26.4", "pytest==8.3.2")),
        Status.OK,
        "",
    ),
    (
        "python.triton",
        both(packages(triton_ascend="3.2.1"), part("toolkit", version="9.0.0")),
        Status.OK,
        "pip check",
    ),
    (
        "python.requirements",
        both(packages(triton_ascend="3.2.0"), requires("triton-ascend", "click<8")),
        Status.WARN,
        "click<8",
    ),
    ("python.requirements", requires("vllm", "torch==2.9.0", "xformers==0.0.32"), Status.OK, ""),
    (
        "python.user-site",
        both(part("interpreter", kind="conda"), pkg(user_site="/root/.local/x", in_user_site=("numpy", "six"))),
        Status.WARN,
        "/root/.local/x",
    ),
    ("python.user-site", part("interpreter", kind="conda"), Status.OK, ""),
    ("python.unsupported", packages(flash_attn="2.8.3"), Status.WARN, "flash-attn"),
    ("python.unsupported", packages(liger_kernel="0.6.1"), Status.OK, ""),
    ("python.mindspeed", packages(mindspeed="2.1.0_core_r0.8.0", verl="0.7.0"), Status.WARN, "core_r0.8.0"),
    ("python.mindspeed", packages(mindspeed="2.3.0_core_r0.12.1", verl="0.7.0"), Status.OK, "0.12.1"),
    ("python.mindspeed", packages(mindspeed="0.8.0", verl="0.7.0"), Status.WARN, "0.8.0"),
    (
        "python.triton",
        both(
            packages(triton="3.4.0"),
            part(
                "interpreter", shared_files=(SharedFiles(("triton", "triton-ascend"), 250, ("triton/a.py",), (90, 0)),)
            ),
        ),
        Status.FAIL,
        "overwritten",
    ),
    ("python.triton-chip", cards(name="310P3"), Status.WARN, "310P3"),
    ("python.triton-chip", packages(triton_ascend=None), Status.SKIP, ""),
    ("python.files", files(missing=(Owned("torch", 1, 1, ("torch/lib/libc10.so",)),)), Status.FAIL, "torch"),
    ("python.files", files(missing=(Owned("urllib3", 38, 0, ("urllib3/__init__.py",)),)), Status.FAIL, "urllib3"),
    ("python.files", files(missing=(Owned("scipy", 9, 0, ("scipy/tests/__init__.py",)),)), Status.WARN, "scipy"),
    ("python.files", files(missing=(Owned("six", 1, 0, ("share/LICENSE",)),)), Status.WARN, "six"),
    ("python.files", files(emptied=(Owned("six", 1, 0, ("six.py (0 bytes, 9 recorded)",)),)), Status.WARN, "six"),
    ("python.altered", files(altered=(Owned("torch", 1, 1, ("torch/lib/libc10.so",)),)), Status.FAIL, "torch"),
    ("python.altered", files(altered=(Owned("numpy", 1, 0, ("numpy/a.py",)),)), Status.WARN, "numpy"),
    ("python.altered", files(altered=(Owned("vllm", 2, 0, ("vllm/a.py",)),)), Status.OK, "2 files were edited"),
    ("python.hashes", part("hashes", altered=(Owned("torch", 1, 0, ("torch/a.py",)),)), Status.FAIL, "torch"),
    (  # what its sizes tell of a package must not hide what the contents tell of other files of it
        "python.hashes",
        both(
            part("hashes", altered=(Owned("torch", 1, 0, ("torch/a.py",)),)),
            files(altered=(Owned("torch", 1, 0, ("torch/b.h",)),), emptied=(Owned("torch", 1, 0, ("torch/c.h",)),)),
        ),
        Status.FAIL,
        "torch",
    ),
    (  # what does not count there must not hide what counts here
        "python.hashes",
        both(
            part("hashes", altered=(Owned("foo", 2, 1, ("foo/a.so",)),)),
            files(altered=(Owned("foo", 1, 0, ("foo/a.py",)),)),
        ),
        Status.FAIL,
        "foo",
    ),
    (
        "python.hashes",
        part("hashes", altered=(Owned("jinja2", 2, 0, ("jinja2/a.py",)),)),
        Status.OK,
        "2 differ from the record, in packages that users commonly edit: jinja2",
    ),
    (
        "python.hashes",
        part("hashes", altered=(Owned("jinja2", 2, 0, ("jinja2/a.py",)),), is_complete=False),
        Status.OK,
        "time limit; 2 differ",
    ),
    ("python.hashes", part("hashes", is_complete=False), Status.OK, "time limit"),
    ("python.machine", elf(foreign={VA_SO: "x86_64"}), Status.FAIL, "vllm_ascend_C.so"),
    ("python.machine", elf(unread={VA_SO: "ELFError: Magic number does not match"}), Status.FAIL, "vllm_ascend_C.so"),
    ("python.libraries", elf(missing=(MissingLibrary(VA_SO, "libhccl.so", CANN_LIB),)), Status.FAIL, CANN_LIB),
    ("python.libraries", elf(missing=(MissingLibrary(VA_SO, "libfoo.so.1", ""),)), Status.FAIL, "libfoo.so.1"),
    (
        "python.libraries",
        elf(missing=(MissingLibrary(f"{SITE}/torch_npu/lib/libop_plugin_atb.so", "libatb.so", ""),)),
        Status.OK,
        "",
    ),
    (
        "python.libraries",
        both(
            fails("torch_npu", "ImportError: libhccl.so: cannot open shared object file"),
            elf(missing=(MissingLibrary(NPU_SO, "libhccl.so", CANN_LIB),)),
        ),
        Status.SKIP,
        "python.torch-npu-imports",
    ),
    (
        "python.runtimes",
        elf(versions=(MissingVersion(VA_SO, "/lib/libc.so.6", "GLIBC_2.32", "GLIBC_2.31"),)),
        Status.FAIL,
        "GLIBC_2.32",
    ),
    (
        "python.symbols",
        elf(symbols=(MissingSymbols(VA_SO, 2, ("_ZN7c10_npu3acl1xEv",)),)),
        Status.FAIL,
        "vllm_ascend_C",
    ),
    (
        "python.symbols",
        both(packages(torch_npu="2.7.1"), elf(symbols=(MissingSymbols(NPU_SO, 2, ("_ZN3c10x",)),))),
        Status.SKIP,
        "python.torch-pair",
    ),
    ("python.vllm-version", packages(vllm="0.1.dev1+gabc.empty"), Status.FAIL, "0.1.dev1"),
    ("python.vllm-version", both(packages(vllm="0.1.dev1"), variables(VLLM_VERSION="0.13.0")), Status.OK, "0.13.0"),
    ("python.vllm-pair", packages(vllm="0.1.dev1+gabc.empty"), Status.SKIP, "python.vllm-version"),
    ("python.vllm-build", pkg(extensions={"vllm": (f"{SITE}/vllm/_C.abi3.so",)}), Status.WARN, "0.13.0"),
    ("python.vllm-build", pkg(extensions={"vllm": (f"{SITE}/vllm/spinloop.abi3.so",)}), Status.OK, ""),
    ("python.vllm-ascend-needs", packages(torch_npu="2.8.0.post4"), Status.FAIL, "torch-npu"),
    ("python.vllm-ascend-needs", packages(triton_ascend=None), Status.WARN, "triton-ascend"),
    ("python.vllm-ascend-needs", both(packages(triton_ascend=None), cards(name="310P3")), Status.OK, ""),
    ("python.vllm-ascend-chip", pkg(built={"vllm_ascend": {"device_type": "A3"}}), Status.FAIL, "A3"),
    ("python.vllm-ascend-chip", pkg(built={"vllm_ascend": {"soc_version": "ASCEND310P3"}}), Status.FAIL, "910B2"),
    ("python.vllm-ascend-chip", pkg(built={"vllm_ascend": {"soc_version": "ASCEND910B1"}}), Status.OK, "ASCEND910B1"),
    ("python.vllm-ascend-chip", pkg(built={"vllm_ascend": {"device_type": "B7"}}), Status.UNKNOWN, "B7"),
    (
        "python.vllm-ascend-cann",
        both(packages(torch_npu="2.8.0"), part("toolkit", version="8.3.RC1")),
        Status.WARN,
        "8.5.0; CANN 8.3.RC1",
    ),
    ("python.vllm-ascend-cann", part("toolkit", version="8.3.RC2"), Status.SKIP, "python.torch-npu-cann"),
    ("python.vllm-ascend-cann", part("toolkit", version="9.0.0"), Status.OK, "9.0.0"),
    ("python.one-owner", pkg(twice=()), Status.OK, ""),
    (
        "python.one-owner",
        both(
            part("interpreter", installed_twice={"torch": ("2.7.1", "2.8.0")}),
            pkg(twice=(Twice("torch", ("2.7.1", "2.8.0"), (SITE, SITE)),)),
        ),
        Status.WARN,
        "torch",
    ),
    (
        "python.one-owner",
        both(
            part("interpreter", installed_twice={"setuptools": ("65.5.0", "80.1.0")}),
            pkg(twice=(Twice("setuptools", ("65.5.0", "80.1.0"), (SITE, "/usr/lib/python3/dist-packages")),)),
        ),
        Status.OK,
        "",
    ),
]


# A Python that refuses packages is changed by choosing another Python: `python.version` says which.
WITHOUT_FIX = {"python.abi"}


@pytest.mark.parametrize(("check", "change", "status", "words"), CASES)
def test_one_change_gives_the_expected_finding(check: str, change: Change, status: Status, words: str) -> None:
    finding = find(change(HEALTHY), check)
    assert finding.status is status, (finding.says, finding.evidence)
    assert words in say(finding.says)
    for lang in LANGUAGES:
        say(finding.says, lang)
        if finding.fix is not None:
            say(finding.fix.says, lang)
    if status in (Status.WARN, Status.FAIL):
        assert finding.evidence and finding.source
        assert finding.fix is not None or check in WITHOUT_FIX


def test_every_check_of_packages_is_shown_failing() -> None:
    elsewhere = {  # shown in test_checks.py
        *("python.version", "python.torch-pair", "python.torch-npu-cann", "python.torchvision", "python.numpy"),
        *("python.ray-token", "python.vllm-pair"),
        "python.framework-parts",  # shown in test_packages_parts.py
        "python.made",  # shown in test_environment_made.py
    }
    shown = {check for check, _, status, _ in CASES if status in (Status.WARN, Status.FAIL)}
    assert shown | elsewhere | {"python.stack"} == {check.id for check in CHECKS}


def test_what_could_not_be_looked_at_is_unknown() -> None:
    for name in sorted({name for check in CHECKS for name in check.reads} - {"environment"}):
        found = {item.check: item.status for item in check_all(lost(name)(HEALTHY), level=2)}
        readers = [check.id for check in CHECKS if name in check.reads]
        assert {check: found[check] for check in readers} == {check: unread(check, name) for check in readers}, name


def test_one_fault_moves_one_check() -> None:
    """A damaged torch: the failing import of every package that rests on it is said once."""
    error = "ImportError: libc10.so: cannot open shared object file"
    change = both(*(fails(name, "X", error) for name in ("torch", "torch_npu", "torchvision", "tensordict", "vllm")))
    moved = [item.check for item in check_all(change(HEALTHY), level=2) if item.status is Status.FAIL]
    assert set(moved) <= {"python.torch-imports", "python.torch-npu-imports"}


def test_a_module_that_hung_is_unknown_and_one_that_was_not_tried_is_skipped() -> None:
    def change(line: str) -> Change:
        rest = {name: value for name, value in (HEALTHY.python.imports.value or {}).items() if name != "ray"}
        fact: Fact[Mapping[str, Import]] = known(rest, Evidence("/opt/env/bin/python -c 'import ray'", line))
        return lambda facts: dataclasses.replace(facts, python=dataclasses.replace(facts.python, imports=fact))

    assert find(change("timed out")(HEALTHY), "python.ray-imports").status is Status.UNKNOWN
    assert find(change("not in the capture")(HEALTHY), "python.ray-imports").status is Status.SKIP


def test_the_token_of_ray_matters_where_there_is_a_second_node_and_nothing_was_said() -> None:
    assert find(packages(ray="2.59.0")(HEALTHY), "python.ray-token").status is Status.OK
    new = both(packages(ray="2.59.0"), put(spans=("NNODES=2",)))
    assert find(new(HEALTHY), "python.ray-token").status is Status.WARN
    assert find(new(HEALTHY), "python.ray-token", framework="cpu").status is Status.OK
    said = both(new, variables(RAY_AUTH_MODE="disabled"))
    assert find(said(HEALTHY), "python.ray-token").status is Status.OK


def test_level_0_judges_no_package_and_says_so() -> None:
    blank = {field.name: not_asked(1) for field in dataclasses.fields(HEALTHY.python)}
    facts = dataclasses.replace(HEALTHY, python=dataclasses.replace(HEALTHY.python, **blank))
    found = [item for item in check_all(facts, level=0) if item.check in {check.id for check in CHECKS}]
    assert {item.status for item in found if item.check != "python.active"} == {Status.SKIP}


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("ended by signal 11", Status.FAIL),
        ("ModuleNotFoundError: No module named 'encodings'", Status.FAIL),
        ("/opt/env/bin/python: error while loading shared libraries: libpython3.11.so.1.0", Status.FAIL),
        ("timed out", Status.UNKNOWN),
        ("not in the capture", Status.UNKNOWN),
        ('NPUENV-ANSWER {"version": "3.11', Status.UNKNOWN),
    ],
)
def test_a_python_that_does_not_start_fails_and_one_that_hangs_is_unknown(line: str, status: Status) -> None:
    fact: Fact[Any] = unknown(Evidence("/opt/env/bin/python (inventory)", line))
    group = dataclasses.replace(HEALTHY.python, interpreter=fact, broken=absent(WHY))
    finding = find(dataclasses.replace(HEALTHY, python=group), "python.found")
    assert finding.status is status
    assert status is Status.UNKNOWN or line in say(finding.says)


def test_an_interpreter_that_crashes_is_unknown_everywhere_and_stops_nothing() -> None:
    lost_all: dict[str, Fact[Any]] = {field.name: unknown(WHY) for field in dataclasses.fields(HEALTHY.python)}
    facts = dataclasses.replace(HEALTHY, python=dataclasses.replace(HEALTHY.python, **lost_all))
    found = {item.check: item for item in check_all(facts, level=2)}
    assert found["python.found"].status is Status.UNKNOWN
    assert not [item for item in found.values() if "crashed" in item.says.key]


def test_the_environment_is_held_against_the_stack_that_was_named() -> None:
    stack = resolve(Request(stack="vllm-ascend-0.13.0", hardware="a2", arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)

    def status(change: Change) -> tuple[Status, str]:
        item = next(item for item in check_all(change(HEALTHY), stack=stack, level=2) if item.check == "python.stack")
        return item.status, say(item.says)

    right = {pin.name.replace("-", "_"): pin.version for pin in stack.pins if pin.is_python and pin.name != "python"}
    assert status(packages(**right))[0] is Status.OK
    wrong = status(packages(**{**right, "torch_npu": "2.8.0.post1"}))
    assert wrong[0] is Status.FAIL and "torch-npu" in wrong[1]
    assert status(packages(**{**right, "triton_ascend": None}))[0] is Status.FAIL
    assert find(HEALTHY, "python.stack").status is Status.SKIP


@pytest.mark.parametrize(
    ("check", "change", "is_automatic"),
    [
        ("python.requirements", requires("pip", "click<8"), False),
        ("python.unsupported", packages(flash_attn="2.8.3"), False),
        ("python.triton-chip", cards(name="310P3"), True),
    ],
)
def test_what_may_break_another_package_is_only_proposed(check: str, change: Change, is_automatic: bool) -> None:
    fix = find(change(HEALTHY), check).fix
    assert fix is not None and fix.commands
    assert (fix.is_automatic, bool(fix.undo)) == (is_automatic, is_automatic)


def test_what_a_stack_overrules_on_purpose_is_no_unmet_requirement() -> None:
    stack = resolve(Request(stack="verl-0.7.1-cann8.5.0", hardware="a2", arch="aarch64"), load_matrix())
    assert isinstance(stack, Stack)
    facts = both(packages(torch_npu="2.8.0.post9"), requires("pip", "numpy>=2"))(HEALTHY)
    loose = next(item for item in check_all(facts, level=2) if item.check == "python.requirements")
    bound = next(item for item in check_all(facts, level=2, stack=stack) if item.check == "python.requirements")
    assert (loose.status, bound.status) == (Status.WARN, Status.OK)


def test_a_missing_torch_npu_is_called_missing() -> None:
    finding = find(packages(**{"torch-npu": None})(HEALTHY), "python.vllm-ascend-needs")
    assert (finding.status, finding.says.key) == (Status.FAIL, "check_python.vllm-needs-torch-npu")
    assert finding.fix is not None and any("torch-npu==" in word for word in finding.fix.commands[0])


def test_two_bounds_on_one_package_are_one_requirement_and_one_finding() -> None:
    change = packages(vllm="0.9.1+empty", transformers="4.54.0", **{"vllm-ascend": "0.9.1"})
    finding = find(change(HEALTHY), "python.limits")
    assert finding.fix is not None and finding.fix.commands[0][-1] == "transformers<4.53.0"
    assert find(change(HEALTHY), "python.vllm-pair").status is Status.OK
    between = packages(vllm="0.9.1+empty", transformers="4.53.1", **{"vllm-ascend": "0.9.1"})(HEALTHY)
    assert find(between, "python.limits").status is Status.OK
    assert find(between, "python.vllm-pair").says.key == "check_python.vllm-transformers"


def test_numpy_that_cann_refuses_is_told_by_one_check() -> None:
    asks = part("python.packages", requires={"torch-npu": ("numpy<2",)})
    facts = both(asks, packages(numpy="2.1.0"))(HEALTHY)
    assert find(facts, "python.numpy").status is Status.FAIL
    assert find(facts, "python.requirements").status is Status.OK
    other = both(part("python.packages", requires={"torch-npu": ("attrs<2",)}), packages(attrs="25.1"))(HEALTHY)
    assert find(other, "python.requirements").status is not Status.OK


def test_a_fitting_cann_that_is_installed_too_is_named_with_the_link_that_leads_to_it() -> None:
    root = "/usr/local/Ascend/ascend-toolkit"
    here = CannFolder(f"{root}/8.1.RC1", "8.1.RC1", "ascend-toolkit", (f"{root}/latest",))
    other = CannFolder(f"{root}/8.3.RC1", "8.3.RC1", "ascend-toolkit", ())
    old = both(
        part("toolkit", version="8.1.RC1", root=here.root),
        packages(torch="2.7.1", vllm="0.11.0+empty", **{"torch-npu": "2.7.1", "vllm-ascend": "0.11.0rc1"}),
    )
    finding = find(both(old, put(installs=Installs((here, other), (), {})))(HEALTHY), "python.vllm-ascend-cann")
    assert (finding.status, finding.says.key) == (Status.WARN, "check_python.vllm-cann-other")
    assert finding.says.args["other"] == "8.3.RC1"
    assert finding.fix is not None and finding.fix.needs_root
    assert finding.fix.commands == (("ln", "-sfn", other.root, f"{root}/latest"),)
    alone = find(both(old, put(installs=Installs((here,), (), {})))(HEALTHY), "python.vllm-ascend-cann")
    assert alone.fix is not None and alone.fix.commands[0][:2] == ("npuenv", "resolve")


def test_a_broken_numpy_is_put_in_anew_by_a_command() -> None:
    error = "ImportError: Error importing numpy: you should not try to import numpy from its source directory"
    finding = find(fails("numpy", error)(HEALTHY), "python.numpy-imports")
    assert finding.status is Status.FAIL and finding.fix is not None
    assert finding.fix.commands[0][-1].startswith("numpy==") and "--force-reinstall" in finding.fix.commands[0]
