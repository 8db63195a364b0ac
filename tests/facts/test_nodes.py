"""The device nodes of a host with more than ten cards."""

from __future__ import annotations

from npuenv.facts.npu.driver import nodes
from tests.support.scripted_host import ScriptedHost


def test_cards_are_in_the_order_of_their_numbers_and_not_of_their_names() -> None:
    host = ScriptedHost()
    host.folder("/dev", "davinci0", "davinci1", "davinci10", "davinci2", "davinci_manager", "devmm_svm", "hisi_hdc")
    found = nodes(host).value
    assert found is not None
    assert [node.path for node in found.cards] == [f"/dev/davinci{number}" for number in (0, 1, 2, 10)]
