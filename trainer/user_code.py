"""Functions of the user's, given as `FILE.py:NAME`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.sections import BadSetting

if TYPE_CHECKING:
    from collections.abc import Callable


def locate(setting: str, given: str) -> tuple[Path, str]:
    """The file and the name. Raises BadSetting unless the file is there."""
    path, colon, name = given.rpartition(":")
    file = Path(path).expanduser().resolve()
    if not colon or not name.isidentifier() or not file.is_file():
        raise BadSetting(f"{setting}={given} is not accepted. Accepted: FILE.py:NAME of a file that is there")
    return file, name


def load(setting: str, given: str) -> Callable[..., Any]:
    """The function, imported into this process. Raises BadSetting where the file or the function cannot be used."""
    file, name = locate(setting, given)
    spec = importlib.util.spec_from_file_location(f"{setting}_of_the_run", file)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    sys.path.append(str(file.parent))  # last: a file beside it must not hide a module of the same name
    try:
        spec.loader.exec_module(module)
        function = getattr(module, name)
    except Exception as error:  # the user's code: whatever it raises says why it cannot be used
        reason = " ".join(str(error).split())[:300]
        raise BadSetting(f"{setting}={given} cannot be loaded: {type(error).__name__}: {reason}") from error
    finally:
        sys.path.remove(str(file.parent))
    if not callable(function):
        raise BadSetting(f"{setting}={given} is not accepted: {name} is no function")
    return function  # type: ignore[no-any-return]
