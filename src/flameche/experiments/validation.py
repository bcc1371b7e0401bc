"""Validates an experiment's tables together: each contradiction is an error of one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flameche.errors import ConfigError
from flameche.registry import METADATA, METHODS

if TYPE_CHECKING:
    from flameche.experiments.schema import Experiment


def check_terms(experiment: Experiment) -> None:
    """Refuse a scheme that shows sums only to a method that compares clients one by one."""
    method, scheme = experiment.method, experiment.scheme
    needs_terms = METHODS[method.kind].about.needs_terms
    clear = {"kind": "plain", "updates": "clear"}
    protects = [
        f'scheme.{key} = "{getattr(scheme, key)}"'
        for key in clear
        if getattr(scheme, key) != clear[key] and needs_terms
    ]
    if protects:
        raise ConfigError(
            f'method.kind = "{method.kind}" compares clients one by one, so its server must see '
            f"each client's model or metadata; {' and '.join(protects)} shows it sums only; "
            'take scheme.kind = "plain" and scheme.updates = "clear"'
        )


def check_statistics(experiment: Experiment) -> None:
    """Refuse a treatment of BatchNorm's statistics that the method or the scheme cannot have."""
    kind, rule, updates = experiment.method.kind, experiment.training.bn_buffers, experiment.scheme.updates
    twice = kind == "stocfl" or getattr(experiment.method, "restarts", 1) > 1
    if twice and rule == "local":
        raise ConfigError(
            f'training.bn_buffers = "local": clients of method.kind = "{kind}" train several models a round, '
            'which would share their statistics; take "mean" or "first"'
        )
    if getattr(experiment.method, "training", "") == "weighted" and rule == "member":
        raise ConfigError(
            'training.bn_buffers = "member": not with method.training = "weighted"; take "mean"'
        )
    if updates != "clear" and rule in ("first", "member"):
        raise ConfigError(
            f'training.bn_buffers = "{rule}" shows one client\'s statistics, which scheme.updates = '
            f'"{updates}" hides; take "mean" or "local"'
        )


def check_guard(experiment: Experiment) -> None:
    """Refuse a guard that could never let a sum through."""
    scheme, clients = experiment.scheme, experiment.data.clients
    least, m_step = scheme.least, getattr(experiment.method, "m_step", None)
    of_participants = [
        what
        for what, so in (
            (f'method.m_step = "{m_step}"', m_step == "participants"),
            ('scheme.kind = "secagg"', scheme.kind == "secagg" and m_step is not None),
            (f'scheme.updates = "{scheme.updates}"', scheme.updates != "clear"),
        )
        if so
    ]
    if least > clients:
        raise ConfigError(
            f"scheme.min_cluster = {least} can never be reached: there are {clients} clients (data.clients)"
        )
    if of_participants and least > experiment.participants:
        raise ConfigError(
            f"scheme.min_cluster = {least} can never be reached: {' and '.join(of_participants)} sums "
            f"over the participants of a round, and these are {experiment.participants}; raise participation"
        )


def check_numbers(experiment: Experiment) -> None:
    """Refuse numbers that leave a method nothing to do."""
    clusters, clients = getattr(experiment.method, "clusters", None), experiment.data.clients
    if clusters == "auto":  # of what the clients are too few for, and how many it takes, the choice tells
        return
    if "most_clusters" in experiment.method.model_dump(exclude_defaults=True):
        raise ConfigError('method.most_clusters belongs to method.clusters = "auto"')
    if clusters is not None and clusters >= clients:
        raise ConfigError(
            f"method.clusters = {clusters} must be below data.clients = {clients}; "
            "a cluster per client leaves nothing to share"
        )


def check_partition(experiment: Experiment) -> None:
    """Refuse samples of a class for each client where a partition deals classes whole."""
    kind, default = experiment.partition.kind, type(experiment.data).model_fields["per_label"].default
    if kind == "dirichlet" and experiment.data.per_label != default:
        raise ConfigError(
            f'data.per_label = {experiment.data.per_label} has no part in partition.kind = "dirichlet", '
            "which deals every class whole; leave it out"
        )


def check_absent(experiment: Experiment) -> None:
    """Refuse absent members in an average where who they are, or what they weigh, is not known."""
    if experiment.training.absent == "out":
        return
    kind, happens = experiment.method.kind, {event.kind for event in experiment.events}
    why = ""
    if getattr(experiment.method, "training", "") == "weighted":
        why = 'not with method.training = "weighted"'
    elif getattr(experiment.method, "hide_assignments", False):
        why = "method.hide_assignments hides who is a member"
    elif experiment.training.weighting != "uniform":
        why = 'not with training.weighting = "samples", for absent members count by heads'
    elif happens - {"drift"} and kind not in ("flameche", "flameche-soft"):
        why = f'method.kind = "{kind}" does not hear of clients that join or leave'
    if why:
        raise ConfigError(f'training.absent = "stay": {why}; take "out"')


def check_living(experiment: Experiment) -> None:
    """Refuse clients that come, go or change to methods that cannot follow them."""
    kind, happens = experiment.method.kind, {event.kind for event in experiment.events}
    if happens and not METHODS[kind].about.follows_events:
        raise ConfigError(
            f'events: method.kind = "{kind}" clusters once, when every client has been seen, and cannot '
            "follow clients that come, go or drift"
        )


def check_privacy(experiment: Experiment) -> None:
    """Refuse noise where it would not be all that is known of a client's metadata."""
    privacy, method = experiment.privacy, experiment.method
    if privacy.epsilon is None:
        if told := list(privacy.model_dump(exclude_defaults=True)):
            raise ConfigError(f"privacy.{told[0]} needs privacy.epsilon, without which no noise is added")
        return
    if not method.takes_noise:
        mode = getattr(method, "mode", None)
        have = f'method.kind = "{method.kind}"' + (f' with mode = "{mode}"' if mode else "")
        raise ConfigError(
            f'privacy.epsilon is for method.kind = "flameche" with mode = "sketch"; {have} adds no noise'
        )
    if not METADATA[experiment.metadata.kind].clips:
        raise ConfigError(
            "privacy.epsilon needs features that can be clipped sample by sample: metadata.kind = "
            f'"random-gaussian" or "random-uniform", not "{experiment.metadata.kind}"'
        )
