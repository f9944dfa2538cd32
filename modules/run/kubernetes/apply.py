"""Applies manifests with kubectl, with advice if the cluster refuses them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

from modules.run.cluster.command import SubmitError, run_command
from modules.run.kubernetes.manifest import KubernetesJob, rank_secret, render
from modules.run.launch.store_secret import new_secret

_CLUSTER: Final = "kubectl reaches no cluster: check `kubectl cluster-info` and the variable KUBECONFIG"
# A pattern in kubectl's message, and the advice.
_ADVICE: Final[Sequence[tuple[str, str]]] = (
    (r"connection|refused|no such host|timeout|was not found on the|no configuration", _CLUSTER),
    (r"unauthorized|logged in|certificate", "Log in to the cluster again, as its operators say"),
    (r"immutable", "A job of this name is there. Remove it (kubectl delete job NAME); the new one resumes the run"),
    (r"forbidden.*quota|exceeded quota", "Request fewer --gpus or --mem: kubectl describe quota"),
    (r"violates podsecurity", "Use another --namespace, or ask the operators of the cluster"),
    (r"forbidden", "Use another --namespace: kubectl auth can-i create jobs --namespace NAME says where you may"),
    (r"namespaces .* not found", "kubectl get namespaces lists them"),
    (r"unknown field|not declared in schema", "The manifests need Kubernetes 1.31 or later"),
)


def apply(job: KubernetesJob, environ: Mapping[str, str] = os.environ) -> str:
    """Create the objects of a job in the cluster that kubectl is set to; returns what kubectl says.

    The secret of the ranks, new here, goes through standard input and is in no file. Raises SubmitError.
    """
    text = render(job)
    if job.request.machines > 1:
        try:
            _kubectl(["create", "-f", "-"], rank_secret(job, new_secret()), environ)
        except SubmitError as error:
            if "already exists" not in error.message.lower():  # else that of a start before holds
                raise
    return _kubectl(["apply", "--server-side", "-f", "-"], text, environ)


def _kubectl(arguments: Sequence[str], text: str, environ: Mapping[str, str]) -> str:
    return run_command(
        ["kubectl", *arguments],
        environ,
        _ADVICE,
        missing="Without --apply the manifests are written; apply them where kubectl is",
        otherwise="kubectl explain job.spec names the fields that this cluster knows",
        text=text,
    )
