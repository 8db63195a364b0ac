"""Ray on this machine."""

from npuenv.facts.ray.session import RayFacts

__all__ = ["RayFacts"]
