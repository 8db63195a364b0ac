"""A simulated host: a whole machine described in TOML, that answers like the real one. What is not described is absent.

Descriptions are put together by `composed.machine`; `edits.edited` puts a fault into one.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from npuenv.host import Looked, PathState, Ran
from tests.support.machines.edits import TREE_KINDS, Description, is_under
from tests.support.machines.target_answers import ELF, elf_answer, target_answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

USUAL_FOLDERS = ("/usr/bin", "/bin", "/usr/sbin", "/sbin")
USUAL_MODES = {"device": "660 HwHiAiUser HwHiAiUser", "folder": "755 root root"}
MANY_LINKS = 40


class SimulatedHost:
    """One described machine. `asked`: every question; `unanswered`: commands known by name, but not by these words."""

    def __init__(self, description: Description) -> None:
        self._told = description
        self.name: str = description["name"]
        self.asked: list[str] = []
        self.unanswered: list[str] = []
        self._commands = {_key(words.split(" ")): value for words, value in description["commands"].items()}
        self._children = _children(description)
        self._files = {**_address_files(description), **description["files"]}
        self._builtins = {
            "readlink": self._readlink,
            "stat": self._stat,
            "id": self._id,
            "df": self._df,
            "head": self._head,
            "test": self._test,
            "ps": self._ps,
            "ss": self._ss,
            "ip": self._ip,
            "getent": lambda _: (2, "", ""),
            "hccn_tool": self._ping,
        }

    def environ(self) -> Mapping[str, str]:
        return dict(self._told["environ"])

    def run(self, argv: Sequence[str], *, timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> Ran:
        words = tuple(argv)
        if words[0] in self._told["python"]["executables"]:
            self.asked.append(f"python {words[0]}")
            return target_answer(self._told, words, self._names)
        if words[0] == ELF:
            return elf_answer(self._told, words, self._names)
        self.asked.append(" ".join(words))
        if not self._is_found(words[0]):
            return Ran(words, None, "", "No such file or directory")
        short = (posixpath.basename(words[0]), *words[1:])
        answer = self._commands.get(_key(short), self._commands.get((short[0], "*")))
        built = self._builtins[short[0]](short[1:]) if answer is None and short[0] in self._builtins else None
        if built is not None:
            return Ran(words, *built)
        return self._unknown(words) if answer is None else _ran(words, answer)

    def look(self, path: str) -> Looked:
        self.asked.append(path)
        real, why = self._resolve(path)
        told = self._told
        if why or real in told["unreadable"]:
            return Looked(path, PathState.UNREADABLE, error=why or told["unreadable"][real])
        if real in told["devices"]:
            error = told["devices"][real]
            return Looked(path, PathState.DEVICE, error=error, is_writable=not error)
        if real in self._files:
            return Looked(path, PathState.FILE, text=self._files[real], is_writable=self._is_writable(real))
        if real in self._children:
            names = tuple(sorted(self._children[real]))
            return Looked(path, PathState.FOLDER, names=names, is_writable=self._is_writable(real))
        return Looked(path, PathState.ABSENT)

    def _resolve(self, path: str, hops: int = 0) -> tuple[str, str]:
        """The path with every link followed, and why that failed where it did."""
        if hops > MANY_LINKS:
            return path, "Too many levels of symbolic links"
        links: dict[str, str] = self._told["links"]
        parts = posixpath.normpath(path).split("/")
        for end in range(2, len(parts) + 1):
            head = "/".join(parts[:end])
            if head in links:
                target = posixpath.join(posixpath.dirname(head), links[head])
                return self._resolve(posixpath.join(target, *parts[end:]), hops + 1)
            if head in self._told["unreadable"] and end < len(parts):
                return path, self._told["unreadable"][head]
        return posixpath.normpath(path), ""

    def _names(self, folder: str) -> tuple[str, ...]:
        real, why = self._resolve(folder)
        return () if why else tuple(sorted(self._children.get(real, ())))

    def _is_writable(self, path: str) -> bool:
        told = self._told
        if any(is_under(path, folder) for folder in told["read_only"]):
            return False
        return bool(told["user"]["uid"] == 0) or any(is_under(path, folder) for folder in told["writable"])

    def _is_found(self, program: str) -> bool:
        """Whether the program is there: by its path, or in a folder of PATH."""
        name = posixpath.basename(program)
        folders = self._told["programs"].get(name)
        if folders is None:
            known = name in self._builtins or any(key[0] == name for key in self._commands)
            return known and (program == name or posixpath.dirname(program) in USUAL_FOLDERS)
        if program != name:
            return posixpath.dirname(posixpath.normpath(program)) in folders
        return any(folder in folders for folder in self._told["environ"].get("PATH", "").split(":"))

    def _unknown(self, words: tuple[str, ...]) -> Ran:
        self.unanswered.append(" ".join(words))
        if posixpath.basename(words[0]) == "npu-smi":
            return Ran(words, 211, "Command or option is not found.\n", "")
        return Ran(words, 1, "", f"{posixpath.basename(words[0])}: invalid arguments\n")

    def _readlink(self, words: Sequence[str]) -> tuple[int, str, str]:
        path = words[-1]
        if "-f" not in words and "-e" not in words:
            target = self._told["links"].get(path)
            return (0, f"{target}\n", "") if target else (1, "", "")
        real, why = self._resolve(path)
        is_gone = "-e" in words and self._fields(path) is None
        return (1, "", "") if why or is_gone else (0, f"{real}\n", "")

    def _stat(self, words: Sequence[str]) -> tuple[int, str, str]:
        """`stat -c FORMAT PATH...` with the fields that are asked for in practice."""
        if not words or words[0] not in {"-c", "-Lc", "-L"}:
            return 1, "", "stat: invalid arguments\n"
        words = [word for word in words if word != "-L"]
        out, err = "", ""
        for path in words[2:]:
            fields = self._fields(path)
            if fields is None:
                err += f"stat: cannot statx '{path}': No such file or directory\n"
                continue
            line = words[1]
            for letter, value in fields.items():
                line = line.replace(letter, value)
            out += line + "\n"
        return (1 if err else 0), out, err

    def _fields(self, path: str) -> dict[str, str] | None:
        looked = self.look(path)
        if looked.state is PathState.ABSENT:
            return None
        state, told = looked.state.value, self._told
        mode, owner, group = told["modes"].get(self._resolve(path)[0], USUAL_MODES.get(state, "644 root root")).split()
        kind = {"device": "character special file", "folder": "directory"}.get(state, "regular file")
        numbers = {"%u": str(told["ids"].get(owner, 0)), "%g": str(told["ids"].get(group, 0))}
        words = {"%n": path, "%a": mode, "%U": owner, "%G": group, "%F": kind, "%Y": str(told["changed"])}
        return {**words, **numbers, "%s": str(len(looked.text))}

    def _id(self, words: Sequence[str]) -> tuple[int, str, str]:
        user = self._told["user"]
        groups = user["groups"]
        named = ",".join(f"{number}({name})" for number, name in groups.items())
        told = {
            "": f"uid={user['uid']}({user['name']}) gid={user['gid']}({user['group']}) groups={named}",
            "-u": str(user["uid"]),
            "-un": user["name"],
            "-g": str(user["gid"]),
            "-gn": user["group"],
            "-G": " ".join(str(number) for number in groups),
            "-Gn": " ".join(groups.values()),
        }
        return 0, told["".join(words)] + "\n", ""

    def _head(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """`head -n NUMBER PATH`."""
        if len(words) != 3 or words[0] != "-n":
            return None
        looked = self.look(words[2])
        if looked.state is not PathState.FILE:
            return 1, "", f"head: cannot open '{words[2]}' for reading: {looked.error or 'No such file or directory'}\n"
        return 0, "".join(looked.text.splitlines(keepends=True)[: int(words[1])]), ""

    def _test(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """`test -w PATH`."""
        return (0 if self.look(words[1]).is_writable else 1, "", "") if words[0] == "-w" else None

    def _ps(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """The described table of processes in the columns `pid=,ppid=,uid=,stat=,comm=`."""
        if "".join(words) != "-eopid=,ppid=,uid=,stat=,comm=":
            return None
        rows = [line.split() for line in _said(self._commands[("ps", "-eo", "pid,ppid,stat,comm")]).splitlines()[1:]]
        return 0, "".join(f"{pid:>7} {above:>7} {0:>5} {stat:<4} {name}\n" for pid, above, stat, name in rows), ""

    def _ss(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """`ss -H -ltnp`: the described listeners; of other users' programs no name is shown."""
        return (0, _said(self._commands[("ss", "-Htln")]), "") if "".join(words) == "-H-ltnp" else None

    def _ip(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """`ip -o addr` from the described `ip -br addr`."""
        if "".join(words) != "-oaddr":
            return None
        out = ""
        for number, row in enumerate(_said(self._commands[("ip", "-br", "addr")]).splitlines(), 1):
            name, _, *addresses = row.split()
            for address in addresses:
                kind, scope = "inet6" if ":" in address else "inet", "host" if name == "lo" else "global"
                lasts = "valid_lft forever preferred_lft forever"
                out += f"{number}: {name}    {kind} {address} scope {scope} {name}\\       {lasts}\n"
        return 0, out, ""

    def _ping(self, words: Sequence[str]) -> tuple[int, str, str] | None:
        """`hccn_tool -i N -ping -g address X`: answered by the card that has the address, where both links are up."""
        if "-ping" not in words or "address" not in words:
            return None
        number, target = words[words.index("-i") + 1], words[words.index("address") + 1]
        ends = [number, *(end for end in self._cards() if self._says(end, "-ip", f"ipaddr:{target}\n"))]
        out = f"device {number} PING {target}\n"
        if len(ends) > 1 and all(self._says(end, "-link", "link status: UP") for end in ends):
            lines = "".join(f"recv seq={at},time=0.06{at}000ms\n" for at in range(3))
            return 0, f"{out}{lines}3 packets transmitted, 3 received, 0.00% packet loss\n", ""
        lines = "".join(f"recv time out seq={at}\n" for at in range(3))
        return 1, f"{out}{lines}3 packets transmitted, 0 received, 100.00% packet loss\n", "Cmd execute failed!\n"

    def _cards(self) -> list[str]:
        return [key[key.index("-i") + 1] for key in self._commands if key[0] == "hccn_tool" and "-ip" in key]

    def _says(self, card: str, item: str, text: str) -> bool:
        answer = self._commands.get(_key(("hccn_tool", "-i", card, item, "-g")), "")
        return text in _said(answer)

    def _df(self, words: Sequence[str]) -> tuple[int, str, str]:
        """`df -kP PATH...` from the described mounts: blocks of 1 KiB and inodes are asked alike."""
        paths = [word for word in words if not word.startswith("-")]
        flags = "".join(word for word in words if word.startswith("-"))
        head = "Filesystem     1024-blocks      Used Available Capacity Mounted on\n"
        kind = "kib"
        if "i" in flags:
            head, kind = "Filesystem        Inodes    IUsed      IFree IUse% Mounted on\n", "inodes"
        rows = ""
        for path in paths:
            if self.look(path).state is PathState.ABSENT:
                return 1, "", f"df: {path}: No such file or directory\n"
            real, _ = self._resolve(path)
            place = max((place for place in self._told["mounts"] if is_under(real, place)), key=len)
            mount = self._told["mounts"][place]
            total, used = mount[kind]
            share = 100 * used // total if total else 0
            rows += f"{mount['source']:<14} {total:>11} {used:>9} {total - used:>9} {share:>7}% {place}\n"
        return 0, head + rows, ""


def _address_files(told: Description) -> dict[str, str]:
    """What the kernel shows of the addresses of the described `ip -br addr`."""
    addresses = [word for row in _said(told["commands"]["ip -br addr"]).splitlines() for word in row.split()[2:]]
    four = [address.partition("/")[0] for address in addresses if ":" not in address]
    leaves = "".join(f"           |-- {address}\n              /32 host LOCAL\n" for address in four)
    return {"/proc/net/fib_trie": f"Main:\n  +-- 0.0.0.0/0 3 0 5\nLocal:\n  +-- 0.0.0.0/0 3 0 5\n{leaves}"}


def _children(told: Description) -> dict[str, set[str]]:
    """Every folder with the names in it: what is listed, and what the other paths imply."""
    children: dict[str, set[str]] = defaultdict(set)
    for path, names in told["folders"].items():
        children[path].update(names)
    for path in _paths(told):
        while path != "/":
            above = posixpath.dirname(path)
            children[above].add(posixpath.basename(path))
            path = above
    return dict(children)


def _paths(told: Description) -> Iterator[str]:
    for kind in TREE_KINDS:
        yield from told[kind]
    for name, folders in told["programs"].items():
        yield from (f"{folder}/{name}" for folder in folders)


def _key(words: Sequence[str]) -> tuple[str, ...]:
    """Commands of the Ascend tools take their options in any order: the same question, the same key."""
    if words[0] not in {"npu-smi", "hccn_tool"}:
        return tuple(words)
    groups: list[tuple[str, ...]] = []
    for word in words[1:]:
        if word.startswith("-") or not groups:
            groups.append((word,))
        else:
            groups[-1] = (*groups[-1], word)
    return (words[0], *(word for group in sorted(groups) for word in group))


def _ran(words: tuple[str, ...], answer: str | Mapping[str, Any]) -> Ran:
    if isinstance(answer, str):
        return Ran(words, 0, answer, "")
    timed_out = bool(answer.get("timed_out", False))
    code = None if timed_out else int(answer.get("code", 0))
    return Ran(words, code, answer.get("out", ""), answer.get("err", ""), timed_out)


def _said(answer: str | Mapping[str, Any]) -> str:
    """What a command prints."""
    return answer if isinstance(answer, str) else str(answer.get("out", ""))
