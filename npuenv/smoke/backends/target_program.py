"""Runs in the target's Python, as text behind `-c`: says what is installed there, and writes a parquet file.

Plain Python of the standard library, down to 3.9; nothing of npuenv is importable where it runs.

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
    """What there is of a package, where, and how many cards Ray will find."""
    spec = importlib.util.find_spec(name)
    place = os.path.dirname(spec.origin) if spec is not None and spec.origin else ""
    return {
        "version": version(name),
        "place": place,
        "cards": cards(),
        "has_pyarrow": importlib.util.find_spec("pyarrow") is not None,
    }


def version(name: str) -> str:
    """The version that the package's metadata gives; empty: there are none."""
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cards() -> int:
    """As Ray counts NPUs (ray/_private/accelerators/npu.py): acl's count, else device files, capped by the variable."""
    try:
        import acl  # type: ignore[import-not-found]

        count = int(acl.rt.get_device_count()[0])
    except Exception:  # Ray's own words: whatever acl does, the device files are counted then
        count = len(glob.glob("/dev/davinci[0-9]*"))
    visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
    if visible is None:
        return count
    named = [] if visible in ("", "NoDevFiles") else visible.split(",")
    return min(count, len(named))


def write(pairs: list[str]) -> dict[str, Any]:
    """The rows of JSON files as parquet files; source and place by turns."""
    import pyarrow  # type: ignore[import-not-found]
    import pyarrow.parquet  # type: ignore[import-not-found]

    for rows, place in zip(pairs[::2], pairs[1::2]):
        with open(rows, encoding="utf-8") as source:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(json.load(source)), place)
    return {"written": pairs[1::2]}


if __name__ == "__main__":
    sys.path[:] = [each for each in sys.path if each]  # the working folder is no place of packages
    if sys.argv[1] == "look":
        print("\n" + json.dumps(look(sys.argv[2])))
    else:
        print("\n" + json.dumps(write(sys.argv[2:])))
