"""A package index made on the spot, and a small matrix to compare it with."""

from __future__ import annotations

import functools
import hashlib
import re
import threading
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npuenv.facts.pip import PipSetting, PipSettings
from npuenv.lock.uv import write_wheel
from npuenv.matrix.tables import Matrix
from tests.support.archives import pack

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npuenv.core.messages import Message

POLICY_TABLE = """\
| vLLM Ascend | vLLM | Python | Stable CANN | PyTorch/torch_npu | Triton Ascend | Mooncake |
|---|---|---|---|---|---|---|
"""
POLICY_1_0 = "| v1.0.0 | v1.0.0 | >= 3.10, < 3.13 | 9.1.0 | 2.10.0 / 2.10.0.post4 | 3.2.2 | v0.3 |\n"
ASKS = ("numpy", "torch==2.10.0", "torch-npu==2.10.0.post4", "transformers<5,>=4.57.4", "triton-ascend==3.2.2")
SETUP_OF_VLLM = 'if _no_device():\n        requirements = _read_requirements("common.txt")\n'


def dockerfile(*, chip: str = "910b", os: str = "ubuntu22.04", cann: str = "9.1.0", vllm: str = "1.0.0") -> str:
    return (
        f'ARG CANN_VERSION="{cann}"\nFROM registry.example/ascend/cann:${{CANN_VERSION}}-{chip}-{os}-py3.12\n'
        f"ARG VLLM_TAG=v{vllm}\nRUN pip install modelscope 'ray>=2.47.1,<=2.48.0'\n"
    )


def package_info(name: str, version: str, requires: Sequence[str] = (), metadata: str = "2.4") -> str:
    lines = [f"Metadata-Version: {metadata}", f"Name: {name}", f"Version: {version}", "Requires-Python: >=3.10"]
    return "\n".join([*lines, *(f"Requires-Dist: {line}" for line in requires)]) + "\n"


def ascend_sdist(version: str, *, vllm: str, policy: str, requires: Sequence[str], cann: str) -> dict[str, str]:
    """The files of a vllm-ascend sdist that a refresh reads."""
    return {
        "PKG-INFO": package_info("vllm-ascend", version, requires),
        "requirements.txt": "\n".join(requires),
        "docs/source/community/versioning_policy.md": POLICY_TABLE + policy,
        "Dockerfile": dockerfile(cann=cann, vllm=vllm),
        "Dockerfile.openEuler": dockerfile(cann=cann, os="openeuler24.03", vllm=vllm),
        "Dockerfile.a3": dockerfile(cann=cann, chip="a3", vllm=vllm),
        "Dockerfile.a3.openEuler": dockerfile(cann=cann, chip="a3", os="openeuler24.03", vllm=vllm),
    }


def vllm_sdist(version: str, common: str) -> dict[str, str]:
    return {
        "PKG-INFO": package_info("vllm", version),
        "setup.py": SETUP_OF_VLLM,
        "requirements/common.txt": common,
        "requirements/cuda.txt": "-r common.txt\ntorch==2.10.0\n",
    }


class _Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, gives parts of files where asked, and remembers what was asked."""

    def __init__(self, *args: object, index: Served, **kwargs: object) -> None:
        self.index = index
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self.index.asked.append((self.path, dict(self.headers.items())))
        span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if self.index.answer is not None:
            self.send_response(200)
            self.send_header("Content-Type", self.index.content_type)
            self.end_headers()
            self.wfile.write(self.index.answer)
        elif span and self.index.gives_parts and path.is_file():
            content = path.read_bytes()
            part = content[int(span[1]) : int(span[2]) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {span[1]}-{int(span[1]) + len(part) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            self.index.sent += len(part)  # before: who has read it all may ask at once
            self.wfile.write(part)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        return


@dataclass
class Served:
    """An index over a folder. `add` writes files, `url` is where it is served."""

    folder: Path
    url: str = ""
    gives_parts: bool = True
    content_type: str = "text/html"  # of `answer`
    answer: bytes | None = None  # given to every request instead of what is in the folder
    uploaded: str = ""  # what the page states as the upload time of each file
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    sent: int = 0  # bytes of parts

    def add_wheel(self, name: str, version: str, tag: str = "py3-none-any", requires: Sequence[str] = ()) -> Path:
        return self._shown(name, write_wheel(self._of(name), name, version, tag=tag, requires=requires))

    def add_sdist(self, name: str, version: str, files: Mapping[str, str]) -> Path:
        stem = f"{name.replace('-', '_')}-{version}"
        return self._shown(name, pack(self._of(name), stem, files))

    def add_release(
        self, version: str, *, vllm: str, policy: str = POLICY_1_0, requires: Sequence[str] = ASKS, cann: str = "9.1.0"
    ) -> Path:
        """A vllm-ascend sdist. `policy`: the lines of its policy table."""
        files = ascend_sdist(version, vllm=vllm, policy=policy, requires=requires, cann=cann)
        return self.add_sdist("vllm-ascend", version, files)

    def add_vllm(self, version: str, common: str) -> Path:
        """A vllm sdist. `common`: its requirements/common.txt."""
        return self.add_sdist("vllm", version, vllm_sdist(version, common))

    def add_file(self, name: str, file: str, content: bytes) -> Path:
        path = self._of(name) / file
        path.write_bytes(content)
        return self._shown(name, path)

    def clear(self, name: str) -> None:
        for path in self._of(name).iterdir():
            path.unlink()
        (self._of(name) / "index.html").write_text("<html></html>", encoding="utf-8")

    def _of(self, name: str) -> Path:
        folder = self.folder / "simple" / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _shown(self, name: str, path: Path) -> Path:
        page = self._of(name) / "index.html"
        old = page.read_text(encoding="utf-8") if page.exists() else "<html>\n"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        when = f' data-upload-time="{self.uploaded}T01:02:03Z"' if self.uploaded else ""
        page.write_text(f'{old}<a href="{path.name}#sha256={digest}"{when}>{path.name}</a>\n', encoding="utf-8")
        return path


@pytest.fixture
def index(tmp_path: Path, home: Path) -> Iterator[Served]:
    """An index that knows one version of each package, which the matrix of `matrix` knows, too."""
    served = Served(tmp_path / "index")
    served.folder.mkdir()
    handler = functools.partial(_Quiet, index=served, directory=str(served.folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        served.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        fill(served)
        yield served
        server.shutdown()


def fill(served: Served) -> None:
    """What the rows of `matrix` say, as files."""
    for python in ("cp311", "cp312"):
        for arch, pin in (("aarch64", "torch==2.10.0"), ("x86_64", "torch==2.10.0+cpu")):
            served.add_wheel("torch-npu", "2.10.0.post4", f"{python}-{python}-manylinux_2_28_{arch}", [pin])
            served.add_wheel("triton-ascend", "3.2.2", f"{python}-{python}-manylinux_2_27_{arch}")
    served.add_release("1.0.0", vllm="1.0.0")
    served.add_vllm("1.0.0", "regex # fast\nxgrammar == 0.2.0; platform_machine == 'x86_64'\n")


@pytest.fixture
def matrix(tmp_path: Path) -> Matrix:
    folder = tmp_path / "matrix"
    (folder / "built").mkdir(parents=True)
    for name, text in TABLES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return Matrix(folder)


@pytest.fixture
def settings(index: Served) -> PipSettings:
    return PipSettings(index_url=PipSetting(index.url, "test"))


@pytest.fixture
def steps() -> list[Message]:
    """What a refresh said while it ran."""
    return []


TABLES = {
    "hardware.toml": """
[[row]]
id = "a2"
title = "A2"
names = ["910B1"]
socs = ["ascend910b1"]
image_chip = "910b"
source = "test"
seen = "2026-01-01"

[[row]]
id = "a3"
title = "A3"
names = ["Ascend910"]
socs = ["ascend910_9391"]
image_chip = "a3"
source = "test"
seen = "2026-01-01"
""",
    "torch_npu.toml": """
[[row]]
id = "torch-npu.2.10.0.post4"
version = "2.10.0.post4"
torch = "2.10.0"
status = "released"
cann = "9.1.0"
index = "default"
python_aarch64 = ["3.11", "3.12"]
python_x86_64 = ["3.11", "3.12"]
requires_aarch64 = "torch==2.10.0"
requires_x86_64 = "torch==2.10.0+cpu"
source = "test"
seen = "2026-01-01"
""",
    "triton_ascend.toml": """
[[row]]
id = "triton-ascend.3.2.2"
version = "3.2.2"
cann = ["9.1.0"]
python = ["3.11", "3.12"]
arch = ["aarch64", "x86_64"]
hardware = ["a2"]
index = "default"
source = "test"
seen = "2026-01-01"
""",
    "vllm_ascend.toml": """
[[row]]
id = "vllm-ascend.1.0.0"
version = "1.0.0"
vllm = "1.0.0"
python = ">=3.10,<3.13"
cann = "9.1.0"
torch_npu = "2.10.0.post4"
released = "2025-12-01"
in_policy_table = true
triton_ascend = "3.2.2"
image = [
  { hardware = ["a2"], os = ["ubuntu22.04"], cann = "9.1.0", python = "3.12", ray = ">=2.47.1,<=2.48.0" },
  { hardware = ["a2"], os = ["openeuler24.03"], cann = "9.1.0", python = "3.12", ray = ">=2.47.1,<=2.48.0" },
  { hardware = ["a3"], os = ["openeuler24.03"], cann = "9.1.0", python = "3.12", ray = ">=2.47.1,<=2.48.0" },
  { hardware = ["a3"], os = ["ubuntu22.04"], cann = "9.1.0", python = "3.12", ray = ">=2.47.1,<=2.48.0" },
]
source = "test"
seen = "2026-01-01"
""",
    "built/vllm.toml": """
[[row]]
id = "built.vllm.1.0.0"
name = "vllm"
version = "1.0.0"
requires = ["regex", 'xgrammar==0.2.0; platform_machine == "x86_64"']
source = "test"
seen = "2026-01-01"
""",
    "built/vllm_ascend.toml": """
[[row]]
id = "built.vllm-ascend.1.0.0"
name = "vllm-ascend"
version = "1.0.0"
requires = ["numpy", "torch==2.10.0", "torch-npu==2.10.0.post4", "transformers<5,>=4.57.4", "triton-ascend==3.2.2"]
source = "test"
seen = "2026-01-01"
""",
}
