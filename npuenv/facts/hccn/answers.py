"""One answer of hccn_tool as a fact: a value, a stated "there is none", or unreadable.

The exit status does not decide: one number has several meanings (4: wrong device, wrong count, device missing; 13: no
address, or not for this product), some failures exit 0, and some failure texts go to stdout. So the text is read
first. Exit 0 with nothing on stdout is a failure.
"""

from __future__ import annotations

import enum
import functools
import re
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from npuenv.core.fact import Evidence, Fact, absent, known, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npuenv.host.base import Ran

T = TypeVar("T")
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def lines_of(text: str) -> list[str]:
    """The lines that are not empty, in order."""
    plain = _ESCAPES.sub("", text) if "\x1b" in text else text
    return [line for line in map(str.strip, plain.splitlines()) if line]


def matches(lines: Iterable[str], pattern: str) -> list[re.Match[str]]:
    """The lines that are wholly of the pattern, letters of either case."""
    compiled = re.compile(pattern, re.IGNORECASE)
    return [match for match in map(compiled.fullmatch, lines) if match]


def only(values: Iterable[T]) -> T | None:
    """The one value that all of them are; None for none, and for several that differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def is_address(text: str) -> bool:
    """Whether it is an IPv4 or IPv6 address."""
    import ipaddress  # some milliseconds that only machines with something to read pay

    try:
        ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_mask(text: str) -> bool:
    """Whether it is a netmask, such as 255.255.240.0."""
    import ipaddress

    try:
        return ipaddress.ip_network(f"0.0.0.0/{text}").prefixlen >= 0 and "." in text
    except ValueError:
        return False


class HccnRefusal(enum.Enum):
    """Ways in which the tool does not answer."""

    BUSY = "busy"  # another one runs: it refuses to run twice at a time
    PERMISSION = "permission"
    GRAMMAR = "grammar"  # the words of the other family of tools
    DEVICE = "device"  # no such card
    UNSUPPORTED = "unsupported"  # not on this product
    NOT_SET = "not-set"  # nothing was configured: no address, no certificate, no gateway
    NO_ANSWER = "no-answer"  # the card does not answer, or the tool ran out of time
    NOT_INSTALLED = "not-installed"  # the shell's words, or the loader's
    FAILED = "failed"  # without a reason


class RefusedAnswer(NamedTuple):
    """A refusal with the line that says it."""

    kind: HccnRefusal
    line: str


_TEXTS = (
    ("is busy, please try again", HccnRefusal.BUSY),
    ("traceroute is running", HccnRefusal.BUSY),
    ("permission denied", HccnRefusal.PERMISSION),
    ("get invalid major cmd type", HccnRefusal.GRAMMAR),
    ("please specify a valid mode", HccnRefusal.GRAMMAR),
    ("get invalid device id", HccnRefusal.DEVICE),
    ("not supported on this product", HccnRefusal.UNSUPPORTED),
    (" was preset there", HccnRefusal.NOT_SET),
    ("no certificate found", HccnRefusal.NOT_SET),
    ("get device health status failed", HccnRefusal.NO_ANSWER),
    ("error while loading shared libraries", HccnRefusal.NOT_INSTALLED),
    ("command not found", HccnRefusal.NOT_INSTALLED),
    ("command execute failed", HccnRefusal.FAILED),
    ("cmd execute failed", HccnRefusal.FAILED),
)
# What a text-less status means for one item alone: its own argv is right, so the other meanings fall away.
_STATUSES = {
    ("gateway", 2): HccnRefusal.NOT_SET,
    ("ip", 13): HccnRefusal.NOT_SET,
    ("tls", 14): HccnRefusal.NOT_SET,
    ("optical", 20): HccnRefusal.NOT_SET,
}
_ABSENT = (HccnRefusal.NOT_SET, HccnRefusal.UNSUPPORTED)


@functools.lru_cache(maxsize=512)  # eight cards say the same
def refusal(text: str) -> RefusedAnswer | None:
    """The failure that a text states, by its words alone; None for a text that states none."""
    for line in lines_of(text):
        lower = line.lower()
        for words, kind in _TEXTS:
            if words in lower:
                return RefusedAnswer(kind, line)
    return None


def refused(ran: Ran, item: str = "") -> RefusedAnswer | None:
    """How a command of the tool failed, None when it did not. `item` is what was asked for: ip, tls, ..."""
    if ran.timed_out:
        return RefusedAnswer(HccnRefusal.NO_ANSWER, "timed out")
    if ran.is_absent:
        return RefusedAnswer(HccnRefusal.NOT_INSTALLED, ran.err.strip() or "no such program")
    said = refusal(ran.err) or refusal(ran.out)
    if said is not None:
        return said
    lines = lines_of(ran.err) or lines_of(ran.out)
    line = lines[0] if lines else f"exit {ran.code}"
    if (item, ran.code) in _STATUSES:
        return RefusedAnswer(_STATUSES[item, ran.code or 0], line)
    if ran.code == 127:
        return RefusedAnswer(HccnRefusal.NOT_INSTALLED, line)
    return None if lines_of(ran.out) else RefusedAnswer(HccnRefusal.FAILED, line)


def answer(ran: Ran, item: str, parse: Callable[[str], T | None]) -> Fact[T]:
    """The fact that a command's output holds. A value counts even where the exit status complains.

    Absent: the tool says that nothing is set, or that this product has no such thing.
    """
    command = " ".join(ran.argv)
    value = parse(ran.out)
    if value is not None and not ran.timed_out:
        return known(value, *(Evidence(command, line) for line in lines_of(ran.out)[:1]))
    failure = refused(ran, item)
    if failure is None:
        return unknown(Evidence(command, (lines_of(ran.out) or [""])[0]))
    evidence = Evidence(command, failure.line)
    return absent(evidence) if failure.kind in _ABSENT else unknown(evidence)


def grammar(ran: Ran) -> str | None:
    """`a2` (also A3 and 910A) or `950`, from the answer to a question in the words of A2; None where it does not tell.

    The tool of 950 answers those with "Please specify a valid mode." and 2.
    """
    failure = refused(ran)
    if failure is None:
        return "a2"
    if failure.kind is HccnRefusal.GRAMMAR:
        return "950" if "valid mode" in failure.line.lower() else None
    telling = (
        HccnRefusal.BUSY,
        HccnRefusal.NO_ANSWER,
        HccnRefusal.NOT_INSTALLED,
        HccnRefusal.FAILED,
        HccnRefusal.PERMISSION,
    )
    return None if failure.kind in telling else "a2"
