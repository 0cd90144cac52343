"""Schemas of the files in deploy/: the fields that they use, as the versions of their kinds have them.

Every other field is refused: whoever adds one looks up its name and its type. Sources: the Compose
specification; the API reference of Kubernetes 1.32; KubeRay's RayCluster v1; ServiceMonitor of Prometheus' operator.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

TEXT: Schema = {"type": "string", "minLength": 1}
WHOLE: Schema = {"type": "integer", "minimum": 0}
TRUTH: Schema = {"type": "boolean"}
NAME: Schema = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
PORT_NAME: Schema = {"type": "string", "pattern": "^[a-z0-9-]*[a-z][a-z0-9-]*$", "maxLength": 15}
PORT: Schema = {"type": "integer", "minimum": 1, "maximum": 65535}
QUANTITY: Schema = {"type": "string", "pattern": r"^\d+(\.\d+)?(m|Ki|Mi|Gi|Ti)?$"}
LABELS: Schema = {"type": "object", "additionalProperties": TEXT, "minProperties": 1}


def fields(required: dict[str, Schema], optional: dict[str, Schema] | None = None) -> Schema:
    """An object with these fields and no others."""
    known = {**required, **(optional or {})}
    return {"type": "object", "properties": known, "required": [*required], "additionalProperties": False}


def many(of: Schema) -> Schema:
    return {"type": "array", "items": of, "minItems": 1}


SELECTOR = fields({"matchLabels": LABELS})
META = fields({"name": NAME}, {"labels": LABELS})
RESOURCES = fields(
    {"requests": {"type": "object", "additionalProperties": QUANTITY}},
    {"limits": {"type": "object", "additionalProperties": QUANTITY}},
)
_TIMES = {"timeoutSeconds": WHOLE, "periodSeconds": WHOLE, "failureThreshold": WHOLE}
PROBE: Schema = {
    "oneOf": [
        fields({"exec": fields({"command": many(TEXT)})}, _TIMES),
        fields({"tcpSocket": fields({"port": PORT_NAME})}, _TIMES),
    ]
}
CONTAINER = fields(
    {"name": NAME, "image": TEXT, "resources": RESOURCES},
    {
        "args": many(TEXT),
        "ports": many(fields({"name": PORT_NAME, "containerPort": PORT})),
        "startupProbe": PROBE,
        "readinessProbe": PROBE,
        "livenessProbe": PROBE,
        "securityContext": fields(
            {
                "allowPrivilegeEscalation": TRUTH,
                "readOnlyRootFilesystem": TRUTH,
                "capabilities": fields({"drop": many(TEXT)}),
            }
        ),
        "volumeMounts": many(fields({"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}})),
    },
)
POD = fields(
    {"containers": many(CONTAINER)},
    {
        "automountServiceAccountToken": TRUTH,
        "terminationGracePeriodSeconds": WHOLE,
        "securityContext": fields(
            {"runAsNonRoot": TRUTH, "runAsUser": WHOLE, "runAsGroup": WHOLE},
            {
                "fsGroup": WHOLE,
                "fsGroupChangePolicy": {"enum": ["OnRootMismatch", "Always"]},
                "seccompProfile": fields({"type": {"enum": ["RuntimeDefault"]}}),
            },
        ),
        "affinity": fields(
            {
                "podAntiAffinity": fields(
                    {
                        "requiredDuringSchedulingIgnoredDuringExecution": many(
                            fields({"topologyKey": TEXT, "labelSelector": SELECTOR})
                        )
                    }
                )
            }
        ),
        "volumes": many(
            {
                "oneOf": [
                    fields({"name": NAME, "emptyDir": fields({})}),
                    fields(
                        {
                            "name": NAME,
                            "hostPath": fields({"path": TEXT, "type": {"enum": ["Directory", "DirectoryOrCreate"]}}),
                        }
                    ),
                ]
            }
        ),
    },
)
TEMPLATE = fields({"spec": POD}, {"metadata": fields({"labels": LABELS})})
CLAIM = fields(
    {
        "metadata": fields({"name": NAME}),
        "spec": fields(
            {
                "accessModes": many({"enum": ["ReadWriteOnce", "ReadWriteOncePod"]}),
                "resources": fields({"requests": fields({"storage": QUANTITY})}),
            }
        ),
    }
)
START = {"type": "object", "additionalProperties": {"type": "string"}}
GROUP = {"rayStartParams": START, "template": TEMPLATE}

KINDS: dict[tuple[str, str], Schema] = {
    ("v1", "Service"): fields(
        {
            "clusterIP": {"const": "None"},
            "selector": LABELS,
            "ports": many(fields({"name": PORT_NAME, "port": PORT})),
        }
    ),
    ("apps/v1", "StatefulSet"): fields(
        {
            "serviceName": NAME,
            "replicas": WHOLE,
            "selector": SELECTOR,
            "template": TEMPLATE,
            "volumeClaimTemplates": many(CLAIM),
        }
    ),
    ("policy/v1", "PodDisruptionBudget"): fields({"maxUnavailable": WHOLE, "selector": SELECTOR}),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): fields(
        {
            "selector": SELECTOR,
            "endpoints": many(fields({"port": PORT_NAME, "interval": {"type": "string", "pattern": r"^\d+s$"}})),
        }
    ),
    ("ray.io/v1", "RayCluster"): fields(
        {
            "rayVersion": {"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
            "headGroupSpec": fields(GROUP),
            "workerGroupSpecs": many(
                fields({"groupName": NAME, "replicas": WHOLE, "minReplicas": WHOLE, "maxReplicas": WHOLE, **GROUP})
            ),
        }
    ),
}
"""The `spec` of each kind, by apiVersion and kind."""

COMPOSE = fields(
    {
        "services": {
            "type": "object",
            "minProperties": 1,
            "additionalProperties": fields(
                {"build": fields({"context": TEXT, "dockerfile": TEXT}), "image": TEXT},
                {
                    "ports": many({"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}),
                    "volumes": many({"type": "string", "pattern": r"^[a-z0-9]+:/"}),
                    "read_only": TRUTH,
                    "tmpfs": many(TEXT),
                    "cap_drop": many(TEXT),
                    "security_opt": many(TEXT),
                    "restart": {"enum": ["no", "always", "on-failure", "unless-stopped"]},
                    "stop_grace_period": {"type": "string", "pattern": r"^\d+s$"},
                },
            ),
        }
    },
    {"volumes": {"type": "object", "additionalProperties": fields({})}},
)
