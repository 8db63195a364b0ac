"""Stable stand-ins for private data: user and host names, mail and public addresses, serial numbers.

A `Redactor` belongs to one session. The same name always gets the same stand-in, and stand-ins for names can be
restored, so that a path with a stand-in can still be read. Secrets (`npuenv.host.secrets`) become `***` permanently.
Addresses of private networks stay: a diagnosis needs to know which node reaches which, and they mean nothing elsewhere.
`redact_text` is for a text that comes without a machine.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

from npuenv.host.addresses import ADDRESS, addresses_of, is_large, is_private, is_version, small_addresses
from npuenv.host.secrets import (
    CACHE_SIZE,
    SECRET,
    SHORT,
    any_word_pattern,
    lines_of,
    on_lines,
    unlined,
    without_secrets,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

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

_Names = tuple[tuple[str, ...], ...]  # of users, of machines, and complete names in private zones; with repetitions
# Variables a diagnosis can need; all others are not recorded.
_KEPT_VARIABLE = re.compile(
    r"(ASCEND|HCCL|ACL|ATB|ASDOPS|NPU|CANN|LCCL|TORCH|PYTORCH|VLLM|VERL|ROLL|RAY|HF|PIP|UV|CONDA|GLOO|NCCL|OMP|TOOLCHAIN|"
    r"LD|LC|TASK_QUEUE|COMBINED|CPU_AFFINITY|MULTI_STREAM|PER_STREAM|STREAMS_PER|INF_NAN_MODE|OOM_SNAPSHOT|P2P_HCCL|"
    r"USE_MODELSCOPE|KUBERNETES_SERVICE|MASTER|CUDA_VISIBLE|WANDB|TORCHINDUCTOR|TORCHDYNAMO|TRANSFORMERS|TRITON|MODELSCOPE|"
    r"COMPILE_CUSTOM|XDG_CACHE|TE|MINDSPEED|OPENBLAS|MKL|SSL_CERT)(_\w*)?"
    r"|PATH|HOME|LANG|VIRTUAL_ENV|CONTAINER|RANK|\w+_RANK|RANK_TABLE_FILE|WORLD_SIZE|DASHBOARD_PORT|TMPDIR|TZ|SOC_VERSION"
    r"|PYTHON\w*|\w*PROXY|(?:REQUESTS|CURL)_CA_BUNDLE|(?:PET_|SLURM_)?NNODES|SLURM_JOB_NUM_NODES|TP_SOCKET_IFNAME",
    re.IGNORECASE,
)
_SECRET_VARIABLE = re.compile(r"TOKEN(?!IZERS)|KEY|SECRET|PASS|CREDENTIAL|COOKIE", re.IGNORECASE)
_GECOS = re.compile(r"(?m)^([a-z_][\w.-]*:x:[0-9]{4,}:[0-9]+:)[^:\n]+(?=:/)")
_MAIL = re.compile(
    r"(?<![\w.+/-])(?!git@)[A-Za-z0-9][\w.+-]*@(?:[A-Za-z0-9-]+\.)+(?!service\b|slice\b|scope\b|mount\b)[A-Za-z]{2,}(?![\w.-]*\w)"
)
_SERIAL = re.compile(
    r"(?i)(\bserial[ _-]*(?:number|num|no)[\"']?\s*[:=]\s*[\"']?|[\"']sn[\"']\s*:\s*[\"'])([A-Za-z0-9][\w-]{3,})"
)
_SERIAL_STAND_IN = re.compile(r"serial[0-9]+|unavailable|none|null|unknown", re.IGNORECASE)
# IPv6: global unicast addresses begin with a 2 or a 3.
_ADDRESS_6 = re.compile(r"(?<![\w:.])[23][0-9A-Fa-f]{3}:[0-9A-Fa-f:]+(?![\w])")
_STAND_IN = re.compile(r"user[0-9]+|host[0-9]+")
_STAND_IN_NETS = ("203.0.113", "198.51.100")  # RFC 5737: documentation addresses
_STAND_IN_NET_6, _MOST_6 = "2001:db8::", 0xFFFF  # RFC 3849: the same
# Names that do not identify a person and would be replaced in too many texts.
_COMMON = frozenset({
    "root", "admin", "user", "users", "test", "ubuntu", "debian", "centos", "openeuler", "docker", "ascend", "npu",
    "hwhiaiuser", "hiai", "python", "torch", "conda", "data", "work", "home", "local", "localhost", "localdomain",
    "none", "any", "all", "default", "system", "node", "worker", "master", "main", "dev", "build", "runner", "ci",
    "jenkins", "nobody", "nogroup", "www-data", "machine", "base", "prod", "gpu", "server", "mail", "github", "gitlab",
    "vllm", "verl", "roll", "ray", "numpy", "triton", "transformers", "mindie", "hccl", "qwen", "pypi", "model",
    "token",
})  # fmt: skip


def _find_names(text: str) -> _Names:
    """The names of users and machines that a text's patterns reveal: users; machines, with or without their domain;
    complete names in a company's private zones, whose first parts can be ordinary words.
    """
    return _of_short(text) if len(text) < SHORT else _names(text.lower(), text)


@functools.lru_cache(CACHE_SIZE)
def _of_short(text: str) -> _Names:
    lowered = text.lower()
    return _names(lowered, text) if _ANY_WORD.search(lowered) else ((), (), ())


def _names(lowered: str, text: str) -> _Names:
    return tuple(_found(shapes, lowered, text) for shapes in (_USERS, _HOSTS, _SERVERS))


def _found(shapes: tuple[tuple[tuple[str, ...], str], ...], lowered: str, text: str) -> tuple[str, ...]:
    return tuple(
        name
        for words, pattern in shapes
        if any(word in lowered for word in words)
        for name in _compiled(pattern).findall(text)
    )


def _owners_of_homes(text: str) -> tuple[str, ...]:
    """Names of users' home folders, each once; they can be ordinary words."""
    if "/home/" not in text and "/Users/" not in text:
        return ()
    found = _compiled(HOMES + r"([^./\s:'\",;\\][^/\s:'\",;\\]*)").findall(text)
    return tuple(dict.fromkeys(found))


@functools.cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


class Redactor:
    """Replaces names and secrets in texts. Only `learn_...` and `see_environ` add names."""

    def __init__(self) -> None:
        self._stand_ins: dict[str, str] = {}  # real name -> stand-in
        self._ordered: tuple[tuple[str, str], ...] = ()  # the same, longest name first
        self._anywhere: set[str] = set()  # names that are replaced at every word boundary
        self._secrets: set[str] = set()
        self._small: set[str] = set()  # addresses that could be versions, private ones included
        self._addresses: dict[str, str] = {}  # public address -> stand-in
        self._addresses_6: dict[str, str] = {}  # the same of IP version 6
        self._serials: dict[str, str] = {}
        self._own = ""  # the session's home where it is called home itself: its entries are not homes

    def see_environ(self, environ: Mapping[str, str]) -> None:
        """Learns the session's user names and the values of secret variables."""
        for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME"):
            self.learn_user(environ.get(name, ""))
        home = environ.get("HOME", "").rstrip("/")
        if home.count("/") > 1 and home.endswith(("/home", "/Users")):
            self._own = f"{home}/"
        elif home.count("/") > 1:
            self.learn_user(home.rpartition("/")[2])
        for name in ("HOSTNAME", "HOST", "NODE_NAME", "SLURMD_NODENAME", "MASTER_ADDR", "POD_NAME"):
            if not ADDRESS.fullmatch(environ.get(name, "")):
                self.learn_host(environ.get(name, ""))
        self._small |= addresses_of(environ)
        for name, value in environ.items():
            # A path to a secret is not secret, and hiding it everywhere would hide its folder.
            if _SECRET_VARIABLE.search(name) and len(value) >= 6 and not value.startswith(("/", "~")):
                self._secrets.add(value)

    def learn_user(self, name: str) -> None:
        """Replaces this user name from now on."""
        self._learn(name, "user", anywhere=len(name) > 2 and name.lower() not in _COMMON)

    def learn_host(self, name: str) -> None:
        """Replaces this host name, with and without its domain, from now on."""
        short = name.partition(".")[0]
        for form in dict.fromkeys((name, short)):
            if len(form) > 2 and form.lower() not in _COMMON:
                self._learn(form, "host", anywhere=True, stand_in=self._stand_ins.get(short))

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that a diagnosis can need, sorted by name, without secrets."""
        kept = {name: value for name, value in environ.items() if _KEPT_VARIABLE.fullmatch(name)}
        return {
            name: SECRET if _SECRET_VARIABLE.search(name) and value else self.text(value)
            for name, value in sorted(kept.items())
        }

    def text(self, text: str) -> str:
        """The text with stand-ins. The number of lines stays."""
        if not text:  # half of all texts: the errors of readable paths, the texts of folders
            return text
        text = lines_of(text)
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, SECRET)
        self._learn_from(text)
        text = without_secrets(text)
        if "@" in text:
            text = on_lines(("@",), text, text, lambda line: _MAIL.sub(SECRET, line))
        if ":x:" in text:
            text = _GECOS.sub(r"\1", text)
        text = self._without_serials(text)
        if text.count(".") >= 3:
            self._small = small_addresses(text, self._small)
            text = ADDRESS.sub(self._for_address, text)
        if ":" in text:
            text = _ADDRESS_6.sub(self._for_address_6, text)
        return unlined(self._replace_names(text))

    def restore(self, text: str) -> str:
        """The text with the real names."""
        for real, stand_in in self._ordered:
            if stand_in in text:
                text = _word(stand_in).sub(lambda _, real=real: real, text)  # type: ignore[misc]
        for real, stand_in in (*self._addresses.items(), *self._addresses_6.items()):
            if stand_in in text:
                text = re.sub(rf"(?<![\w.]){re.escape(stand_in)}(?![\w]|\.[0-9])", real, text)
        return text

    def _learn_from(self, text: str) -> None:
        """Learns the names that a text reveals: homes, prompts, `id`, `uname -a`, tables of users and mounts."""
        for name in _owners_of_homes(text.replace(self._own, "/") if self._own else text):
            self._learn(name, "user", anywhere=False)
        users, hosts, servers = _find_names(text)
        for name in users:
            self.learn_user(name)
        for name in hosts:
            self.learn_host(name)
        for name in servers:
            self._learn(name, "host", anywhere=True)

    def _without_serials(self, text: str) -> str:
        if "erial" not in text and "ERIAL" not in text and "sn" not in text.lower():
            return text

        def stand_in(found: re.Match[str]) -> str:
            number = found.group(2)
            if _SERIAL_STAND_IN.fullmatch(number):
                return found.group()
            return found.group(1) + self._serials.setdefault(number, f"serial{len(self._serials) + 1}")

        return _SERIAL.sub(stand_in, text)

    def _for_address(self, found: re.Match[str]) -> str:
        address = found.group(1)
        if is_private(address) or (not is_large(address) and (address not in self._small or is_version(found))):
            return address
        net, end = divmod(len(self._addresses), 254)
        if address not in self._addresses and net >= len(_STAND_IN_NETS):
            return SECRET
        return self._addresses.get(address) or self._addresses.setdefault(address, f"{_STAND_IN_NETS[net]}.{end + 1}")

    def _for_address_6(self, found: re.Match[str]) -> str:
        text = found.group()
        end = ":" if text.endswith(":") and not text.endswith("::") else ""  # end of a sentence: "... 2409::5: refused"
        address = _public_6(text.removesuffix(end))
        if not address:
            return text
        number = len(self._addresses_6) + 1
        if address not in self._addresses_6 and number > _MOST_6:
            return SECRET + end
        return self._addresses_6.setdefault(address, f"{_STAND_IN_NET_6}{number:x}") + end

    def _learn(self, name: str, kind: str, *, anywhere: bool, stand_in: str | None = None) -> None:
        if not name or (name == "root"):
            return
        if name not in self._stand_ins:
            keeps = _STAND_IN.fullmatch(name) is not None  # a text that was redacted before
            self._stand_ins[name] = name if keeps else stand_in or self._free(kind)
            self._ordered = tuple(sorted(self._stand_ins.items(), key=lambda item: (-len(item[0]), item[0])))
        if anywhere:
            self._anywhere.add(name)

    def _free(self, kind: str) -> str:
        taken = set(self._stand_ins.values())
        number = 1
        while f"{kind}{number}" in taken:
            number += 1
        return f"{kind}{number}"

    def _replace_names(self, text: str) -> str:
        for real, stand_in in self._ordered:
            if real in text:
                text = re.sub(rf"({HOMES}){re.escape(real)}(?![^/\s:'\",;])", rf"\g<1>{stand_in}", text)
                if real in self._anywhere:
                    text = _word(real).sub(stand_in, text)
        return text


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9_]){re.escape(name)}(?![A-Za-z0-9_])")


def _public_6(text: str) -> str:
    """An IPv6 address in its usual notation; "" for a documentation address, and for an invalid one."""
    import ipaddress

    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return ""
    return "" if any(address in ipaddress.ip_network(net) for net in ("2001:db8::/32", "3fff::/20")) else str(address)


def redact_text(text: str) -> str:
    """A pasted text with stand-ins for the names that it reveals; the number of lines stays."""
    return Redactor().text(text)
