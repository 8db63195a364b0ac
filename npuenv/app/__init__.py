"""The use cases as functions: options in, a result out. Nothing here prints or reads a command line.

    from npuenv.app import DoctorOptions, doctor

Names and modules are imported when they are first used: judging a capture does not load what installs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npuenv.app import (
        bundling,
        checkup,
        examine,
        images,
        installation,
        launches,
        locking,
        resolution,
        training,
        updates,
    )
    from npuenv.app.bundling import BundleResult, bundle, preview_bundle
    from npuenv.app.checkup import doctor
    from npuenv.app.examine import DoctorOptions, DoctorResult
    from npuenv.app.fixes import FixOptions, FixResult, fix
    from npuenv.app.images import ImageOptions, render_docker
    from npuenv.app.installation import install, preview
    from npuenv.app.launch_check import PreflightOptions, preflight
    from npuenv.app.launches import render_launch, write_launch
    from npuenv.app.locking import lock_published, verify_locks
    from npuenv.app.mesh import MeshOptions, ping_mesh
    from npuenv.app.nodes import NodesOptions, doctor_nodes
    from npuenv.app.progress import InstallOptions, InstallResult, Progress
    from npuenv.app.ray_nodes import RayOptions, RayResult, RayStartOptions, ray_nodes_status, start_ray, stop_ray
    from npuenv.app.resolution import LockOptions, lock, lock_request, resolve
    from npuenv.app.training import SmokeOptions, SmokeResult, smoke_train
    from npuenv.app.updates import repair, roll_back, update
    from npuenv.bundle.make import BundleOptions
    from npuenv.lock.store import LockedRequest
    from npuenv.preflight.fixing import PreflightResult
    from npuenv.render.container.description import ContainerOptions
    from npuenv.render.launch.job import LaunchOptions
    from npuenv.resolve.types import ConflictError

__all__ = [
    "BundleOptions", "BundleResult", "ConflictError", "ContainerOptions", "DoctorOptions", "DoctorResult",
    "FixOptions", "FixResult", "ImageOptions", "InstallOptions", "InstallResult", "LaunchOptions", "LockOptions",
    "LockedRequest", "MeshOptions", "NodesOptions", "PreflightOptions", "PreflightResult", "Progress", "RayOptions",
    "RayResult", "RayStartOptions", "SmokeOptions", "SmokeResult", "bundle", "bundling", "checkup", "doctor",
    "doctor_nodes", "examine", "fix", "images", "install", "installation", "launches", "lock", "lock_published",
    "lock_request", "locking", "ping_mesh", "preflight", "preview", "preview_bundle", "ray_nodes_status",
    "render_docker", "render_launch", "repair", "resolution", "resolve", "roll_back", "smoke_train", "start_ray",
    "stop_ray", "training", "update", "updates", "verify_locks", "write_launch",
]  # fmt: skip
# The public names of each module. None has the name of a module: importing that would take its place.
_MODULES = {
    "bundling": ("BundleOptions", "BundleResult", "bundle", "preview_bundle"),
    "checkup": ("doctor",),
    "examine": ("DoctorOptions", "DoctorResult"),
    "fixes": ("FixOptions", "FixResult", "fix"),
    "images": ("ContainerOptions", "ImageOptions", "render_docker"),
    "installation": ("install", "preview"),
    "launch_check": ("PreflightOptions", "PreflightResult", "preflight"),
    "launches": ("LaunchOptions", "render_launch", "write_launch"),
    "locking": ("lock_published", "verify_locks"),
    "mesh": ("MeshOptions", "ping_mesh"),
    "nodes": ("NodesOptions", "doctor_nodes"),
    "progress": ("InstallOptions", "InstallResult", "Progress"),
    "ray_nodes": ("RayOptions", "RayResult", "RayStartOptions", "ray_nodes_status", "start_ray", "stop_ray"),
    "resolution": ("ConflictError", "LockOptions", "LockedRequest", "lock", "lock_request", "resolve"),
    "training": ("SmokeOptions", "SmokeResult", "smoke_train"),
    "updates": ("repair", "roll_back", "update"),
}  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name == module:
            return importlib.import_module(f"{__name__}.{module}")
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
