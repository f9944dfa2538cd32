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
    (r"dry.?run", "This cluster cannot check first: write the manifests with --output, and kubectl apply them"),
    (r"connection|refused|no such host|timeout|was not found on the|no configuration", _CLUSTER),
    (r"unauthorized|logged in|certificate", "Log in to the cluster again, as its operators say"),
    (r"forbidden.*quota|exceeded quota", "Request fewer --gpus or --mem: kubectl describe quota"),
    (r"violates podsecurity", "Use another --namespace, or ask the operators of the cluster"),
    (r"forbidden", "Use another --namespace: kubectl auth can-i create jobs --namespace NAME says where you may"),
    (r"namespaces .* not found", "kubectl get namespaces lists them"),
    (r"unknown field|not declared in schema", "The manifests need Kubernetes 1.31 or later"),
)


class PartlyApplied(SubmitError):
    """The cluster would have taken all objects, but applying them failed."""


def apply(job: KubernetesJob, environ: Mapping[str, str] = os.environ) -> str:
    """Create the objects of a job in the cluster that kubectl is set to; returns what kubectl says.

    The cluster checks all of them first, so that nothing has changed if it refuses one. The secret of the ranks, new
    here, goes through standard input and is in no file. Raises SubmitError, PartlyApplied if some may be applied.
    """
    text = render(job)
    _check_not_ended(job, environ)
    command = ["apply", "--server-side", "-f", "-"]
    _kubectl([*command, "--dry-run=server"], text, job, environ)
    if job.request.machines > 1:
        try:
            _kubectl(["create", "-f", "-"], rank_secret(job, new_secret()), job, environ)
        except SubmitError as error:
            if "already exists" not in error.message.lower():  # else that of a start before holds
                raise
    try:
        return _kubectl(command, text, job, environ)
    except SubmitError as error:
        raise PartlyApplied(error.message, error.advice) from error


def _check_not_ended(job: KubernetesJob, environ: Mapping[str, str]) -> None:
    """Raise SubmitError if the job has ended: applied again it stays as it is, and nothing starts."""
    types = "jsonpath={.status.conditions[*].type}"
    command = ["get", "job", job.name, *_namespace(job), "--ignore-not-found", "-o", types]
    try:
        ended = {"Complete", "Failed"} & {*_kubectl(command, "", job, environ).split()}
    except SubmitError:  # without a right to look; else what follows says why
        return
    if ended:
        raise SubmitError(f"the job {job.name} has ended and is still there", _how_to_remove(job))


def _namespace(job: KubernetesJob) -> list[str]:
    return [] if job.request.namespace is None else ["--namespace", job.request.namespace]


def _how_to_remove(job: KubernetesJob) -> str:
    return f"Remove it ({' '.join(['kubectl delete', *_namespace(job), 'job', job.name])}); the new one resumes the run"


def _kubectl(arguments: Sequence[str], text: str, job: KubernetesJob, environ: Mapping[str, str]) -> str:
    # First: kubectl quotes the whole pod, in which words of the other patterns are.
    there = (r"job.*immutable", f"A job of this name is there. {_how_to_remove(job)}")
    return run_command(
        ["kubectl", *arguments],
        environ,
        (there, *_ADVICE),
        missing="Without --apply the manifests are written; apply them where kubectl is",
        otherwise="kubectl explain job.spec names the fields that this cluster knows",
        text=text,
    )
