"""Which recorded release judges a launch. A commit of ROLL counts as a version; verl's commits count as none.

`npuenv.matrix.keys.nearest_release` says whose keys are used for that version.
"""

from __future__ import annotations

from npuenv.core import versions
from npuenv.matrix import load_matrix
from npuenv.matrix.keys import known_releases, nearest_release, programs_of

__all__ = ["counted_as", "is_far", "known_releases"]


def short_name(name: str) -> str:
    """A release without what people write around it. Example: "main @8eb27cc2" -> "8eb27cc2"; "v0.9.0" -> "0.9.0" """
    return name.strip().rpartition("@")[2].removeprefix("v")


def counted_as(framework: str, name: str) -> str:
    """The version that a release is judged as; the name itself where nothing says otherwise.

    Example: roll "main @8eb27cc2" -> "0.3.0"; verl "v0.9.0" -> "0.9.0"
    """
    version = short_name(name)
    rows = load_matrix().roll_releases if framework == "roll" else ()
    return next((row.counts_as for row in rows if row.is_called(version)), version)


def is_far(framework: str, name: str) -> bool:
    """Whether no recorded release speaks for this one: older than all, of another major number, or no version."""
    release = counted_as(framework, name)
    newest = known_releases(framework)[-1]
    if nearest_release(framework, release) is None:
        return True
    return versions.python_version(release).major != versions.python_version(newest).major


def program_config(module: str) -> str:
    """The configuration that a module of verl starts from, in any release; "" for a module that no release has."""
    known = programs_of("verl")
    short = min((name for name in known if name.endswith(f".{module}")), key=len, default=module)
    return known.get(module, known.get(short, ""))
