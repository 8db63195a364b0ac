"""Who is still waited for, said while many nodes are asked. Start from `naming`."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from npuenv.cli.common import Ui
    from npuenv.cluster.inventory import Node
    from npuenv.cluster.parallel_ssh import Answer

_FIRST_S = 2.0  # what takes longer than this is to say that it goes on
_AGAIN_S = 15.0


def naming(ui: Ui, *, first_s: float = _FIRST_S) -> Callable[..., Generator[Answer, None, None]]:
    """`npuenv.cluster.parallel_ssh.ask` that names on stderr, after a while and now and again, who has not answered."""
    from npuenv.cluster import parallel_ssh

    def ask(nodes: Sequence[Node], *args: Any, **options: Any) -> Generator[Answer, None, None]:
        answers = parallel_ssh.ask(nodes, *args, **options)
        with contextlib.closing(answers), _naming(ui, [node.name for node in nodes], first_s) as heard:
            for answer in answers:
                heard(answer.node.name)
                yield answer

    return ask


@contextlib.contextmanager
def _naming(ui: Ui, names: Sequence[str], first_s: float) -> Iterator[Callable[[str], object]]:
    """Takes the names of those that have answered, and names the others from time to time until the block ends."""
    from npuenv.cluster.nodeset import fold

    left, is_over = dict.fromkeys(names), threading.Event()

    def tell() -> None:
        pause_s = first_s
        while not is_over.wait(pause_s):
            pause_s = _AGAIN_S
            waited = list(left)
            if waited:
                ui.say(Message("cluster.waiting", {"count": len(waited), "names": fold(waited)}), err=True)

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield lambda name: left.pop(name, None)
    finally:
        is_over.set()
        thread.join()
