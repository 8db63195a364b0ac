"""Templates of values alone are filled without jinja2, with the same bytes as by it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import jinja2
import pytest

from npuenv.render import files

if TYPE_CHECKING:
    from pathlib import Path

IMAGE = ("image_activate.sh.j2", "image_entrypoint.sh.j2", "image_healthcheck.py.j2")
VALUES = {
    "head": "a head with {{ braces }} and $",
    "home": "/opt/npu env",
    "stack": "it's",
    "cann": "/a b/set_env.sh",
    "compiler": "    if [ -r /c ]; then . /c; fi\n",
    "nnal": "/n",
    "more_path": "    export X=1\n",
    "preload": "    export Y=1\n",
}


@pytest.mark.parametrize("name", IMAGE)
def test_values_are_put_in_as_jinja2_puts_them_in(name: str) -> None:
    assert files.fill(name, **VALUES) == files._environment().get_template(name).render(VALUES)


@pytest.mark.parametrize("name", IMAGE)
def test_a_value_that_lacks_is_an_error_and_no_hole(name: str) -> None:
    with pytest.raises(KeyError):
        files.fill(name)


def test_a_template_with_more_than_values_is_left_to_jinja2() -> None:
    with pytest.raises(jinja2.UndefinedError):
        files.fill("verl_run.sh.j2")


@pytest.mark.slow
def test_an_image_is_rendered_without_what_takes_long_to_load(tmp_path: Path) -> None:
    said = (
        "import sys; from npuenv.cli import main\n"
        f"code = main(['render-docker', 'verl-cann9.1.0', '--hardware', 'a2', '-q', '-o', {str(tmp_path)!r}])\n"
        "slow = {'jinja2', 'packaging.specifiers', 'packaging.requirements', 'rich', 'npuenv.lock.make'}\n"
        "print(code, sorted(slow & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().splitlines()[-1] == "0 []"
