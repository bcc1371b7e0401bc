"""Makes results/schemes.md: the same clustering under every scheme, beside the clear and the paper's CKKS.

    python reproduction/studies/scheme_table.py run [--datasets mnist ...] [--seeds 5] [--schemes bfv ...]
    python reproduction/studies/scheme_table.py table

`run` appends one line per clustering to results/schemes.jsonl and skips those that are there. "same" counts
the rounds in which every client's assignment equals the clear's; a client that ever differs is named with
its margin, the gap between its two nearest centroids.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path

import numpy as np
from clustering_table import RESULTS, ROOT, SETS, SETTINGS, read, spread

from flameche.em.spherical import cosine
from flameche.errors import DataError
from flameche.experiments.build import build
from flameche.experiments.config import config_hash, load_experiment
from flameche.experiments.protection import packages
from flameche.experiments.provenance import provenance
from flameche.simulation.engine import simulate
from flameche_reproduction.results_index import ResultsFile, describe_provenance, of_one_device

GUARD = " guarded"  # the leakage guard's default, min_cluster = 3; elsewhere it is off
SCHEMES = ["plain", "bfv", "ckks", "ckks-paper", "secagg", "paillier", f"bfv{GUARD}", f"secagg{GUARD}"]
# The paper's CKKS ablation, over three settings and five seeds: ARI and DBI without and with CKKS.
PAPER = {
    "mnist": ("0.96 ± 0.04", "0.60 ± 0.09", "0.94 ± 0.13", "0.61 ± 0.12"),
    "fashion-mnist": ("0.97 ± 0.05", "0.43 ± 0.09", "0.96 ± 0.11", "0.46 ± 0.15"),
    "cifar10": ("0.97 ± 0.05", "1.49 ± 0.37", "0.96 ± 0.11", "1.59 ± 0.36"),
    "mednist28": ("1.00 ± 0.00", "1.09 ± 0.52", "0.85 ± 0.17", "1.35 ± 0.46"),
    "pathmnist": ("0.95 ± 0.11", "1.02 ± 0.58", "0.93 ± 0.14", "1.07 ± 0.53"),
}


def run(datasets: list[str], seeds: int, schemes: list[str], out: Path) -> int:
    """Cluster everything that is not in `out` yet; return how many sets could not be loaded."""
    done = {(r["config_hash"], r["seed"]) for r in read(out)}
    missing = set()
    for seed, name, setting in itertools.product(range(seeds), datasets, SETTINGS):
        metadata = None
        for scheme in schemes:
            kind = scheme.removesuffix(GUARD)
            words = [f"data.heterogeneity={setting}", "scheme.min_cluster=1"]
            if kind == "secagg":  # which cannot move absent clients: compared with the clear that does not
                words.append("method.recluster_over=participants")
            clear = load_experiment(ROOT / "experiments" / f"{name}.toml", words)
            guard = f"scheme.min_cluster={3 if scheme != kind else 1}"
            experiment = load_experiment(
                ROOT / "experiments" / f"{name}.toml", [*words, f"scheme.kind={kind}", guard]
            )
            if (config_hash(experiment), seed) in done or name in missing:
                continue
            try:
                first = build(clear, seed, device="cpu", training=False, metadata=metadata)
            except DataError as problem:
                print(problem)
                missing.add(name)
                continue
            metadata = first.world.metadata
            played = simulate(first.method, first.world, clear.participants)
            reference = [r["assignment"] for r in played.rounds]
            setup = build(experiment, seed, device="cpu", training=False, metadata=metadata)
            start = time.perf_counter()
            result = simulate(setup.method, setup.world, experiment.participants)
            seconds = time.perf_counter() - start
            ours = [r["assignment"] for r in result.rounds]
            flipped = np.unique(np.nonzero(np.array(ours) != np.array(reference))[1])
            line = {
                "dataset": name, "setting": setting, "seed": seed, "scheme": scheme,
                "ari": result.ari, "ari_final": result.ari_final, "dbi": result.outcome.dbi,
                "rounds_same": sum(a == b for a, b in zip(ours, reference, strict=True)),
                "flipped": {int(i): margin(setup.method, metadata, int(i)) for i in flipped},
                "seconds": round(seconds, 2), "config_hash": config_hash(experiment),
            }  # fmt: skip
            ResultsFile(out).add({**line, **provenance("cpu", packages(experiment))})
            print(line, flush=True)
    return len(missing)


def margin(method, metadata, client: int) -> float:
    """Measure the gap between a client's two nearest centroids at the end."""
    who = np.array([client])
    near = np.sort(cosine(metadata.phi[who], metadata.presence[who], method.centroids)[0])[::-1]
    return float(near[0] - near[1])


HEAD = """\
# Clustering under every scheme

Made by `python reproduction/studies/scheme_table.py run` and `... table` from `schemes.jsonl`: paper
mode, 100 clients, 100 rounds, no training. The guard is off (`min_cluster = 1`) except in the rows
*guarded*, where its default (`min_cluster = 3`) holds sums back: what that costs. Mean ± sd (ddof = 1)
over three settings and the seeds; seconds: of one device, the one with most runs. *same*: runs in which
every client has the clear's assignment in every round (secagg: of the clear with `recluster_over =
"participants"`). `mednist28` stands in for TissueMNIST, whose values the paper's columns show.

| data | scheme | runs | same | ARI | DBI | paper's ARI | paper's DBI | median s |
|---|---|---|---|---|---|---|---|---|"""


def table(source: Path) -> str:
    """Write the page."""
    records, lines = read(source), [HEAD]
    flips = []
    for name, scheme in itertools.product(SETS, SCHEMES):
        rows = [r for r in records if (r["dataset"], r["scheme"]) == (name, scheme)]
        if not rows:
            continue
        paper = {"plain": PAPER[name][:2], "ckks-paper": PAPER[name][2:]}.get(scheme, ("–", "–"))
        same = sum(r["rounds_same"] == 100 for r in rows)
        _, timed = of_one_device(rows)
        cells = [
            name, scheme, str(len(rows)), str(same), spread([r["ari"] for r in rows]),
            spread([r["dbi"] for r in rows]), *paper, f"{np.median([r['seconds'] for r in timed]):.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
        for r in rows if GUARD not in scheme else []:
            for client, gap in r["flipped"].items():
                flips.append(
                    f"- {name} {r['setting']} seed {r['seed']}, {scheme}: client {client}, {gap:.2g}"
                )
    lines += ["", "Clients that ever differed from the clear, and their margin at the end:", ""]
    return "\n".join([*lines, *(flips or ["none"]), "", describe_provenance(records), ""])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--datasets", nargs="+", default=SETS, choices=SETS)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schemes", nargs="+", default=SCHEMES, choices=SCHEMES)
    parser.add_argument("--out", type=Path, default=RESULTS / "schemes.jsonl")
    options = parser.parse_args()
    if options.what == "run":
        sys.exit(run(options.datasets, options.seeds, options.schemes, options.out))
    (RESULTS / "schemes.md").write_text(table(options.out))
    print(RESULTS / "schemes.md")
