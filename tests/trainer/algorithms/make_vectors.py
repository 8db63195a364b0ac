"""Runs the frameworks' own code on small inputs and writes what came out to vectors/<framework>.json.

    python make_vectors.py --verl FOLDER VERSION --trl FOLDER VERSION --roll FOLDER VERSION

FOLDER holds the package (`verl/`, `trl/`, `roll/`): site-packages, an unpacked wheel or a checkout; each is optional.
Needs torch and numpy alone. A framework is not imported: the functions and passages named in each vector are cut out
of its source text and run as they stand, so ray, vllm and the like need not be installed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tests.trainer.algorithms import roll_vectors, trl_vectors, verl_vectors

if TYPE_CHECKING:
    from tests.trainer.algorithms.framework_source import Vector

HERE = Path(__file__).parent


MAKERS = {"verl": verl_vectors, "trl": trl_vectors, "roll": roll_vectors}


def written(framework: str, version: str, vectors: list[Vector]) -> str:
    """The text of a file: inputs that several vectors share stand once, under a number; one line each."""
    inputs: dict[str, int] = {}
    rows = []
    for each in vectors:
        number = inputs.setdefault(json.dumps(each["inputs"], separators=(",", ":")), len(inputs))
        rows.append(json.dumps(each | {"inputs": number}, separators=(",", ":")))
    head = {"framework": framework, "version": version, "torch": torch.__version__}
    shared, own = ",\n".join(inputs), ",\n".join(rows)
    return f'{json.dumps(head)[:-1]},\n"inputs": [\n{shared}\n],\n"vectors": [\n{own}\n]}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for framework in MAKERS:
        parser.add_argument(f"--{framework}", nargs=2, metavar=("FOLDER", "VERSION"))
    torch.set_num_threads(1)
    for framework, given in vars(parser.parse_args()).items():
        if given is None:
            continue
        source = MAKERS[framework].source(Path(given[0]))
        vectors = [each for maker in MAKERS[framework].MAKERS for each in maker(source)]
        (HERE / "vectors" / f"{framework}.json").write_text(written(framework, given[1], vectors))
        print(f"{framework} {given[1]}: {len(vectors)} vectors")


if __name__ == "__main__":
    main()
