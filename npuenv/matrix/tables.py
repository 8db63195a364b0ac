"""The tables of the matrix, each read and checked on first use, with the look-ups that others need."""

from __future__ import annotations

import functools
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from npuenv.core import versions
from npuenv.matrix import rows
from npuenv.matrix.load import load_table, parse_table, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

R = TypeVar("R", bound="rows.Row")
# In the order of preference between frameworks, where a request names none.
FRAMEWORK_FILES = (
    "cpu", "verl", "verl_sglang", "verl_950", "roll", "sglang", "veomni", "vime", "ms_swift", "llama_factory",
)  # fmt: skip


class Matrix:
    """The tables of one folder, each read and checked once, on first use. Nobody changes them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _table(self, name: str, kind: type[R]) -> tuple[R, ...]:
        return load_table(self.folder / f"{name}.toml", kind)

    @functools.cached_property
    def hardware(self) -> tuple[rows.Hardware, ...]:
        return self._table("hardware", rows.Hardware)

    @functools.cached_property
    def cann(self) -> tuple[rows.Cann, ...]:
        """By version, oldest first."""
        return tuple(sorted(self._table("cann", rows.Cann), key=lambda row: versions.cann(row.version)))

    @functools.cached_property
    def torch_npu(self) -> tuple[rows.TorchNpu, ...]:
        return self._table("torch_npu", rows.TorchNpu)

    @functools.cached_property
    def vllm_ascend(self) -> tuple[rows.VllmAscend, ...]:
        """Each with what it asks for, which stands in the folder `built`."""
        file = self.folder / "built" / "vllm_ascend.toml"
        requires = {row.version: row.requires for row in self._built_of("vllm_ascend")} if file.is_file() else {}
        table = self._table("vllm_ascend", rows.VllmAscend)
        return tuple(replace(row, requires=requires.get(row.version, ())) for row in table)

    @functools.cached_property
    def triton_ascend(self) -> tuple[rows.TritonAscend, ...]:
        return self._table("triton_ascend", rows.TritonAscend)

    @functools.cached_property
    def companions(self) -> tuple[rows.Companion, ...]:
        return self._table("companions", rows.Companion)

    @functools.cached_property
    def built(self) -> tuple[rows.Built, ...]:
        names = sorted(path.name for path in (self.folder / "built").iterdir() if path.name.endswith(".toml"))
        return tuple(itertools.chain.from_iterable(self._built_of(name.removesuffix(".toml")) for name in names))

    @functools.cache  # noqa: B019 - a matrix lives as long as the process
    def _built_of(self, name: str) -> tuple[rows.Built, ...]:
        return self._table(f"built/{name}", rows.Built)

    @functools.cached_property
    def images(self) -> tuple[rows.Image, ...]:
        return self._table("images", rows.Image)

    @functools.cached_property
    def image_digests(self) -> tuple[rows.ImageDigest, ...]:
        return self._table("image_digests", rows.ImageDigest)

    @functools.cached_property
    def indexes(self) -> tuple[rows.Index, ...]:
        return self._table("indexes", rows.Index)

    @functools.cached_property
    def upstream(self) -> tuple[rows.Upstream, ...]:
        return self._table("upstream", rows.Upstream)

    @functools.cached_property
    def settings(self) -> tuple[rows.Setting, ...]:
        return self._table("settings", rows.Setting)

    @functools.cached_property
    def variables(self) -> tuple[rows.Variable, ...]:
        return self._table("variables", rows.Variable)

    @functools.cached_property
    def choices(self) -> tuple[rows.Choice, ...]:
        return self._table("keys/choices", rows.Choice)

    @functools.cached_property
    def bounds(self) -> tuple[rows.Bound, ...]:
        return self._table("keys/bounds", rows.Bound)

    @functools.cached_property
    def refused_values(self) -> tuple[rows.RefusedValue, ...]:
        return self._table("keys/refused", rows.RefusedValue)

    @functools.cached_property
    def moved_keys(self) -> tuple[rows.MovedKey, ...]:
        return self._table("keys/moved", rows.MovedKey)

    @functools.cached_property
    def launch_recipes(self) -> tuple[rows.LaunchRecipe, ...]:
        """The published verl runs."""
        return self._table("launch_recipes", rows.LaunchRecipe)

    @functools.cached_property
    def launch_keys(self) -> tuple[rows.LaunchKey, ...]:
        return self._table("launch_keys", rows.LaunchKey)

    @functools.cached_property
    def unsupported(self) -> tuple[rows.Unsupported, ...]:
        return self._table("unsupported", rows.Unsupported)

    @functools.cached_property
    def limits(self) -> tuple[rows.Limit, ...]:
        return self._table("limits", rows.Limit)

    @functools.cached_property
    def clashes(self) -> tuple[rows.Limit, ...]:
        """As `limits`, for what is installed already: releases that no stack would choose any more."""
        return self._table("clashes", rows.Limit)

    @functools.cached_property
    def npu_faults(self) -> tuple[rows.NpuFault, ...]:
        """From harmless to hopeless."""
        return self._table("npu_faults", rows.NpuFault)

    @functools.cached_property
    def systems(self) -> tuple[rows.System, ...]:
        return self._table("systems", rows.System)

    @functools.cached_property
    def system_packages(self) -> tuple[rows.SystemPackage, ...]:
        return self._table("system_packages", rows.SystemPackage)

    @functools.cached_property
    def cann_files(self) -> tuple[rows.CannFile, ...]:
        return self._table("cann_files", rows.CannFile)

    @functools.cached_property
    def wheel_hashes(self) -> tuple[rows.WheelHash, ...]:
        return self._table("wheel_hashes", rows.WheelHash)

    @functools.cached_property
    def chip_wheels(self) -> tuple[rows.ChipWheel, ...]:
        return self._table("chip_wheels", rows.ChipWheel)

    @functools.cached_property
    def runs(self) -> tuple[rows.PublicRun, ...]:
        """The public runs on real cards."""
        return self._table("runs", rows.PublicRun)

    @functools.cached_property
    def probes(self) -> tuple[rows.Probe, ...]:
        """In the order in which they are to be imported."""
        return self._table("probes", rows.Probe)

    @functools.cached_property
    def container_places(self) -> tuple[rows.ContainerPlace, ...]:
        """In the order in which they are mounted."""
        return self._table("container_places", rows.ContainerPlace)

    @functools.cached_property
    def container_cards(self) -> tuple[rows.ContainerCards, ...]:
        return self._table("container_cards", rows.ContainerCards)

    @functools.cached_property
    def contradictions(self) -> tuple[rows.Contradiction, ...]:
        return self._table("contradictions", rows.Contradiction)

    @functools.cached_property
    def roll_releases(self) -> tuple[rows.RollRelease, ...]:
        return self._table("roll_releases", rows.RollRelease)

    @functools.cached_property
    def roll_recipes(self) -> tuple[rows.RollRecipe, ...]:
        return self._table("roll_recipes", rows.RollRecipe)

    @functools.cached_property
    def models(self) -> tuple[rows.ModelShape, ...]:
        return self._table("models", rows.ModelShape)

    @functools.cached_property
    def model_types(self) -> tuple[rows.ModelType, ...]:
        return self._table("model_types", rows.ModelType)

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
        for file in FRAMEWORK_FILES:
            for row in _rows_with(f'id = "{name}"', self.folder / "frameworks" / f"{file}.toml", rows.Recipe):
                if row.id == name:
                    return row
        return None

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

    def version_rows(self, pinned: Mapping[str, str], cann: str | None) -> tuple[rows.Row, ...]:
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
        for row in self.hardware:
            if wanted in {_spoken(each) for each in (row.id, *row.called)}:
                return row
        chip = name.strip()
        return self.hardware_of_chip(chip) or self.hardware_of_chip(f"Ascend{chip}")

    def hardware_of_chip(self, name: str) -> rows.Hardware | None:
        """The generation of a chip by its name or SoC as `npu-smi` or CANN prints it; None where no row names it."""
        wanted = name.strip().casefold()
        for row in self.hardware:
            if wanted in {each.casefold() for each in (*row.names, *row.socs)}:
                return row
        return None


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
