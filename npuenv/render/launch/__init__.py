"""Files that start a training run: verl's overrides and YAML, ROLL's YAML, Ray's start scripts, variables by role."""

from __future__ import annotations
