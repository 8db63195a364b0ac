"""Variables that reach a run through Ray and not through the shell. Start from `of_job` and `of_ray_init`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.core.json_input import JsonError, loads
from npuenv.preflight.types import Place, Setting

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npuenv.preflight.script import Word

JOB_VARIABLES = "env_vars."  # in front of the name of a variable that stands in a JSON text


def of_job(words: Sequence[Word], path: str) -> dict[str, Setting]:
    """The variables that `ray job submit --runtime-env-json` gives to the run."""
    values = [word.value for word in words]
    for at, word in enumerate(words):
        name, sign, text = word.value.partition("=")
        if name == "--runtime-env-json" and (sign or at + 1 < len(values)):
            try:
                found = loads(text if sign else values[at + 1])
            except JsonError:
                return {}
            pairs = found.get("env_vars") if isinstance(found, dict) else None
            place = Place(path, word.line if path else 1, at + 1)
            items = pairs.items() if isinstance(pairs, dict) else ()
            return {key: Setting(f"{JOB_VARIABLES}{key}", str(value), str(value), place) for key, value in items}
    return {}


def of_ray_init(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """The variables that the trainer gives to its workers through Ray."""
    found = ((re.fullmatch(r"(?:ray_kwargs\.)?ray_init\.runtime_env\.env_vars\.(\w+)", key), key) for key in settings)
    return {match[1]: settings[key] for match, key in found if match}
