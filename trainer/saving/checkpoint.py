"""A state on disk: one file of tensors, or a folder where every rank writes its rows; a manifest names it with digests.

The manifest names a complete state at every moment, however the process or the machine ends: a state is on the disk
before the manifest that names it replaces the older one, and the older state is removed only after that. The next save
removes what a killed save left behind.

A sharded state is `state-<digest>/`: torch's distributed checkpoint (`__<rank>_<n>.distcp` and `.metadata`) and
`rest.pt` with everything that is not sharded. All ranks must see one folder. `load` returns such a state with its
tensors still on the disk; `Stored.into` copies them into tensors that are sharded over any number of ranks, or not at
all: a run may resume with more ranks, with fewer, or with one. torch's package for it is imported only when a sharded
state is saved or read.
"""

from __future__ import annotations

import errno
import hashlib
import importlib
import os
import pickle
import secrets
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from trainer import saving
from trainer.distributed import is_sharded, present
from trainer.saving import STORED, CorruptCheckpoint, Saved, digest_of, flatten
from trainer.weights import same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trainer.distributed import World
    from trainer.saving import State

    T = TypeVar("T")

REST = "rest.pt"


def save(state: State, folder: Path) -> Saved:
    """Writes the state, and then removes the former one. Raises OSError on failure."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / saving.UNFINISHED_FILE
    try:
        torch.save(state, unfinished)
    except (RuntimeError, OSError) as error:
        raise _cannot_save(error, unfinished) from error
    digest, size = digest_of(unfinished), unfinished.stat().st_size
    saved = _saved(state, f"state-{digest[:16]}.pt", digest, size)
    saving.put_in_place(unfinished, folder / saved.file)
    saving.name_in_manifest(saved, folder)
    return saved


def _saved(state: State, name: str, digest: str, size: int, files: dict[str, str] | None = None) -> Saved:
    num_tensors = sum(isinstance(each, Tensor) for each in flatten(state).values())
    return Saved(name, digest, size, num_tensors, state.get("step"), dict(state.get("settings", {})), files or {})


def _cannot_save(error: Exception, unfinished: Path) -> OSError:
    """The disk error with its errno; removes the partial state.

    torch's writer raises a RuntimeError without errno for every failed write.
    """
    written = unfinished.stat().st_size if unfinished.exists() else 0
    is_full = shutil.disk_usage(unfinished.parent).free < saving.FULL
    unfinished.unlink(missing_ok=True)  # else there is no room to say so either
    if isinstance(error, OSError):
        return error
    number = errno.ENOSPC if is_full else errno.EFBIG if written >= _file_limit() else errno.EIO
    return OSError(number, f"{os.strerror(number)} ({error})", str(unfinished))


def _file_limit() -> float:
    """The largest file that this process may write, less a block."""
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return float("inf") if limit == resource.RLIM_INFINITY else limit - 4096


def load(folder: Path, device: torch.device) -> State:
    """The saved state; of a sharded one the tensors are `Stored` under "stored", on the disk still: then a collective.

    On the CPU its pages are read when they are needed, and are the same for all ranks of a machine. On a device where
    a run has its own state there may be no room for it.
    Raises CorruptCheckpoint when a file is not the one that the manifest describes.
    Nothing else is loaded in its place: an older state beside it is named, and the choice is the reader's.
    """
    saved = saving.read_manifest(folder)
    if saved is None:
        raise CorruptCheckpoint(f"{folder / saving.MANIFEST} is missing{_others(folder, None)}")
    if saved.files:
        return _load_shards(folder, saved, present())
    path = folder / saved.file
    if not path.is_file():
        raise CorruptCheckpoint(f"{path.name} is missing{_others(folder, saved)}")
    found = digest_of(path)
    if found != saved.sha256:
        raise CorruptCheckpoint(
            f"{path.name} has the digest {found[:16]}, not {saved.sha256[:16]}{_others(folder, saved)}"
        )
    state: State = torch.load(str(path), map_location=device, weights_only=True, mmap=device.type == "cpu")
    return state


def _others(folder: Path, saved: Saved | None) -> str:
    """The other states in the folder; their names hold the start of their digest, so each can be checked."""
    names = sorted(path.name for path in folder.glob("state-*.pt") if saved is None or path.name != saved.file)
    whole = [name for name in names if name == f"state-{digest_of(folder / name)[:16]}.pt"]
    return f"; {', '.join(whole)} beside it is whole, and was not taken" if whole else "; there is no other state"


def difference(left: State, right: State) -> str | None:
    """The first entry that differs in a bit (tensors) or in value (the rest); None when all agree."""
    one, other = flatten(left), flatten(right)
    for name in [*one, *(extra for extra in other if extra not in one)]:
        if name not in one or name not in other or not _same(one[name], other[name]):
            return name
    return None


def _same(left: object, right: object) -> bool:
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        return same_bits(left, right)
    return type(left) is type(right) and left == right


# Sharded states.


@dataclass(frozen=True, slots=True)
class Stored:
    """The tensors of a sharded state, on the disk."""

    folder: Path

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """The size of each tensor, under the names of `flatten`; other values have none, and are never unpickled."""
        known = _reader(self.folder).read_metadata().state_dict_metadata
        return {name: tuple(each.size) for name, each in known.items() if getattr(each, "size", None) is not None}

    def into(self, own: Mapping[str, Tensor]) -> None:
        """Copies the values into tensors under the names of `flatten`, however they are sharded; a collective.

        A float32 copy of a weight in a complete bfloat16 model is read from the saved weight, which is float32. Raises
        CorruptCheckpoint for a name that was not saved, or one of another shape.
        """
        known = self.sizes()
        first: dict[str, Tensor] = {}
        second: dict[str, Tensor] = {}
        for name, tensor in own.items():
            source = name if name in known else name.replace("/master/", "/policy/")
            if known.get(source) != tuple(tensor.shape):
                raise CorruptCheckpoint(f"{self.folder.name} holds no {name} of shape {list(tensor.shape)}")
            (first if source == name else second)[source] = tensor.detach()
        for tensors in (first, second):
            if tensors:
                _load(tensors, _reader(self.folder))


def save_shards(state: State, folder: Path, *, world: World) -> Saved:
    """Writes the state, each rank its rows, and then removes the former one; a collective.

    Raises OSError on every rank if it fails on one.
    """
    # Never a name that was there before: on a network's disk another node may remember the folder that had it.
    token = world.gather(secrets.token_hex(4))[0]
    made = folder / saving.UNFINISHED_SHARDS.replace("*", token)
    flat = flatten(state)
    rows = {name: each for name, each in flat.items() if is_sharded(each)}
    rest = {name: each for name, each in flat.items() if not is_sharded(each)}
    _together(world, lambda: _begin(made) if world.is_first else None)
    try:
        _together(world, lambda: _write(rows, rest, made, world))
        digests = _together(world, lambda: _digests(made, world))
        named = {name: each for some in digests for name, each in some.items()}
        finished = _together(world, lambda: _finish(state, made, named) if world.is_first else None)
    except OSError:
        if world.is_first:
            shutil.rmtree(made, ignore_errors=True)  # else there is no room to say so either
        raise
    saved = finished[0]
    assert saved is not None
    return saved


def _together(world: World, act: Callable[[], T]) -> list[T]:
    """What each rank's act gave back. Raises the first rank's OSError on all: none may wait for one that failed."""
    try:
        outcome: tuple[Any, OSError | None] = act(), None
    except OSError as error:
        outcome = None, error
    found = world.gather(outcome)
    for rank, (_, failed) in enumerate(found):
        if failed is not None:
            raise OSError(failed.errno, f"{failed.strerror or failed} (rank {rank})", failed.filename)
    return [value for value, _ in found]


def _begin(made: Path) -> None:
    for old in made.parent.glob(saving.UNFINISHED_SHARDS):
        shutil.rmtree(old, ignore_errors=True)
    made.mkdir(parents=True)


def _write(rows: dict[str, Any], rest: dict[str, Any], made: Path, world: World) -> None:
    """This rank's rows; of the first one everything else too."""
    dcp, failed = _package()
    try:
        with _of_one_process():
            dcp.save(rows, storage_writer=dcp.FileSystemWriter(made, sync_files=True))
        if world.is_first:
            torch.save(rest, made / REST)
            saving.sync_file(made / REST)
    except (failed, RuntimeError) as error:
        raise _no_room(error, made) from error


def _no_room(error: BaseException, made: Path) -> OSError:
    """The disk error, with its errno if it is known: torch wraps the system's error."""
    failures = [each for each, _ in getattr(error, "failures", {}).values()]
    for each in failures:
        if isinstance(each, OSError) and each.errno:
            return OSError(each.errno, each.strerror, str(made))
    text = " ".join(str(failures[0] if failures else error).split())
    number = errno.ENOSPC if shutil.disk_usage(made.parent).free < saving.FULL else errno.EIO
    return OSError(number, f"{os.strerror(number)} ({text})", str(made))


def _digests(made: Path, world: World) -> dict[str, tuple[str, int]]:
    """Digest and bytes of the files that this rank wrote; the first one also counts those of all others."""
    own = sorted(made.glob(f"__{world.rank}_*"))
    if world.is_first:
        own += [made / ".metadata", made / REST]
    return {path.name: (digest_of(path), path.stat().st_size) for path in own}


def _finish(state: State, made: Path, named: Mapping[str, tuple[str, int]]) -> Saved:
    folder = made.parent
    absent = [name for name in named if not (made / name).is_file()]
    if absent:
        raise OSError(errno.ENOENT, f"the ranks do not see the same folder: {absent[0]} is missing", str(folder))
    saving.sync_folder(made)
    digest = hashlib.sha256("".join(f"{name} {named[name][0]}\n" for name in sorted(named)).encode()).hexdigest()
    place = folder / f"state-{digest[:16]}"
    number = 0
    while place.exists():  # the same state again: the existing one may be damaged
        number += 1
        place = folder / f"state-{digest[:16]}-{number}"
    os.replace(made, place)
    saving.sync_folder(folder)
    files = {name: each for name, (each, _) in named.items()}
    saved = _saved(state, place.name, digest, sum(size for _, size in named.values()), files)
    saving.name_in_manifest(saved, folder)
    return saved


def _load_shards(folder: Path, saved: Saved, world: World) -> State:
    """Raises CorruptCheckpoint, on every rank, if a file is not the one that the manifest describes."""
    place = folder / saved.file
    wrong = [_wrong(place, name, saved.files[name]) for name in world.shard(sorted(saved.files))]
    errors = [each for some in world.gather([each for each in wrong if each]) for each in some]
    if errors or REST not in saved.files:
        raise CorruptCheckpoint(min(errors, default=f"{saving.MANIFEST} names no {saved.file}/{REST}"))
    rest = torch.load(place / REST, map_location="cpu", weights_only=True)
    return {**_nested(rest), STORED: Stored(place)}


def _wrong(place: Path, name: str, digest: str) -> str | None:
    if not (place / name).is_file():
        return f"{place.name}/{name} is missing"
    found = digest_of(place / name)
    return None if found == digest else f"{place.name}/{name} has the digest {found[:16]}, not {digest[:16]}"


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The other way of `flatten`. Example: {"a/b": 1} -> {"a": {"b": 1}}"""
    made: dict[str, Any] = {}
    for name, value in flat.items():
        *outer, last = name.split("/")
        place = made
        for each in outer:
            place = place.setdefault(each, {})
        place[last] = value
    return made


def _load(tensors: dict[str, Any], reader: Any) -> None:
    dcp, failed = _package()
    try:
        with _of_one_process():
            dcp.load(tensors, storage_reader=reader)
    except failed as error:  # no Exception for Python: what handles one would not see it
        raise CorruptCheckpoint(f"the shards cannot be read: {' '.join(str(error).split())}") from error


@contextmanager
def _of_one_process() -> Iterator[None]:
    """Suppresses torch's warning about a missing process group; a single process is intended."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is .*uninitialized")
        yield


def _package() -> tuple[Any, type[BaseException]]:
    """torch's package, and the error that it raises on every rank if one has failed."""
    package: Any = importlib.import_module("torch.distributed.checkpoint")
    return package, package.api.CheckpointException


def _reader(folder: Path) -> Any:
    """torch's reader of a folder, but for its index: a pickle, which could run code. Here it can name tensors alone."""
    kind: Any = _package()[0].FileSystemReader

    class Reader(kind):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            try:
                with (folder / ".metadata").open("rb") as file:
                    found = _Index(file).load()
            except pickle.UnpicklingError as error:
                raise CorruptCheckpoint(f"{folder.name}/.metadata is no index of tensors: {error}") from error
            if getattr(found, "storage_meta", None) is not None:
                found.storage_meta.load_id = self.load_id
            return found

    return Reader(folder)


# What an index of tensors is made of: by module the names of classes.
_KNOWN: Mapping[str, Sequence[str]] = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
        *("MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo", "_StoragePrefix"),
    "torch": ("Size",),
    "collections": ("OrderedDict",),
    "pathlib": ("PosixPath",),  # the path where it was written
    "pathlib._local": ("PosixPath",),
}
_LAYOUT = ("torch.serialization", "_get_layout")  # a name to a layout, by a table


class _Index(pickle.Unpickler):
    """Unpickles only the classes of torch's index: callables are listed here by name, not by a path into a module."""

    def find_class(self, module: str, name: str) -> Any:
        if module == "torch" and isinstance(torch.__dict__.get(name), (torch.dtype, torch.layout)):
            return torch.__dict__[name]
        if name in _KNOWN.get(module, ()) or (module, name) == _LAYOUT:
            found = super().find_class(module, name)
            if isinstance(found, type) or (module, name) == _LAYOUT:
                return found
        raise pickle.UnpicklingError(f"it holds {module}.{name}")
