"""The last word on an installation: `verify`."""

from __future__ import annotations

import os
import re
import sys
import time

from npuenv.core.seal import seal_of, text_hash
from npuenv.facts.target.dist_info import headers, normal, requirements, source_folder
from npuenv.install.env_verifier.files import read_json, write_json
from npuenv.install.env_verifier.inspection import Inspection, deviations, report
from npuenv.install.env_verifier.leftovers import foreign_pth, remove_if_torn, unowned
from npuenv.install.env_verifier.surroundings import KEPT, hooks, venv_texts

FOREIGN = ("nvidia-", "cuda-")  # packages of another accelerator; wanted only where the lock names them
MAX_NOTES = 20
PROBE = """
import importlib, sys
importlib.import_module(sys.argv[1])
for name in sys.argv[1:]:
    if name in sys.modules:
        version = getattr(sys.modules[name], "__version__", None)
        if not version:
            from importlib import metadata
            try:
                version = metadata.version(name)
            except metadata.PackageNotFoundError:
                version = ""
        print("\\nloaded: %s %s" % (name, version))
"""
NAME = re.compile(r"[\w.-]+")  # at the start of a requirement


def verify(inspection: Inspection, options: dict[str, list[str]]) -> int:
    """The last word on an installation; on success it is kept, so that the next look is a quick one."""
    lock, wanted = options[""][0], options[""][1:]
    named = {word.partition("==")[0] for word in wanted}
    others = sorted(set(inspection.versions) - named)
    found = deviations(inspection, wanted + [name for name in others if name in inspection.damaged])
    found += [f"{name} belongs to another accelerator" for name in others if name.startswith(FOREIGN)]
    limit_s = float((options["--limit"] or ["180"])[0])
    found += failed_imports(inspection, options["--import"] if not found else [], limit_s)
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
        if direct.get("dir_info", {}).get("editable") and is_altered_checkout(source_folder(direct)):
            notes.append(f"the sources of {name} in {source_folder(direct)} are not those that were fetched")
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


def failed_imports(inspection: Inspection, words: list[str], limit_s: float) -> list[str]:
    """What goes wrong when these modules are imported, two at a time.

    What others of them require comes last, and not by itself where their imports have loaded it: torch takes seconds,
    and is loaded by most.
    """
    versions = dict(word.partition("==")[::2] for word in words)
    required = required_by(inspection, list(versions))
    loaded: dict[str, str] = {}
    problems: dict[str, str] = {}

    def work(name: str) -> None:
        if name not in loaded:
            found, problem = imported(name, list(versions), limit_s)
            loaded.update(found)
            problems.update({name: problem} if problem else {})

    last = [name for name in versions if normal(name) in required]
    first = [name for name in versions if name not in last]
    first.sort(key=lambda name: not required_by(inspection, [name]) & set(map(normal, last)))  # these take longest
    for names in (first, last):
        if len(names) < 2:
            for name in names:
                work(name)
            continue
        from concurrent.futures import ThreadPoolExecutor  # 20 ms to load

        with ThreadPoolExecutor(max_workers=2) as pool:
            list(pool.map(work, names))
    for name, version in versions.items():
        # The default index's aarch64 torch 2.8.0 calls itself 2.8.0+cpu.
        found = loaded.get(name, "") if "+" in version else loaded.get(name, "").partition("+")[0]
        if name in loaded and version and found != version:
            problems[name] = f"{name} calls itself {loaded[name]} instead of {version}"
    return [problems[name] for name in versions if name in problems]


def required_by(inspection: Inspection, names: list[str]) -> set[str]:
    """Normalised names of what these packages require, without that of their extras.

    A module that is called otherwise than its package requires nothing here: then more is imported by itself.
    """
    infos = [inspection.folders[normal(name)] for name in names if normal(name) in inspection.folders]
    texts = [text for info in infos for text in requirements(headers(os.path.join(info, "METADATA")))]
    return {normal(match.group()) for match in map(NAME.match, texts) if match}


def imported(name: str, names: list[str], limit_s: float) -> tuple[dict[str, str], str]:
    """Which of `names` are loaded, with their versions, once `name` is imported in a child; what goes wrong there.

    The child loads nothing of another accelerator by itself.
    """
    import signal
    import subprocess

    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", PROBE, name, *names],
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
        return {}, f"import {name} did not end within {limit_s:g} s"
    said = [line.split(" ", 2)[1:] for line in out.splitlines() if line.startswith("loaded: ")]
    if process.returncode == 0 and said:
        return dict(said), ""
    return {}, f"import {name} fails: {(err.rstrip().splitlines() or [f'exit {process.returncode}'])[-1]}"
