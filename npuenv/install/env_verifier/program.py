"""A program that runs inside an environment, with its Python, and tells whether every file is what its wheel said.

It is copied into the environment as one file, together with the other parts (`npuenv.install.env_verifier.text`), and
uses nothing but the standard library.

    python inspector.py state  ROOT                           one JSON document about everything
    python inspector.py check  ROOT NAME[==VERSION]...        exit 0 when these are there, each file with its size
    python inspector.py mend   ROOT [--uv UV]                 takes out what is damaged, so that it can go in again
    python inspector.py verify ROOT LOCK [--import MODULE[==VERSION]]... NAME[==VERSION]...
    python inspector.py switch ROOT LINK                      LINK leads to ROOT, `previous` beside it to where it led

--over LATER=EARLIER: what both packages own belongs to LATER. --rehash: trust no earlier look. --only-locked:
packages that the lock does not name are nobody's business, whatever is wrong with them. --surroundings: also files of
no package, as they were when it was verified. --limit: seconds an import may take. A file counts as whole when size
and sha256 agree with RECORD. A file is hashed once: while size and times stay the same it is not hashed again
(`.npuenv/stamps.json`).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time

from npuenv.core.seal import seal_of, text_hash
from npuenv.facts.target.dist_info import headers, list_folder, normal, requirements, sha256, source_folder
from npuenv.install.env_verifier.inspection import (
    NOBODYS,
    Inspection,
    deviations,
    foreign_pth,
    read_json,
    read_record,
    remove_byte_code,
    remove_if_torn,
    report,
    settle,
    unowned,
    write_json,
)

FLAGS = ("--rehash", "--only-locked", "--surroundings")
KEPT = "venv.json"  # path -> text
HOOK = re.compile(r".*\.pth|(site|user)customize\.py")
OF_VENV = re.compile(r"(de)?activate.*|pydoc\.bat")  # what uv puts into `bin` beside interpreters


def main(argv: list[str]) -> int:
    """The exit code: 0 whole, 1 not, 2 wrong usage."""
    verbs = ("state", "check", "mend", "verify", "switch")
    if len(argv) < 2 + (argv[:1] in (["switch"], ["verify"])) or argv[0] not in verbs:
        print("usage: inspector.py state|check|mend|verify|switch ROOT ...")
        return 2
    options: dict[str, list[str]] = {key: [] for key in ("--import", "--over", "--uv", "--limit", *FLAGS, "")}
    words = iter(argv[2:])
    for word in words:
        key = word if word in options else ""
        options[key].append(next(words, "") if key and key not in FLAGS else word)
    if argv[0] == "switch":
        return switch(argv[1], argv[2])
    inspection = Inspection(argv[1], options["--over"], only_locked=bool(options["--only-locked"]))
    if argv[0] == "check":
        inspection.read(options[""])
        return report(deviations(inspection, options[""]))
    inspection.read()
    inspection.examine(is_fresh=bool(options["--rehash"]))
    around = bool(options["--surroundings"])
    if argv[0] == "state":
        surroundings = sorted({**altered(inspection), **added(inspection)}) if around else []
        print(json.dumps({**inspection.as_json(), "surroundings": surroundings}, sort_keys=True))
        return 0
    if argv[0] == "mend" and around:
        restore(inspection)
    return mend(inspection, options["--uv"]) if argv[0] == "mend" else verify(inspection, options)


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


def venv_texts(inspection: Inspection) -> dict[str, str]:
    """The texts of the files that a virtual environment is made of, by their paths below it."""
    bin_, site = os.path.join(inspection.root, "bin"), inspection.site
    paths = [os.path.join(inspection.root, "pyvenv.cfg"), *(os.path.join(site, name) for name in NOBODYS)]
    paths += [os.path.join(bin_, name) for name in list_folder(bin_) if OF_VENV.fullmatch(name)]
    free = [path for path in paths if os.path.isfile(path) and path not in inspection.owners]
    return {os.path.relpath(path, inspection.root): text_of(path) for path in free}


def text_of(path: str) -> str:
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        return file.read()


def hooks(inspection: Inspection) -> list[str]:
    """The files among the packages that Python runs whenever it starts."""
    return [name for name in list_folder(inspection.site) if HOOK.fullmatch(name)]


def altered(inspection: Inspection) -> dict[str, str]:
    """The virtual environment's files that are not as they were verified, with their texts of then."""
    found = read_json(os.path.join(inspection.own, "verified.json")).get("venv", {})
    kept = read_json(os.path.join(inspection.own, KEPT))
    now = venv_texts(inspection)
    return {
        name: kept[name]
        for name, digest in found.items()
        if (os.path.islink(os.path.join(inspection.root, name)) or text_hash(now.get(name, "")) != digest)
        and text_hash(kept.get(name, "")) == digest
    }


def added(inspection: Inspection) -> dict[str, str]:
    """The hooks of no package that came after the verification: path below the environment -> where they go."""
    verified = read_json(os.path.join(inspection.own, "verified.json"))
    new = [name for name in hooks(inspection) if name not in verified.get("hooks", [name])]
    free = [path for name in new if (path := inspection.site + "/" + name) not in inspection.owners]
    aside = os.path.join(inspection.own, "set-aside")
    return {os.path.relpath(path, inspection.root): os.path.join(aside, os.path.basename(path)) for path in free}


def restore(inspection: Inspection) -> None:
    """Writes back what was altered, and moves what was added out of the way."""
    for name, text in altered(inspection).items():
        print("putting back " + name)
        path = os.path.join(inspection.root, name)
        with open(path + ".new", "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            file.write(text)
        os.replace(path + ".new", path)
    for name, place in added(inspection).items():
        print(f"setting {name} aside, as {os.path.relpath(place, inspection.root)}")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        os.replace(os.path.join(inspection.root, name), place)


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


# What an environment says of itself.
OWN_WORDS = ("npuenv-env.json", ".npuenv/lock.toml", ".npuenv/manifest.json", ".npuenv/verified.json")


def switch(root: str, link: str) -> int:
    """Makes the link lead to the environment, by two renames; a stop between them leaves both links valid.

    Where the power goes at any moment, the link leads to the old environment or to the new one, and what the one that
    it leads to says of itself (marker, manifest, lock, verification) is whole: these files and the folders that name
    them are on the disk before the rename. The thousands of files of its packages are not waited for. Some of them may
    then lack their content; the same installation, run again, sees what differs from RECORD and puts it in anew, with
    `--rehash` also where size and times have survived and the content has not.
    """
    root, link = os.path.abspath(root), os.path.abspath(link)
    if os.path.lexists(link) and not os.path.islink(link):
        return report([f"{link} is there and is not a link"])
    before = os.readlink(link) if os.path.islink(link) else ""
    if before != root:
        for name in (*OWN_WORDS, ".npuenv", ".", ".."):
            settle(os.path.join(root, name))
        if before and os.path.isdir(link):
            point(os.path.join(os.path.dirname(link), "previous"), before)
        point(link, root)
    return 0


def point(link: str, target: str) -> None:
    new = link + ".new"
    if os.path.lexists(new):
        os.remove(new)
    os.symlink(target, new)
    os.replace(new, link)
    settle(os.path.dirname(link))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
