"""Rules about keys and modules: unknown, moved and dropped ones, Hydra's marks and configuration groups."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npuenv.matrix import load_matrix
from npuenv.matrix.keys import all_names, configs_of, fields_of, is_recorded, programs_of, roll_names, tables_beside
from npuenv.matrix.rows import MovedKey
from npuenv.preflight.configs import program_config
from npuenv.preflight.launch import Change, module_of
from npuenv.preflight.rules.base import KEEP, is_at_least, nearest, problem, rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npuenv.core.finding import Severity
    from npuenv.matrix.keys import KeyTable
    from npuenv.preflight.launch import Launch, LaunchSetting
    from npuenv.preflight.rules.base import Problem

_HYDRA = "hydra-core 1.3: a key that the configuration does not have is refused"
TABLE = "npuenv/matrix/keys/verl.toml, from the wheels"
_DROPPED = "alibaba/ROLL roll/configs: dacite drops keys without a field"
_ROLLS_OWN = re.compile(r"config/(traj_envs|step_envs|deepspeed_zero\w*)(?:\.ya?ml)?$")
# Below this everything goes to ray.init as it is; two keys of it are in the table.
_RAY_INIT = re.compile(r"(?:ray_kwargs\.)?ray_init\.(?!num_cpus$|timeline_json_file$)")
_GROUPS = "verl/trainer/config/"
_FREE = ("hydra", "defaults", "custom_envs", "system_envs", "tracker_kwargs", "checkpoint_config")
_NOISE = "trainer.noise_injection"
# A key that ROLL has under another name.
_ROLL_NAMES = {"flash_attn": "attn_implementation", "use_flash_attn": "attn_implementation", "torch_dtype": "dtype"}


def _is_known(key: str, names: frozenset[str]) -> bool:
    """Whether a release has the key: itself, a whole branch of it, or something inside of a leaf that is a mapping."""
    return key in names or any(name.startswith(f"{key}.") for name in names)


def _is_hydras(key: str) -> bool:
    """Choices of groups and Hydra's own keys, which are no part of the composed tree."""
    return key.startswith("hydra") or "@" in key or "/" in key or key in ("defaults", "model_engine", "_self_")


def _tables(launch: Launch) -> tuple[KeyTable, ...]:
    """The keys of a launch's release: those of its checkout, else the recorded ones beside it."""
    return tables_beside(launch.release) if launch.checkout is None else (launch.checkout,)


def _has_own_table(launch: Launch) -> bool:
    """Whether the keys are those of the very release, so that Hydra refuses what they lack."""
    return launch.checkout is not None or is_recorded("verl", launch.release)


def _inside_free(key: str, defaults: Mapping[str, Any]) -> bool:
    """Whether some leaf above the key is an empty mapping or null, below which users put keys of their own."""
    parts = key.split(".")
    return any(defaults.get(".".join(parts[:at]), "") in ({}, None) for at in range(1, len(parts)))


@dataclass(frozen=True, slots=True)
class _UnknownKey:
    """A setting that the release, or one that it lies beside, does not have."""

    setting: LaunchSetting
    names: frozenset[str]  # of the release, or of both that it lies between
    lacking: tuple[str, ...]  # the releases that do not have it
    severity: Severity  # error: Hydra ends the launch, of a recorded release or between two that both refuse the key


def _unknown(launch: Launch) -> Iterator[_UnknownKey]:
    """The settings of verl's own trainer that its release does not have; other programs bring keys of their own."""
    return iter(()) if has_own_keys(launch) else not_in_table(launch)


def has_own_keys(launch: Launch) -> bool:
    """Whether a program is started whose configuration is not in the table, such as one of verl's recipes."""
    path = launch.settings.get("hydra.searchpath")  # configurations of another package, mostly
    places = path.value if path is not None and isinstance(path.value, list) else [path]
    has_more = path is not None and any(place != "pkg://verl.trainer.config" for place in places)
    return has_more or (bool(launch.program) and not program_config(module_of(launch.program)))


def not_in_table(launch: Launch) -> Iterator[_UnknownKey]:
    """The settings that a release does not have, or one of the two that it lies between."""
    tables = _tables(launch)
    names = frozenset[str]().union(*(table.names for table in tables))
    for key, setting in launch.settings.items() if tables else ():
        is_added = launch.is_added(key)
        if is_added and (_inside_free(key, tables[0].defaults) or _RAY_INIT.match(key)):
            continue  # a key of the user's own, below one that takes such keys
        lacking = tuple(table.release for table in tables if not _is_known(key, table.names))
        if lacking and not _is_hydras(key) and not key.startswith(_NOISE):
            is_refused = not is_added and (len(lacking) == 2 or _has_own_table(launch))
            yield _UnknownKey(setting, names, lacking, "error" if is_refused else "warning")


@functools.cache
def moves() -> tuple[MovedKey, ...]:
    """Keys with another name from a release on: those that launch files are rendered by, and those of no recipe."""
    rendered = [
        MovedKey(row.id, row.source, row.seen, "verl", old.rstrip("."), new.rstrip("."), since)
        for row in load_matrix().launch_keys
        for old, new, since in ((row.before, row.key, row.since), (row.key if row.until else "", "", row.until))
        if old
    ]
    return (*load_matrix().moved_keys, *rendered)


def _other_name(launch: Launch, key: str, names: frozenset[str]) -> str | None:
    """What the key is called in the launch's release, where a row says that it has moved, in either direction."""
    for row in moves():
        is_new = is_at_least(launch, row.since)
        old, new = (row.old, row.new) if is_new else (row.new, row.old)
        if old and new and (key == old or key.startswith(f"{old}.")):
            renamed = new + key[len(old) :]
            if _is_known(renamed, names):
                return renamed
    return None


@rule("key-moved", "verl", source=TABLE)
def _key_moved(launch: Launch) -> Iterator[Problem]:
    for each in _unknown(launch):
        setting, is_gone = each.setting, _is_gone(launch, each.setting.key)
        renamed = _other_name(launch, setting.key, each.names)
        if _is_between(launch, each) or not (renamed or is_gone):
            continue
        if not renamed and launch.is_added(setting.key):
            yield from _key_own(launch, setting)  # what left the configuration may still be asked for
            continue
        # Where the new key is written too, its value is the user's choice for this release.
        is_new = renamed is not None and renamed not in launch.settings
        moved = Change(renamed, setting.value, renames=setting.key) if renamed and is_new else None
        changes, says = (moved or Change(setting.key, None),), "" if renamed else "key-gone"
        yield problem(setting.key, says=says, severity=each.severity, changes=changes, new=renamed or "-")


def _is_gone(launch: Launch, key: str) -> bool:
    """Whether a row says that nothing stands in the key's place, or another release has it."""
    rows = (row for row in moves() if row.framework == launch.framework)
    row = next((row for row in rows if key == row.old or key.startswith(f"{row.old}.")), None)
    return (row is not None and not row.new) or key in all_names("verl")


def _is_between(launch: Launch, each: _UnknownKey) -> bool:
    """Whether the key came or went between the two releases beside the launch's."""
    return len(each.lacking) < len(_tables(launch))


@rule("key-unknown", "verl", source=TABLE, severity="warning")
def _key_between(launch: Launch) -> Iterator[Problem]:
    """A key that only one of the two releases has between which the launch's lies."""
    for each in _unknown(launch):
        if _is_between(launch, each) and not launch.is_added(each.setting.key):
            has = next(table.release for table in _tables(launch) if table.release not in each.lacking)
            yield problem(each.setting.key, says="key-between", lacks=each.lacking[0], has=has)


@rule("key-unknown", "verl", source=_HYDRA)
def _key_unknown(launch: Launch) -> Iterator[Problem]:
    for each in _unknown(launch):
        setting, names = each.setting, each.names
        if _is_between(launch, each) or _is_gone(launch, setting.key) or _other_name(launch, setting.key, names):
            continue
        is_added = launch.is_added(setting.key)
        near = None if _RAY_INIT.match(setting.key) else _near(setting.key, names)
        near = None if near and is_added and not is_slip(setting.key, near) else near
        if near is None and is_added and (setting.mark or _is_own(launch, setting)):
            yield from _key_own(launch, setting)
            continue
        is_taken = near in launch.settings  # two values for one key: only the user can decide
        # A value goes to no other place by a guess: what is right for one part can break another.
        is_meant = near is not None and not is_taken and is_slip(setting.key, near)
        changes = (Change(near, setting.value, renames=setting.key),) if near and is_meant else ()
        says = ("key-near-set" if is_taken else "key-near") if near else "key-unread" if is_added else "key-unknown"
        yield problem(setting.key, says=says, changes=changes, near=near or "-", severity=each.severity)


def _is_own(launch: Launch, setting: LaunchSetting) -> bool:
    """Whether an unknown key of a YAML may have a reader: other values point to it, or the release is not known well.

    A YAML whose `defaults:` were not found can belong to another trainer with keys of its own.
    """
    if launch.missing_files or not _has_own_table(launch):
        return True
    pointer = re.compile(rf"\$\{{(?:[\w.]+:)?{re.escape(setting.key.split('.')[0])}[.}},]")
    return any(pointer.search(each.text) for each in launch.settings.values())


def _is_read(launch: Launch, key: str) -> bool:
    """Whether another value points to the key, to what holds it, or to something in it."""
    texts = (each.text for each in launch.settings.values())
    named = (name for text in texts for name in re.findall(r"\$\{(?:[\w.]+:)?([A-Za-z_][\w.]*)", text))
    return any(f"{key}.".startswith(f"{name}.") or name.startswith(f"{key}.") for name in named)


def _key_own(launch: Launch, setting: LaunchSetting) -> Iterator[Problem]:
    """Says aloud that a key which was forced in may do nothing: code of the user's own may read it, verl's does not."""
    is_verls = any(row.adds(setting.key) for row in load_matrix().launch_keys)
    if not is_verls and not _is_read(launch, setting.key) and not launch.missing_files:
        yield problem(setting.key, rule="key-unknown", says="key-own", severity="note", source=TABLE)


def _near(key: str, names: frozenset[str]) -> str | None:
    """The known key that the user meant: nearly the same, or with the same last part elsewhere in the same branch."""
    close = nearest(key, names, 0.9)
    if close and is_slip(key, close):
        return close
    head, _, tail = key.rpartition(".")
    same = sorted(name for name in names if name.endswith(f".{tail}") and name.split(".")[0] == key.split(".")[0])
    return same[0] if len(same) == 1 and head else None


def is_slip(key: str, near: str, cutoff: float = 0.7) -> bool:
    """Whether one key is the other with a slip of the pen: it stays in the same place, part by part."""
    parts, others = key.split("."), near.split(".")
    return len(parts) == len(others) and all(nearest(one, (other,), cutoff) for one, other in zip(parts, others))


@rule("key-exists", "verl", source="hydra-core 1.3: Could not append to config")
def _key_exists(launch: Launch) -> Iterator[Problem]:
    tables = () if has_own_keys(launch) else _tables(launch)
    added = [each for each in launch.settings.values() if each.mark == "+"] if tables else []
    for setting in added:
        values = (setting.value, *(table.defaults.get(setting.key) for table in tables))
        if None not in values[1:] and not any(isinstance(each, (dict, list)) for each in values):
            changes = (Change(setting.key, setting.value, renames=setting.key),)
            yield problem(setting.key, severity=_severity(launch, tables), changes=changes)


def _severity(launch: Launch, tables: tuple[KeyTable, ...]) -> Severity:
    """An error where the launch's release is recorded, or lies between two that are."""
    return "error" if len(tables) == 2 or _has_own_table(launch) else "warning"


@rule("noise-injection", "verl", source="verl wheels 0.4.1 to 0.9.1: no reader of trainer.noise_injection")
def _noise(launch: Launch) -> Iterator[Problem]:
    keys = tuple(key for key in launch.settings if key.startswith(_NOISE))
    if keys:
        says = "noise-ignored" if all(map(launch.is_added, keys)) else "noise-refused"
        yield problem(*keys, says=says, changes=tuple(Change(key, None) for key in keys))


@rule("key-mandatory", "verl", source=TABLE)
def _mandatory(launch: Launch) -> Iterator[Problem]:
    key = "actor_rollout_ref.rollout.name"
    is_unset = key not in launch.settings and not launch.is_open(key)
    if is_unset and any(table.defaults.get(key) == "???" for table in _tables(launch)[:1]):
        yield problem(changes=(Change(key, "vllm"),), key=key)


@rule("key-dropped", "roll", source=_DROPPED)
def _roll_dropped(launch: Launch) -> Iterator[Problem]:
    used = {name for s in launch.settings.values() for name in re.findall(r"\$\{([\w]+)", s.text)}
    for key, setting in launch.settings.items():
        part, name, where = part_of(key)
        if not part or name in fields_of(part) or (part == "top" and name in used):
            continue
        near = _ROLL_NAMES.get(name) if part == "model_args" else nearest(name, fields_of(part), 0.86)
        if near and f"{where}{near}" not in launch.settings:
            change = Change(f"{where}{near}", setting.value, renames=key)
            yield problem(key, severity="warning", changes=(change,), near=f"{where}{near}")
        elif part in ("model_args", "data_args", "worker"):
            yield problem(key, says="key-dropped-only", severity="note")


def part_of(key: str) -> tuple[str, str, str]:
    """(part of the configuration, name in it, what stands before the name) of a ROLL key; "" where anything goes."""
    parts = key.split(".")
    if parts[0] in _FREE or "@" in key:
        return "", "", ""
    if len(parts) == 1:
        return "top", parts[0], ""
    start = 2 if parts[0] == "rewards" else 1
    if parts[0] not in fields_of("top") or len(parts) <= start or parts[0] not in roll_names("roles"):
        return "", "", ""
    if len(parts) == start + 1:
        return "worker", parts[-1], ".".join(parts[:-1]) + "."
    if parts[start] in roll_names("free_parts") or len(parts) > start + 2 or not fields_of(parts[start]):
        return "", "", ""
    return parts[start], parts[-1], ".".join(parts[:-1]) + "."


@rule("defaults-missing", source="hydra-core 1.3: Could not load")
def _defaults_missing(launch: Launch) -> Iterator[Problem]:
    """`${deepspeed_zero3}` of a fragment whose `defaults:` are not there."""
    verls = configs_of("verl") if launch.missing_files and launch.framework == "verl" else ()
    for file in launch.missing_files:
        name = file.rpartition("/")[2].removesuffix(".yaml")
        near = nearest(name, {each.rpartition("/")[2] for each in verls}, 0.85)
        if near == name:
            continue  # it comes with the package
        # These lie in ROLL's tree, into which a YAML may still be copied; DeepSpeed's are gone from 0.3.0 on.
        own = _ROLLS_OWN.search(file) if launch.framework == "roll" else None
        is_there = own is not None and not (own.group(1).startswith("deepspeed") and is_at_least(launch, "0.3.0"))
        severity: Severity = "note" if is_there else "error"
        yield problem(says="config-near" if near else "", severity=severity, file=file, near=near or "-")
    tops = {key.split(".")[0] for key in launch.settings}
    for key, setting in launch.settings.items() if not launch.missing_files else ():
        target = re.fullmatch(r"\$\{([A-Za-z_]\w*)(?:\.[\w.]+)?\}", setting.text.strip().strip("'\""))
        if setting.is_open and not setting.is_shells and target and target[1] not in tops:
            source = "omegaconf: Interpolation key not found"
            yield problem(key, says="interpolation-missing", name=target[1], source=source)


@rule("program", "verl", source=f"{TABLE}: modules with hydra.main")
def _program(launch: Launch) -> Iterator[Problem]:
    """A module that no release has, and that is nearly one of this release's."""
    module = module_of(launch.program)
    near = nearest(module, programs_of("verl", launch.release), 0.9)
    if launch.program and module not in programs_of("verl") and near and is_slip(module, near, 0.85):
        yield problem(program=module, near=near, release=launch.release or "")


@rule("choice", "verl", source=f"{TABLE}: configuration groups")
def _group(launch: Launch) -> Iterator[Problem]:
    """A choice that its configuration group does not have; files of the user's own may bring more of them."""
    if has_own_keys(launch) or launch.from_files or launch.is_partial or launch.release is None:
        return
    tables = _tables(launch)
    configs = frozenset[str]().union(*(table.configs for table in tables))
    for key, setting in launch.settings.items():
        folder = f"{_GROUPS}{key.partition('@')[0]}/"
        known = sorted(each.removeprefix(folder) for each in configs if folder in each)
        is_choice = known and isinstance(setting.value, str) and not setting.is_open and setting.mark != "~"
        if is_choice and setting.value not in known:
            to = nearest(setting.value, known) or KEEP
            yield problem(key, to=to, severity=_severity(launch, tables), values=tuple(known))
