"""Newcomers: a client that comes after training finds its cluster by one E-step, and has a model at once.

A finished run of FLAMECHE keeps what that takes: clusters.npz, with centroids, how far their clients were
from them, and the images' shape; models.npz, with the K models. Nothing is retrained and nobody else is
asked: the newcomer's samples stay with it. After a run on a network every node keeps clusters.npz in its
folder, and the server too where it may read sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from flameche.crypto.plain import Plain
from flameche.em.spherical import Centroids, Floats, Ints, cosine, reach
from flameche.errors import DataError, StoreError
from flameche.experiments.config import Experiment, load_experiment
from flameche.experiments.extraction import Extraction, Shape
from flameche.experiments.run_folder import read_json
from flameche.metadata.extractors import NOT_FINITE, Axes, ClientSamples, Metadata
from flameche.protocol.client import Cohort
from flameche.protocol.ledger import Ledger
from flameche.registry import SCHEMES

if TYPE_CHECKING:
    from flameche.experiments.build import Setup
    from flameche.simulation.engine import Result

Arrays = dict[str, NDArray[np.generic]]
PARTS = 10  # of a newcomer's samples, each left out once, to see how sure its cluster is
SURE = 0.95  # below, a newcomer is warned


def keepsake(experiment: Experiment, seed: int, setup: Setup, result: Result) -> Arrays:
    """Put together what a newcomer will need."""
    from flameche.experiments.build import own_samples

    federation = setup.federation
    arrays: Arrays = {
        **result.outcome.keep,
        "shape": np.array(federation.shape),
        "classes": np.array(federation.classes),
    }
    extraction = Extraction(experiment, federation.shape, federation.classes, seed, "cpu")
    axes = extraction.fitted_if_shared(lambda: own_samples(experiment, federation))
    return arrays if axes is None else {**arrays, "centre": axes.centre, "axes": axes.axes}


@dataclass(frozen=True)
class Finished:
    """A finished run, as far as a newcomer needs it."""

    path: Path
    experiment: Experiment
    seed: int
    centroids: Centroids
    label: Ints  # [R], the cluster of each centroid
    spread: Floats  # [K 3]: clients, their mean error, its mean absolute deviation; NaN where too few
    shape: Shape
    classes: int
    axes: Axes | None
    node: bool = False  # the folder is a node's, which has no models but its own

    @classmethod
    def read(cls, path: Path) -> Finished:
        """Open a run's folder; one line says what is wrong with it."""
        if not (path / "config.toml").is_file():
            raise StoreError(
                f"{path} is not a run; expected a folder such as runs/<name>/<hash>/<seed>, or, after a run "
                "on a network, a node's own (state)"
            )
        experiment = load_experiment(path / "config.toml")
        kept = read_arrays(path / "clusters.npz")
        node = kept is not None and "seed" in kept and not (path / "summary.json").is_file()
        if not node and not (path / "summary.json").is_file():
            raise StoreError(f"{path}: the run is not finished; `flameche run` goes on with it")
        kind = experiment.method.kind
        if kind != "flameche":
            raise StoreError(
                f'{path}: method.kind = "{kind}" keeps no centroids that a newcomer could compare its '
                'metadata with; method.kind = "flameche" does'
            )
        if kept is None:
            raise StoreError(f"{path}: no clusters.npz, {_where_else(path, experiment)}")
        seed = kept["seed"] if "seed" in kept else read_json(path / "summary.json")["seed"]
        channels, height, width = (int(n) for n in kept["shape"])
        centroids = Centroids(kept["theta"].astype(np.float64), kept["mass"].astype(np.float64))
        axes = None
        if "axes" in kept:
            axes = Axes(kept["centre"].astype(np.float64), kept["axes"].astype(np.float64))
        return cls(
            path, experiment, int(seed), centroids,
            kept["label"].astype(np.int64), kept["spread"].astype(np.float64), (channels, height, width),
            int(kept["classes"]), axes, node,
        )  # fmt: skip

    @property
    def clusters(self) -> int:
        """Count the clusters."""
        return len(self.spread)

    def models(self) -> Arrays | None:
        """Read the K models; None where the folder has been relieved of them."""
        return read_arrays(self.path / "models.npz")

    @property
    def without_models(self) -> str:
        """Say why there may be no models."""
        return (
            "the operator's run folder has it, copy it here"
            if self.node
            else "the run's models were not kept"
        )

    def metadata(self, x: NDArray[np.uint8], y: Ints, device: str) -> tuple[Metadata, Metadata | None]:
        """Summarise a client's samples: all [1 …]; with a part left out each time [n …], where it can be."""
        extraction = Extraction(self.experiment, self.shape, self.classes, self.seed, device, self.axes)
        if not extraction.kind.averages:
            return extraction(ClientSamples(x, y, np.array([0, len(y)]), self.classes)), None
        order, offsets = parted(y)
        parts = extraction(ClientSamples(x[order], y[order], offsets, self.classes))
        whole = np.ones((1, len(parts)))
        return combined(parts, whole), combined(parts, 1 - np.eye(len(parts)))

    def distances(self, metadata: Metadata) -> Floats:
        """Measure how far clients [n] are from the K clusters [n K], by the nearest centroid of each."""
        how = self.experiment.method
        options = {key: getattr(how, key) for key in ("unit_norm", "missing")}
        scaled = getattr(how, "mode", "paper") != "paper"
        one = Cohort(metadata, Plain(), Ledger(len(metadata)), scaled=scaled, **options)
        apart = 1.0 - cosine(one.phi, one.weight, self.centroids)
        common = (one.weight > 0).astype(float) @ (self.centroids.mass > 0).T.astype(float)
        apart[common == 0] = np.nan
        by_cluster = np.full((len(metadata), self.clusters), np.inf)
        for row, k in enumerate(self.label):
            by_cluster[:, k] = np.fmin(by_cluster[:, k], apart[:, row])
        return by_cluster


def _where_else(path: Path, experiment: Experiment) -> str:
    """Say why a finished run's folder has no centroids, and what to do."""
    file = path / "environment.json"
    if file.is_file() and read_json(file).get("network") and SCHEMES[experiment.scheme.kind].keyed:
        return (
            f'since under scheme.kind = "{experiment.scheme.kind}" the server may not read centroids; each '
            "node has them in its own folder: give that one (--folder of `flameche deploy node`, then state)"
        )
    return "which runs of earlier versions did not keep; run it again, in another folder (--out)"


def assign_client(run: Finished, x: NDArray[np.uint8], y: Ints, device: str = "cpu") -> dict[str, Any]:
    """Give a newcomer its cluster by one E-step; say how far it is from the others, and how sure it is."""
    metadata, parts = run.metadata(x, y, device)
    if not np.isfinite(metadata.phi).all():
        raise DataError(f"the client's metadata {NOT_FINITE}")
    (apart,) = run.distances(metadata)
    if not np.isfinite(apart).any():
        raise DataError(f"no cluster of {run.path} has a class in common with the client's data")
    order = np.argsort(apart, kind="stable")
    k = int(order[0])
    other = int(order[1]) if len(order) > 1 and np.isfinite(apart[order[1]]) else None
    counted = run.spread[:, 0] > 0
    reaches = reach(run.spread)
    return {
        "run": str(run.path),
        "cluster": k,
        "distance": float(apart[k]),
        "next": other,
        "next_distance": None if other is None else float(apart[other]),
        "margin": None if other is None else float(apart[other] - apart[k]),
        "sure": None if other is None or parts is None else sureness(run.distances(parts), k, other, apart),
        "clients": int(run.spread[k, 0]) if counted[k] else None,
        "far": bool(apart[k] > reaches[k]),
        "samples": len(y),
        "missing_classes": np.setdiff1d(np.arange(run.classes), y).tolist(),
        "distances": [float(d) if np.isfinite(d) else None for d in apart],
        "sizes": [int(n) if known else None for n, known in zip(run.spread[:, 0], counted, strict=True)],
        "clients_distances": [
            float(d) if known else None
            for d, known in zip(run.spread[:, 1], counted & np.isfinite(run.spread[:, 1]), strict=True)
        ],
        "reaches": [float(r) if np.isfinite(r) else None for r in reaches],
    }


def parted(y: Ints) -> tuple[Ints, Ints]:
    """Deal samples into `PARTS` parts, class by class: an order [n] and the parts' offsets, none empty."""
    part = np.empty(len(y), np.int64)
    order = np.argsort(y, kind="stable")
    part[order] = np.arange(len(y)) % PARTS
    sizes = np.bincount(part, minlength=PARTS)
    offsets = np.concatenate([[0], np.cumsum(sizes[sizes > 0])]).astype(np.int64)
    return np.argsort(part, kind="stable"), offsets


def combined(parts: Metadata, choice: Floats) -> Metadata:
    """Combine class means of parts [p …] as chosen [n p]: those of the union of their samples [n …]."""
    counts = np.rint(choice @ parts.counts).astype(np.int64)
    sums = np.einsum("np,pbf->nbf", choice, parts.phi * parts.counts[:, :, None])
    phi = np.divide(sums, counts[:, :, None], out=np.zeros_like(sums), where=counts[:, :, None] > 0)
    return Metadata(phi, counts)


def sureness(left_out: Floats, k: int, other: int, whole: Floats) -> float | None:
    """Tell how probable it is that k is nearer than `other`, by the jackknife over the newcomer's samples.

    left_out [n K], the distances with a part left out: how the margin varies gives its standard error.
    """
    known = np.isfinite(left_out[:, [k, other]]).all(axis=1)
    margins = left_out[known, other] - left_out[known, k]
    n = len(margins)
    if n < 2:
        return None
    error = np.sqrt((n - 1) / n * ((margins - margins.mean()) ** 2).sum())
    margin = whole[other] - whole[k]
    return float(ndtr(margin / error)) if error > 0 else 1.0


def read_arrays(file: Path) -> Arrays | None:
    """Read an npz of a run's folder; None where there is none."""
    if not file.is_file():
        return None
    try:
        with file.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (ValueError, OSError, KeyError, BadZipFile) as problem:
        raise StoreError(
            f"{file} is damaged; run the experiment again, in another folder (--out)"
        ) from problem


def advice(found: Mapping[str, Any]) -> list[str]:
    """Say in words what a newcomer should know of its assignment."""
    k, lines = found["cluster"], []
    if found["far"]:
        lines.append(
            f"far from every cluster: {found['distance']:.4f} from cluster {k}, whose clients reach "
            f"{found['reaches'][k]:.4f}; it may belong to none, or hold too few samples to tell"
        )
    elif found["reaches"][k] is None:
        lines.append(f"cluster {k} has too few clients to tell how far is far")
    if found["sure"] is not None and found["sure"] < SURE:
        lines.append(
            f"not sure ({100 * found['sure']:.0f}%): cluster {found['next']} is nearly as near; more samples "
            "would tell"
        )
    return lines
