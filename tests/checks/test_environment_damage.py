"""A module that does not import because a file of some package is damaged: that package is the problem."""

from __future__ import annotations

import pytest

from npuenv.checks import check_all
from npuenv.core.finding import Status
from npuenv.core.messages import Message
from npuenv.facts.python import Import
from npuenv.facts.python.packages import Owned
from tests.support.changes import HEALTHY, both, find, part, put

CANNOT = "{}: cannot open shared object file: No such file or directory"
CUT = "a/b.py (9 bytes, 10 recorded)"
CPU, PYTHON = "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so (90 bytes, 100 recorded)"


def owned(name: str, *paths: str, native: int = 1) -> Owned:
    return Owned(name, len(paths), native, paths)


@pytest.mark.parametrize(
    ("fact", "item", "error", "check"),
    [
        ("files.missing", owned("torch", CPU), f"OSError: {CANNOT.format('libtorch_cpu.so')}", "python.files"),
        ("files.emptied", owned("torch", PYTHON), "OSError: /e/libtorch_python.so: file too short", "python.files"),
        ("files.altered", owned("torch", PYTHON), "ended by signal 7", "python.altered"),
        ("hashes.altered", owned("torch", CPU), "ended by signal 11", "python.hashes"),
        ("hashes.altered", owned("torch", "torch/a.py", native=0), "SyntaxError: invalid syntax", "python.hashes"),
        ("files.missing", owned("torch", "torch/nn/a.py", native=0), "No module named 'torch.nn.a'", "python.files"),
        # What torch is built on, and what loads by itself with it.
        ("files.altered", owned("numpy", "numpy/a.so"), "ended by signal 7", "python.altered"),
        ("files.missing", owned("numpy", "numpy.libs/libblas64_p.so"), CANNOT.format("libblas64_p.so"), "python.files"),
        ("files.altered", owned("torch-npu", "torch_npu/lib/libtorch_npu.so"), "ended by signal 11", "python.altered"),
        ("files.altered", owned("torch", CUT, native=0), "NameError: x", "python.altered"),
        ("files.altered", owned("numpy", CUT, native=0), "SyntaxError: x", "python.altered"),
        ("files.emptied", owned("numpy", "numpy/a.py", native=0), "AttributeError: x", "python.files"),
        # Not about the damage.
        ("files.altered", owned("torch", "torch/a.h (9 bytes, 99 recorded)", native=0), "NameError: x", None),
        ("files.missing", owned("torch", CPU), f"ImportError: {CANNOT.format('libhccl.so')}", None),
        ("files.missing", owned("torch", CPU), "No module named 'sympy'", None),
        ("files.altered", owned("scipy", "scipy/a.so"), "ended by signal 7", None),
        ("files.missing", owned("torch", "torch/test/a.h", native=0), "ended by signal 7", None),
    ],
)  # fmt: skip
def test_an_import_that_damage_breaks_is_told_by_the_check_of_the_damage(
    fact: str, item: Owned, error: str, check: str | None
) -> None:
    crash = error if error.startswith("ended") else ""
    torch = put(import_torch=Import("torch", False, "", () if crash else (error,), crash), import_torch_npu=None)
    needs = part("python.packages", requires={"torch": ("numpy>=1; python_version>'3'",)})
    group, name = fact.split(".")
    facts = both(torch, needs, part(f"python.{group}", **{name: (item,)}))(HEALTHY)
    finding = find(facts, "python.torch-imports")
    if check is None:
        assert finding.status is Status.FAIL
    else:
        assert (finding.status, finding.says.args["cause"]) == (Status.SKIP, check)
        assert find(facts, check).status is Status.FAIL


@pytest.mark.parametrize(("name", "check"), [("numpy", "python.altered"), ("scipy", None)])
def test_numpy_counts_as_a_part_of_torch_though_torch_does_not_declare_it(name: str, check: str | None) -> None:
    crash = put(import_torch=Import("torch", False, "", (), "ended by signal 7"), import_torch_npu=None)
    bare = part("python.packages", requires={"torch": ("filelock",)})
    facts = both(crash, bare, part("python.files", altered=(owned(name, f"{name}/a.so"),)))(HEALTHY)
    finding = find(facts, "python.torch-imports")
    assert finding.says.args.get("cause") == check


def test_the_package_is_named_before_anything_that_follows_from_it() -> None:
    error = CANNOT.format("libtorch_cpu.so")
    broken = put(import_torch=Import("torch", False, "", (error,), ""))
    facts = both(broken, part("python.files", missing=(owned("torch", CPU),)))(HEALTHY)
    found = [each.check for each in check_all(facts, framework="cpu") if each.status is Status.FAIL]
    assert found[0] == "python.files" and "python.torch-imports" not in found


@pytest.mark.parametrize("library", ["libtorch_cpu.so", "libgomp.so.1", "libgfortran.so.5"])
@pytest.mark.parametrize("framework", [None, "cpu"])
def test_a_library_that_is_not_of_cann_is_not_sought_there(library: str, framework: str | None) -> None:
    facts = put(import_torch=Import("torch", False, "", (CANNOT.format(library),), ""))(HEALTHY)
    finding = find(facts, "python.torch-imports", framework=framework)
    assert finding.fix is not None
    assert finding.fix.says == Message("check_python.fix-library-of-others", {"library": library})
