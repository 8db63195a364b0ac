"""Asks hccn_tool about many cards, one command after the other, and knows when to stop.

The tool refuses to run twice at a time and can take seconds for a card that does not answer, so a survey has a budget:
it stops an item on all cards after the first refusal that holds for all of them, and stops for good when the tool is
busy or missing, when several commands were lost, or when its time is over. What was not asked is unknown and says why.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from npuenv.core.fact import Evidence, Fact, State, absent, known, unknown
from npuenv.facts.hccn.answers import Refusal, Refused, answer, refused
from npuenv.host.base import NotRecorded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npuenv.host.base import Host, Ran

T = TypeVar("T")
BUDGET_S = 60.0  # for all questions together; level 2 has two minutes for everything
NOT_ASKED = "not asked after"  # one that did not end; followed by why
_FOR_GOOD = (Refusal.BUSY, Refusal.NOT_INSTALLED)
_FOR_ALL_CARDS = (Refusal.PERMISSION, Refusal.UNSUPPORTED, Refusal.GRAMMAR)
_LOST_AT_MOST = 3


@dataclass(slots=True)
class Survey:
    """One run through the cards. Mutable: it remembers refusals, so that the next question may be left out."""

    host: Host
    path: str
    timeout_s: float
    budget_s: float = BUDGET_S
    refusals: list[tuple[str, Refused]] = field(default_factory=list)  # command and refusal, in order
    _why_stopped: str = ""
    _lost: int = 0
    _has_answered: bool = False
    _started_s: float = field(default_factory=time.monotonic)

    def item(
        self, cards: Sequence[int], name: str, parse: Callable[[str], T | None], *words: str
    ) -> Fact[dict[int, Fact[T]]]:
        """The answers by card. `words` are the tool's arguments, in which `{card}` stands for the card."""
        return self.each({card: tuple(word.format(card=card) for word in words) for card in cards}, name, parse)

    def each(
        self, questions: Mapping[int, tuple[str, ...]], name: str, parse: Callable[[str], T | None]
    ) -> Fact[dict[int, Fact[T]]]:
        """The answers to one question per card; unknown where no card gave one, absent where none has such a thing."""
        answers: dict[int, Fact[T]] = {}
        same: Fact[T] | None = None
        for card, words in questions.items():
            if same is None:
                answers[card], holds_for_all = self._ask(words, name, parse)
                same = Fact(answers[card].state, None, answers[card].evidence) if holds_for_all else None
            else:
                answers[card] = same
        return _sum_up(answers)

    def run(self, words: Sequence[str]) -> Ran | None:
        """What the tool did; None when the survey is over."""
        self._why_stopped = self._why_stopped or self._is_over()
        if self._why_stopped:
            return None
        ran = self.host.run((self.path, *words), timeout_s=self.timeout_s)
        failure = refused(ran)
        self._has_answered = self._has_answered or failure is None or failure.kind is not Refusal.NOT_INSTALLED
        # A tool that answered before is there: what a shell or the loader says then is about one command alone.
        is_there = self._has_answered and failure is not None and failure.kind is Refusal.NOT_INSTALLED
        if failure is not None and not is_there:
            self.refusals.append((" ".join(ran.argv), failure))
            self._lost += failure.kind is Refusal.NO_ANSWER
            if failure.kind in _FOR_GOOD or self._lost >= _LOST_AT_MOST:
                self._why_stopped = failure.line
        return ran

    def _ask(self, words: tuple[str, ...], name: str, parse: Callable[[str], T | None]) -> tuple[Fact[T], bool]:
        command = " ".join((self.path, *words))
        try:
            ran = self.run(words)
        except NotRecorded:
            return unknown(Evidence(command, "not in the capture")), False
        if ran is None:
            return unknown(Evidence(command, f"{NOT_ASKED}: {self._why_stopped}")), True
        failure = refused(ran, name)
        return answer(ran, name, parse), failure is not None and failure.kind in _FOR_ALL_CARDS

    def _is_over(self) -> str:
        spent = time.monotonic() - self._started_s
        return f"{self.budget_s:.0f} s are over" if spent > self.budget_s else ""


def _sum_up(answers: dict[int, Fact[T]]) -> Fact[dict[int, Fact[T]]]:
    lines: list[Evidence] = [item for fact in answers.values() for item in fact.evidence]
    states = {fact.state for fact in answers.values()}
    if State.KNOWN in states or len(states) > 1:
        return known(answers, *lines)
    made: Callable[..., Fact[Any]] = unknown if State.UNKNOWN in states else absent
    return made(*dict.fromkeys(lines))
