"""The tokenizers that tasks speak."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from trainer.config import BadSetting
from trainer.tasks.tokenizers import PRINTABLE, PretrainedTokenizer, choose_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def folder_of(folder: Path, **changed: object) -> Path:
    """A model's folder with a tokenizer of three words, made by transformers itself."""
    transformers = pytest.importorskip("transformers", reason="a model's tokenizer needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="a model's tokenizer needs tokenizers")
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **changed)
    made.chat_template = "{% for m in messages %}{{ m.content }} {% endfor %}{% if add_generation_prompt %}b{% endif %}"
    made.save_pretrained(folder)
    return folder


def test_without_a_folder_text_is_written_in_printable_ascii() -> None:
    words = choose_tokenizer("")
    assert (words.vocabulary_size, words.pad, words.end) == (98, 96, 97)
    every = "".join(map(chr, range(32, 127))) + "\n"
    assert sorted(PRINTABLE) == sorted(every)
    assert words.decode(words.encode(every)) == every


@pytest.mark.full
def test_a_model_folder_gives_its_own_tokens(tmp_path: Path) -> None:
    words = choose_tokenizer(str(folder_of(tmp_path, eos_token="<end>", pad_token="<pad>")))
    assert isinstance(words, PretrainedTokenizer)
    assert words.encode("a b a") == (0, 1, 0)
    assert words.decode((0, 1, words.pad, words.end or 0)) == "a b"
    assert words.vocabulary_size == 5
    assert {words.pad, words.end} == {3, 4}
    assert words.chat([{"role": "user", "content": "a a"}]) == (0, 0, 1)


@pytest.mark.full
def test_without_an_end_token_there_is_no_end(tmp_path: Path) -> None:
    words = choose_tokenizer(str(folder_of(tmp_path)))
    assert (words.end, words.pad) == (None, 0)


@pytest.mark.full
def test_without_a_pad_token_the_end_pads(tmp_path: Path) -> None:
    words = choose_tokenizer(str(folder_of(tmp_path, eos_token="<end>")))
    assert words.pad == words.end == 3


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="no folder"):
        choose_tokenizer(str(tmp_path / "nowhere"))


@pytest.mark.full
def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="a model's tokenizer needs transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(BadSetting, match=r"no tokenizer: .*tokenizer\.json"):
        choose_tokenizer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(BadSetting, match=r"no tokenizer .*transformers"):
        choose_tokenizer(str(tmp_path))


def test_missing_transformers_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadSetting, match="package transformers"):
        choose_tokenizer(str(tmp_path))
