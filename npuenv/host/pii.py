"""Names of people and machines that a text gives away by its shape. Start from `find_names`.

Homes, prompts, `id`, `uname -a`, tables of users and of mounts; what stands elsewhere is found only once it is known.
Each shape names words that it never comes without, so that most texts are not looked at.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from npuenv.host.secrets import CACHE_SIZE, SHORT
from npuenv.host.word_pattern import any_word_pattern

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

_ANY_WORD = any_word_pattern(word for words, _ in (*_USERS, *_HOSTS, *_SERVERS) for word in words)


@dataclass(frozen=True, slots=True)
class Names:
    """What a text gives away, each as often as it is found."""

    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # names of machines, with or without their domain
    servers: tuple[str, ...] = ()  # whole names in a company's private zones; their first words can be ordinary ones


_NO_NAMES = Names()


def find_names(text: str) -> Names:
    """The names of users and machines that a text shows by its shape."""
    return _of_short(text) if len(text) < SHORT else _names(text.lower(), text)


@functools.lru_cache(CACHE_SIZE)
def _of_short(text: str) -> Names:
    lowered = text.lower()
    return _names(lowered, text) if _ANY_WORD.search(lowered) else _NO_NAMES


def _names(lowered: str, text: str) -> Names:
    return Names(*(_found(shapes, lowered, text) for shapes in (_USERS, _HOSTS, _SERVERS)))


def _found(shapes: tuple[tuple[tuple[str, ...], str], ...], lowered: str, text: str) -> tuple[str, ...]:
    return tuple(
        name
        for words, pattern in shapes
        if any(word in lowered for word in words)
        for name in _compiled(pattern).findall(text)
    )


def owners_of_homes(text: str) -> tuple[str, ...]:
    """Names of folders in which users live, each once; they can be ordinary words."""
    if "/home/" not in text and "/Users/" not in text:
        return ()
    found = _compiled(HOMES + r"([^./\s:'\",;\\][^/\s:'\",;\\]*)").findall(text)
    return tuple(dict.fromkeys(found))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)
