"""What run files use of the compose specification and of the APIs of Kubernetes and Volcano, closed to anything else.

Sources: compose-spec, schema/compose-spec.json and 05-services.md; Kubernetes API reference, batch/v1 Job, v1 PodSpec;
Volcano, batch.volcano.sh/v1alpha1 Job (docs, VolcanoJob).
"""

from __future__ import annotations

from typing import Any

TEXT, WHOLE, TRUTH = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 0}, {"type": "boolean"}
LABEL = {"type": "string", "pattern": "^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$"}
PATH = {"type": "string", "pattern": "^/[^:]*$"}


def closed(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    properties = {**required, **optional}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def listed(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": item, "uniqueItems": True}


def mapped(value: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": value, "minProperties": 1}


_BIND = closed(
    {"type": {"const": "bind"}, "source": PATH, "target": PATH, "read_only": TRUTH},
    bind=closed({"create_host_path": TRUTH}),
)
_SERVICE = closed(
    {
        "image": TEXT,
        "devices": listed({"type": "string", "pattern": "^/dev/[^:]+:/dev/[^:]+$"}),
        "volumes": listed(_BIND),
    },
    container_name={"type": "string", "pattern": "^[a-zA-Z0-9][a-zA-Z0-9_.-]+$"},
    init=TRUTH,
    network_mode=TEXT,
    ipc=TEXT,
    shm_size={"type": "string", "pattern": "^[0-9]+(b|k|kb|m|mb|g|gb)$"},
    ulimits=mapped(closed({"soft": WHOLE, "hard": WHOLE})),
    environment=mapped({"type": "string"}),
    restart={"enum": ["no", "always", "on-failure", "unless-stopped"]},
    user=TEXT,
    group_add=listed(TEXT),
    configs=listed(closed({"source": TEXT, "target": PATH})),
    command={"type": "array", "items": {"type": "string"}},
    stdin_open=TRUTH,
    tty=TRUTH,
)
COMPOSE = closed({"name": LABEL, "services": mapped(_SERVICE)}, configs=mapped(closed({"content": TEXT})))

_ENV = {
    "oneOf": [
        closed({"name": TEXT, "value": {"type": "string"}}),
        closed({"name": TEXT, "valueFrom": closed({"fieldRef": closed({"fieldPath": TEXT})})}),
    ]
}
_CONTAINER = closed(
    {
        "name": LABEL,
        "image": TEXT,
        "env": listed(_ENV),
        "resources": closed({"requests": mapped(WHOLE), "limits": mapped(WHOLE)}),
        "volumeMounts": listed(closed({"name": LABEL, "mountPath": PATH, "readOnly": TRUTH}, subPath=TEXT)),
    },
    imagePullPolicy={"enum": ["Always", "IfNotPresent", "Never"]},
    args={"type": "array", "items": {"type": "string"}},
    stdin=TRUTH,
    tty=TRUTH,
)
_VOLUME = {
    "oneOf": [
        closed({"name": LABEL, "hostPath": closed({"path": PATH, "type": {"enum": ["Directory", "File"]}})}),
        closed({"name": LABEL, "configMap": closed({"name": LABEL})}),
        closed({"name": LABEL, "emptyDir": closed({"medium": {"const": "Memory"}, "sizeLimit": TEXT})}),
    ]
}
_APART = closed({"labelSelector": closed({"matchLabels": mapped(TEXT)}), "topologyKey": TEXT})
_POD = closed(
    {"containers": listed(_CONTAINER), "volumes": listed(_VOLUME), "restartPolicy": {"enum": ["Never", "OnFailure"]}},
    automountServiceAccountToken=TRUTH,
    hostNetwork=TRUTH,
    hostIPC=TRUTH,
    dnsPolicy={"enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
    securityContext=closed({"runAsUser": WHOLE}, runAsGroup=WHOLE),
    nodeSelector=mapped(TEXT),
    affinity=closed({"podAntiAffinity": closed({"requiredDuringSchedulingIgnoredDuringExecution": listed(_APART)})}),
)
_TEMPLATE = closed({"spec": _POD}, metadata=closed({"labels": mapped(TEXT)}))
_META = closed({"name": LABEL}, labels=mapped(TEXT))
CONFIG_MAP = closed(
    {"apiVersion": {"const": "v1"}, "kind": {"const": "ConfigMap"}, "metadata": _META, "data": mapped(TEXT)}
)
JOB = closed(
    {
        "apiVersion": {"const": "batch/v1"},
        "kind": {"const": "Job"},
        "metadata": _META,
        "spec": closed({"template": _TEMPLATE}, backoffLimit=WHOLE),
    }
)
_POLICY = closed(
    {
        "event": {"enum": ["*", "PodFailed", "PodEvicted", "JobUnknown", "TaskCompleted", "Unknown", "TaskFailed"]},
        "action": {
            "enum": ["AbortJob", "RestartJob", "RestartTask", "TerminateJob", "CompleteJob", "ResumeJob", "SyncJob"]
        },
    }
)
VOLCANO_JOB = closed(
    {
        "apiVersion": {"const": "batch.volcano.sh/v1alpha1"},
        "kind": {"const": "Job"},
        "metadata": _META,
        "spec": closed(
            {
                "schedulerName": {"const": "volcano"},
                "minAvailable": {"type": "integer", "minimum": 1},
                "tasks": listed(
                    closed(
                        {"name": LABEL, "replicas": {"type": "integer", "minimum": 1}, "template": _TEMPLATE},
                        policies=listed(_POLICY),
                    )
                ),
            },
            maxRetry=WHOLE,
            plugins=mapped({"type": "array"}),
            policies=listed(_POLICY),
        ),
    }
)
