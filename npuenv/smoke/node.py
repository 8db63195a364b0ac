"""A smoke test over several nodes that a launcher has started on each of them: what the others than the first do.

Such a node lends its cards to the run of the first, which keeps the records and says the verdict. Start from
`head_elsewhere`, then `lent`.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from npuenv.smoke.run import Target, start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.host.background import Running


def head_elsewhere(settings: Mapping[str, str], environ: Mapping[str, str] | None = None) -> str | None:
    """The first node's address where this is another one of a run over cards; None where the run is this process's.

    Example: {"train_cards": "0-7"}, {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1"} -> "10.0.0.1"
    """
    environ = os.environ if environ is None else environ
    number, count = environ.get("RANK", "0"), environ.get("WORLD_SIZE", "1")
    is_other = number.isdigit() and int(number) > 0 and count.isdigit() and int(count) > 1
    return environ.get("MASTER_ADDR") if is_other and settings.get("train_cards") else None


@contextlib.contextmanager
def lent(python: Path, settings: Mapping[str, str]) -> Iterator[tuple[Running, Path]]:
    """The trainer at work for the first node, and the folder with its log; both are gone when the block ends.

    The folder of the run itself is the first node's to write in, which may be the same for all.
    """
    own = {name: value for name, value in settings.items() if name != "resume"}  # there is nothing here to go on from
    with tempfile.TemporaryDirectory(prefix="npuenv-node-") as folder:
        place = Target(python, Path(folder) / "out")
        with start(place, own) as running:
            yield running, place.out
