"""Rows about packages: versions of torch_npu, vllm-ascend and their kin, and what does not go together.

Also the sources that contradict each other about rows of the matrix.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping  # noqa: TC003 - the loader reads these annotations at run time
from dataclasses import dataclass
from typing import Literal

from npuenv.core import versions
from npuenv.matrix.load import Row


@dataclass(frozen=True, slots=True)
class TorchNpu(Row):
    """One torch_npu version."""

    version: str
    torch: str
    status: Literal["released", "patch", "beta", "zero-day", "pre-release", "unlisted", "dev", "one-off"]
    cann: str = ""  # recommended pair; "": none stated
    cann_unofficial: tuple[str, ...] = ()  # a pairing that only other projects state
    cann_compatible: tuple[str, ...] = ()  # "8.5.X" stands for the series
    index: str = ""  # "default" or a label of indexes.toml; "": on no index
    python_aarch64: tuple[str, ...] = ()
    python_x86_64: tuple[str, ...] = ()
    requires_aarch64: str = ""
    requires_x86_64: str = ""
    published: str = ""  # the day its wheels were uploaded or its tag was made, YYYY-MM-DD; "": not known

    def pythons(self, arch: str) -> tuple[str, ...]:
        """The Pythons that have a wheel on an architecture."""
        return self.python_aarch64 if arch == "aarch64" else self.python_x86_64

    def torch_requirement(self, arch: str) -> str:
        """The specifier its wheel puts on torch, like `==2.8.0+cpu`; "" where no wheel was read."""
        text = self.requires_aarch64 if arch == "aarch64" else self.requires_x86_64
        return text.removeprefix("torch")


@dataclass(frozen=True, slots=True)
class ReleaseImage:
    """What a release's own Dockerfiles build for some hardware."""

    hardware: tuple[str, ...]
    os: tuple[str, ...]  # the first is the one without a suffix in the tag
    cann: str
    python: str
    torch_npu: str = ""  # where the image installs another one than the metadata asks for
    ray: str = ""  # what the image adds, like ">=2.47.1,<=2.48.0"
    one_off: tuple[str, ...] = ()  # builds it installs that no index carries: their stand-ins are what can be locked


@dataclass(frozen=True, slots=True)
class VllmAscend(Row):
    """One vllm-ascend release."""

    version: str
    vllm: str
    released: str
    commit: str = ""  # that its tag names, shortened; "": not recorded
    cann: str = ""
    torch_npu: str = ""
    in_policy_table: bool = False
    python: str = ""
    cann_image: str = ""
    triton_ascend: str = ""  # what the policy table names
    image: tuple[ReleaseImage, ...] = ()
    requires: tuple[str, ...] = ()  # its Requires-Dist, joined from built/vllm_ascend.toml when the table is read

    def requirement(self, name: str) -> str:
        """The specifier that it puts on a package outside of extras, like `==2.8.0`; "" for none."""
        return _specifiers(self.requires).get(name, "")


@functools.cache
def _specifiers(requires: tuple[str, ...]) -> dict[str, str]:
    """What each requirement outside of extras puts on its package; the first one counts."""
    always = [text for text in requires if "extra ==" not in text]
    return {versions.requirement_name(text): versions.requirement_spec(text) for text in reversed(always)}


@dataclass(frozen=True, slots=True)
class TritonAscend(Row):
    """One triton-ascend version."""

    version: str
    cann: tuple[str, ...]  # the CANN versions it was published for
    python: tuple[str, ...]  # the Pythons a wheel is known for
    arch: tuple[str, ...]
    hardware: tuple[str, ...]
    index: str  # "default" or a label of indexes.toml
    published: str = ""  # YYYY-MM-DD; "": not known
    # Requires-Dist that no published stack follows: it is installed last, without its requirements. Empty: it has none.
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Companion(Row):
    """The torchvision and torchaudio built for a torch version."""

    torch: str
    torchvision: str
    torchaudio: str


@dataclass(frozen=True, slots=True)
class WheelHash(Row):
    """The hash of a wheel as public lock files of others record it. `id` is the file's name."""

    sha256: str
    independent: int  # how many repositories record it by themselves


@dataclass(frozen=True, slots=True)
class ChipWheel(Row):
    """A wheel that is built for one generation of cards. `id` is the file's name, by which its index has it."""

    name: str
    version: str
    hardware: str
    index: str  # a label of indexes.toml; "default": the default index
    sha256: str = ""  # "": no source gives it

    @property
    def glibc(self) -> str:
        """The lowest glibc it loads with, as its name says: "2.34"."""
        floors = [int(minor) for minor in re.findall(r"manylinux_2_(\d+)_", self.id)]
        return f"2.{min(floors, default=17)}"  # manylinux2014


@dataclass(frozen=True, slots=True)
class Built(Row):
    """What a package that is built from a repository asks for."""

    name: str
    version: str
    requires: tuple[str, ...]


RUN_SCHEMA = "npuenv.run/1"  # of the record that `smoke-train --attest` writes and `matrix add-run` reads
# The distributions that decide whether a stack works; others say more of their owner than of the stack.
RUN_PACKAGES = ("torch", "torch-npu", "vllm", "vllm-ascend", "triton-ascend", "verl", "roll", "sglang", "mindspeed",
                "megatron-core", "transformers", "tensordict", "ray", "numpy")  # fmt: skip


@dataclass(frozen=True, slots=True)
class PublicRun(Row):
    """A run on real cards that others published. `source` is its address."""

    chip: str  # as published: a chip like "910B3", or only its generation
    hardware: str
    cann: str
    packages: Mapping[str, str]  # distribution name -> version, as far as published
    what: str
    date: str  # of the report, YYYY-MM-DD
    cards: int = 0  # 0: not stated
    driver: str = ""  # "": not stated
    failed: str = ""  # what went wrong after the run had started


@dataclass(frozen=True, slots=True)
class Unsupported(Row):
    """Something that does not work on an NPU, who says so, and for how long."""

    what: str
    kind: Literal["package", "backend", "mode", "env", "hardware"]
    frameworks: tuple[str, ...]  # empty: all
    package: str = ""  # distribution name, where it is one
    hardware: tuple[str, ...] = ()
    since: str = ""
    until: str = ""  # when that stopped being true; "": still
    instead: str = ""  # what to use
    believe: bool = True  # False: kept because a document says it, but overruled by `why`
    why: str = ""


@dataclass(frozen=True, slots=True)
class Limit(Row):
    """A requirement that no package metadata holds: where `when` is installed, `needs` must hold."""

    when: str
    needs: str
    why: str
    since: str = ""  # the day the first release that `when` names came out; a lock that ends before it cannot meet it
    python: tuple[str, ...] = ()  # only on these Pythons; empty: on all
    is_imported: bool = False  # `when` imports the package of `needs`, which therefore has to be installed


@dataclass(frozen=True, slots=True)
class RequiresPython(Row):
    """The Pythons that releases of a package state, which a stack's Python must be one of."""

    package: str  # with the specifier of its releases
    python: str


@dataclass(frozen=True, slots=True)
class Contradiction(Row):
    """Two sources that contradict each other about rows of the matrix: both, and which one the rows follow."""

    about: str
    rows: tuple[str, ...]  # ids of the rows it touches; empty: none of them hangs on it
    one: str
    one_source: str
    other: str
    other_source: str
    believe: Literal["one", "other", "both", "open"]
    why: str
