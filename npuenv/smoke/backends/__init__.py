"""The smoke test through verl or ROLL: their smallest GRPO run as `npuenv render-launch` writes it.

`look` finds the framework in the target, `prepare` renders the run, `start` starts it, `follow` turns its output into
records, `judge` turns those into findings with the messages of the built-in test, and `CAUSES` orders them from
causes to symptoms. Nothing is installed and no Ray is joined: the run starts its own.
"""

from npuenv.smoke.backends.judging import CAUSES, judge
from npuenv.smoke.backends.monitor import follow, header
from npuenv.smoke.backends.starting import asked, look, prepare, start, used_cards

__all__ = [
    "CAUSES",
    "asked",
    "follow",
    "header",
    "judge",
    "look",
    "prepare",
    "start",
    "used_cards",
]
