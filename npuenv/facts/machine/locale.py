"""The session's language: which letters programs think they may write. Start from `encoding`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.core.fact import Evidence, Fact, absent, known

if TYPE_CHECKING:
    from npuenv.host.base import Host

_IN_ORDER = ("LC_ALL", "LC_CTYPE", "LANG")  # the first one that is set decides


def encoding(host: Host) -> Fact[str]:
    """The encoding that the locale names, in lower case: `utf-8`, `gbk`; absent where it names none (C, POSIX, unset).

    Python 3.7 and newer take UTF-8 where none is named, so only a named one of another kind matters.
    """
    environ = host.environ()
    name = next((name for name in _IN_ORDER if environ.get(name)), None)
    if name is None:
        return absent(Evidence("environment", "no locale is set"))
    evidence = Evidence("environment", f"{name}={environ[name]}")
    word = environ[name].partition("@")[0].partition(".")[2].lower()
    if not word:
        return absent(evidence)
    return known("utf-8" if word in ("utf8", "utf-8") else word, evidence)


def timezone(host: Host) -> Fact[str]:
    """The session's time zone as TZ or /etc/localtime names it; absent where neither does."""
    named = host.environ().get("TZ", "")
    if named:
        return known(named.lstrip(":"), Evidence("environment", f"TZ={named}"))
    ran = host.run(("readlink", "/etc/localtime"))
    target = ran.out.strip()
    evidence = Evidence("readlink /etc/localtime", target or "no link")
    _, mark, zone = target.partition("zoneinfo/")
    return known(zone, evidence) if mark and zone else absent(evidence)
