"""Public addresses in texts: which four numbers with dots are an address, which are a version."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PART = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
ADDRESS = re.compile(rf"(?<![\w.-])({_PART}(?:\.{_PART}){{3}})(?!\.?[\w]|-[\w])")
_VERSION_OCTETS_BELOW = 100  # no part of a version of these tools is as large
_NEAR = 80  # characters on both sides that are looked at, within the line
_MANY = 10_000  # small addresses of a text; what stands around the others is not looked at
# Variables whose values are addresses, and names.
_VARIABLE = re.compile(
    r"(?i)(?:^|_)(?:ADDR|ADDRESS|IPS?|HOSTS?|HOSTNAME|PROXY|SERVERS?|CONNECTION|CLIENT|NODES|NODELIST|MASTER|ENDPOINTS?"
    r"|GATEWAY)$"
)
_KEY = (
    r"(?:addr(?:ess)?(?:es|s)?|(?:\b|_)(?:ips?|hosts?|hostname|server|server_?id|gateway|proxy|node|master|endpoint"
    r"|peer|remote|src|dst)|(?:local|remote|host|node|device|server|peer|src|dst|master|head)_?ip)"
)
# A key and its value, or words that only an address follows; further on in a list, too.
_BEFORE = re.compile(
    rf"(?i)(?:://|@|\b(?:inet|brd|nameserver|from|to|via|by|ssh|ping|traceroute)[ \t]+"
    rf"|{_KEY}[\"']?[ \t]*(?:is|[=:])?[ \t]*(?:[\w.:*-]+,[ \t]?)*)[\"'\[(]*$"
)
_AFTER = re.compile(r":[0-9]{2,5}\b|/[0-9]{1,2}(?![\w.])")
_VERSION_BEFORE = re.compile(
    r"(?i)(?:version|\bver|[=<>~!]=|driver|firmware|cann|toolkit|npu-smi|release|hdk)\w*[\"']?[\s=:|]*[\"'\[(]*$"
    r"|(?:version|upgrad|downgrad|updat)[^\n]*\b(?:from|to|by)[\s\"'\[(]*$"
)
# A package and its version, as `pip list` and JSON have them.
_PACKAGE_BEFORE = re.compile(r"^[ \t]*[\w.-]+[ \t]{2,}$|[\"'][\w.-]+[\"'][ \t]*:[ \t]*[\"']$")
_VERSION_IN_LINE = re.compile(
    r"(?i)version|driver|firmware|\bcann\b|toolkit|npu-smi|release|hdk|package|==|wheel|\bpip\b"
)
_NETWORK_IN_LINE = re.compile(
    r"(?i)socket|connect|\blink\b|unreachable|refused|\bpeer|\bremote|listen|\bnodes?\b|\bhosts?\b|\brank|network\b|\broute"
)
_HOSTS_FILE = re.compile(r"[ \t]+(?:slots=\d+|[A-Za-z][\w.-]*(?:[ \t]+[A-Za-z][\w.-]*)*)[ \t]*(?:#.*)?$")
_BESIDE = r"[\s,;|\"'\[\]()]{1,4}"
_BESIDE_BEFORE = re.compile(rf"(?<![\w.-])({_PART}(?:\.{_PART}){{3}})(?::\d+)?{_BESIDE}$")
_BESIDE_AFTER = re.compile(rf"{_BESIDE}({_PART}(?:\.{_PART}){{3}})(?![\w.-])")


def addresses_of(environ: Mapping[str, str]) -> set[str]:
    """The addresses in those variables whose names say that they hold some."""
    return {found for name, value in environ.items() if _VARIABLE.search(name) for found in ADDRESS.findall(value)}


def small_addresses(text: str, known: Collection[str]) -> set[str]:
    """The addresses in a text that could be versions by their numbers and are none by what stands around one of them.

    `known` are addresses that were found elsewhere.
    """
    taken = {*known}
    for count, found in enumerate(ADDRESS.finditer(text)):
        address = found.group(1)
        if count < _MANY and address not in taken and not is_large(address) and _is_address(found, taken):
            taken.add(address)
    return taken


def is_version(found: re.Match[str]) -> bool:
    """Whether what stands before says that it is a version, although the same numbers are an address elsewhere."""
    return _VERSION_BEFORE.search(_before(found)) is not None


def is_large(address: str) -> bool:
    """Whether a number in it is too large for a version such as 22.0.4.1."""
    return any(int(part) >= _VERSION_OCTETS_BELOW for part in address.split("."))


def is_private(address: str) -> bool:
    """Whether an address identifies nobody: private, local, documentation, multicast."""
    first, second, third, _ = (int(part) for part in address.split("."))
    return (
        first in (0, 10, 127)
        or first >= 224
        or (first, second) in ((192, 168), (169, 254))
        or (first == 172 and 16 <= second < 32)
        or (first == 100 and 64 <= second < 128)
        or (first, second, third) in ((192, 0, 2), (198, 51, 100), (203, 0, 113))
    )


def _is_address(found: re.Match[str], known: Collection[str]) -> bool:
    """Judges one that is not large by its line."""
    before, after = _before(found), _after(found)
    if is_version(found):
        return False
    if _BEFORE.search(before) or _AFTER.match(after):
        return True
    if _VERSION_IN_LINE.search(before + after) or _PACKAGE_BEFORE.search(before):
        return False
    if _NETWORK_IN_LINE.search(before + after) or (not before.strip() and _HOSTS_FILE.match(after)):
        return True
    beside = (_BESIDE_BEFORE.search(before), _BESIDE_AFTER.match(after))
    return any(each and _is_sure(each.group(1), known) for each in beside)


def _is_sure(address: str, known: Collection[str]) -> bool:
    return address in known or is_large(address) or (is_private(address) and not address.startswith("0"))


def _before(found: re.Match[str]) -> str:
    return found.string[max(found.start() - _NEAR, 0) : found.start()].rpartition("\n")[2]


def _after(found: re.Match[str]) -> str:
    return found.string[found.end() : found.end() + _NEAR].partition("\n")[0]
