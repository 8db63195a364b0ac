"""What an option is, for click and argparse alike, and those that every command has."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from npuenv.core.messages import LANGUAGES, language_from_environment
from npuenv.terminal.ui import Ui

if TYPE_CHECKING:
    from collections.abc import Sequence


class Option(NamedTuple):
    """An option for click and argparse."""

    flags: str
    name: str  # of the field that takes the value
    help: str
    metavar: str | None = None
    type: type = str  # bool: a flag
    choices: Sequence[Any] | None = None
    default: Any = None
    is_portable: bool = True  # False: the single file does not have it


COMMON = (
    Option("--lang", "lang", "Language of messages (default: the locale's).", choices=LANGUAGES),
    Option("--json", "as_json", "Print one JSON document on stdout.", type=bool),
    Option("-q --quiet", "quiet", "Show only what went wrong.", type=bool),
    Option("-v --verbose", "verbose", "Show everything, not only what needs attention.", type=bool),
    Option("--no-color", "no_color", "Disable colours (same as NO_COLOR).", type=bool),
)


def take_ui(values: dict[str, Any]) -> Ui:
    """Takes the values of COMMON out of those of a command line."""
    return Ui(
        values.pop("lang") or language_from_environment(),
        is_json=values.pop("as_json", False),
        is_quiet=values.pop("quiet"),
        is_verbose=values.pop("verbose"),
        has_color=not (values.pop("no_color") or os.environ.get("NO_COLOR")),
    )
