"""Commands that failed, were typed again after something had been mended, and then worked. Start from `mended`.

An error belongs to the command that printed it. Where the same shell types the same command again and that ends well,
the error is history. This is believed only where the prompt, the folder, the settings and the command are the same,
something was done in between that mends things, and nothing was left out of the paste. What works in another place,
with another setting, or again without any change is a comparison, a way around or luck: there the error counts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npuenv.diagnose.outcome import is_failure, is_trouble
from npuenv.diagnose.recovered import is_break, is_progress
from npuenv.host.report import typed_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npuenv.host.report import Line

# What puts things right: variables of an installation, packages, rights, processes, files, drivers, cards.
_MENDS = re.compile(
    r"(?:sudo +(?:-E +)?)?(?:(?:source|\.) +\S|unset +\w|(?:export +)?[A-Za-z_]\w*=\S+$"
    r"|(?:[\w./-]*python[\d.]* +-m +)?(?:uv +)?pip[\d.]* +(?:install|uninstall|cache +purge)\b"
    r"|uv +(?:sync|add|remove)\b|(?:conda|mamba) +(?:install|remove|update)\b"
    r"|(?:apt|apt-get|yum|dnf|zypper) +(?:-\S+ +)*(?:install|remove|update)\b|(?:rpm|dpkg) +-[iUeP]"
    r"|(?:chmod|chown|chgrp|usermod|useradd|groupadd|gpasswd|setfacl|ln|mkdir|rm|mv|cp|tar|unzip)\b"
    r"|(?:kill|pkill|killall|fuser +-k|mount|umount|modprobe|insmod|rmmod|systemctl|service|sysctl|ldconfig)\b"
    r"|update-alternatives\b|ulimit +-\w+ +\w|npu-smi +set\b|hccn_tool\b.* -s\b|ray +stop\b"
    r"|(?:docker|nerdctl|podman) +(?:stop|kill|rm|pull|login)\b|(?:(?:ba)?sh +)?\S+\.run(?: |$)"
    r"|(?:make|cmake|ninja)\b|[\w./-]*python[\d.]* +setup\.py\b"
    r"|(?:echo|printf|cat)\b.*(?:(?<![\d&])>{1,2} *(?!/dev/null|&)\S|\| *(?:sudo +)?tee\b))"
)
# After these the same words mean another machine, folder, interpreter, program or setting, or a comment says so.
_ELSEWHERE = re.compile(
    r"#|(?:sudo +)?(?:ssh|su|exit|logout|zsh|fish|tmux|screen|chroot|nsenter|cd|pushd|popd|git|vim?|nano|emacs|code"
    r"|patch|sed|perl|alias|unalias|newgrp|sg|script|watch|kubectl|oc|srun|salloc|sbatch|deactivate|workon|pyenv|module"
    r"|poetry|pipenv)(?![\w-])"
    r"|sudo +-[is]\b|(?:sudo +)?env +-|(?:sudo +)?(?:ba)?sh(?! +\S+\.run\b)(?![\w-])"
    r"|(?:conda|mamba|micromamba) +(?:activate|deactivate)|(?:source|\.) +\S*activate\b"
    r"|(?:sudo +)?(?:cp|mv|ln|echo|printf|cat)\b.*\.(?:ya?ml|json|toml|cfg|ini|py|sh)\b"
    r"|(?:sudo +)?(?:docker|nerdctl|podman)(?:-compose)? +(?!(?:stop|kill|rm|pull|login|ps|images|inspect|logs)\b)\S"
)
_SETS = re.compile(r"(?:(?:export|declare -x) +)?([A-Za-z_]\w*)=")
# Where things are. Any other variable says how they work, and with another value it is another run.
_PLACES = re.compile(
    r"(?:LD_LIBRARY_PATH|PATH|(?:ASCEND|ATB|CANN)_\w*(?:PATH|HOME)|(?:https?|no|all)_proxy|(?:PIP|UV)_\w+"
    r"|(?:HCCL|GLOO|TP)_SOCKET_IFNAME|HCCL_IF_IP)$",
    re.IGNORECASE,
)
# These run until somebody ends them, and their beginning is what people paste; or their output goes elsewhere.
_SILENCE_SAYS_NOTHING = re.compile(
    r"serv|train|torchrun|\bray\b|deepspeed|accelerate|verl|roll|ppo|grpo|[|&>]|\bnohup\b", re.IGNORECASE
)
_IMPORTS = re.compile(r"\S*python[\d.]* +-c +[\"'](?!.*print)[^|&>]*$")
# Words of somebody who leaves something out.
_LEFT_OUT = re.compile(
    r"^(?=.*(?:\.{3}|…))\W+$|\b(?:same|similar|still|again|snip|omitted|truncated|as (?:above|before))\b|\^C"
    r"|同上|同样|一样|省略|略|仍然|还是",
    re.IGNORECASE,
)
# What stands above a prompt and brings in the next one.
_SENTENCE = re.compile(r"[:：。，]\s*$|[\u4e00-\u9fff]|^\s*[A-Za-z][a-z']*(?:,? [A-Za-z']+){4,}[.!?]?\s*$")
_PIP = re.compile(r"(?:[\w./-]*python[\d.]* +-m +)?(?:uv +)?pip[\d.]* +install +")
# Options of pip that say where to look, each with a value.
_WHERE = frozenset((
    "-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--trusted-host", "--proxy", "--timeout",
    "--default-timeout", "--retries", "--cert",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Run:
    """A typed command and what stands below it; without a command lines that belong to none."""

    prompt: str
    command: str
    start: int  # place of its first line
    lines: tuple[Line, ...]  # below that
    is_closed: bool  # the same prompt comes next: the command has returned


def mended(lines: Sequence[Line]) -> frozenset[int]:
    """Places in `lines` of the commands whose error is history, and of all that they printed."""
    if any(lines[at].number - lines[at - 1].number > 1 for at in range(1, len(lines))):
        return frozenset()  # among the lines that were not looked at the error may have come back
    runs = list(_cut(lines))
    last = {_same(run.command): at for at, run in enumerate(runs) if run.command}
    found: set[int] = set()
    for at, run in enumerate(runs):
        again = last[_same(run.command)] if run.command and _failed_at_once(run) else at
        if again > at and _is_well(runs[again], runs[again + 1 : again + 2]) and _is_mended(runs[at : again + 1]):
            found.update(range(run.start, run.start + 1 + len(run.lines)))
    return frozenset(found)


def _cut(lines: Sequence[Line]) -> Iterator[_Run]:
    """The paste cut at prompts, and where a heading or a sentence brings in something else."""
    prompt, command, start = "", "", 0
    for at, line in enumerate(lines):
        text, typed = line.text.strip(), typed_command(line.text)
        own = text.removesuffix(typed).strip() if typed is not None else text if prompt and text == prompt else ""
        if own or is_break(line, lines[at - 1] if at else None):
            yield _Run(prompt, command, start, tuple(lines[start + 1 : at]), is_closed=bool(own) and own == prompt)
            prompt, command, start = own, typed or "", at
    yield _Run(prompt, command, start, tuple(lines[start + 1 :]), is_closed=False)


def _same(command: str) -> str:
    """Equal for commands that do the same. Where pip is told to look for packages does not count."""
    match = _PIP.match(command)
    try:
        words = shlex.split(command[match.end() :]) if match else []
    except ValueError:  # a quote that is not closed
        match = None
    if match is None:
        return " ".join(command.split())
    kept, is_value = [], False
    for word in words:
        name, equals, _ = word.partition("=")
        if not is_value and name not in _WHERE:
            kept.append(word)
        is_value = not is_value and name in _WHERE and not equals
    return " ".join((*match.group().split(), *kept))


def _failed_at_once(run: _Run) -> bool:
    """Whether a run failed before it had done any work: what fails later may come and go."""
    return any(map(is_failure, run.lines)) and not any(map(is_progress, run.lines))


def _is_mended(runs: Sequence[_Run]) -> bool:
    """Whether something was mended between the first run and the last one, in the same place and setting."""
    first, *between, last = runs
    between = [run for run in between if run.command or any(line.text.strip() for line in run.lines) or not run.prompt]
    # A lone `#` begins a heading as often as a command of root.
    if first.prompt == "#" or any(run.prompt != first.prompt or not run.command for run in (*between, last)):
        return False
    above = (next((each for each in reversed(run.lines) if each.text.strip()), None) for run in (first, *between))
    if any(line is not None and _SENTENCE.search(line.text) for line in above):
        return False
    parts = [part for run in between for part in _parts(run.command)]
    if any(_ELSEWHERE.match(part) or _sets_another_way(part) for part in parts):
        return False
    # What failed itself has mended nothing.
    done = [part for run in between if not any(map(is_trouble, run.lines)) for part in _parts(run.command)]
    return first.command.split() != last.command.split() or any(map(_MENDS.match, done))


def _parts(command: str) -> Iterator[str]:
    """The pieces of a line of the shell, and the words of an `export`; a `;` in quotes only adds pieces."""
    yield from (each.strip() for each in re.split(r"&&|\|\||;", command))
    if command.startswith("export "):
        yield from command.split()[1:]


def _sets_another_way(part: str) -> bool:
    match = _SETS.match(part)
    return match is not None and _PLACES.match(match.group(1)) is None


def _is_well(run: _Run, following: Sequence[_Run]) -> bool:
    """Whether a run says itself that it works, or returned without a word of trouble."""
    if any(_LEFT_OUT.search(line.text[:300]) for line in run.lines):
        return False
    bad = [at for at, line in enumerate(run.lines) if is_trouble(line)]
    good = [at for at, line in enumerate(run.lines) if is_progress(line)]
    if good:
        return not bad or good[-1] > bad[-1]
    if bad or not run.is_closed or _SILENCE_SAYS_NOTHING.search(run.command) or any(map(_is_bad_code, following)):
        return False
    return any(line.text.strip() for line in run.lines) or _IMPORTS.match(run.command) is not None


def _is_bad_code(run: _Run) -> bool:
    """Whether this is `echo $?` and it does not say 0."""
    said = next((line.text.strip() for line in run.lines if line.text.strip()), "")
    return run.command.startswith("echo $?") and said != "0"
