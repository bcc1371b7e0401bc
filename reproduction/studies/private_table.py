"""How private clustering can be: ARI under noise at the source, over epsilon, samples and clients.

python reproduction/studies/private_table.py play targets  # MNIST and Fashion-MNIST at ARI .95
python reproduction/studies/private_table.py play curves [--sets mnist]  # over epsilon, samples, clients
python reproduction/studies/private_table.py table  # results/private.md

Noise is drawn from the run's seed (privacy.noise = "seeded"), so that a line can be made again. Clipped class
means without noise are kept in --cache and shared by all epsilons: nothing but noise depends on epsilon.
Appends a line for each clustering to results/private.jsonl; what is there already is not played again.
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flameche.experiments.build import build_method, load_federation, own_samples
from flameche.experiments.config import Experiment, config_hash, parse_experiment
from flameche.experiments.extraction import Extraction, noisy_source
from flameche.experiments.provenance import provenance
from flameche.metadata.extractors import Metadata
from flameche.simulation.engine import simulate
from flameche.training.device import prepare_torch
from flameche_reproduction.metadata_cache import clustering_world
from flameche_reproduction.results_index import ResultsFile

LINES, TABLE = ResultsFile(Path("results/private.jsonl")), Path("results/private.md")
SETS = ("mnist", "fashion-mnist", "mednist28", "cifar10", "pathmnist")
LARGE = ("cifar10", "pathmnist")  # ResNet-18 extracts them
SETTINGS = ("csl", "fds", "csf")
EPSILONS = (8.0, 4.0, 2.0, 1.0, 0.5)
TARGETS = ((100, 50, 4.0), (20, 300, 1.0))  # clients, samples a class, epsilon
SHAPES = ((100, 50), (100, 20), (50, 50), (20, 50))  # of the curves
SEEDS = tuple(range(5))
SEEDS_OF = ((5, 3), (2, 1))  # seeds of small and of large sets: with the first of these shapes, with others
INTRODUCTION = """\
# Clusters under differential privacy

Record-level (one record replaced by another of its class), delta = 1e-5, noise once at the source; four
groups, the default method in the clear, where sums are the same as under encryption; all clients take part.
Class counts are public. Mean ARI over seeds, in brackets the worst. `n`: samples of a class where labels are
even; under csf most clients keep only a part of them, of the rarest class a twentieth. MNIST has fewer than
6,000 samples of most digits: of the rarest, 20 clients with n = 300 have 271 each.

Where clusters are wrong it is the noise: with epsilon = 1000, with the same clipping and projection, CIFAR-10
csf and fds, PathMNIST csf and fds had ARI 1.00 in 7 of 7 runs (seeds 0 and 1). What mattered, in prototypes
on one or two seeds, with 100 clients and n = 50:

- Constants from artificial images. Clipped around zero and projected at random, MNIST csl had .88 to .99 at
  epsilon = 4; around the images' mean and on their principal directions 1.00. At what length samples are then
  clipped matters little: a tenth or a quarter of the images not clipped were alike, a half somewhat worse.
  Features not first scaled to length one had .74 where scaled ones had .99 (MNIST csf, epsilon = 1).
- 16 numbers a class: with 8, .93 to .96 and not .96 to .99 at epsilon = 1; 32 were as good, 48 worse.
- Weights by how uncertain a noisy mean is, not by samples: PathMNIST csf .88, not .67, at epsilon = 2.
- All 100 clients in the session, not 40: MNIST csf .95, not .48, at epsilon = 1.
- No second projection in the session: CIFAR-10 csl .96, not .67, at epsilon = 2.
- More or fewer directions of a sketch (3 or 8, not 5) and more M-steps (4, not 2) changed little.

Made by `python reproduction/studies/private_table.py play targets`, `play curves`, then `table`; each line of
`private.jsonl` names its config, versions and commit. Noise was drawn from the seed (`privacy.noise =
"seeded"`), so that lines can be made again.
"""


def experiment(name: str, setting: str, clients: int, per_label: int, epsilon: float) -> Experiment:
    """Describe one clustering."""
    return parse_experiment(
        {
            "name": "private",
            "rounds": 1,
            "participation": 1.0,
            "data": {
                "dataset": name, "clients": clients, "per_label": per_label, "heterogeneity": setting,
                "groups": 4, "allow_fewer": True,
            },
            "privacy": {"epsilon": epsilon, "noise": "seeded"},
        }
    )  # fmt: skip


def exact(one: Experiment, seed: int, cache: Path) -> tuple[Metadata, Any]:
    """Extract clipped class means without noise, and the groups; or read them from the cache."""
    data = one.data
    name = f"{data.dataset}-{data.heterogeneity}-{data.clients}-{data.per_label}-{seed}.npz"
    if (file := cache / name).exists():
        with np.load(file) as kept:
            return Metadata(kept["phi"], kept["counts"]), kept["group"]
    federation, _ = load_federation(one, seed)
    prepare_torch("cpu", 1)
    extraction = Extraction(one, federation.shape, federation.classes, seed, "cpu")
    found = extraction(own_samples(one, federation))
    cache.mkdir(parents=True, exist_ok=True)
    np.savez(file, phi=found.phi, counts=found.counts, group=federation.group)
    return found, federation.group


def cluster(one: Experiment, seed: int, cache: Path) -> dict[str, Any]:
    """Add noise and cluster."""
    found, group = exact(one, seed, cache)
    source = noisy_source(one, seed)
    assert source is not None
    noisy = source.release(np.arange(len(found)), lambda: found)
    world = clustering_world(one, seed, noisy, group)
    method = build_method(one, world)
    result = simulate(method, world, one.participants)
    return {"k": method.clusters, "ari": round(result.ari_final, 4)}


def targets() -> Iterator[tuple[Any, ...]]:
    """List what was asked for: (set, setting, clients, samples, epsilon, seed)."""
    for name, setting, (clients, per_label, epsilon) in itertools.product(SETS[:2], SETTINGS, TARGETS):
        for seed in SEEDS:
            yield name, setting, clients, per_label, epsilon, seed


def curves(sets: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    """List the clusterings of the curves."""
    for shape, seed, name, setting in itertools.product(SHAPES, SEEDS, sets, SETTINGS):
        most = SEEDS_OF[name in LARGE][shape != SHAPES[0]]
        for epsilon in EPSILONS if seed < most else ():
            yield name, setting, *shape, epsilon, seed


KEY = ("dataset", "setting", "clients", "per_label", "epsilon", "seed")


def play(wanted: Iterable[tuple[Any, ...]], cache: Path) -> None:
    """Play what is not stored yet."""
    known = {tuple(line[key] for key in KEY) for line in LINES.read()}
    made_by = provenance("cpu", ["dp-accounting"])
    for each in wanted:
        if each in known:
            continue
        one = experiment(*each[:5])
        found = cluster(one, each[5], cache)
        LINES.add({**dict(zip(KEY, each, strict=True)), **found, "config_hash": config_hash(one), **made_by})
        known.add(each)
        print(*each, found, flush=True)


def table() -> str:
    """Write the tables of what is stored."""
    cells: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for line in LINES.read():
        cells[tuple(line[key] for key in KEY[:5])].append(line["ari"])

    def cell(*key: Any) -> str:
        found = cells.get(key, [])
        return f"{np.mean(found):.2f} ({min(found):.2f})" if found else "–"

    text = [INTRODUCTION, "## What was asked for: at least .95", ""]
    head = [f"{c} clients, n = {n}, ε = {e:g}" for c, n, e in TARGETS]
    text += _rows(
        ["", *head],
        [[f"{name} {setting}", *(cell(name, setting, *each) for each in TARGETS)]
         for name, setting in itertools.product(SETS[:2], SETTINGS)],
    )  # fmt: skip
    for clients, per_label in SHAPES:
        text += ["", f"## {clients} clients, n = {per_label}", ""]
        rows = []
        for name, setting in itertools.product(SETS, SETTINGS):
            seeds = max(
                (len(cells.get((name, setting, clients, per_label, e), [])) for e in EPSILONS), default=0
            )
            if seeds:
                row = [cell(name, setting, clients, per_label, epsilon) for epsilon in EPSILONS]
                rows.append([f"{name} {setting}", str(seeds), *row])
        text += _rows(["", "seeds", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)], rows)
    return "\n".join(text) + "\n"


def _rows(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + " --- |" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["play", "table"])
    parser.add_argument("which", nargs="?", choices=["targets", "curves"], default="targets")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--cache", type=Path, default=Path("runs/private"))
    given = parser.parse_args()
    if given.what == "play":
        play(targets() if given.which == "targets" else curves(given.sets), given.cache)
    else:
        TABLE.write_text(table())
        print(TABLE)
