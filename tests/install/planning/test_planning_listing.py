"""A plan as text for reading."""

from __future__ import annotations

from npuenv.core.messages import Message
from npuenv.core.plan import Plan, Run, Step, WriteFile
from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.report.plan import list_plan
from tests.support.sentences import sentence

PLAN = Plan(
    (
        Step(
            "torch",
            Message("plan.why-mend"),
            (WriteFile("/t/a.txt", "x\n"), Run(("uv", "pip", "a b"), {"UV_DEFAULT_INDEX": "i=https://me:pw@h/s"})),
        ),
    )
)


def test_it_names_steps_commands_and_where_settings_stand_without_secrets() -> None:
    settings = PipSettings(
        index_url=PipSetting("https://me:pw@i/simple", "/etc/pip.conf"),
        find_links=(PipSetting("/wheels", "$PIP_FIND_LINKS"),),
        proxies={"http_proxy": PipSetting("http://u:pw@p:1", "$HTTP_PROXY")},
    )
    text = list_plan(PLAN, settings)
    assert text.splitlines() == [
        sentence("plan.settings-head"),
        "  index-url = https://***@i/simple  (/etc/pip.conf)",
        "  find-links = /wheels  ($PIP_FIND_LINKS)",
        "  http_proxy = http://***@p:1  ($HTTP_PROXY)",
        "",
        f"1. torch: {sentence('plan.why-mend')}",
        f"     {sentence('plan.writes', path='/t/a.txt')}",
        "     UV_DEFAULT_INDEX=i=https://***@h/s uv pip 'a b'",
    ]


def test_without_settings_it_starts_with_the_first_step() -> None:
    assert list_plan(PLAN, PipSettings(), lang="zh").startswith("1. torch: 移除")
