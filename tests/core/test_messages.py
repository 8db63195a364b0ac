"""The catalogues of both languages say the same things, and every message that the code names exists."""

from __future__ import annotations

import re
import string
from pathlib import Path

import pytest

from npuenv.core.messages import Message, language_from_environment, say
from tests.support.sentences import catalogue

PACKAGE = Path(__file__).parents[2] / "npuenv"


def in_language(lang: str) -> dict[str, str]:
    return {key: texts[lang] for key, texts in catalogue().items()}


def placeholders(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def named_in_code() -> dict[str, str]:
    """Message keys that stand as literals in calls of `Message`, or with a row before them, with the place."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for match in re.finditer(r"""\b(?:Message\(|_(?:clash|reason)\([\w.]+,)\s*"([^"]+)\"""", source):
            found[match[1]] = f"{path.name}:{source.count(chr(10), 0, match.start()) + 1}"
    return found


def test_every_sentence_has_both_languages_with_the_same_placeholders() -> None:
    assert [key for key, texts in catalogue().items() if set(texts) != {"en", "zh"}] == []
    english, chinese = in_language("en"), in_language("zh")
    different = [key for key in english if placeholders(english[key]) != placeholders(chinese[key])]
    assert different == []


def test_chinese_is_not_english_left_in_place() -> None:
    """A template that has words must differ between the languages; bare placeholders and commands may be equal."""
    english, chinese = in_language("en"), in_language("zh")

    def has_sentence(text: str) -> bool:
        return len([word for word in text.split() if word.isalpha()]) > 3

    same = [key for key in english if english[key] == chinese[key] and has_sentence(english[key])]
    assert same == []


# What else is said in places for the thing of the key: one word for one thing.
OTHER_WORDS = {
    "软件栈": r"(?<!软件)(?<!堆)栈|版本组合 \{|方案 \{stack",  # stack; 堆栈 is a traceback
    "锁文件": r"(?<!文件)(?<!加)锁(?!文件|定)",  # lock; 锁定 is the verb, 文件锁 and 加锁 are of the file system
    "卡": "加速卡|显卡",
    "节点": "结点|多机|单机",
    "主节点": r"头节点|首节点|(?<![-\w`{])head(?![-\w}])",
    "配方": "示例“|安装方案",
    "目录": "文件夹",
    "离线包": "捆绑包",
    "主机": "宿主机|物理机",
}


@pytest.mark.parametrize("word", OTHER_WORDS)
def test_chinese_has_one_word_for_one_thing(word: str) -> None:
    texts = {**in_language("zh"), "README.zh.md": (PACKAGE.parent / "README.zh.md").read_text(encoding="utf-8")}
    assert [key for key, text in texts.items() if re.search(OTHER_WORDS[word], text.replace("head -n", ""))] == []


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_advice_of_checks_names_no_user_and_no_host(lang: str) -> None:
    """What a check sees of them are stand-ins: written into a file, they would be wrong."""
    advice = {key: text for key, text in in_language(lang).items() if key.startswith("check_") and ".fix-" in key}
    assert [key for key, text in advice.items() if placeholders(text) & {"user", "host", "hostname"}] == []
    assert placeholders(advice["check_network.fix-hostname"]) == set()


def test_every_message_named_in_code_exists() -> None:
    entries = in_language("en")
    missing = {key: place for key, place in named_in_code().items() if key not in entries}
    assert missing == {}


def test_a_message_inside_a_message_is_said_in_the_same_language() -> None:
    outer = Message("cli.did-you-mean", {"name": (Message("cli.yes"), "x")})
    assert say(outer, "en") == "npuenv yes, x"
    assert say(outer, "zh") == "npuenv 是、x"


HOSTILE = "\x1b]0;x\x07\x1b[2J\x9b31m\u202etxt\u2066\u200b\ud800\x00\x7f\r\n\t\u2028"


@pytest.mark.parametrize(("lang", "between"), [("en", " "), ("zh", "")])
def test_sentences_follow_each_other_without_a_comma(lang: str, between: str) -> None:
    sentences = [Message("preflight_rules.number", {"key": key, "text": "x", "takes": "x"}) for key in ("n", "m")]
    first, second = (say(each, lang) for each in sentences)
    assert say(Message("launch.not-run", {"what": tuple(sentences)}), lang).endswith(f"{first}{between}{second}")


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_no_argument_of_any_message_paints_moves_or_hides_anything(lang: str) -> None:
    kinds: list[object] = [HOSTILE, Path(HOSTILE), (HOSTILE, Message("cli.error", {"message": HOSTILE}))]
    for at, (key, template) in enumerate(in_language(lang).items()):
        names = placeholders(template)
        if any(spec for _, _, spec, _ in string.Formatter().parse(template)):
            continue  # a number
        # What becomes of a value of another kind does not hang on the message.
        for value in kinds if at % 20 == 0 else kinds[:1]:
            said = say(Message(key, dict.fromkeys(names, value), catalogue()[key]), lang)
            raw = [each for each in said if not each.isprintable() and each not in template]
            assert (raw, said.count("\n")) == ([], template.count("\n")), key


def test_what_the_product_itself_puts_on_several_lines_stays_there() -> None:
    lines = [key for key, text in in_language("en").items() if "\n" in text and not placeholders(text)]
    for key in lines:
        message = Message(key, texts=catalogue()[key])
        assert say(message) in say(Message("cli.error", {"message": message}))


@pytest.mark.parametrize(
    ("environ", "lang"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "C", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "zh_TW"}, "zh"),
    ],
)
def test_the_locale_chooses_the_language(environ: dict[str, str], lang: str) -> None:
    assert language_from_environment(environ) == lang
