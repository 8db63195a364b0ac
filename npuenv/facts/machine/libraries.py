"""Which C++ library a program here gets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known, unknown
from npuenv.host.base import NotRecorded

if TYPE_CHECKING:
    from npuenv.host.base import Host

_NAME = "libstdc++.so.6"
_VERSION = re.compile(r"libstdc\+\+\.so\.6\.0\.([0-9]+)$")
_SYSTEM = ("/usr/lib/{arch}-linux-gnu", "/usr/lib64", "/lib64", "/lib/{arch}-linux-gnu", "/usr/lib")
_FOLDERS_AT_MOST = 40


@dataclass(frozen=True, slots=True)
class CxxLibrary:
    """The first libstdc++ on the loader's path. It has the symbol versions up to GLIBCXX_3.4.`level`."""

    path: str
    level: int | None  # None: it is a file of its own, whose name does not say it
    is_from_path: bool  # LD_LIBRARY_PATH put it before the system's


def libstdcxx(host: Host, arch: str | None) -> Fact[CxxLibrary]:
    """Found by its file's name: libstdc++.so.6 is a link to libstdc++.so.6.0.30, which ends at GLIBCXX_3.4.30."""
    listed = [part for part in host.environ().get("LD_LIBRARY_PATH", "").split(":") if part.startswith("/")]
    mine = list(dict.fromkeys(part.rstrip("/") for part in listed))[:_FOLDERS_AT_MOST]
    system = [folder.format(arch=arch or "x86_64") for folder in _SYSTEM]
    for number, folder in enumerate([*mine, *system]):
        path = f"{folder}/{_NAME}"
        ran = host.run(("readlink", path))
        if ran.is_absent:
            return absent(Evidence("readlink", "no such program"))
        target = ran.out.strip()
        found = _VERSION.search(target)
        if ran.code == 0 and found:
            value = CxxLibrary(path, int(found.group(1)), number < len(mine))
            return known(value, Evidence(f"readlink {path}", target))
        if ran.code == 0 and target:
            return unknown(Evidence(f"readlink {path}", target))  # there, but its name does not say which one
        if number < len(mine) and _is_file(host, path):
            return known(CxxLibrary(path, None, is_from_path=True), Evidence(f"readlink -e {path}", path))
    return absent(Evidence(_NAME, "in no folder of the loader's path that was looked at"))


def _is_file(host: Host, path: str) -> bool:
    """Whether there is one that is no link. A capture that was never asked tells nothing."""
    try:
        return host.run(("readlink", "-e", path)).code == 0
    except NotRecorded:
        return False
