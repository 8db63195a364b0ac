"""What a placed process is made of, without Ray: the package that travels, its cards, its generators, who hangs."""

from __future__ import annotations

import errno
import os
import pickle
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.trainer.trainer_cases import ROOT, of_a_child
from trainer.placement import Layout, Node, lost_node, place_workers, worker_actor
from trainer.placement.rank import Packed, share
from trainer.placement.ray_nodes import answers, how_lost
from trainer.placement.supervise import Watch
from trainer.weights import Packer, checksum, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.trainer.plain_run import PlainRun


pytestmark = pytest.mark.slow


def test_the_package_that_travels_is_the_whole_trainer_and_can_be_imported(tmp_path: Path) -> None:
    sent = worker_actor.zipped(str(ROOT / "trainer"))
    assert sent == worker_actor.zipped(str(ROOT / "trainer"))
    program = (
        "import os, sys; sys.path[:0] = [sys.argv[1]]; import runpy, pathlib\n"
        "made = runpy.run_path(sys.argv[2]); folder = made['_unpack'](pathlib.Path(sys.argv[3]).read_bytes())\n"
        "sys.path.insert(0, folder); import trainer.config; print(trainer.config.__file__)"
    )
    (tmp_path / "sent").write_bytes(sent)
    words = [str(tmp_path), str(ROOT / "trainer/placement/worker_actor.py"), str(tmp_path / "sent")]
    environ = {**of_a_child(), "TMPDIR": str(tmp_path), "PYTHONPATH": ""}
    said = subprocess.run(
        [sys.executable, "-c", program, *words], env=environ, capture_output=True, text=True, check=True, timeout=240
    )
    found = Path(said.stdout.strip())
    assert found.is_relative_to(tmp_path)
    assert found.read_bytes() == (ROOT / "trainer/config.py").read_bytes()


@pytest.mark.parametrize(
    ("visible", "local", "names"),
    [
        ("", (0, 3), ["0", "3"]),
        ("4,5,6,7", (0, 3), ["4", "7"]),
        (" 4, 5", (1,), ["5"]),
        ("4,5", (1, 2), ["5", "missing"]),
    ],
)
def test_cards_are_counted_among_those_that_are_visible_on_their_node(
    visible: str, local: tuple[int, ...], names: list[str]
) -> None:
    assert worker_actor._names(visible, local) == names


def test_a_bucket_arrives_as_it_was_and_its_memory_goes_beside_the_pickle() -> None:
    sent = {"a": torch.arange(5000.0), "b": torch.ones(3, 2, dtype=torch.bfloat16)}
    (bucket,) = Packer(1 << 20).pack(sent.items(), 7)
    beside: list[pickle.PickleBuffer] = []
    text = pickle.dumps(Packed(bucket), protocol=5, buffer_callback=beside.append)
    assert len(text) < 1000 and beside[0].raw().nbytes == bucket.flat.numel()
    came = pickle.loads(text, buffers=[bytes(each.raw()) for each in beside])
    assert (came.version, came.is_last, checksum(came.flat)) == (7, True, bucket.checksum)
    assert all(torch.equal(sent[name], found) for name, found in unpack([came]).items())


@pytest.mark.parametrize(
    ("count", "ranks", "shares"),
    [(4, 2, [[0, 2], [1, 3]]), (1, 3, [[0], [0], [0]]), (0, 2, [[], []]), (3, 2, [[0, 2], [1]])],
)
def test_ranks_share_the_generators_evenly_and_have_some_in_common_where_there_are_fewer(
    count: int, ranks: int, shares: list[list[int]]
) -> None:
    places: Any = list(range(count))
    assert [share(places, number, ranks) for number in range(ranks)] == shares


def beat(at: str, *, waits: bool, awaits: Sequence[str] = ()) -> dict[str, Any]:
    return {"mark": 1, "has_learnt": True, "at": at, "waits": waits, "awaits": list(awaits)}


@pytest.mark.parametrize(
    ("beats", "deaf", "told"),
    [
        (
            [beat("distributed.py:40 add", waits=True), beat("learner.py:9 update", waits=False)],
            (),
            "rank 1 on b hangs in",
        ),
        (
            [beat("distributed.py:40 add", waits=True), beat("x", waits=True)],
            (1,),
            "rank 1 on b hangs: ",
        ),
        (
            [beat("a.py:1 f", waits=True), beat("b.py:2 g", waits=True)],
            (),
            "the run hangs (rank 0 on a in a.py:1 f; rank 1",
        ),
        (
            [beat("distributed.py:40 add", waits=True), beat("generator.py:9 _get", waits=False, awaits=["g 1 on b"])],
            (),
            "g 1 on b hangs: rank 1 on b ",
        ),
    ],
)
def test_the_rank_that_waits_for_nobody_is_the_one_that_hangs(
    beats: list[dict[str, Any]], deaf: tuple[int, ...], told: str
) -> None:
    group: Any = SimpleNamespace(ranks=[SimpleNamespace(name="rank 0 on a"), SimpleNamespace(name="rank 1 on b")])
    watch, now = Watch(group, 5.0, start_limit_s=5.0), time.monotonic()
    for number, each in enumerate(beats):
        watch._take(number, each, now - 60 if number in deaf else now)
    assert watch._who_hangs(now + 1).startswith(told)


def test_until_the_first_update_a_run_has_the_time_that_a_start_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[Any] = []
    ray = SimpleNamespace(wait=lambda asked, timeout: ([], asked))
    monkeypatch.setitem(sys.modules, "ray", ray)
    rank = SimpleNamespace(name="rank 0 on a", ask=lambda *words, **more: waited.append(words))
    for has_learnt, limit_s in ((False, 60.0), (True, 5.0)):
        group: Any = SimpleNamespace(ranks=[rank])
        watch, began = Watch(group, 5.0, start_limit_s=60.0), time.monotonic()
        watch._asked[0] = "on its way"
        for after, is_late in ((limit_s - 1, False), (limit_s + 1, True)):
            watch._take(0, {**beat("learner.py:9 update", waits=False), "has_learnt": has_learnt}, began)
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", lambda at=began + after: at)
                assert (watch.look() is not None) is is_late


def test_a_lost_node_is_named_with_what_was_on_it() -> None:
    nodes = [Node("a", "10.0.0.1", {"CPU": 4.0}, is_home=True), Node("b", "10.0.0.2", {"CPU": 4.0})]
    placement = place_workers(Layout((0, 1), ((2,), (3,)), nodes=2, cards_per_node=2), nodes, kind=None)
    assert lost_node(placement, nodes) is None
    lost = lost_node(placement, nodes[:1])
    assert lost is not None and re.fullmatch(r"node 10\.0\.0\.2 .* generator 0 .* generator 1", lost[1])


def test_a_loss_is_told_in_a_word() -> None:
    by_signal = RuntimeError("... exit detail: Worker unexpectedly exits with a connection error code 2.")
    with_node = RuntimeError("The actor died because its node has died.")
    assert how_lost(by_signal) == "was killed"
    assert how_lost(with_node).endswith("its node")
    assert how_lost(RuntimeError("something new")) == "was lost (something new)"


def test_an_address_that_nothing_answers_at_is_told_at_once() -> None:
    assert f"({os.strerror(errno.ECONNREFUSED)})" in str(answers("127.0.0.1:9", 1.0))
    assert answers("banana", 1.0) == "'banana' is no HOST:PORT"


@pytest.mark.slow
def test_a_run_without_cards_imports_neither_ray_nor_what_places_it(plain_run: PlainRun) -> None:
    assert "trainer.loop" in plain_run.imported
    assert [each for each in plain_run.imported if each.split(".")[0] == "ray"] == []
    assert [each for each in plain_run.imported if each.startswith("trainer.placement")] == []
