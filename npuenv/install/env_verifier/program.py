"""A program that runs inside an environment, with its Python, and tells whether every file is what its wheel said.

It is copied into the environment as one file, made of the parts in this folder (`npuenv.install.env_verifier.text`),
and uses nothing but the standard library.

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
import sys

from npuenv.install.env_verifier.files import settle
from npuenv.install.env_verifier.inspection import Inspection, deviations, report
from npuenv.install.env_verifier.mending import mend
from npuenv.install.env_verifier.surroundings import added, altered, restore
from npuenv.install.env_verifier.verifying import verify

FLAGS = ("--rehash", "--only-locked", "--surroundings")
# What an environment says of itself.
OWN_WORDS = ("npuenv-env.json", ".npuenv/lock.toml", ".npuenv/manifest.json", ".npuenv/verified.json")


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
