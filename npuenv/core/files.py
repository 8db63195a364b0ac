"""Files: where the tables and catalogues beside the code lie, and the bytes of one that others wrote."""

from __future__ import annotations

import errno
import functools
import os
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


def read_bytes(path: Path, most: int) -> bytes:
    """What a file holds. Raises OSError, for more than `most` bytes too: a device has no end, nor a size to ask for."""
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return data
