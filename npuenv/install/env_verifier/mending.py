"""Takes out what is damaged, in the environment and in what uv keeps: `mend`."""

from __future__ import annotations

import os

from npuenv.facts.target.dist_info import list_folder, normal, sha256
from npuenv.install.env_verifier.files import read_record
from npuenv.install.env_verifier.leftovers import remove_byte_code, remove_if_torn, unowned

TYPE_CHECKING = False
if TYPE_CHECKING:
    from npuenv.install.env_verifier.inspection import Inspection


def mend(inspection: Inspection, uv: list[str]) -> int:
    """Takes damaged distributions out: files first, dist-info last, so that a half-done removal is seen again.

    Where two packages quarrel over a file both go, and the plan puts in those that it wants, in its order. What uv
    keeps of them is looked at first: a damaged copy there would come back with every installation.
    """
    out = inspection.going_out()
    if not out:
        return 0
    import shutil

    inspection.withdraw()
    if uv and distrust(uv[0], out):
        return 1
    for name in out:
        print(f"taking out {name}: {inspection.damaged.get(name, 'another package owns a file of it too')}")
        info = inspection.folders[name]
        for path, names in inspection.owners.items():
            is_ours = path.startswith(inspection.root + os.sep) and not path.startswith(info + os.sep)
            is_needed = any(other not in out for other in names)
            path = inspection.disk.link_above(path, inspection.site) or path  # what lies behind a link is not ours
            if name in names and is_ours and not is_needed and os.path.lexists(path):
                os.remove(path)
                remove_byte_code(path)
        shutil.rmtree(info)
    for path in unowned(inspection):
        remove_if_torn(path)
    return 0


def distrust(uv: str, names: list[str]) -> int:
    """Throws the packages that lie altered in uv's cache out of it; what it keeps is unpacked and never looked at."""
    import subprocess

    cache = subprocess.run([uv, "cache", "dir"], stdout=subprocess.PIPE, text=True).stdout.strip()
    for name, problem in sorted(altered_in_cache(cache, names).items()):
        print(f"the cache holds {name} altered ({problem}): it is thrown away there", flush=True)
        code = subprocess.run([uv, "cache", "clean", name]).returncode
        if code != 0:
            return code
    return 0


def altered_in_cache(cache: str, names: list[str]) -> dict[str, str]:
    """Name -> problem for the packages of which uv keeps an unpacked wheel that is not whole.

    Source: uv 0.13.8 keeps each unpacked wheel in a folder of its own, `archive-v0/<id>/`.
    """
    found: dict[str, str] = {}
    buckets = [os.path.join(cache, entry) for entry in list_folder(cache) if entry.startswith("archive-v")]
    for folder in (os.path.join(bucket, entry) for bucket in buckets for entry in list_folder(bucket)):
        for entry in list_folder(folder):
            name = normal(entry.partition("-")[0])
            if entry.endswith(".dist-info") and name in names and name not in found:
                problem = archive_problem(folder, os.path.join(folder, entry))
                if problem:
                    found[name] = problem
    return found


def archive_problem(folder: str, info: str) -> str:
    """What is wrong with the first damaged file of an unpacked wheel; "" when it is whole."""
    rows = read_record(info, is_installed=False)
    if rows is None:
        return "RECORD is not there, or not whole"
    path = ""
    try:
        for path, digest, _ in rows:
            if digest.startswith("sha256=") and sha256(os.path.join(folder, path)) != digest:
                return f"{path} has another content"
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
