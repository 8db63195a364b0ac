"""The rendered files read back and judged by the rules of `npuenv preflight`, before anything is written.

The memory is left out: the estimate says it, and a user may insist.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.finding import Status
from npuenv.core.messages import Message
from npuenv.matrix.keys import defaults_of
from npuenv.preflight.examine import examine
from npuenv.preflight.reading import ReadOptions, read_text, read_words
from npuenv.preflight.types import Machine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npuenv.preflight.memory.types import Cards
    from npuenv.preflight.reading import Reading

_LEFT_OUT = frozenset({"preflight.memory"})
# Warnings that are errors in a launch of npuenv's own: cards shared in part, sequences lost or uneven.
_STRICT = frozenset({"preflight.device-overlap", "preflight.micro-batch", "preflight.mini-batch-uneven"})


def refuse_verl(program: str, words: Sequence[str], cards: Cards, release: str) -> None:
    """Refuses overrides, as words of a shell, that verl would not run with. Raises: BadInput with preflight's words."""
    plain = [part for word in words for part in shlex.split(word)]
    asked = ReadOptions(defaults_of, "verl", release, _machine(cards))
    _refuse(read_words(["python3", "-m", program, *plain], asked))


def refuse_roll(name: str, text: str, cards: Cards, release: str) -> None:
    """Refuses a YAML that ROLL would not run with. Raises: BadInput with preflight's words."""
    _refuse(read_text(text, Path(name), ReadOptions(defaults_of, "roll", release, _machine(cards))))


def _machine(cards: Cards) -> Machine:
    return Machine(cards.hardware, cards.per_node, cards.nodes)


def _refuse(reading: Reading) -> None:
    found = examine(reading.launch, refused=reading.refused)
    errors = [
        each
        for each in found
        if each.check not in _LEFT_OUT
        and (each.status is Status.FAIL or (each.status is Status.WARN and each.check in _STRICT))
    ]
    if not errors:
        return
    first = errors[0]
    changes = tuple(f"{each.key}={each.value}" for each in first.changes if each.value is not None)
    hint = Message("launch.not-run-hint", {"changes": changes}) if changes else None
    raise BadInput(Message("launch.not-run", {"what": tuple(each.says for each in errors)}), hint)
