"""A program that runs inside an environment, with its Python, and tells a shell what to execute to enter it.

It is copied into the environment as it stands, so it uses nothing but the standard library and imports nothing of ours.
The activation scripts evaluate what it prints; what it has to say goes to stderr. Beside it lies `activation.json`.

    python entering.py SHELL [LEVEL [BELOW [again]]]     SHELL: sh, zsh, fish or csh
    python entering.py check                             exit 0 when NPUENV_ROLE and NPUENV_NODES can be used
    python entering.py unsourced SHELL                   says that the script of that shell has to be sourced

LEVEL is the number of environments that are active already, BELOW the folder of the uppermost one; `again` says that
the code has to leave the uppermost one first. The code saves every variable it changes, in the shell that evaluates it,
and defines `npuenv_deactivate`, which puts each back as it was: unset, set without being exported, or exported.

CANN's scripts are written for bash, define functions and read variables that need not be set. They run in a bash of
their own, and what they change in its environment is taken over: the same in every shell, and nothing of theirs stays.
"""

from __future__ import annotations

import json
import os
import re
import sys

TYPE_CHECKING = False  # the module `typing` would take as long to load as everything else here
if TYPE_CHECKING:
    from typing import Any

    Environ = dict[bytes, bytes]
    Changes = dict[bytes, bytes | None]  # name -> the new value; None: unset
    Data = dict[str, Any]  # what `activation.json` holds

NAME = re.compile(rb"[A-Za-z_][A-Za-z0-9_]*\Z")
PLAIN = re.compile(rb"[\w./+@%:,=-]+\Z")  # needs no quotes in any shell
SHELL_OWN = {b"_", b"SHLVL", b"PWD", b"OLDPWD"}  # every shell sets them for itself
# They would change what bash does with CANN's scripts: options, a file to read first, a `cd` that goes elsewhere.
UNWANTED = {b"BASH_ENV", b"ENV", b"SHELLOPTS", b"BASHOPTS", b"POSIXLY_CORRECT", b"CDPATH", b"BASH_XTRACEFD"}
DEFAULT_PATH = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What activate.csh needs for itself, and nobody afterwards.
CSH_END = b"unset _npuenv_nl _npuenv_bs _npuenv_new _npuenv_above; unalias _npuenv_code"
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


class Refused(Exception):
    """What was asked for cannot be done; the text says why."""


def main(argv: list[str]) -> int:
    """The exit code. After a refusal the printed code is `false`, so that the shell has a status to show."""
    try:
        data = read_json(os.path.join(os.path.dirname(os.path.abspath(__file__)), "activation.json"))
        if argv[:1] == ["check"]:
            settings_for(data, dict(os.environb))
            return 0
        if argv[:1] == ["unsourced"]:
            tell(say(data, "unsourced", command=sourcing(data, argv[1])))
            return 1
        level, below, again = int((argv[1:2] or [""])[0] or 0), "".join(argv[2:3]), argv[3:4] == ["again"]
        code = entering(argv[0], data, dict(os.environb), level=level, below=below)
    except (Refused, OSError, ValueError) as error:  # the last two: activation.json is missing or damaged
        tell(str(error))
    except KeyboardInterrupt:
        return 130
    else:
        sys.stdout.buffer.write((b"npuenv_deactivate; " if again else b"") + code + b"\n")
        return 0
    if argv[:1] != ["check"]:
        sys.stdout.buffer.write((CSH_END + b"; " if argv[:1] == ["csh"] else b"") + b"false\n")
    return 1


def entering(shell: str, data: Data, env: Environ, *, level: int, below: str) -> bytes:
    """The code with which `shell` goes from `env` into the environment."""
    wanted = wanted_environ(data, env)
    names = sorted(name for name in {*env, *wanted} if NAME.match(name) and env.get(name) != wanted.get(name))
    changes = {name: wanted.get(name) for name in names}
    root = as_bytes(data["root"])
    write = {"sh": sh_code, "zsh": sh_code, "fish": fish_code, "csh": csh_code}[shell]
    return write(changes, env, level=level, root=root, below=as_bytes(below), is_zsh=shell == "zsh")


def wanted_environ(data: Data, env: Environ) -> Environ:
    """The environment once the stack is active."""
    settings = settings_for(data, env)
    is_choosing = text_of(env, "NPUENV_ROLE") or text_of(env, "NPUENV_NODES")
    if is_choosing and not any([*data["roles"].values(), *data["nodes"].values()]):
        tell(say(data, "no-profile", stack=data["stack"]))
    own = as_bytes(data["root"]) + b"/bin"
    new = {**env, b"PATH": own + b":" + (env.get(b"PATH") or DEFAULT_PATH)}
    new = with_cann(data, new)
    folders = new[b"PATH"].split(b":")
    folders.remove(own)
    new.update({b"PATH": b":".join([own, *folders]), b"VIRTUAL_ENV": as_bytes(data["root"])})
    new.pop(b"PYTHONHOME", None)  # names another interpreter's library
    for folder in reversed(data["on_path"]):
        rest = new.get(b"PYTHONPATH")
        new[b"PYTHONPATH"] = as_bytes(folder) + (b":" + rest if rest else b"")
    return {**new, **settings, **proxies(data, env)}


def settings_for(data: Data, env: Environ) -> Environ:
    """The stack's settings for the role and the number of nodes that NPUENV_ROLE and NPUENV_NODES name."""
    role, nodes = text_of(env, "NPUENV_ROLE"), text_of(env, "NPUENV_NODES")
    for variable, value, known in (("NPUENV_ROLE", role, data["roles"]), ("NPUENV_NODES", nodes, data["nodes"])):
        if value and value not in known:
            raise Refused(say(data, "choice", variable=variable, value=value, known=", ".join(sorted(known))))
    chosen = dict(data["settings"])
    if role or nodes:
        chosen.update(data["nodes"][nodes or "single"])
        chosen.update(data["roles"].get(role, {}))
    home = text_of(env, "HOME")
    cache = text_of(env, "XDG_CACHE_HOME") or (f"{home}/.cache" if home else "")
    usable = {name: value for name, value in chosen.items() if cache or "{cache}" not in value}
    return {as_bytes(name): as_bytes(value.replace("{cache}", f"{cache}/npuenv")) for name, value in usable.items()}


def with_cann(data: Data, env: Environ) -> Environ:
    """`env` as the scripts of CANN and NNAL change it. A script that is not there is no failure, and is said unless
    the installation may do without it."""
    lines = []
    for path in data["scripts"]:
        if os.access(path, os.R_OK):
            folder, name = os.path.split(as_bytes(path))
            # From inside its folder: NNAL's script asks for its own place with an unquoted name. The compiler's is
            # named whole, as everybody does: what it makes of a relative name of its own is not known.
            script = sh_quoted(as_bytes(path)) if path in data["may_lack"] else b"./" + sh_quoted(name)
            words = b" --cxx_abi=" + cxx_abi(data["root"]) if b"/nnal/" in as_bytes(path) else b""
            lines.append(b"cd -- " + sh_quoted(folder) + b" && . " + script + words)
        elif path not in data["may_lack"]:
            tell(say(data, "no-script", path=path))
    if not lines:
        return env
    before = {name: value for name, value in env.items() if NAME.match(name) and name not in UNWANTED}
    after = environ_after(data, lines, before)
    new = dict(env)
    for name in {*before, *after} - SHELL_OWN:
        if not NAME.match(name) or before.get(name) == after.get(name):
            continue
        if name not in after:
            del new[name]
        # They append to what may be empty; an empty entry would put the working folder on the path.
        elif name in (b"PYTHONPATH", b"LD_LIBRARY_PATH") and not before.get(name):
            new[name] = after[name].strip(b":")
        else:
            new[name] = after[name]
    return {name: value for name, value in new.items() if value or name != b"PYTHONPATH" or name in env}


def environ_after(data: Data, lines: list[bytes], env: Environ) -> Environ:
    """The environment of a bash that has executed `lines`."""
    import subprocess  # ten milliseconds that a stack without CANN does not need

    code = b"\n".join([b"exec 3>&1 >/dev/null", *lines, b"exec env -0 >&3"])
    argv = [b"bash", b"--norc", b"--noprofile", b"-c", code]
    try:
        ran = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=False)
    except OSError as error:
        raise Refused(say(data, "no-bash", why=str(error))) from None
    pairs = [entry.partition(b"=") for entry in ran.stdout.split(b"\0") if entry]
    if not pairs or ran.returncode != 0:
        raise Refused(say(data, "ended", paths=", ".join(data["scripts"]), code=str(ran.returncode)))
    return {name: value for name, _, value in pairs}


def cxx_abi(root: str) -> bytes:
    """Which of NNAL's two builds goes with the environment's torch. NNAL's script would import torch twice to learn it.

    torch's own CMake file says 0 or 1; where it says nothing (releases that know only the new one) it is 1.
    """
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    path = f"{root}/lib/{version}/site-packages/torch/share/cmake/Torch/TorchConfig.cmake"
    try:
        with open(path, "rb") as file:
            said = re.search(rb"_GLIBCXX_USE_CXX11_ABI=([01])", file.read())
    except OSError:  # no torch: NNAL's script takes 1 then
        said = None
    return said.group(1) if said else b"1"


def proxies(data: Data, env: Environ) -> Environ:
    """Both spellings of each proxy variable, if NPUENV_PROXY asks: `1` for what the user has set, or an address.

    pip's own `proxy` stands above the environment, as it does in pip.
    """
    wish = text_of(env, "NPUENV_PROXY")
    if wish.lower() in ("", "0", "no", "off", "false"):
        return {}
    if wish.lower() in ("1", "yes", "on", "true"):
        spelled = {name: text_of(env, name) or text_of(env, name.upper()) for name in PROXIES}
        chosen = {name: value for name, value in spelled.items() if value}
        address = pip_proxy(data["root"], env)
    else:
        chosen, address = {}, wish
    if address:
        address = address if "://" in address else f"http://{address}"
        chosen.update({"http_proxy": address, "https_proxy": address})
    if not any(name != "no_proxy" for name in chosen):
        tell(say(data, "no-proxy"))
    return {as_bytes(spelling): as_bytes(value) for name, value in chosen.items() for spelling in (name, name.upper())}


def pip_proxy(root: str, env: Environ) -> str:
    """The proxy that pip is configured with, "" for none: its files from weak to strong, sections before files."""
    if text_of(env, "PIP_PROXY"):
        return text_of(env, "PIP_PROXY")
    import configparser

    found: dict[str, str] = {}
    for path in pip_files(root, env):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):  # a file that pip cannot read either
            continue
        for section in ("global", "install"):
            value = parser.get(section, "proxy", fallback="")
            found.update({section: value} if value else {})
    return found.get("install") or found.get("global") or ""


def pip_files(root: str, env: Environ) -> list[str]:
    """Paths from weak to strong. PIP_CONFIG_FILE replaces the user's files; the null device means none.

    Source: pip 26 `_internal/configuration.py`.
    """
    chosen, home = text_of(env, "PIP_CONFIG_FILE"), text_of(env, "HOME")
    if chosen == os.devnull:
        return []
    shared = (text_of(env, "XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    user = [f"{home}/.pip/pip.conf", (text_of(env, "XDG_CONFIG_HOME") or f"{home}/.config") + "/pip/pip.conf"]
    files = [f"{folder}/pip/pip.conf" for folder in shared] + ["/etc/pip.conf"]
    files += user if not os.path.isfile(chosen) else []
    return [*files, f"{root}/pip.conf"] + ([chosen] if chosen else [])


def sh_code(changes: Changes, env: Environ, *, level: int, root: bytes, below: bytes, is_zsh: bool) -> bytes:
    """For POSIX shells; in zsh `typeset -g` keeps ties between variables and warnings about new globals away.

    Reserved words and builtins that users give other meanings by alias are quoted with a backslash.
    """
    new, depth = level + 1, str(level + 1).encode()
    declare = b"\\typeset -g " if is_zsh else b""
    enter, leave = [], []

    def put(name: bytes, value: bytes) -> bytes:
        return b"\\typeset -gx %s=%s" % (name, value) if is_zsh else b"%s=%s; \\export %s" % (name, value, name)

    for name, value in changes.items():
        saved = b"_npuenv_%s_%s" % (depth, name)
        if name in env:
            enter.append(b'%s%s="$%s"' % (declare, saved, name))
            leave.append(b"%s; \\unset %s" % (put(name, b'"$%s"' % saved), saved))
        else:
            enter.append(b'if [ -n "${%s+x}" ]; then %s%s="$%s"; fi' % (name, declare, saved, name))
            unexport = b"\\typeset -g +x %s" % name if is_zsh else b"\\unset %s" % name
            back = b'%s; %s%s="$%s"; \\unset %s' % (unexport, declare, name, saved, saved)
            leave.append(b'if [ -n "${%s+x}" ]; then %s; else \\unset %s; fi' % (saved, back, name))
        enter.append(b"\\unset %s" % name if value is None else put(name, sh_quoted(value)))
    over = b"npuenv_deactivate() { _npuenv_leave_%d; }"
    state = b"%s_npuenv_level=%d; %s_npuenv_root=%s"
    if level:
        leave += [over % level, state % (declare, level, declare, sh_quoted(below))]
    else:
        leave += [b"\\unset -f npuenv_deactivate", b"\\unset _npuenv_level _npuenv_root"]
    leave.append(b"\\unset -f _npuenv_leave_%d" % new)
    enter += [b"_npuenv_leave_%d() {\n%s\n}" % (new, b"\n".join(leave)), over % new]
    return b"\n".join([*enter, state % (declare, new, declare, sh_quoted(root))])


def fish_code(changes: Changes, env: Environ, *, level: int, root: bytes, below: bytes, is_zsh: bool) -> bytes:
    """For fish: globals are saved as the lists they are, after one word for whether they are exported.

    A universal variable is only covered by a global one, and shows again when that is erased.
    """
    new = level + 1
    enter, leave = [], []
    for name, value in changes.items():
        saved = b"_npuenv_%d_%s_was" % (new, name)  # a name that ends in PATH would make it another kind of list
        enter.append(b"if set -qgx %s; set -g %s x $%s; else if set -qg %s; set -g %s u $%s; end"
                     % (name, saved, name, name, saved, name))  # fmt: skip
        enter.append(b"set -eg %s" % name if value is None else b"set -gx %s %s" % (name, fish_quoted(value)))
        leave += [
            b"if set -q %s" % saved,
            b"set -l how $%s[1]; set -e %s[1]; set -g$how %s $%s; set -e %s" % (saved, saved, name, saved, saved),
            b"else if set -qg %s; set -eg %s; end" % (name, name),
        ]
    state = b"set -g _npuenv_level %d; set -g _npuenv_root %s"
    over = b"function npuenv_deactivate; _npuenv_leave_%d; end"
    if level:
        leave += [over % level, state % (level, fish_quoted(below))]
    else:
        leave += [b"functions -e npuenv_deactivate", b"set -e _npuenv_level; set -e _npuenv_root"]
    leave.append(b"functions -e _npuenv_leave_%d" % new)
    enter += [b"function _npuenv_leave_%d\n%s\nend" % (new, b"\n".join(leave)), over % new]
    return b"\n".join([*enter, state % (new, fish_quoted(root))])


def csh_code(changes: Changes, env: Environ, *, level: int, root: bytes, below: bytes, is_zsh: bool) -> bytes:
    """For tcsh, in one line: it has no functions, and keeps the lines of a command's output only as words.

    Shell variables are other variables here than those of the environment, so only the latter have to be put back.
    Saved values have numbers for names: older releases refuse variable names of more than 30 characters.
    """
    new = level + 1
    enter, leave = [], []
    for number, (name, value) in enumerate(changes.items()):
        saved = b"_npuenv_%d_%d" % (new, number)
        if name in env:
            enter.append(b"set %s = %s" % (saved, csh_quoted(env[name], times=2)))
            leave.append(b'setenv %s "$%s:q"; unset %s' % (name, saved, saved))
        else:
            leave.append(b"unsetenv %s" % name)
        enter.append(b"unsetenv %s" % name if value is None else b"setenv %s %s" % (name, csh_quoted(value)))
    if level:
        enter.append(b"set _npuenv_%d_root = %s" % (new, csh_quoted(below, times=2)))
        leave.append(b'set _npuenv_root = "$_npuenv_%d_root:q"; unset _npuenv_%d_root' % (new, new))
        leave.append(b"set _npuenv_level = %d; alias npuenv_deactivate _npuenv_leave_%d" % (level, level))
    else:
        leave.append(b"unset _npuenv_level _npuenv_root; unalias npuenv_deactivate")
    leave.append(b"unalias _npuenv_leave_%d" % new)
    enter.append(b"set _npuenv_level = %d; set _npuenv_root = %s" % (new, csh_quoted(root)))
    enter.append(b"alias _npuenv_leave_%d '%s'" % (new, b"; ".join(leave)))
    return b"; ".join([*enter, b"alias npuenv_deactivate _npuenv_leave_%d" % new, CSH_END])


def sh_quoted(value: bytes) -> bytes:
    return b"'" + value.replace(b"'", b"'\"'\"'") + b"'"


def fish_quoted(value: bytes) -> bytes:
    """In single quotes; bytes beyond ASCII as escapes, which mean the same in every locale."""
    quoted = value.replace(b"\\", b"\\\\").replace(b"'", b"\\'")
    return b"'" + re.sub(rb"[\x80-\xff]", lambda found: b"'\\X%02x'" % found.group()[0], quoted) + b"'"


def csh_quoted(value: bytes, *, times: int = 1) -> bytes:
    """One word of one line for tcsh, whatever `backslash_quote` is; needs the variables `_npuenv_nl` and `_npuenv_bs`.

    A backslash before a line feed is lost each time that `"$name:q"` is evaluated, so it is doubled `times`.
    """
    value = re.sub(rb"(\\+)(?=\n)", lambda found: found.group() + b"\\" * times, value)
    special = {b"'": b'"\'"', b"!": b"\\!", b"\n": b'"$_npuenv_nl:q"', b"\\": b'"$_npuenv_bs:q"'}
    parts = re.split(rb"(['!\n\\])", value)
    return b"".join(special.get(part) or (b"'" + part + b"'" if part else b"") for part in parts) or b"''"


def say(data: Data, key: str, **words: str) -> str:
    """A sentence in the language of the locale, as npuenv chooses it."""
    locale = next((os.environ[name] for name in ("LC_ALL", "LC_MESSAGES", "LANG") if os.environ.get(name)), "")
    text: str = data["texts"]["zh" if locale.lower().startswith("zh") else "en"][key]
    return text.format_map(words)


def sourcing(data: Data, shell: str) -> str:
    """The command that sources the script of a shell."""
    path = as_bytes(data["root"]) + b"/activate." + shell.encode()
    word = path if PLAIN.match(path) else sh_quoted(path)
    return (". " if shell == "sh" else "source ") + word.decode("utf-8", "surrogateescape")


def tell(text: str) -> None:
    sys.stderr.buffer.write(f"npuenv: {text}\n".encode("utf-8", "surrogateescape"))


def as_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def text_of(env: Environ, name: str) -> str:
    return env.get(name.encode(), b"").decode("utf-8", "surrogateescape")


def read_json(path: str) -> Data:
    with open(path, encoding="utf-8") as file:
        data: Data = json.load(file)
    return data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
