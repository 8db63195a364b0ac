"""A bundle as a Python program asks for it: what is refused before any index is asked."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.app import BundleOptions, bundle, preview_bundle
from npuenv.app.progress import Progress
from npuenv.core.errors import BadInput
from npuenv.resolve.types import Request
from tests.bundle.conftest import small_bundle

if TYPE_CHECKING:
    from npuenv.core.messages import Message

pytestmark = pytest.mark.usefixtures("home")


@pytest.mark.parametrize(
    ("options", "key"),
    [
        (BundleOptions(cann_files=(Path("/none"),)), "bundle.no-file"),
        (BundleOptions(left_out=frozenset({"verl"})), "bundle.unknown-source"),
        (BundleOptions(given={"verl": "/none"}), "bundle.unknown-source"),
        (BundleOptions(out=Path("/x.tar.gz")), "bundle.other-form"),
    ],
)
def test_what_does_not_fit_the_stack_is_refused(
    options: BundleOptions, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    for act in (bundle, preview_bundle):
        with pytest.raises(BadInput) as raised:
            act(Request(stack="cpu"), options)
        assert raised.value.message.key == key


@pytest.mark.parametrize(("arch", "is_said"), [(None, True), ("aarch64", False), ("arm64", False)])
def test_the_architecture_that_nobody_named_is_said(
    arch: str | None, is_said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    notes: list[str] = []

    class Heard(Progress):
        def note(self, message: Message) -> None:
            notes.append(message.key)

    request = Request(stack="verl-0.7.1-cann8.5.0", hardware="a3", arch=arch)
    with pytest.raises(BadInput, match=r"bundle\.no-file"):
        preview_bundle(request, BundleOptions(cann_files=(Path("/none"),)), Heard())
    assert ("resolve.note-assumed-arch" in notes) is is_said


def test_a_bundle_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    small_bundle(tmp_path / "bundle")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "text").write_text("mine", encoding="utf-8")
    for out, key in ((tmp_path / "bundle", "bundle.another"), (tmp_path / "mine", "bundle.not-ours")):
        before = sorted(out.rglob("*"))
        with pytest.raises(BadInput) as raised:
            bundle(Request(stack="cpu"), BundleOptions(out=out))
        assert raised.value.message.key == key and sorted(out.rglob("*")) == before
