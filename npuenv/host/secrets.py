"""Patterns of secrets in a text: keys, tokens, passwords, signed addresses.

Each rule has words without which its secrets do not occur, so that most of a text is not searched. Names of people and
machines are private but not secret; see `npuenv.host.redact`.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


SECRET = "***"
_MARK = "\ue000"  # a private-use character, in place of a backslash
_ESCAPED_END = re.compile(r"(\\+)n")
_MARKED_END = re.compile(f"({_MARK}+)\n")
_LINE_END = re.compile(f"{_MARK}*\n")
_AFTER_NAMES = "=:\"'\\\0\n"
SHORT = 2000  # characters; up to here it is faster to search the complete text
CACHE_SIZE = 4096  # cached results for short texts: file names and table lines are frequently repeated
_OPEN = r"(?:\\*[\"'])?"
# A quote ends at the next quote, which can be escaped itself: texts are inside JSON inside JSON.
_VALUE = r"""(?:(?<=")(?:[^"\\\n]|\\+(?![\\"]))+|(?<=')(?:[^'\\\n]|\\+(?![\\']))+|[^\s\0"',;&|<>)\]}\\]+)"""
_GAP = r"[\s\0]"  # a process separates its arguments by zero bytes
_PASSWORD = r"(?:passw(?:or)?d|passphrase|pwd)"
_KEY = (
    r"(?:(?<!tik)token|secret|credentials?|webhook|(?:key|certificate|authority)-data|"
    r"(?:api|private|account)[_-]?key|access[_-]?key(?:[_-]?id)?)"
)
_ASSIGNED = rf"[\"'\\]*{_GAP}*[=:]{_GAP}*{_OPEN}"
# `InvalidAuthToken: Authentication failed` is a sentence: a single word of letters after a colon is not a token.
_NAMED = rf"[\"'\\]*{_GAP}*(?:=|:(?!{_GAP}*[A-Za-z]{{1,24}}(?:[\s.,;:)]|$))){_GAP}*{_OPEN}"
# Already hidden; a list or a table of JSON; a marker such as `<|im_end|>`; the version of a package with such a name.
_NOT_A_VALUE = r"(?!\s|\*\*\*|[\[{<=]|\d+(?:\.\w+)+[\"'\\]*(?:[\s,;}]|$))"
_KEY_ENDS = (
    "token", "secret", "apikey", "api_key", "api-key", "accesskey",
    "access_key", "access-key", "privatekey", "private_key", "private-key", "accountkey", "account_key", "keyid",
    "key_id", "key-id", "-data", "credential", "credentials", "webhook",
)  # fmt: skip
_KEY_STARTS = (
    "hf_", "sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "akia", "asia", "eyj", "aiza",
    "xox", "ltai", "akid", "npm_", "pypi-", "wandb_v1_", "ms-", "dop_v1_", "ya29.", "nvapi-", "hooks.slack.com",
)  # fmt: skip
_PRIVATE_KEY = (
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.{,20000}?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|(?:\\n|[\s\ue000A-Za-z0-9+/=:,-])*)"
)


def any_word_pattern(words: Iterable[str]) -> re.Pattern[str]:
    """An expression that matches a text exactly if one of the words is in it.

    For a short text it is ten times as fast as a search for eighty words one by one; for a long one it is slower.
    """
    return re.compile(_branches(sorted(set(words))))


def _branches(words: list[str]) -> str:
    """An expression in which words share their common prefixes, so that few characters are compared.

    Example: ["npm_", "npx"] -> `np(?:m_|x)`
    """
    if "" in words:
        return ""
    found = [
        re.escape(first) + _branches([word[1:] for word in those])
        for first, those in itertools.groupby(words, key=lambda word: word[0])
    ]
    return found[0] if len(found) == 1 else f"(?:{'|'.join(found)})"


class SecretRule(NamedTuple):
    """Secrets of one pattern. `words` are in lower case; every line with such a secret contains one of them."""

    words: tuple[str, ...]
    pattern: str
    instead: str = rf"\1{SECRET}"  # what stands before a secret is a group of its pattern
    # only if `=`, `:` or a quote follows the word: logs contain many `tokens` that are not secret
    is_named: bool = False


_RULES = (
    SecretRule(("://",), r"(?<=://)[^\s/'\"<>\\]+@", f"{SECRET}@"),
    SecretRule(("cookie",), r"(?i)(\b(?:set-)?cookie\s*:\s*)[^\r\n\"']+"),
    SecretRule(
        ("bearer ", "basic ", "negotiate "),
        r"(?i)\b(bearer|basic|negotiate)(\s+)[A-Za-z0-9+/._~=-]{8,}",
        rf"\1\2{SECRET}",
    ),
    SecretRule(
        ("authorization", "-token", "-key"),
        r"(?i)(\b(?:(?:proxy-)?authorization|(?:private|x-auth|x-vault|x-access)-token|x-api-key|api-key)[\"'\\]*\s*:\s*[\"'\\]*)"
        r"(?:(?:token|digest|apikey|ntlm)\s+)?(?!\s|\*\*\*|bearer|basic|negotiate)[^\r\n\"'\\]+",
    ),
    SecretRule(
        _KEY_STARTS,
        r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{20,}"
        r"|glpat-[\w-]{16,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|eyJ[\w-]{10,}\.[\w-]{10,}(?:\.[\w-]*)?|AIza[\w-]{30,}"
        r"|xox[abeoprs]-[\w-]{10,}|LTAI[0-9A-Za-z]{12,}|AKID[0-9A-Za-z]{13,}|npm_[A-Za-z0-9]{20,}|pypi-[\w-]{20,}"
        r"|wandb_v1_\w{16,}|ms-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|dop_v1_[0-9a-f]{32,}"
        r"|ya29\.[\w-]{20,}|nvapi-[\w-]{20,}|hooks\.slack\.com/services/[\w/]+)",
        SECRET,
    ),
    SecretRule(("/hook/", "/robot/send"), r"(?<=/hook/)[\w-]{16,}", SECRET),
    # A signed address: the signature and its owner.
    SecretRule(
        ("?", "&"),
        r"(?i)([?&][\w.-]*(?:signature|credential|token|key|keyid|secret|passw(?:or)?d|\bsig|auth)=)[^&\s\"'<>\\]+",
    ),
    # NAME=VALUE, "name": "value", --name VALUE; with any prefix of the name.
    SecretRule(
        ("passwd", "password", "passphrase", "pwd"),
        rf"(?i)((?!pwd[\"'\\]*\s*[=:]\s*[\"']?/){_PASSWORD}{_ASSIGNED})(?!\s|\*\*\*)(?=\S{{2,}})({_VALUE})",
        is_named=True,
    ),
    SecretRule(_KEY_ENDS, rf"(?i)({_KEY}{_NAMED}){_NOT_A_VALUE}(?=\S{{2,}})({_VALUE})", is_named=True),
    # A service's key under a name of the user's, and any key that is as long and mixed as a secret.
    SecretRule(
        ("_key", "-key"),
        rf"(?i)((?:wandb|swanlab|hf|hub|modelscope|openai|dashscope|comet|mlflow|clearml|neptune)[_-]key{_NAMED})"
        rf"{_NOT_A_VALUE}(?=\S{{2,}})({_VALUE})",
        is_named=True,
    ),
    SecretRule(
        ("_key", "-key"), rf"(?i)([_-]key{_NAMED})(?=[a-z]*\d)(?=\d*[a-z])[a-z0-9]{{32,}}(?![\w./])", is_named=True
    ),
    SecretRule(
        ("--", "-p", "-k"),
        rf"(?i)(--?[\w-]*(?:token|secret|password|passwd|api-?key|access-?key){_GAP}+{_OPEN})(?!\s|\*\*\*|-)({_VALUE})",
    ),
    SecretRule(
        ("docker", "podman", "sshpass", "mysql", "login", "htpasswd"),
        rf"(?i)(\b(?:docker|podman|nerdctl|skopeo|buildah|helm|mysql|psql|sshpass|swanlab|wandb|kinit)\b[^\n|;&]{{0,300}}?{_GAP}-[pk]{_GAP}*{_OPEN})"
        rf"(?!{_GAP}|[0-9]+:[0-9])({_VALUE})",
    ),
    SecretRule(
        ("wandb", "swanlab"),
        rf"(?i)(\b(?:wandb|swanlab){_GAP}+login{_GAP}+(?:--relogin{_GAP}+)?{_OPEN})(?!-)({_VALUE})",
    ),
    SecretRule(
        ("curl", "wget"),
        rf"(\b(?:curl|wget)\b[^\n]{{0,300}}?{_GAP}(?:-u|--user|--proxy-user)[\s\0=]*{_OPEN})({_VALUE})",
    ),
    SecretRule(("sudo",), rf"(\becho{_GAP}+(?:-n{_GAP}+)?{_OPEN})({_VALUE})(?=[\\\"']*\s*\|\s*sudo\s+(?:-\w+\s+)*-S)"),
    # .netrc, on one line or on several.
    SecretRule(
        ("password",),
        rf"(?i)((?:^|\b(?:login|account){_GAP}+\S+{_GAP}+)[ \t]*password{_GAP}+{_OPEN})(?![=:])({_VALUE})",
    ),
    SecretRule(("auth",), r"(?i)([\"'\\]+_?auth[\"'\\]+\s*:\s*[\"'\\]+|(?<![\w.])_auth\s*=\s*)[A-Za-z0-9+/=]{6,}"),
    SecretRule(
        ("ak=", "ak:", 'ak"', "ak'", "ak =", "sk=", "sk:", 'sk"', "sk'", "sk ="),
        r"(?i)((?<![\w.-])[as]k[\"'\\]*\s*[=:]\s*[\"'\\]*)[A-Za-z0-9+/=]{16,}",
    ),
    SecretRule(("ssh-", "ecdsa-"), r"((?:ssh-(?:rsa|dss|ed25519)|ecdsa-sha2-\w+)\s+)AAAA[A-Za-z0-9+/=]+"),
)
_ANY_WORD = any_word_pattern(("private key", *(word for rule in _RULES for word in rule.words)))


def without_secrets(text: str) -> str:
    """The text with `***` for everything that looks like a secret; the number of lines stays.

    The cost for a long text depends on the lines that could contain one.
    """
    return _of_short(text) if len(text) < SHORT else _hidden(text)


@functools.lru_cache(CACHE_SIZE)
def _of_short(text: str) -> str:
    return _hidden(text) if _ANY_WORD.search(text.lower()) else text


def _hidden(text: str) -> str:
    if "PRIVATE KEY" in text:
        text = _compiled(_PRIVATE_KEY).sub(_hidden_lines, text)
    lowered = text.lower()
    for rule in _RULES:
        if any(word in lowered for word in rule.words):
            changed = _applied(rule, text, lowered)
            if changed != text:
                text, lowered = changed, changed.lower()
    return text


def _hidden_lines(found: re.Match[str]) -> str:
    return SECRET + "".join(_LINE_END.findall(found.group()))


def lines_of(text: str) -> str:
    """The text with escaped line ends, as in JSON, made real ones, so that lines start as in the original."""
    return _ESCAPED_END.sub(lambda found: _MARK * len(found.group(1)) + "\n", text) if "\\n" in text else text


def unlined(text: str) -> str:
    """Reverses `lines_of`."""
    return _MARKED_END.sub(lambda found: "\\" * len(found.group(1)) + "n", text) if _MARK in text else text


def _applied(rule: SecretRule, text: str, lowered: str) -> str:
    change = functools.partial(_compiled(rule.pattern).sub, rule.instead)
    if len(text) < SHORT:
        return change(text)
    return on_lines(rule.words, text, lowered, change, after=_AFTER_NAMES if rule.is_named else "")


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.MULTILINE | re.DOTALL)


def on_lines(words: tuple[str, ...], text: str, lowered: str, change: Callable[[str], str], *, after: str = "") -> str:
    """Applies the change only to lines with one of the words, followed by a character of `after` if that is given."""
    if len(lowered) != len(text):
        return change(text)  # a character whose lower case is longer: positions in the two would differ
    kept: list[str] = []
    done = 0
    for start, end in _lines_with(words, lowered, after):
        kept += (text[done:start], change(text[start:end]))
        done = end
    return "".join((*kept, text[done:]))


def _lines_with(words: tuple[str, ...], lowered: str, after: str) -> list[tuple[int, int]]:
    """Start and end of the lines that contain one of the words, in order, each once."""
    ends: dict[int, int] = {}
    for word in words:
        at = lowered.find(word)
        while at >= 0:
            beyond = at + len(word)
            if after and lowered[beyond : beyond + 2].lstrip(" ")[:1] not in after:
                at = lowered.find(word, beyond)
                continue
            end = lowered.find("\n", at)
            end = len(lowered) if end < 0 else end
            ends[lowered.rfind("\n", 0, at) + 1] = end
            at = lowered.find(word, end)
    return sorted(ends.items())
