"""An experiment on a network: the setup of a node for its one client, and the setup of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Adder, Scheme
from flameche.crypto.box import Box
from flameche.crypto.codec import exact_codec
from flameche.crypto.keyfile import read_box, read_info, read_public, read_secret
from flameche.crypto.masking import SecAgg
from flameche.crypto.plain import Plain
from flameche.crypto.registry import info_of
from flameche.data.federation import Federation, Samples
from flameche.errors import ConfigError, DataError
from flameche.experiments.build import load_federation, own_samples, training_plan
from flameche.experiments.config import config_hash, to_toml
from flameche.experiments.extraction import Extraction, noisy_source, shared_model
from flameche.experiments.protection import has_metadata
from flameche.experiments.schema import Experiment
from flameche.methods import make_method
from flameche.methods.sketch import FlamecheOptions, session_size
from flameche.network.aggregator import AggregationRules
from flameche.network.message import Arrays
from flameche.network.node import NodeSetup
from flameche.network.server_state import ServerSetup
from flameche.training.device import prepare_torch
from flameche.training.factory import make_trainer
from flameche.training.trainer import Trainer

PRELOAD: dict[str, Any] = {"flameche": "none", "fedavg": "own", "ifca": "all"}


@dataclass(frozen=True)
class OwnData:
    """A site's samples for training, testing and, if any, holdout: images [n Ch H W] and labels [n]."""

    train: tuple[NDArray[np.uint8], NDArray[np.int64]]
    test: tuple[NDArray[np.uint8], NDArray[np.int64]]
    classes: int
    held: tuple[NDArray[np.uint8], NDArray[np.int64]] | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Return the images' shape (Ch, H, W)."""
        channels, height, width = self.train[0].shape[1:]
        return int(channels), int(height), int(width)


def simulated_data(experiment: Experiment, seed: int, number: int) -> OwnData:
    """Return the samples of one client of a simulated experiment."""
    federation, _ = load_federation(experiment, seed)
    if not 0 <= number < federation.clients:
        raise DataError(f"client {number} of {federation.clients}; numbers begin at 0")
    test = federation.test.of(int(federation.test_of[number]))
    held = federation.holdout.of(number)
    return OwnData(federation.train.of(number), test, federation.classes, held if len(held[1]) else None)


def run_id(experiment: Experiment, seed: int) -> str:
    """Identify a run by its configuration and seed, which must be the same on the server and all nodes."""
    return f"{config_hash(experiment)}-{seed}"


def node_setup(
    experiment: Experiment,
    seed: int,
    number: int,
    data: Callable[[], OwnData],
    *,
    key_file: Path | None = None,
    device: str = "cpu",
) -> NodeSetup:
    """Set up the node of one client; its data are loaded when they are first needed."""
    check_deployable(experiment)
    if not 0 <= number < experiment.data.clients:
        raise ConfigError(f"node {number} of data.clients = {experiment.data.clients}; numbers begin at 0")
    scheme, box = _client_side(experiment, key_file)
    client = _LocalClient(experiment, seed, number, data, device)
    return NodeSetup(
        run=run_id(experiment, seed),
        number=number,
        clients=experiment.data.clients,
        rounds=experiment.rounds,
        seed=seed,
        plan=training_plan(experiment),
        size=lambda: len(client.data.train[1]),
        method=lambda world: make_method(experiment.method, world),
        scheme=scheme,
        fingerprint=_fingerprint(experiment, scheme),
        min_cluster=experiment.scheme.least,
        noise=source.noise if (source := noisy_source(experiment, seed)) else 0.0,
        metadata=client.metadata,
        trainer=client.trainer,
        box=box,
        newcomer_bundle=client.newcomer_bundle,
        config=to_toml(experiment),
    )


def server_setup(
    experiment: Experiment, seed: int, *, public_key: Path | None = None, **settings: Any
) -> ServerSetup:
    """Set up the server; `settings` are fields of ServerSetup: timeout, patience, least_nodes, removed."""
    check_deployable(experiment)
    adder, fingerprint = _server_side(experiment, public_key)
    rules = AggregationRules(
        clients=experiment.data.clients,
        least=experiment.scheme.least,
        adder=adder,
        weighting=experiment.training.weighting,
        buffers=experiment.training.bn_buffers,
    )
    return ServerSetup(
        run=run_id(experiment, seed),
        rules=rules,
        rounds=experiment.rounds,
        seed=seed,
        participants=experiment.participants,
        fingerprint=fingerprint,
        evaluate_every=experiment.training.evaluate_every,
        preload=PRELOAD[experiment.method.kind],
        session=_session(experiment),
        **settings,
    )


def _session(experiment: Experiment) -> int:
    """Return the number of nodes in a clustering session; 0 if the method has none."""
    method = experiment.method
    if not isinstance(method, FlamecheOptions) or not method.by_session:
        return 0
    clusters = method.most_clusters if method.clusters == "auto" else method.clusters
    return session_size(clusters, noisy=experiment.privacy.epsilon is not None)


def check_deployable(experiment: Experiment) -> None:
    """Raise ConfigError if an experiment does not run on a network."""
    kind, method = experiment.method.kind, experiment.method
    if kind not in PRELOAD:
        raise ConfigError(f'method.kind = "{kind}" does not run on a network; {", ".join(PRELOAD)} do')
    if getattr(method, "hide_assignments", False):
        raise ConfigError("method.hide_assignments does not run on a network")
    if getattr(method, "missing", "counts") == "impute":
        raise ConfigError('method.missing = "impute" does not run on a network; "counts" does')
    if experiment.scheme.updates != "clear":
        raise ConfigError(
            f'scheme.updates = "{experiment.scheme.updates}" does not run on a network yet; '
            'take "clear": TLS protects updates on their way, the server sees them'
        )
    if experiment.training.server_lr != 1:
        raise ConfigError("training.server_lr does not run on a network yet; 1.0 does")
    if experiment.training.absent != "out":
        raise ConfigError('training.absent = "stay" does not run on a network yet; "out" does')
    if (rule := experiment.training.bn_buffers) in ("local", "member"):
        raise ConfigError(f'training.bn_buffers = "{rule}" does not run on a network yet; "mean" does')
    if experiment.privacy.noise == "seeded":
        raise ConfigError('privacy.noise = "seeded" is for simulations: every node knows the seed')
    if experiment.events:
        raise ConfigError("[[events]] are for simulations; on a network, nodes come and go by themselves")
    if experiment.metadata.kind == "mean-pca-shared" and has_metadata(experiment):
        raise ConfigError('metadata.kind = "mean-pca-shared" needs everybody\'s data at once')


class _LocalClient:
    """One client's data, loaded once, with the metadata and the trainer that are made from them."""

    def __init__(
        self, experiment: Experiment, seed: int, number: int, load: Callable[[], OwnData], device: str
    ) -> None:
        self._experiment, self._seed, self._number = experiment, seed, number
        self._load, self._device = load, device
        self._data: OwnData | None = None

    @property
    def data(self) -> OwnData:
        if self._data is None:
            self._data = self._load()
            if len(self._data.train[1]) < 2:
                raise DataError(
                    f"node {self._number} has {len(self._data.train[1])} samples, at least 2 needed"
                )
            prepare_torch(self._device, self._experiment.training.threads or 1)
        return self._data

    def _federation(self) -> Federation:
        """Build a federation in which this client has its samples, and the others have none."""
        data, clients = self.data, self._experiment.data.clients
        none = data.train[0][:0], data.train[1][:0]

        def alone(own: tuple[NDArray[np.uint8], NDArray[np.int64]]) -> Samples:
            offsets = np.zeros(clients + 1, np.int64)
            offsets[self._number + 1 :] = len(own[1])
            return Samples(own[0], own[1], offsets)

        every = np.arange(clients)
        return Federation(
            "own", "own", data.classes, alone(data.train), alone(data.held or none), alone(data.test),
            every, np.zeros(clients, np.int64),
        )  # fmt: skip

    def metadata(self) -> Any:
        """Extract the metadata of this client's samples, one row."""
        data = self.data
        extraction = Extraction(self._experiment, data.shape, data.classes, self._seed, self._device)
        samples = own_samples(self._experiment, self._federation()).of(np.array([self._number]))
        source = noisy_source(self._experiment, self._seed)
        if source is None:
            return extraction(samples)
        return source.release(np.array([self._number]), lambda: extraction(samples))

    def newcomer_bundle(self, keep: Arrays) -> Arrays:
        """Add to what a method keeps what a newcomer also needs: shape, classes and the run's seed."""
        shape, classes = self.data.shape, self.data.classes
        numbers = {"shape": shape, "classes": classes, "seed": self._seed}
        return {**keep, **{name: np.array(number) for name, number in numbers.items()}}

    def trainer(self) -> Trainer:
        """Build a trainer on this client's samples: the plain loop, which is the fastest for one client."""
        federation, experiment = self._federation(), self._experiment

        def model(number: int = 0) -> Any:
            return shared_model(experiment.model, federation.shape, federation.classes, self._seed, number)

        how = experiment.training
        return make_trainer(
            "loop", model(), federation, training_plan(experiment), self._seed,
            device=self._device, precision=how.precision, fresh=model,
        )  # fmt: skip


def _client_side(experiment: Experiment, key_file: Path | None) -> tuple[Scheme | SecAgg, Box | None]:
    kind = experiment.scheme.kind
    if not has_metadata(experiment) or kind == "plain":
        return Plain(), None
    if kind == "secagg":
        return SecAgg(exact_codec(experiment.scheme.bound, experiment.data.clients)[0]), None
    if key_file is None:
        raise ConfigError(f'scheme.kind = "{kind}": a node needs its key file (flameche keys new)')
    scheme, info = read_secret(key_file), read_info(key_file)
    _check_key(experiment, "the node's key", info)  # without its path, which the server must not see
    return scheme, read_box(key_file)


def _server_side(experiment: Experiment, public_key: Path | None) -> tuple[Adder | None, str]:
    kind = experiment.scheme.kind
    if not has_metadata(experiment) or kind == "plain":
        return Plain().adder(), _fingerprint(experiment, Plain())
    if kind == "secagg":
        codec = exact_codec(experiment.scheme.bound, experiment.data.clients)[0]
        return None, _fingerprint(experiment, SecAgg(codec))
    if public_key is None:
        raise ConfigError(f'scheme.kind = "{kind}": the server needs server.pub (flameche keys new)')
    info = read_info(public_key)
    if info.secret:
        raise ConfigError(f"{public_key} is the clients' secret key; the server must have server.pub alone")
    _check_key(experiment, str(public_key), info)
    return read_public(public_key), info.fingerprint


def _check_key(experiment: Experiment, key: str, info: Any) -> None:
    kind, clients = experiment.scheme.kind, experiment.data.clients
    if info.scheme != kind:
        raise ConfigError(f"{key} is for '{info.scheme}', scheme.kind is '{kind}'")
    if info.clients < clients:
        raise ConfigError(f"{key} is for sums of up to {info.clients} clients, data.clients is {clients}")


def _fingerprint(experiment: Experiment, scheme: Scheme | SecAgg) -> str:
    info = info_of(scheme)
    return info.fingerprint if info else f"{scheme.name}, bound {experiment.scheme.bound:g}"
