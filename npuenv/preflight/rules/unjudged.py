"""Notes about what was not judged, or judged as something else: the release, keys of other programs, open values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npuenv.matrix.keys import known_releases, nearest_release, releases_beside
from npuenv.preflight.rules.base import problem, rule
from npuenv.preflight.rules.keys import TABLE, has_own_keys, not_in_table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.types import Launch, LaunchFinding

_MOST_NAMED = 8
_ANYTHING = re.compile(r"(?:^data\.(?:train|val)_files|_name|_dir|_path)$")  # names and places: no rule is about them


@rule("release")
def _release_unknown(launch: Launch) -> Iterator[LaunchFinding]:
    if nearest_release(launch.framework, launch.release) is None:
        yield problem(
            launch,
            (),
            severity="note",
            framework=launch.framework,
            known=known_releases(launch.framework),
            source=f"npuenv/matrix/keys/{launch.framework}.toml",
        )


@rule("release")
def _release_near(launch: Launch) -> Iterator[LaunchFinding]:
    """Says aloud that another release's keys speak for this one."""
    known = nearest_release(launch.framework, launch.release)
    if launch.checkout is not None:
        path, release = launch.checkout.checkout, launch.release
        yield problem(launch, (), says="release-checkout", severity="note", source=path, path=path, release=release)
    elif known is not None and (launch.release_name or known != launch.release):
        yield problem(
            launch,
            (),
            says="release-near",
            severity="note",
            framework=launch.framework,
            release=launch.release_name or launch.release,
            known=releases_beside(launch.framework, launch.release),
            source=f"npuenv/matrix/keys/{launch.framework}.toml",
        )


@rule("key-unknown", "verl", source=TABLE)
def _keys_unjudged(launch: Launch) -> Iterator[LaunchFinding]:
    """Says aloud which keys were left to a program that may have them."""
    unknown = not_in_table(launch) if has_own_keys(launch) else ()
    keys = [each.setting.key for each in unknown if each.setting.is_sure]
    if keys:
        yield problem(launch, (), says="keys-unjudged", severity="note", program=launch.program, names=_named(keys))


@rule("undecided", source="the script itself, which is read and not run")
def _undecided(launch: Launch) -> Iterator[LaunchFinding]:
    """Says aloud what was not judged, because only the running script decides it."""
    written = (*launch.settings.values(), *launch.environ.values())
    undecided = [setting.key for setting in written if setting.is_shells or not setting.is_sure]
    open_keys = [key for key in undecided if not _ANYTHING.search(key)]
    for says, is_so in (("undecided", bool(open_keys)), ("undecided-keys", launch.is_partial)):
        if is_so:
            yield problem(launch, (), says=says, severity="note", count=len(open_keys), names=_named(open_keys))


def _named(keys: list[str]) -> tuple[str, ...]:
    return (*keys[:_MOST_NAMED], *(["…"] if len(keys) > _MOST_NAMED else []))
