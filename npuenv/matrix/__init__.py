"""Which Ascend software fits together, as data: tables of rows, each with its source and the date it was read.

Start from `load_matrix`. A table is read when it is first asked for. What follows from the rows is decided in
`npuenv.resolve`; nothing here chooses.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TypeVar

from npuenv import versions
from npuenv.matrix import check, rows
from npuenv.matrix.load import load_table

R = TypeVar("R", bound=rows.Row)


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
        return self._table("vllm_ascend", rows.VllmAscend)

    @functools.cached_property
    def triton_ascend(self) -> tuple[rows.TritonAscend, ...]:
        return self._table("triton_ascend", rows.TritonAscend)

    @functools.cached_property
    def companions(self) -> tuple[rows.Companion, ...]:
        return self._table("companions", rows.Companion)

    @functools.cached_property
    def built(self) -> tuple[rows.Built, ...]:
        return self._table("built", rows.Built)

    @functools.cached_property
    def images(self) -> tuple[rows.Image, ...]:
        return self._table("images", rows.Image)

    @functools.cached_property
    def indexes(self) -> tuple[rows.Index, ...]:
        return self._table("indexes", rows.Index)

    @functools.cached_property
    def settings(self) -> tuple[rows.Setting, ...]:
        return self._table("settings", rows.Setting)

    @functools.cached_property
    def unsupported(self) -> tuple[rows.Unsupported, ...]:
        return self._table("unsupported", rows.Unsupported)

    @functools.cached_property
    def limits(self) -> tuple[rows.Limit, ...]:
        return self._table("limits", rows.Limit)

    @functools.cached_property
    def recipes(self) -> tuple[rows.Recipe, ...]:
        """The published stacks, in the order of preference for one framework and CANN."""
        return self._table("frameworks", rows.Recipe)

    def cann_row(self, version: str) -> rows.Cann | None:
        """The row of a CANN version; a build suffix and the case do not matter."""
        wanted = versions.cann(version)
        return next((row for row in self.cann if versions.cann(row.version) == wanted), None)

    def torch_npu_row(self, version: str) -> rows.TorchNpu | None:
        return next((row for row in self.torch_npu if row.version == version), None)

    def vllm_ascend_row(self, version: str) -> rows.VllmAscend | None:
        return next((row for row in self.vllm_ascend if row.version == version), None)

    def triton_ascend_row(self, version: str) -> rows.TritonAscend | None:
        return next((row for row in self.triton_ascend if row.version == version), None)

    def companion_row(self, torch: str) -> rows.Companion | None:
        """The row of a torch version, a local part such as `+cpu` left aside."""
        return next((row for row in self.companions if row.torch == torch.split("+")[0]), None)

    def built_row(self, name: str, version: str) -> rows.Built | None:
        return next((row for row in self.built if (row.name, row.version) == (name, version)), None)

    def index_row(self, label: str) -> rows.Index | None:
        return next((row for row in self.indexes if row.label == label), None)

    def hardware_row(self, generation: str) -> rows.Hardware | None:
        return next((row for row in self.hardware if row.id == generation), None)

    def hardware_of_chip(self, name: str) -> rows.Hardware | None:
        """The generation of a chip by its name or SoC as `npu-smi` or CANN prints it; None where no row names it."""
        wanted = name.strip().casefold()
        for row in self.hardware:
            if wanted in {each.casefold() for each in (*row.names, *row.socs)}:
                return row
        return None

    def check(self) -> None:
        """Reads every table and follows every reference between them. Raises: BadInput naming file and row."""
        check.references(self)


@functools.cache
def load_matrix(folder: Path | None = None) -> Matrix:
    """The matrix that comes with npuenv, or one from a folder of the same tables. Tables are read when asked for."""
    return Matrix(folder or Path(__file__).parent)
