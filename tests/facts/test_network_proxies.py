"""Whether something listens at a proxy: yes, no and not known stay apart, and below level 2 nothing is tried."""

from __future__ import annotations

import pytest

from npuenv.core.fact import State
from npuenv.facts.collector import Collector
from npuenv.facts.network import Proxy, listen, proxies
from tests.support.scripted_host import ScriptedHost

PYTHON = "/env/bin/python"


def asked(host: ScriptedHost, level: int = 2) -> tuple[State, dict[str, bool] | None]:
    fact = listen(Collector(host, level, PYTHON), proxies(host))
    return fact.state, fact.value


@pytest.mark.parametrize("is_there", [True, False])
def test_the_answer_stands_under_the_variable(is_there: bool) -> None:
    host = ScriptedHost(variables={"http_proxy": "http://p:3128", "HTTPS_PROXY": "http://q:99999"})
    host.answers(f"{PYTHON} listens p 3128", {"listens": is_there, "why": "x"})
    assert proxies(host).value == (
        Proxy("http_proxy", "http://p:3128", "p", 3128),
        Proxy("HTTPS_PROXY", "http://q:99999", "q", None),
    )
    assert asked(host) == (State.KNOWN, {"http_proxy": is_there})


@pytest.mark.parametrize("answer", [{"listens": "perhaps"}, {"why": "x"}, {"listens": None}])
def test_an_answer_that_is_none_is_unknown(answer: dict[str, object]) -> None:
    host = ScriptedHost(variables={"http_proxy": "http://p:3128"})
    host.answers(f"{PYTHON} listens p 3128", answer)
    assert asked(host) == (State.UNKNOWN, None)


def test_one_answer_of_two_is_kept_and_the_other_one_is_left_open() -> None:
    host = ScriptedHost(variables={"http_proxy": "http://p:3128", "https_proxy": "http://q"})
    host.answers(f"{PYTHON} listens p 3128", {"listens": "perhaps"})
    host.answers(f"{PYTHON} listens q 80", {"listens": True})
    assert asked(host) == (State.KNOWN, {"https_proxy": True})


def test_below_level_2_and_without_a_proxy_nothing_is_tried() -> None:
    host = ScriptedHost(variables={"http_proxy": "http://p:3128"})
    assert asked(host, 1) == (State.ABSENT, None) and not [words for words in host.asked if "listens" in words]
    assert asked(ScriptedHost()) == (State.ABSENT, None)
