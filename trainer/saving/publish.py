"""A trained model as a folder in transformers' layout, with its tokenizer, and its adapter in PEFT's.

`publish_run` is how every run ends; `python -m trainer export` (`main`) does the same with a checkpoint.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from trainer import models, saving
from trainer.algorithms.optimizer import copy_into
from trainer.config import Arguments, BadSetting, Config
from trainer.distributed import World, gathered
from trainer.launch import complain
from trainer.models import lora, pretrained
from trainer.models.decoder import Decoder
from trainer.saving import CHECKPOINT, STORED, CorruptCheckpoint, flatten
from trainer.saving.checkpoint import load
from trainer.tasks.tokenizers import choose_tokenizer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor, nn

    from trainer.metrics.records import Progress, Records
    from trainer.models.pretrained import Pretrained
    from trainer.saving import State

# What belongs to a tokenizer, or to how a model is used, and is none of its weights.
_BESIDE = (
    *("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template*", "generation_config.json"),
)


def publish(model: Decoder | Pretrained, out: Path, config: Config, *, world: World) -> list[Path]:
    """Writes `out/model`, and with LoRA `out/adapter`; returns what this rank wrote. A collective. Raises OSError.

    In `model` adapters are merged into the weights, and sharded weights are gathered, in the run's dtype: for that rank
    0 holds the complete model on the CPU. Each folder appears under its name once it is complete, and replaces an older
    one.
    """
    gather = partial(gathered, dtype=getattr(torch, config.run.dtype))
    weights: dict[str, Tensor] = {}
    for name, weight in lora.each_merged(model, gather):
        if world.is_first:
            weights[name] = weight.detach().cpu()
    bare: nn.Module = model if isinstance(model, Decoder) else model.inner
    factors = lora.factors(bare, gather)
    if not world.is_first:
        return []
    source = config.model.path
    made = _begin(out / "model")
    if isinstance(model, Decoder):
        pretrained.write_folder(made, weights, _described(model, config))
    else:
        pretrained.write_weights(made / "model.safetensors", weights)
        model.inner.config.save_pretrained(made)
    _copy_beside(source, made)
    written = [_in_place(made, out / "model")]
    if factors:
        made = _begin(out / "adapter")
        lora.save(bare, made, factors, base=source)
        written.append(_in_place(made, out / "adapter"))
    return written


def publish_run(
    model: Decoder | Pretrained, out: Path, config: Config, records: Records, progress: Progress, *, world: World
) -> None:
    """`publish` at the end of a run, with a record of it. A collective."""
    with progress.phase("save_checkpoint"):
        written = publish(model, out, config, world=world)
    records.write("published", folders=[str(each) for each in written])


def _described(model: Decoder, config: Config) -> dict[str, Any]:
    """Its `config.json`: the source's where it came from a folder, which holds what the decoder does not use too."""
    own = pretrained.config_of(model.shape, getattr(torch, config.run.dtype))
    if not config.model.path:
        return own
    given = pretrained.read_config(Path(config.model.path))
    given.pop("dtype", None)  # transformers 5 has another name for it, and reads both
    return {**given, "torch_dtype": own["torch_dtype"]}


def _begin(place: Path) -> Path:
    made = place.with_name(f"{place.name}.unfinished")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    return made


def _copy_beside(source: str, made: Path) -> None:
    if not source:
        return
    for pattern in _BESIDE:
        for file in Path(source).glob(pattern):
            if file.is_file():
                shutil.copyfile(file, made / file.name)


def _in_place(made: Path, place: Path) -> Path:
    old = place.with_name(f"{place.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        os.replace(place, old)
    os.replace(made, place)
    shutil.rmtree(old, ignore_errors=True)
    return place


# The description of `python -m trainer export --help`.
_EXPORT_HELP = """\
`python -m trainer export CHECKPOINT -o OUT`: a checkpoint's model as a folder, as a run that completes leaves it.

CHECKPOINT is a run's folder or the `checkpoint` in it, of `train` or `sft`, whole or in shards. Writes OUT/model, which
transformers and vllm load, with LoRA's changes merged in, and then OUT/adapter too, and prints what it wrote. Needs one
process and no accelerator. Exit codes: 0 written; 2 the checkpoint, its model's folder or OUT cannot be used; 1 writing
failed.
"""
WRITTEN, BROKE, UNUSABLE = 0, 1, 2
_CPU = torch.device("cpu")
# The prefix of the weights in a state, by the kind of run.
_WEIGHTS = {"train": "learner/policy/", "sft": "tuned/weights/"}
_EMBEDDING = "model.embed_tokens.weight"


def main(words: Sequence[str]) -> int:
    """The command: its exit code."""
    parser = Arguments(
        prog="python -m trainer export", description=_EXPORT_HELP, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="a run's folder, or the checkpoint in it")
    parser.add_argument("place", type=Path, nargs="?", metavar="OUT", help="where model/ and adapter/ go, without -o")
    parser.add_argument("-o", dest="out", type=Path, metavar="OUT", help="where model/ and adapter/ go")
    parser.add_argument("--path", metavar="FOLDER", help="where the run's path=FOLDER is now, if it was moved")
    try:
        values = parser.parse_args(words)
        if (values.out is None) == (values.place is None):
            parser.error("the following arguments are required: OUT, once")
        written = export(values.checkpoint, values.out or values.place, path=values.path)
    except SystemExit:  # argparse's way to end after --help
        return WRITTEN
    except BadSetting as error:
        return complain(str(error), UNUSABLE)
    except OSError as error:
        return complain(f"export: the model cannot be written: {error}", BROKE)
    sys.stdout.write("".join(f"{each}\n" for each in written))
    return WRITTEN


def export(checkpoint: Path, out: Path, *, path: str | None = None) -> list[Path]:
    """Writes the model; returns the folders. `path`: the present location of the model's own folder; None: unchanged.

    Raises BadSetting for unusable input, OSError if writing fails.
    """
    folder = checkpoint / CHECKPOINT if (checkpoint / CHECKPOINT).is_dir() else checkpoint
    try:
        saved = saving.read_manifest(folder)
        if saved is None:
            raise BadSetting(f"{checkpoint} holds no checkpoint: {folder / saving.MANIFEST} is missing")
        config = Config.of_saved(saved.settings)
        if path is not None:
            config = replace(config, model=replace(config.model, path=path))
        model = _restored(config, load(folder, _CPU), _WEIGHTS[saved.settings.get("command", "train")])
    except (CorruptCheckpoint, KeyError) as error:
        raise BadSetting(f"the checkpoint in {folder} cannot be used: {error}") from error
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadSetting(f"{out} cannot be used: {error.strerror or error}") from error
    return publish(model, out, config, world=World.single())


def _restored(config: Config, state: State, prefix: str) -> Decoder | Pretrained:
    """The model with the weights of the state, which are all under the prefix."""
    stored = state.get(STORED)
    given = {name: each for name, each in flatten(state).items() if name.startswith(prefix)}
    sizes = stored.sizes() if stored is not None else {name: tuple(each.shape) for name, each in given.items()}
    embedding = sizes.get(f"{prefix}{_EMBEDDING}")
    # A folder has its own number of tokens; adapters alone say nothing of a random start's.
    vocabulary = embedding[0] if embedding else 0 if config.model.path else choose_tokenizer("").vocabulary_size
    model = models.build(config, vocabulary, seed=config.run.seed, device=_CPU)
    own = {f"{prefix}{name}": each.detach() for name, each in model.named_parameters()}
    learnt = {f"{prefix}{name}" for name, each in model.named_parameters() if each.requires_grad}
    _check(own, learnt, {name: each for name, each in sizes.items() if name.startswith(prefix)}, config)
    if stored is not None:
        stored.into(own)
    else:
        copy_into({name: own[name] for name in given}, given)
    return model


def _check(own: Mapping[str, Tensor], learnt: set[str], sizes: Mapping[str, Any], config: Config) -> None:
    """Raises BadSetting if the state's weights are not those of the model."""
    wrong = sorted(name for name, size in sizes.items() if name not in own or tuple(own[name].shape) != tuple(size))
    if wrong := [*wrong, *sorted(learnt - sizes.keys())]:
        name = wrong[0].rpartition("/")[2]
        where = f"path={config.model.path}" if config.model.path else "the settings"
        raise BadSetting(f"{name} of the checkpoint and of {where} differ: is it the model that was trained? (--path)")
