"""The last word on an installation: `verify`."""

from __future__ import annotations

import os
import sys
import time

from npuenv.plan.inspector.files import read_json, seal_of, text_hash, write_json
from npuenv.plan.inspector.inspection import Inspection, deviations, folder_of, report
from npuenv.plan.inspector.leftovers import foreign_pth, remove_if_torn, unowned
from npuenv.plan.inspector.surroundings import KEPT, hooks, venv_texts

FOREIGN = ("nvidia-", "cuda-")  # packages of another accelerator; wanted only where the lock names them
MAX_NOTES = 20
PROBE = """
import importlib, sys
module = importlib.import_module(sys.argv[1])
version = getattr(module, "__version__", None)
if not version:
    from importlib import metadata
    try:
        version = metadata.version(sys.argv[1])
    except metadata.PackageNotFoundError:
        version = ""
print("\\n%s" % version)
"""


def verify(inspection: Inspection, options: dict[str, list[str]]) -> int:
    """The last word on an installation; on success it is kept, so that the next look is a quick one."""
    lock, wanted = options[""][0], options[""][1:]
    named = {word.partition("==")[0] for word in wanted}
    others = sorted(set(inspection.versions) - named)
    found = deviations(inspection, wanted + [name for name in others if name in inspection.damaged])
    found += [f"{name} belongs to another accelerator" for name in others if name.startswith(FOREIGN)]
    limit_s = float((options["--limit"] or ["180"])[0])
    found += failed_imports(options["--import"] if not found else [], limit_s)
    print_notes(inspection, others)
    strangers = foreign_pth(inspection)[:MAX_NOTES]
    counts = {"files": len(inspection.owners), "packages": len(inspection.versions), "hashed": inspection.num_hashed}
    print("{files} files of {packages} packages, {hashed} hashed now".format(**counts))
    if not found:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        told = {"tree": inspection.tree(), "strangers": strangers, "named": sorted(named), **counts}
        texts = venv_texts(inspection)
        around = {"hooks": hooks(inspection), "venv": {name: text_hash(text) for name, text in texts.items()}}
        site = os.path.relpath(inspection.site, inspection.root)
        text = {"lock": lock, "at": at, **told, "site": site, **around}
        text["seal"] = seal_of(text)
        try:
            write_json(os.path.join(inspection.own, KEPT), texts)
            write_json(os.path.join(inspection.own, "verified.json"), text)
        except OSError as error:
            found = [f"{error.filename}: {error.strerror}"]
    return report(found)


def print_notes(inspection: Inspection, others: list[str]) -> None:
    """What is here beyond the lock, without being wrong: packages, altered sources, files of nobody."""
    notes = [f"{name} is here and not in the lock" for name in others]
    notes += [f"{name} is damaged: {problem}" for name, problem in sorted(inspection.strange.items())]
    for name, info in sorted(inspection.folders.items()):
        direct = read_json(os.path.join(info, "direct_url.json"))
        if direct.get("dir_info", {}).get("editable") and is_altered_checkout(folder_of(direct)):
            notes.append(f"the sources of {name} in {folder_of(direct)} are not those that were fetched")
    free = [path for path in unowned(inspection) if not remove_if_torn(path)]
    notes += [f"{os.path.relpath(path, inspection.root)} belongs to no package" for path in free[:MAX_NOTES]]
    if len(free) > MAX_NOTES:
        notes.append(f"{len(free) - MAX_NOTES} more files belong to no package")
    for note in notes:
        print("note: " + note)


def is_altered_checkout(folder: str) -> bool:
    """True when git says that tracked files differ from the commit; False also where git cannot say."""
    import subprocess

    try:
        env = {**os.environ, "GIT_NO_LAZY_FETCH": "1", "GIT_OPTIONAL_LOCKS": "0"}
        argv = ["git", "-C", folder, "diff", "--quiet", "HEAD"]
        return subprocess.run(argv, env=env, stderr=subprocess.DEVNULL, timeout=60).returncode == 1
    except (OSError, subprocess.TimeoutExpired):
        return False  # a note only


def failed_imports(words: list[str], limit_s: float) -> list[str]:
    """What goes wrong when these modules are imported, two at a time."""
    if len(words) < 2:
        return [problem for word in words for problem in failed_import(word, limit_s)]
    from concurrent.futures import ThreadPoolExecutor  # 20 ms to load

    with ThreadPoolExecutor(max_workers=2) as pool:
        return [
            problem for problems in pool.map(lambda word: failed_import(word, limit_s), words) for problem in problems
        ]


def failed_import(word: str, limit_s: float) -> list[str]:
    """What goes wrong when a module is imported in a child with nothing of another accelerator loaded by itself."""
    import signal
    import subprocess

    name, _, version = word.partition("==")
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROBE, name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return [f"import {name} did not end within {limit_s:g} s"]
    last = ((out if process.returncode == 0 else err).rstrip().splitlines() or [f"exit {process.returncode}"])[-1]
    if process.returncode != 0:
        return [f"import {name} fails: {last}"]
    # The default index's aarch64 torch 2.8.0 calls itself 2.8.0+cpu.
    found = last if "+" in version else last.partition("+")[0]
    return [] if not version or found == version else [f"{name} calls itself {last} instead of {version}"]
