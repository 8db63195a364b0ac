"""Names of people and machines that a text gives away by its shape. Start from `users_in` and `hosts_in`.

Homes, prompts, `id`, `uname -a`, tables of users and of mounts; what stands elsewhere is found only once it is known.
Each shape names words that it never comes without, so that most texts are not looked at.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# At the start of a path, or below one folder of a shared disk.
HOMES = r"(?<![A-Za-z0-9_.~-])(?:/(?:data|mnt|nfs|share|shared|gpfs|lustre|storage|export))?/(?:home|Users)/"
_PROMPT = r"(?m)^[\[(\w) -]{{0,40}}?\b{user}@{host}(?:[: ][^\n$#]{{0,200}})?[\])]?[$#](?:\s|$)"
_PRIVATE_ZONES = r"internal|corp|lan|intra|intranet|localdomain"
_USERS = (
    (("uid=", "gid="), r"\b[ug]id=[0-9]+\(([\w.-]+)\)"),
    (("user", "logname"), r"(?im)^[ \t]*(?:export )?(?:sudo_)?(?:user(?:name)?|logname)[ \t]*=[ \t]*[\"']?([\w.-]+)"),
    (("login ",), r"(?m)(?:^|machine \S+)[ \t]+login[ \t]+([\w.-]+)"),
    ((":x:",), r"(?m)^([a-z_][\w.-]*):x:[0-9]{4,}:[0-9]+:"),
    (("@",), _PROMPT.format(user=r"([A-Za-z_][\w.-]{0,31})", host=r"[\w.-]{1,63}")),
    (("hwhiaiuser:",), r"HwHiAiUser:[x*!]?:[0-9]+:([\w.-]+)"),
)
_HOSTS = (
    (("@",), _PROMPT.format(user=r"[A-Za-z_][\w.-]{0,31}", host=r"([\w.-]{1,63})")),
    (("hostname",), r"(?im)^[ \t]*(?:export )?(?:static )?hostname\s*[=:]\s*[\"']?([\w.-]+)"),
    (("linux ",), r"(?m)^Linux (?!version )(\S+) [0-9]+\.[0-9]+\.[0-9]"),
    ((" - nfs",), r" - nfs4? ([A-Za-z][\w.-]*):/"),
)
_SERVERS = (
    (
        (".internal", ".corp", ".lan", ".intra", ".localdomain"),
        rf"(?<![\w.@/-])((?:[a-zA-Z0-9-]+\.)+(?:{_PRIVATE_ZONES}))(?![\w.-]*\w)",
    ),
    ((".local",), r"(?<![\w.@/-])([\w-]*[0-9-][\w-]*\.local)(?![\w.-]*\w)"),
    (("://", "@"), rf"(?<=[/@])((?:[a-zA-Z0-9-]+\.)+(?:{_PRIVATE_ZONES}|local))(?![\w-])"),
)


def users_in(text: str) -> Iterator[str]:
    """User names, as often as they are found."""
    return _found(_USERS, text)


def owners_of_homes(text: str) -> Iterator[str]:
    """Names of folders in which users live; they can be ordinary words."""
    if "/home/" in text or "/Users/" in text:
        yield from _compiled(HOMES + r"([^./\s:'\",;\\][^/\s:'\",;\\]*)").findall(text)


def hosts_in(text: str) -> Iterator[str]:
    """Names of machines, with or without their domain, as often as they are found."""
    return _found(_HOSTS, text)


def servers_in(text: str) -> Iterator[str]:
    """Whole names in the private zones of a company; their first words (`pypi`) can be ordinary ones."""
    return _found(_SERVERS, text)


def _found(shapes: tuple[tuple[tuple[str, ...], str], ...], text: str) -> Iterator[str]:
    lowered = text.lower()
    for words, pattern in shapes:
        if any(word in lowered for word in words):
            yield from _compiled(pattern).findall(text)


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
