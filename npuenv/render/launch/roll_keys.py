"""Which keys ROLL reads. Its loader drops all others without a word, so a misspelt one would change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npuenv.matrix.keys import fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable

# Groups of the whole configuration that are one role each; under `rewards` there is one for each domain.
_ROLES = ("actor_train", "actor_infer", "reference", "critic", "reward", "validation", "reward_model")
_MANAGERS = ("train_env_manager", "val_env_manager")


def is_read(key: str) -> bool:
    """Whether ROLL, or an interpolation of its own files, reads a dotted key. Free groups take every name."""
    parts = key.split(".")
    if parts[0] == "rewards":
        return len(parts) > 2 and _is_of_role(parts[2:])
    if parts[0] in (*_ROLES, *_MANAGERS):
        return len(parts) > 1 and _is_of_role(parts[1:])
    return parts[0] in fields_of("top")


def alike(key: str, written: Iterable[str]) -> tuple[str, ...]:
    """Names that a misspelt key may stand for: those that are written, and its neighbours in the same group."""
    above, _, _ = key.rpartition(".")
    group = above.rpartition(".")[2]
    part = "top" if not above else "worker" if group in (*_ROLES, *_MANAGERS) else group
    beside = tuple(f"{above}.{name}" if above else name for name in fields_of(part))
    return tuple(dict.fromkeys((*(name for name in written), *beside)))


def _is_of_role(parts: list[str]) -> bool:
    if parts[0] not in fields_of("worker"):
        return False
    inner = fields_of(parts[0])
    return len(parts) == 1 or not inner or parts[1] in inner
