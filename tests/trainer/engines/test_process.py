"""A generator in a child process: it answers as an engine here would, and however it ends somebody is told."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

from tests.trainer.engines.forked import forked
from tests.trainer.generator_cases import FLAT, PROMPTS, Crew, weights
from tests.trainer.shared import forks
from tests.trainer.trainer_cases import PAD, changed, of_a_child
from trainer.algorithms.packing import make_batch
from trainer.config import BadSetting
from trainer.engines import remote
from trainer.engines.base import Sampling, new_seeds
from trainer.engines.generator_client import EngineSpec, GeneratorLost
from trainer.engines.process import Arena, ProcessGenerator, look, pool
from trainer.engines.reference import asked
from trainer.tasks.digits import successor
from trainer.types import Group, Prompt
from trainer.weights import Packer, fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainer.config import Config

# Starting a process that imports torch takes 2 s, and a minute on a slow and busy machine.
LIMIT_S = 240.0
SEEDED = Sampling(4, 3, 1.0, seeds=new_seeds(len(PROMPTS), torch.Generator().manual_seed(1)))


def order(config: Config = FLAT) -> EngineSpec:
    return EngineSpec.of(config, successor(1), seed=0)


def started(log: Path | None = None, config: Config = FLAT) -> ProcessGenerator:
    return ProcessGenerator("generator 0", order(config), Arena(), log=log, environ=of_a_child())


def copied(config: Config = FLAT) -> ProcessGenerator:
    return ProcessGenerator("generator 0", order(config), Arena(), begin=forked)


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGenerator]:
    """A new program, for all tests that do not ask which weights it has; it is interrupted before Python runs in it."""
    made = started(tmp_path_factory.mktemp("child") / "log", changed(FLAT, reference_place="generators"))
    for name in (signal.SIGINT, signal.SIGTERM):
        os.kill(made.pid, name)
    yield made
    made.end()


def is_gone(pid: int, limit_s: float = 120.0) -> bool:
    """Whether a process of another's is no more, or a zombie, within a time."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def fresh() -> Iterator[ProcessGenerator]:
    """One with the weights that it starts with."""
    made = copied()
    yield made
    made.end()


def test_a_child_draws_what_an_engine_here_draws_with_weights_sent_either_way(fresh: ProcessGenerator) -> None:
    local, child = Crew().start(0).server, fresh
    answer = child.generate(PROMPTS, SEEDED)
    found, wanted = answer.result(LIMIT_S), local.generate(PROMPTS, SEEDED)
    assert (found.groups, found.version) == (wanted.groups, -1)
    assert answer.result(0.0) is found
    shared = Packer(1 << 12, child._arena.allocate)
    for version, packer in enumerate((shared, Packer(1 << 12), shared)):
        buckets = list(packer.pack(weights(version).items(), version))
        assert len(buckets) > 2
        loaded = [child.load(bucket) for bucket in buckets]
        drawn = child.generate(PROMPTS, SEEDED)
        assert [each.result(LIMIT_S) for each in loaded] == [None] * len(buckets)
        for bucket in buckets:
            local.load(bucket)
        found = drawn.result(LIMIT_S)
        assert (found.version, found.groups) == (version, local.generate(PROMPTS, SEEDED).groups)


@pytest.mark.slow
def test_a_childs_reference_says_what_one_here_says_and_stays_when_weights_come(child: ProcessGenerator) -> None:
    local = Crew(changed(FLAT, reference_place="generators")).start(0).server
    drawn = zip(PROMPTS, local.generate(PROMPTS, SEEDED).groups, strict=True)
    answers = [Group(Prompt("", question, ""), said) for question, said in drawn]
    batch = make_batch(answers, torch.zeros(4 * len(PROMPTS)), pad=PAD)
    parts = [asked(batch, rows) for rows in torch.arange(4 * len(PROMPTS)).split(7)]
    wanted = local.reference_logprobs(parts)
    for version in range(2):
        loaded = [child.load(bucket) for bucket in Packer(1 << 12).pack(weights(8).items(), 100 + version)]
        found = child.reference_logprobs(parts).result(LIMIT_S)
        assert [each.result(LIMIT_S) for each in loaded] == [None] * len(loaded)
        assert all(torch.equal(one, other) for one, other in zip(found.logprobs, wanted.logprobs, strict=True))
        assert (found.mark, len(found.logprobs)) == (wanted.mark, 3)
    # Another one, sent either way.
    for version, packer in enumerate((Packer(1 << 12, child._arena.allocate), Packer(1 << 12))):
        for bucket in packer.pack(weights(9 + version).items(), version):
            child.load_reference(bucket)
            local.load_reference(bucket)
        found, wanted = child.reference_logprobs(parts).result(LIMIT_S), local.reference_logprobs(parts)
        assert found.mark == wanted.mark == fingerprint(weights(9 + version).items())
        assert all(torch.equal(one, other) for one, other in zip(found.logprobs, wanted.logprobs, strict=True))


@pytest.mark.slow
def test_a_child_leaves_an_interrupt_to_the_process_that_started_it(child: ProcessGenerator) -> None:
    """One that comes before it is up, too, when it cannot ignore anything: it did when `child` was made."""
    asked = replace(SEEDED, seeds=(1,))
    assert child.generate(PROMPTS[:1], asked).result(LIMIT_S).groups
    for name in (signal.SIGINT, signal.SIGTERM):
        os.kill(child.pid, name)
    assert child.generate(PROMPTS[:1], asked).result(LIMIT_S).groups
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ()) & {signal.SIGINT, signal.SIGTERM}
    if (status := Path(f"/proc/{child.pid}/status")).exists():
        blocked = re.search(r"^SigBlk:\s*(\w+)$", status.read_text(), re.MULTILINE)
        assert blocked is not None
        assert not int(blocked[1], 16) & (1 << signal.SIGINT - 1 | 1 << signal.SIGTERM - 1)


def test_no_wait_is_longer_than_its_bound_and_a_late_answer_still_comes(child: ProcessGenerator) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    try:
        prompts = [(at % 17, *(number % 17 for number in range(40))) for at in range(2000)]
        answer = child.generate(prompts, Sampling(1, 1, 1.0, True))
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"generator 0 .*\b0\.2 s"):
            answer.result(0.2)
        assert time.monotonic() - began < 60.0
    finally:
        os.kill(child.pid, signal.SIGCONT)
    assert len(answer.result(LIMIT_S).groups) == 2000


def test_a_killed_child_is_named_with_its_signal_and_never_comes_back() -> None:
    made = copied()
    assert made.generate(PROMPTS, SEEDED).result(LIMIT_S).version == -1
    os.kill(made.pid, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(GeneratorLost, match=r"generator 0 .*SIGKILL"):
            made.generate(PROMPTS, SEEDED).result(LIMIT_S)
    made.end()
    assert is_gone(made.pid)


@pytest.mark.slow
def test_a_stopped_child_is_ended_all_the_same() -> None:
    made = started()
    os.kill(made.pid, signal.SIGSTOP)
    made.end()
    assert is_gone(made.pid)
    with pytest.raises(GeneratorLost, match="was ended"):
        made.generate(PROMPTS, SEEDED).result(1.0)


def test_an_engine_that_cannot_be_made_is_a_bad_setting_in_its_own_words(tmp_path: Path) -> None:
    made = copied(changed(FLAT, path=str(tmp_path)))
    with pytest.raises(BadSetting, match=rf"{re.escape(str(tmp_path))}.*config\.json"):
        made.generate(PROMPTS, SEEDED).result(LIMIT_S)
    made.end()


def test_a_child_that_cannot_begin_is_named_with_the_last_line_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "generator-0.log"
    made = ProcessGenerator("generator 0", order(), Arena(), log=log, environ={"PYTHONHOME": str(tmp_path)})
    with pytest.raises(GeneratorLost, match=r"generator 0 ended with 1: \S+"):
        made.generate(PROMPTS, SEEDED).result(LIMIT_S)
    assert log.read_text(encoding="utf-8")
    made.end()


def test_a_child_ends_with_its_input_whatever_it_does_then() -> None:
    made = copied()
    assert made.generate(PROMPTS, SEEDED).result(LIMIT_S).version == -1
    made.generate(PROMPTS * 5000, Sampling(8, 200, 1.0, True))
    while made._unsent:
        made._move(1.0)
    assert made._process.stdin is not None
    made._process.stdin.close()
    assert is_gone(made.pid)
    made.end()


@pytest.mark.slow
@pytest.mark.long
def test_children_end_with_the_process_that_started_them_even_when_it_is_killed_while_they_work(tmp_path: Path) -> None:
    program = """
import sys, time
from tests.trainer.generator_cases import PROMPTS
from tests.trainer.engines.test_process import order, SEEDED
from trainer.engines.process import pool
made = pool(order(), (0, 1))
for slot in made.slots:
    slot.generator.generate(PROMPTS, SEEDED).result(240)
for slot in made.slots:
    slot.generator.generate(PROMPTS * 5000, SEEDED.__class__(8, 200, 1.0, True))
print(*(slot.generator.pid for slot in made.slots), flush=True)
time.sleep(600)
"""
    parent = forks().start(program, folder=tmp_path)
    deadline = time.monotonic() + LIMIT_S
    while not (said := parent.stdout.read_text()).endswith("\n"):
        assert parent.poll() is None and time.monotonic() < deadline, parent.stderr.read_text()
        time.sleep(0.05)
    pids = [int(word) for word in said.split()]
    parent.send_signal(signal.SIGKILL)
    assert len(pids) == 2
    assert all(is_gone(pid) for pid in pids)


@pytest.mark.slow
def test_shared_memory_is_seen_by_its_place_and_unknown_memory_has_none() -> None:
    arena = Arena()
    first, second = arena.allocate(100), arena.allocate(5000)
    first.fill_(7)
    second.fill_(9)
    for piece in (first, second):
        place = arena.place(piece)
        assert place is not None
        assert torch.equal(look(arena.fd, place), piece)
    assert arena.place(torch.zeros(100, dtype=torch.uint8)) is None
    assert arena.place(first[:50]) is None
    assert len(arena.allocate(0)) == 0
    arena.close()
    arena.close()
    assert int(second.sum()) == 45_000


@pytest.mark.slow
def test_a_killed_child_is_replaced_and_the_answers_are_those_of_a_whole_crew(tmp_path: Path) -> None:
    crew = pool(order(changed(FLAT, generator_timeout_s=LIMIT_S)), (4, 5), logs=tmp_path, begin=forked)
    engine, whole = remote.over(crew, order(), seed=3), Crew().engine(2)
    plain = Sampling(4, 3, 1.0)
    try:
        for at in range(3):
            for each in (engine, whole):
                each.load_weights(weights(at))
            assert engine.generate(PROMPTS, plain) == whole.generate(PROMPTS, plain)
            victim = crew.slots[1].generator
            assert isinstance(victim, ProcessGenerator)
            if at == 0:
                os.kill(victim.pid, signal.SIGKILL)
        (lost,) = crew.losses
        assert re.search("generator 5.*SIGKILL", lost)
    finally:
        engine.end()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["generator-4.log", "generator-5.log"]
