"""`python -m trainer.stages.try_ray TYPE COUNT`: starts Ray, passes a TensorDict through an actor, prints JSON.

A separate program, because Ray starts processes and registers exit handlers.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any

import ray

from trainer.device import RAY_RESOURCES


def main(kind: str, count: int) -> dict[str, Any]:
    """Seconds and resources that Ray found; a `problem` where something is missing."""
    began = time.perf_counter()
    ray.init(address="local", num_cpus=1, include_dashboard=False, configure_logging=False, log_to_driver=False)
    try:
        found: dict[str, Any] = {"version": ray.__version__, "start_s": time.perf_counter() - began}
        resource = RAY_RESOURCES.get(kind)
        if resource is not None:
            seen = float(ray.cluster_resources().get(resource, 0.0))
            found |= {"resource": resource, "seen": seen, "expected": count}
            if seen != count:
                found["problem"] = f"it sees {seen:g} {resource} where torch sees {count}"
        if importlib.util.find_spec("tensordict") is not None:
            found |= through_an_actor()
        return found
    finally:
        ray.shutdown()


def through_an_actor() -> dict[str, Any]:
    """A TensorDict is sent to an actor and comes back doubled."""
    import tensordict
    import torch

    @ray.remote(num_cpus=1)
    class Doubling:
        def double(self, sent: Any) -> Any:
            return sent.apply(lambda tensor: tensor * 2)

    began = time.perf_counter()
    sent = tensordict.TensorDict({"tokens": torch.arange(12).reshape(3, 4), "rewards": torch.ones(3)}, batch_size=[3])
    actor: Any = Doubling  # the decorator adds `remote`, which no annotation shows
    came = ray.get(actor.remote().double.remote(sent))
    is_right = torch.equal(came["tokens"], sent["tokens"] * 2) and torch.equal(came["rewards"], sent["rewards"] * 2)
    answer: dict[str, Any] = {"tensordict": tensordict.__version__, "actor_s": time.perf_counter() - began}
    return answer if is_right else {**answer, "problem": "a TensorDict came back from an actor changed"}


if __name__ == "__main__":
    try:
        answer = main(sys.argv[1], int(sys.argv[2]))
    except Exception as error:  # any failure of Ray is the result
        answer = {"problem": f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"}
    print(json.dumps(answer))
