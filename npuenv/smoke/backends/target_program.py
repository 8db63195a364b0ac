"""Runs in the target's Python, as text behind `-c`: prints what is installed, and writes a parquet file.

Standard library only, Python 3.9 or newer; npuenv cannot be imported there.

    look NAME            -> {"version", "place", "cards", "has_pyarrow"} as JSON on standard output
    write ROWS PLACE ... -> the JSON rows of each file as parquet, with the target's pyarrow
"""

from __future__ import annotations

import glob
import importlib.util
import json
import os
import sys
from typing import Any


def look(name: str) -> dict[str, Any]:
    """The version and location of a package, and the number of cards that Ray will detect."""
    spec = importlib.util.find_spec(name)
    location = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    return {
        "version": version(name),
        "place": location,
        "cards": cards(),
        "has_pyarrow": importlib.util.find_spec("pyarrow") is not None,
    }


def version(name: str) -> str:
    """The version in the package's metadata; "" without metadata."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cards() -> int:
    """The number of NPUs as Ray counts them (ray/_private/accelerators/npu.py): acl's count, else device files, capped
    by the variable.
    """
    try:
        import acl  # type: ignore[import-not-found]

        count = int(acl.rt.get_device_count()[0])
    except Exception:  # as in Ray: on any error of acl the device files are counted
        count = len(glob.glob("/dev/davinci[0-9]*"))
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [] if visible in ("", "NoDevFiles") else visible.split(",")
    return min(count, len(named))


def write(pairs: list[str]) -> dict[str, Any]:
    """Writes the rows of JSON files as parquet files; the arguments alternate between source and destination."""
    import pyarrow  # type: ignore[import-not-found]
    import pyarrow.parquet  # type: ignore[import-not-found]

    for rows, location in zip(pairs[::2], pairs[1::2]):
        with open(rows, encoding="utf-8") as source:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(json.load(source)), location)
    return {"written": pairs[1::2]}


if __name__ == "__main__":
    sys.path[:] = [each for each in sys.path if each]  # packages must not be imported from the working folder
    if sys.argv[1] == "look":
        print("\n" + json.dumps(look(sys.argv[2])))
    else:
        print("\n" + json.dumps(write(sys.argv[2:])))
