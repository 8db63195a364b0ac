"""Where the tables and catalogues beside the code lie: in a folder, or inside the single file of the doctor."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import cast


@functools.cache
def folder_of(file: str) -> Path:
    """The folder of a module, by its `__file__`. Inside an archive it is what `zipfile` gives instead of a Path:
    `/`, `name`, `read_text`, `iterdir` and `is_file` work on both, `stem` and `glob` do not.
    """
    here = Path(file).parent
    if here.is_dir():
        return here
    import zipfile  # ten milliseconds that an installed npuenv does not need

    archive = next(place for place in here.parents if place.is_file())
    return cast("Path", zipfile.Path(str(archive), f"{here.relative_to(archive).as_posix()}/"))
