"""A container as a Job of Kubernetes; on several nodes as a Job of Volcano with a head and workers.

The device plugin chooses cards and brings their device nodes and the driver's; everything else is mounted here, under
the host's paths, as MindCluster's guide to job files asks where its container runtime is not installed.
Source: MindCluster 7.3.0, Preparation of Job YAML Files (mxdlug_scheduling_049); volcano.sh, VolcanoJob (plugins
svc and env, policies).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npuenv.render.container import parts
from npuenv.render.container.parts import has_registry, head, left_open
from npuenv.render.files import dump_yaml

if TYPE_CHECKING:
    from npuenv.render.container.description import Container
    from npuenv.render.container.parts import Say

_TYPES = {"directory": "Directory", "file": "File"}  # what must be there; without, a missing folder would be made
_SHM, _USERS = "shared-memory", "users"
_GROUPS = "supplementalGroups: [N]"


def render(container: Container, version: str, say: Say) -> str:
    """The file's text."""
    several = container.nodes > 1
    brought = tuple(item.path for item in container.devices[len(container.cards) :] if item.is_required)
    notes = [
        say("note-plugin", resource=container.resource, devices=brought),
        say("note-volcano" if several else "note-job", name=container.name),
        *([say("note-cluster", nodes=container.nodes)] if several else []),
        *([say("note-node-type", type=container.node_type)] if several and container.node_type else []),
        *([say("note-even-cards")] if several and _may_be_refused(container) else []),
        *([] if has_registry(container.image) else [say("note-local-image", image=container.image)]),
        say("note-no-ulimits", limit=container.nofile),
        *([say("note-group-pod")] if container.is_root is False else []),
        *([say("note-group-image", add=_GROUPS, below="securityContext")] if container.is_root is None else []),
        *left_open(container, say, names_devices=False),
    ]
    lines = head(container, version, say, *notes, chooses=False)
    users = [_users(container)] if container.passwd else []
    return dump_yaml(lines, [*users, _volcano(container, say) if several else _job(container)])


def _may_be_refused(container: Container) -> bool:
    """Volcano's plugin counts the chips of A3, two of which are one card, and takes whole nodes on a SuperPoD.

    Source: Ascend/mind-cluster component/ascend-for-volcano/internal/npu/ascend910/ascend910a3 (ValidNPUJob).
    """
    return container.hardware == "a3" and len(container.cards) != container.node_cards


def _users(container: Container) -> dict[str, Any]:
    """The user's entry, mounted as /etc/passwd."""
    lines = "".join(f"{line}\n" for line in container.passwd)
    name = {"name": f"{container.name}-{_USERS}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": name, "data": {"passwd": lines}}


def _job(container: Container) -> dict[str, Any]:
    command: dict[str, Any] = {"args": list(container.command)} if container.command else {"stdin": True, "tty": True}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": container.name},
        "spec": {
            "backoffLimit": 0,
            "template": {"metadata": {"labels": {"app": container.name}}, "spec": _pod(container, command)},
        },
    }


def _volcano(container: Container, say: Say) -> dict[str, Any]:
    """The end of the head's command ends the job; without a command the head waits to be entered."""
    label = {"ring-controller.atlas": container.label} if container.label else {}
    address = f"{container.name}-head-0.{container.name}"
    waiting = container.command or ("sleep", "infinity")
    lead = ["sh", "-c", parts.LEAD, "lead", *parts.lead(container, say, address), *waiting]
    follow = ["sh", "-c", parts.FOLLOW, "follow", *parts.follow(say, address)]
    done = [{"event": "TaskCompleted", "action": "CompleteJob"}]
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": container.name, **({"labels": label} if label else {})},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": container.nodes,
            "maxRetry": 1,
            "plugins": {"env": [], "svc": []},
            "policies": [{"event": "PodFailed", "action": "TerminateJob"}],
            "tasks": [
                {"name": "head", "replicas": 1, "policies": done, "template": _member(container, lead, label)},
                {"name": "worker", "replicas": container.nodes - 1, "template": _member(container, follow, label)},
            ],
        },
    }


def _member(container: Container, args: list[str], label: dict[str, str]) -> dict[str, Any]:
    """A pod of a Volcano job, on a node of its own: pods with less than a node's cards could share one."""
    field = f"metadata.annotations['{container.resource}']"
    chosen = {"name": "ASCEND_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": field}}}
    pod = _pod(container, {"args": args})
    pod["containers"][0]["env"].append(chosen)
    if container.node_type:
        pod["nodeSelector"] = {"accelerator-type": container.node_type}
    alone = {"labelSelector": {"matchLabels": {"app": container.name}}, "topologyKey": "kubernetes.io/hostname"}
    pod["affinity"] = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [alone]}}
    return {"metadata": {"labels": {"app": container.name, **label}}, "spec": pod}


def _pod(container: Container, command: dict[str, Any]) -> dict[str, Any]:
    network = {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"} if container.is_host_network else {}
    cards = {container.resource: len(container.cards)}
    mounts = [
        {"name": _volume(place), "mountPath": mount.target, "readOnly": mount.is_read_only}
        for place, mount in enumerate(container.mounts)
    ]
    volumes: list[dict[str, Any]] = [
        {"name": _volume(place), "hostPath": {"path": mount.source, "type": _TYPES[mount.kind]}}
        for place, mount in enumerate(container.mounts)
    ]
    if not container.has_host_ipc:
        mounts.append({"name": _SHM, "mountPath": "/dev/shm", "readOnly": False})
        volumes.append({"name": _SHM, "emptyDir": {"medium": "Memory", "sizeLimit": f"{container.shm_gib}Gi"}})
    if container.passwd:
        mounts.append({"name": _USERS, "mountPath": "/etc/passwd", "subPath": "passwd", "readOnly": True})
        volumes.append({"name": _USERS, "configMap": {"name": f"{container.name}-{_USERS}"}})
    main = {
        "name": "ascend",
        "image": container.image,
        "imagePullPolicy": "IfNotPresent",
        **command,
        "env": [{"name": name, "value": value} for name, value in container.environment_of_user.items()],
        "resources": {"requests": cards, "limits": dict(cards)},
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        **network,
        **({"hostIPC": True} if container.has_host_ipc else {}),
        **_user(container.user),
        "containers": [main],
        "volumes": volumes,
    }


def _user(user: str | None) -> dict[str, Any]:
    if user is None:
        return {}
    owner, _, group = user.partition(":")
    ids = {"runAsUser": int(owner), **({"runAsGroup": int(group)} if group else {})}
    return {"securityContext": ids}


def _volume(place: int) -> str:
    return f"host-{place}"
