"""What every maker of vectors needs: a framework's code cut out of its source text, and the inputs it is run on."""

from __future__ import annotations

import ast
import math
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")
Vector = dict[str, Any]


class Source:
    """One framework's source files and the names that their code expects to find."""

    def __init__(self, folder: Path, known: dict[str, Any] | None = None) -> None:
        self.folder = folder
        self.known: dict[str, Any] = {"torch": torch, "np": np, "F": F, "math": math, "Optional": Optional}
        self.known |= {"defaultdict": defaultdict, "Any": Any, "Callable": Callable, **(known or {})}

    def borrow(self, path: str, *names: str) -> None:
        """Makes top-level functions and constants of a file known."""
        self._take(ast.parse((self.folder / path).read_text()).body, path, names)

    def methods(self, path: str, owner: str, *names: str) -> None:
        """The same for methods of a class, as functions whose first argument is `self` where they have one."""
        for node in ast.walk(ast.parse((self.folder / path).read_text())):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                self._take(node.body, path, names)

    def _take(self, body: list[ast.stmt], path: str, names: tuple[str, ...]) -> None:
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name in names:
                node.decorator_list, node.returns = [], None
                for argument in (*node.args.args, *node.args.kwonlyargs):
                    argument.annotation = None
            elif not isinstance(node, ast.Assign | ast.AnnAssign) or _target(node) not in names:
                continue
            exec(compile(ast.Module([node], []), path, "exec"), self.known)

    def passage(self, path: str, method: str, first: str, last: str) -> Callable[..., dict[str, Any]]:
        """The statements of a method from the one that begins with `first` to the one that begins with `last`.

        Called with the names that they read, it gives all names afterwards. Quotes are written ' here.
        """
        owner, name = method.split(".")
        for node in ast.walk(ast.parse((self.folder / path).read_text())):
            if isinstance(node, ast.ClassDef) and node.name == owner:
                function = next(each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == name)
                code = compile(ast.Module(_between(function, first, last), []), path, "exec")
                return lambda **given: _run(code, self.known | given)
        raise LookupError(f"{method} is not in {path}")

    def __getattr__(self, name: str) -> Any:
        return self.known[name]


def _target(node: ast.Assign | ast.AnnAssign) -> str:
    return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)


def _between(function: ast.FunctionDef, first: str, last: str) -> list[ast.stmt]:
    for node in ast.walk(function):
        for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if not isinstance(body, list):
                continue
            texts = [ast.unparse(each) for each in body]
            starts = [number for number, text in enumerate(texts) if text.startswith(first)]
            ends = [number for number, text in enumerate(texts) if text.startswith(last)]
            if starts and ends:
                return body[starts[0] : next(end for end in ends if end >= starts[0]) + 1]
    raise LookupError(f"{function.name} has no passage from {first!r} to {last!r}")


def _run(code: Any, names: dict[str, Any]) -> dict[str, Any]:
    exec(code, names)
    return names


def plain(value: Any) -> Any:
    """A tensor as nested lists; float32 in nine digits, which give it back exactly."""
    if isinstance(value, torch.Tensor):
        return plain(value.tolist())
    if isinstance(value, list):
        return [plain(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def vector(what: str, function: str, ours: dict[str, Any], inputs: dict[str, Any], **results: Any) -> Vector:
    """One vector; `results` are outputs, or gradients where the name begins with d_."""
    row = {"what": what, "function": function, "ours": ours, "inputs": inputs, "outputs": results}
    return {
        key: {name: plain(each) for name, each in part.items()} if isinstance(part, dict) else part
        for key, part in row.items()
    }


def step(*, observations: bool = True, groups: tuple[int, ...] = (3, 3, 1, 2), seed: int = 0) -> dict[str, Any]:
    """The rows of one step: equal rewards, spread ones, a group of one, large ones close together.

    Row 1 has no token of its own, row 4 has an environment's words in its middle.
    """
    generator = torch.Generator().manual_seed(seed)
    group_B = torch.tensor([number for number, size in enumerate(groups) for _ in range(size)])
    rows, width = len(group_B), 7
    lengths_B = torch.randint(2, width + 1, (rows,), generator=generator)
    lengths_B[0], lengths_B[1], lengths_B[4] = width, 0, width
    mask_BT = torch.arange(width) < lengths_B.unsqueeze(1)
    if observations:
        mask_BT[4, 2:4] = False
    rewards_B = torch.rand(rows, generator=generator)
    rewards_B[group_B == 0] = 0.1
    rewards_B[-groups[-1] :] = torch.tensor([1000.0, 1000.5, 1000.25, 1000.125])[: groups[-1]]
    token_rewards_BT = torch.zeros(rows, width)
    token_rewards_BT[torch.arange(rows), (lengths_B - 1) % width] = rewards_B
    values_BT = torch.randn(rows, width, generator=generator)
    own_BT = -3 * torch.rand(rows, width, generator=generator)
    return {
        "logprobs_BT": own_BT,
        "sum_pi_squared_BT": own_BT.exp().square()
        + torch.rand(rows, width, generator=generator) * (1 - own_BT.exp()) ** 2,
        "baselines_B": torch.rand(rows, generator=generator),
        "parts_BK": torch.rand(rows, 3, generator=generator).round(decimals=1),
        "token_rewards_BT": token_rewards_BT,
        "mask_BT": mask_BT,
        "lengths_B": lengths_B,
        "group_B": group_B,
        "values_BT": values_BT,
    }


def update(*, extreme: bool = False, zero_outside: bool = False, per_answer: bool = False) -> dict[str, Any]:
    """The rows of one update; `extreme`: log ratios up to 30 both ways. Advantages hold zeros."""
    generator = torch.Generator().manual_seed(1)
    rows, width = 6, 7
    lengths_B = torch.tensor([7, 0, 3, 5, 7, 1])
    mask_BT = torch.arange(width) < lengths_B.unsqueeze(1)
    mask_BT[4, 2:4] = False
    old_BT = -2 * torch.rand(rows, width, generator=generator)
    moved_BT = torch.randn(rows, width, generator=generator) * 0.4
    if extreme:
        moved_BT[0, :4] = torch.tensor([30.0, -30.0, 19.0, -19.0])
        moved_BT[3, :4] = torch.tensor([30.0, -30.0, 19.0, -19.0])
    advantages_BT = torch.randn(rows, 1 if per_answer else width, generator=generator).repeat(
        1, width if per_answer else 1
    )
    if extreme:
        advantages_BT[0], advantages_BT[3] = advantages_BT[0].abs(), -advantages_BT[3].abs()
    advantages_BT[2, 0 if not per_answer else slice(None)] = 0.0
    reference_BT = old_BT + torch.randn(rows, width, generator=generator) * 0.5
    weights_BT = torch.rand(rows, width, generator=generator) * 2
    entropy_BT = torch.rand(rows, width, generator=generator) * 3
    batch = {
        "logprobs_BT": old_BT + moved_BT,
        "old_BT": old_BT,
        "reference_BT": reference_BT,
        "advantages_BT": advantages_BT,
        "weights_BT": weights_BT,
        "entropy_BT": entropy_BT,
    }
    if zero_outside:
        batch = {name: torch.where(mask_BT, value, 0.0) for name, value in batch.items()}
    return batch | {"mask_BT": mask_BT}


def leaf(batch: dict[str, Any], name: str) -> torch.Tensor:
    found: torch.Tensor = batch[name].clone().requires_grad_()
    return found


def gradient(loss: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss, of)[0]


def logits() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(2)
    logits_BTV = torch.randn(2, 4, 11, generator=generator) * 1.5
    logits_BTV[0, 0] = 0.0
    tokens_BT = torch.randint(0, 11, (2, 4), generator=generator)
    tokens_BT[0, 1] = 3
    return {"logits_BTV": logits_BTV, "tokens_BT": tokens_BT, "slope_BT": torch.randn(2, 4, generator=generator)}


def logprob_vectors(function: str, logprobs_of: Any, entropy_of: Any) -> Iterator[Vector]:
    batch = logits()
    for temperature in (1.0, 0.7):
        given = leaf(batch, "logits_BTV")
        logprobs_BT = logprobs_of(given / temperature, batch["tokens_BT"])
        entropy_BT = entropy_of(given / temperature)
        yield vector(
            "logprobs",
            function,
            {"temperature": temperature},
            batch,
            logprobs_BT=logprobs_BT.detach(),
            entropy_BT=entropy_BT.detach(),
            d_logprobs=gradient((logprobs_BT * batch["slope_BT"]).sum(), given),
            d_entropy=gradient((entropy_BT * batch["slope_BT"]).sum(), given),
        )
