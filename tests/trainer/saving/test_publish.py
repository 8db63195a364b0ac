"""The model that a run leaves, and the one that is made of any of its checkpoints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.rank_processes import run_ranks
from tests.trainer.trainer_cases import CPU, TINY, changed, only, read
from trainer import __main__ as entry
from trainer import models
from trainer.config import parse
from trainer.distributed import World
from trainer.models import lora, pretrained
from trainer.saving.checkpoint import difference, load, save
from trainer.saving.publish import export, publish

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

SMALL = ("layers=2", "hidden=16", "heads=4", "kv_heads=2", "intermediate=24", "prompts_per_step=4")
WORDS = (*SMALL, "rollouts_per_prompt=2", "mini_batches=1", "device=cpu", "probe_packages=false", "steps=2", "lr=0.01")
LORA = ("lora_rank=2", "lora_targets=q_proj,up_proj")


def weights(folder: Path) -> dict[str, Tensor]:
    return dict(pretrained.read_weights(folder))


def same(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return difference(dict(left), dict(right)) is None


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="whole"),
        pytest.param(("dtype=bfloat16",), id="bfloat16", marks=pytest.mark.slow),
        pytest.param(LORA, id="lora", marks=pytest.mark.slow),
    ],
)
def test_a_run_leaves_its_model_and_a_checkpoint_makes_the_same(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    out, again = tmp_path / "out", tmp_path / "again"
    assert entry.main(["--out", str(out), *WORDS, *more]) == 0
    folders = ["adapter", "model"] if more == LORA else ["model"]
    assert sorted(only(read(out), kind="published")["folders"]) == [str(out / each) for each in folders]
    policy = load(out / "checkpoint", CPU)["learner"]["policy"]
    if more == LORA:
        start = models.build(parse([*WORDS, *LORA], devices=("cpu",)), 19, seed=9, device=CPU)
        for key, weight in start.named_parameters():
            weight.data.copy_(policy[key])
        policy = lora.merged(start)
    assert same(weights(out / "model"), policy)
    assert entry.main(["export", str(out), str(again)]) == 0
    assert sorted(capsys.readouterr().out.split()) == [str(again / each) for each in folders]
    for name in folders:
        files_of = {path.name: path.read_bytes() for path in (out / name).iterdir()}
        assert files_of == {path.name: path.read_bytes() for path in (again / name).iterdir()}


def test_a_checkpoint_of_fine_tuning_makes_the_model_that_it_left(tmp_path: Path) -> None:
    file, out = tmp_path / "train.jsonl", tmp_path / "out"
    messages = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    file.write_text((json.dumps({"messages": messages}) + "\n") * 4)
    for more in ((), LORA):
        assert entry.main(["sft", "--out", str(out), *WORDS, *more, f"train_files={file}"]) == 0
        assert entry.main(["export", str(out / "checkpoint"), "-o", str(tmp_path)]) == 0
        assert same(weights(tmp_path / "model"), weights(out / "model"))


@pytest.mark.slow
@pytest.mark.long
def test_shards_make_one_model(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.fsdp", reason="this torch has no fully sharded data parallelism")
    out = tmp_path / "out"
    run_ranks(out, *WORDS, *LORA, "dtype=bfloat16", "sharding=fsdp2")
    assert (out / "checkpoint").is_dir() and not list((out / "checkpoint").glob("*.pt"))
    assert entry.main(["export", str(out), str(tmp_path)]) == 0
    assert same(weights(tmp_path / "model"), weights(out / "model"))
    assert {each.dtype for each in weights(out / "model").values()} == {torch.bfloat16}
    assert same(*(dict(pretrained.read_tensors(at / "adapter/adapter_model.safetensors")) for at in (out, tmp_path)))


def test_what_the_models_folder_says_beside_its_sizes_is_kept(tmp_path: Path) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    models.save(models.from_random(TINY.model, 19, torch.float32, 0), source)
    config = {**json.loads((source / "config.json").read_text()), "max_position_embeddings": 77, "eos_token_id": 18}
    (source / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    (source / "generation_config.json").write_text("{}")
    made = changed(TINY, path=str(source), dtype="bfloat16")
    publish(models.build(made, 19, seed=0, device=CPU), out, made, world=World.single())
    assert json.loads((out / "model" / "config.json").read_text()) == {**config, "torch_dtype": "bfloat16"}
    assert (out / "model" / "generation_config.json").is_file()


@pytest.mark.slow
def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, source = tmp_path / "out", tmp_path / "source"
    assert entry.main(["--out", str(out), *WORDS]) == 0
    models.save(models.from_random(changed(TINY, hidden=32).model, 19, torch.float32, 0), source)
    (tmp_path / "file").touch()
    cases = [
        (["export"], "CHECKPOINT"),
        (["export", str(out)], "OUT"),
        (["export", str(out), str(tmp_path), "-o", str(tmp_path)], "OUT, once"),
        (["export", str(tmp_path / "none"), str(tmp_path)], "no checkpoint"),
        (["export", str(out), str(tmp_path / "file")], f"{tmp_path / 'file'} "),
        (["export", str(out), str(tmp_path), "--path", str(source)], f"path={source}"),
        (["export", str(out), str(tmp_path), "--path", str(tmp_path / "gone")], f"path={tmp_path / 'gone'}"),
    ]
    for words, says in cases:
        assert entry.main(words) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert says in said.err
    state = next((out / "checkpoint").glob("state-*.pt"))
    state.write_bytes(state.read_bytes()[:-1])
    assert entry.main(["export", str(out), str(tmp_path)]) == 2
    assert "digest" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


@pytest.mark.full
def test_transformers_loads_what_a_run_from_one_of_its_models_leaves(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    source, out = tmp_path / "source", tmp_path / "out"
    config = transformers.LlamaConfig(
        vocab_size=98, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(source)
    for more in ({}, {"lora_rank": 2, "lora_targets": "q_proj"}):
        made = changed(TINY, path=str(source), **more)
        model = models.build(made, 98, seed=0, device=CPU)
        for name, each in model.named_parameters():
            if ".lora_" in name:
                each.data.add_(0.1)
        publish(model, out, made, world=World.single())
        policy = {name: each.detach() for name, each in model.named_parameters()}
        save({"step": 1, "settings": made.lasting(), "learner": {"policy": policy}}, tmp_path / "checkpoint")
        export(tmp_path, tmp_path)
        for folder in (out / "model", tmp_path / "model"):
            theirs = transformers.AutoModelForCausalLM.from_pretrained(folder)
            assert same({name: each.detach() for name, each in theirs.named_parameters()}, lora.merged(model))
