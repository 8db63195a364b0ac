"""The tables of the matrix, each read and checked on first use, with the look-ups that others need."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from npuenv.core import versions
from npuenv.matrix import rows
from npuenv.matrix.load import Row, load_table, parse_table, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

R = TypeVar("R", bound=Row)
# In the order of preference between frameworks, where a request names none.
FRAMEWORK_FILES = (
    "cpu", "verl", "verl_sglang", "verl_950", "roll", "sglang", "veomni", "vime", "ms_swift", "llama_factory",
)  # fmt: skip


class Table(Generic[R]):
    """A table that is read when it is first asked for; the class of its rows is looked up then too."""

    def __init__(self, row: str, file: str = "") -> None:
        self._row, self._file = row, file

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, matrix: Matrix, owner: type) -> tuple[R, ...]:
        found: tuple[R, ...] = matrix._table(self._file or self._name, getattr(rows, self._row))
        vars(matrix)[self._name] = found  # where the next look finds it
        return found


class Matrix:
    """The tables of one folder, each read and checked once, on first use. Nobody changes them."""

    hardware: Table[rows.Hardware] = Table("Hardware")
    torch_npu: Table[rows.TorchNpu] = Table("TorchNpu")
    triton_ascend: Table[rows.TritonAscend] = Table("TritonAscend")
    companions: Table[rows.Companion] = Table("Companion")
    images: Table[rows.Image] = Table("Image")
    image_digests: Table[rows.ImageDigest] = Table("ImageDigest")
    indexes: Table[rows.Index] = Table("Index")
    upstream: Table[rows.Upstream] = Table("Upstream")
    settings: Table[rows.Setting] = Table("Setting")
    variables: Table[rows.Variable] = Table("Variable")
    choices: Table[rows.Choice] = Table("Choice", "keys/choices")
    bounds: Table[rows.Bound] = Table("Bound", "keys/bounds")
    refused_values: Table[rows.RefusedValue] = Table("RefusedValue", "keys/refused")
    moved_keys: Table[rows.MovedKey] = Table("MovedKey", "keys/moved")
    launch_recipes: Table[rows.LaunchRecipe] = Table("LaunchRecipe")  # the published verl runs
    launch_keys: Table[rows.LaunchKey] = Table("LaunchKey")
    unsupported: Table[rows.Unsupported] = Table("Unsupported")
    limits: Table[rows.Limit] = Table("Limit")
    # As `limits`, for what is installed already: releases that no stack would choose any more.
    clashes: Table[rows.Limit] = Table("Limit")
    requires_python: Table[rows.RequiresPython] = Table("RequiresPython")
    npu_faults: Table[rows.NpuFault] = Table("NpuFault")  # from harmless to hopeless
    systems: Table[rows.System] = Table("System")
    system_packages: Table[rows.SystemPackage] = Table("SystemPackage")
    cann_files: Table[rows.CannFile] = Table("CannFile")
    wheel_hashes: Table[rows.WheelHash] = Table("WheelHash")
    chip_wheels: Table[rows.ChipWheel] = Table("ChipWheel")
    runs: Table[rows.PublicRun] = Table("PublicRun")  # the public runs on real cards
    probes: Table[rows.Probe] = Table("Probe")  # in the order in which they are to be imported
    container_places: Table[rows.ContainerPlace] = Table("ContainerPlace")  # in the order in which they are mounted
    container_cards: Table[rows.ContainerCards] = Table("ContainerCards")
    contradictions: Table[rows.Contradiction] = Table("Contradiction")
    roll_releases: Table[rows.RollRelease] = Table("RollRelease")
    roll_recipes: Table[rows.RollRecipe] = Table("RollRecipe")
    models: Table[rows.ModelShape] = Table("ModelShape")
    model_types: Table[rows.ModelType] = Table("ModelType")

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _table(self, name: str, kind: type[R]) -> tuple[R, ...]:
        return load_table(self.folder / f"{name}.toml", kind)

    @functools.cached_property
    def cann(self) -> tuple[rows.Cann, ...]:
        """By version, oldest first."""
        return tuple(sorted(self._table("cann", rows.Cann), key=lambda row: versions.cann(row.version)))

    @functools.cached_property
    def vllm_ascend(self) -> tuple[rows.VllmAscend, ...]:
        """Each with what it asks for, which stands in the folder `built`."""
        file = self.folder / "built" / "vllm_ascend.toml"
        requires = {row.version: row.requires for row in self._built_of("vllm_ascend")} if file.is_file() else {}
        table = self._table("vllm_ascend", rows.VllmAscend)
        return tuple(replace(row, requires=requires.get(row.version, ())) for row in table)

    @functools.cached_property
    def built(self) -> tuple[rows.Built, ...]:
        names = sorted(path.name for path in (self.folder / "built").iterdir() if path.name.endswith(".toml"))
        return tuple(itertools.chain.from_iterable(self._built_of(name.removesuffix(".toml")) for name in names))

    @functools.cache  # noqa: B019 - a matrix lives as long as the process
    def _built_of(self, name: str) -> tuple[rows.Built, ...]:
        return self._table(f"built/{name}", rows.Built)

    @functools.cached_property
    def recipes(self) -> tuple[rows.Recipe, ...]:
        """The published stacks, in the order of preference for one framework and CANN."""
        return tuple(itertools.chain.from_iterable(self.recipes_of(name) for name in FRAMEWORK_FILES))

    @functools.cache  # noqa: B019 - as above
    def recipes_of(self, file: str) -> tuple[rows.Recipe, ...]:
        """The published stacks of one file of the folder `frameworks`."""
        return self._table(f"frameworks/{file}", rows.Recipe)

    @functools.cache  # noqa: B019 - as above
    def recipe_row(self, name: str) -> rows.Recipe | None:
        """The published stack of exactly that name, read without the others."""
        if "recipes" in vars(self):
            return next((row for row in self.recipes if row.id == name), None)
        files = (self.folder / "frameworks" / f"{file}.toml" for file in FRAMEWORK_FILES)
        found = (row for file in files for row in _rows_with(f'id = "{name}"', file, rows.Recipe))
        return next((row for row in found if row.id == name), None)

    def dnf_names(self, packages: Iterable[str]) -> tuple[str, ...]:
        """System packages, named as on Debian, under their names where dnf or yum installs them, each once."""
        named = {row.id: row.dnf for row in self.system_packages}
        return tuple(dict.fromkeys(name for package in packages for name in named.get(package, (package,))))

    def packages_among(self, packages: Iterable[str]) -> tuple[rows.SystemPackage, ...]:
        """The rows of system packages, named as on Debian; what is only a name has none."""
        named = {row.id: row for row in self.system_packages}
        return tuple(named[name] for name in packages if name in named)

    def system_row(self, name: str) -> rows.System | None:
        return next((row for row in self.systems if row.id == name), None)

    @functools.cache  # noqa: B019 - as above
    def cann_row(self, version: str) -> rows.Cann | None:
        """The row of a CANN version; a build suffix and the case do not matter."""
        wanted = versions.cann(version)
        return next((row for row in self.cann if versions.cann(row.version) == wanted), None)

    @functools.cache  # noqa: B019 - as above
    def torch_npu_row(self, version: str) -> rows.TorchNpu | None:
        return next((row for row in self.torch_npu if row.version == version), None)

    def vllm_ascend_row(self, version: str) -> rows.VllmAscend | None:
        return next((row for row in self.vllm_ascend if row.version == version), None)

    def triton_ascend_row(self, version: str) -> rows.TritonAscend | None:
        return next((row for row in self.triton_ascend if row.version == version), None)

    def companion_row(self, torch: str) -> rows.Companion | None:
        """The row of a torch version, a local part such as `+cpu` left aside."""
        return next((row for row in self.companions if row.torch == torch.split("+")[0]), None)

    def version_rows(self, pinned: Mapping[str, str], cann: str | None) -> tuple[Row, ...]:
        """The rows of CANN and of the accelerator packages among some versions, by distribution name."""
        found = (
            self.cann_row(cann) if cann else None,
            self.companion_row(pinned.get("torch", "")),
            self.torch_npu_row(pinned.get("torch-npu", "")),
            self.vllm_ascend_row(pinned.get("vllm-ascend", "")),
            self.triton_ascend_row(pinned.get("triton-ascend", "")),
        )
        return tuple(row for row in found if row is not None)

    @functools.cache  # noqa: B019 - as above
    def built_row(self, name: str, version: str) -> rows.Built | None:
        """What a package that is built from a repository asks for, by version or git place; None where no row says."""
        file = f"built/{name.replace('-', '_')}"
        path = self.folder / f"{file}.toml"
        if not path.is_file():
            return None
        # The lists are long and one is wanted.
        return next(_rows_with(f'version = "{version}"', path, rows.Built), None)

    def index_row(self, label: str) -> rows.Index | None:
        return next((row for row in self.indexes if row.label == label), None)

    def hardware_row(self, generation: str) -> rows.Hardware | None:
        return next((row for row in self.hardware if row.id == generation), None)

    def npu_fault(self, code: str) -> rows.NpuFault | None:
        """How an event code of a card is handled; None where no row names it. Of two rows the graver one counts."""
        return next((row for row in reversed(self.npu_faults) if code.upper() in row.codes), None)

    def hardware_asked_for(self, name: str) -> rows.Hardware | None:
        """The generation that a user means: its id, what guides call it, or a chip's name; None where no row says it.

        Spaces, hyphens and underscores are one; "910B" is what guides call A2, whatever `npu-smi` prints as 910B.
        """
        wanted = _spoken(name)
        called = (row for row in self.hardware if wanted in map(_spoken, (row.id, *row.called)))
        if (row := next(called, None)) is not None:
            return row
        chip = name.strip()
        return self.hardware_of_chip(chip) or self.hardware_of_chip(f"Ascend{chip}")

    def hardware_of_chip(self, name: str) -> rows.Hardware | None:
        """The generation of a chip by its name or SoC as `npu-smi` or CANN prints it; None where no row names it."""
        wanted = name.strip().casefold()
        return next((row for row in self.hardware if wanted in map(str.casefold, (*row.names, *row.socs))), None)


def _spoken(name: str) -> str:
    return " ".join(name.casefold().replace("-", " ").replace("_", " ").split())


def _rows_with(line: str, path: Path, kind: type[R]) -> Iterator[R]:
    """The rows of a table that hold a line, read without the others. One that is written otherwise is not found."""
    try:
        texts = path.read_text(encoding="utf-8").split("[[row]]\n")[1:]
    except (OSError, UnicodeDecodeError) as error:
        raise unreadable(path, error) from error
    for text in texts:
        if f"\n{line}\n" in f"\n{text}":
            yield from parse_table(f"[[row]]\n{text}", kind, path.name)
