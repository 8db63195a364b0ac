"""The chat template of a ROLL recipe for another model than the recipe's: `templates_for`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core.errors import BadInput
from npuenv.core.messages import Message

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEY = "actor_train.data_args.template"
# A model's name -> the template under which ROLL's samples train that family (examples/*, data_args.template).
_FAMILIES = ((r"qwen[-_]?2[._]?5", "qwen2_5"), (r"qwen[-_]?3(?![._]?\d)", "qwen3"))


def templates_for(model: str, values: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """The template under each key of `values` that names one and that the user left alone, by the model's name.

    A template that the user sets for training holds for the other roles too.
    Raises: BadInput for a model of no known family where the user names none.
    """
    said = {word.lstrip("+"): value for word, value in overrides.items()}
    keys = [key for key in values if key.endswith(".data_args.template") and key not in said]
    template = said.get(_KEY) or _by_name(said.get("pretrain") or model)
    if keys and template is None:
        args = {"model": model, "key": _KEY, "known": tuple(name for _, name in _FAMILIES)}
        raise BadInput(Message("launch_roll.no-template", args), Message("launch_roll.no-template-hint", args))
    return {key: template for key in keys if template is not None}


def _by_name(model: str) -> str | None:
    name = model.rstrip("/").rpartition("/")[2].casefold()
    return next((template for pattern, template in _FAMILIES if re.match(pattern, name)), None)
