"""Makes results/redealt.md: does the choice of K say "no groups" where there are none?

    python reproduction/studies/redealt.py run --data FOLDER [--seeds 5] [--first 0]
    python reproduction/studies/redealt.py table

Seven natural federations, whose samples are pooled and dealt again at random to as many clients of the same
sizes: whatever set the sites apart is gone, so K = 1 is right. FOLDER holds the publishers' own files (see
`LOADERS`). Metadata are class-wise means of a random ReLU network on standardised inputs.
"""

from __future__ import annotations

import argparse
import gzip
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.io import loadmat
from sklearn.datasets import load_digits

from flameche.experiments.build import build_method
from flameche.experiments.config import parse_experiment
from flameche.experiments.provenance import provenance
from flameche.metadata.extractors import Metadata
from flameche.rng import stream
from flameche.simulation.engine import simulate
from flameche_reproduction.metadata_cache import clustering_world
from flameche_reproduction.results_index import ResultsFile, describe_provenance

LINES, TABLE = ResultsFile(Path("results/redealt.jsonl")), Path("results/redealt.md")
HIDDEN, FEATURES = 128, 64
FRESH = 15  # from this seed on, none had a part in choosing constants
Pool = tuple[np.ndarray, np.ndarray, np.ndarray]  # inputs [N D], classes [N], samples by client [C]


def landmine(folder: Path) -> Pool:
    """29 fields, mines or clutter (Xue et al. 2007)."""
    held = loadmat(folder / "LandmineData.mat")
    x, y = list(held["feature"][0]), [each.ravel() for each in held["label"][0]]
    return np.concatenate(x), np.concatenate(y), np.array([len(each) for each in y])


def heart(folder: Path) -> Pool:
    """Four hospitals, each cut into four sites (UCI heart disease)."""
    names = ("cleveland", "hungarian", "switzerland", "va")
    files = [
        pd.read_csv(folder / f"heart/processed.{name}.data", header=None, na_values="?") for name in names
    ]
    sizes = [len(part) for file in files for part in np.array_split(np.arange(len(file)), 4)]
    rows = pd.concat(files).to_numpy(np.float64)
    return rows[:, :-1], (rows[:, -1] > 0).astype(int), np.array(sizes)


def wisdm(folder: Path) -> Pool:
    """36 users, six activities (Kwapisz et al. 2011)."""
    lines = (folder / "WISDM_ar_v1.1_transformed.arff").read_text().splitlines()
    start = lines.index("@data") if "@data" in lines else [line.lower() for line in lines].index("@data")
    cells = pd.DataFrame([line.split(",") for line in lines[start + 1 :] if line.strip()])
    x = cells.iloc[:, 2:-1].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    return x, cells.iloc[:, -1].factorize()[0], cells.iloc[:, 1].value_counts().to_numpy()


def digits(folder: Path) -> Pool:
    """Digits of two sources at 16 x 16 and one at 8 x 8, enlarged: eight clients each."""
    usps = loadmat(folder / "usps_all.mat")["data"].transpose(2, 1, 0)  # [10 1100 256]
    with gzip.open(folder / "semeion.data.gz", "rt") as file:
        rows = [line.split() for line in file]
    semeion = np.array([row for row in rows if len(row) > 256], np.float64)  # the first is cut into lines
    small = load_digits()
    large = small.images.repeat(2, axis=1).repeat(2, axis=2).reshape(-1, 256) / 16
    x = np.concatenate([usps.reshape(-1, 256) / 255, semeion[:, :256], large])
    usps_label = np.repeat((np.arange(10) + 1) % 10, usps.shape[1])
    y = np.concatenate([usps_label, semeion[:, 256:266].argmax(axis=1), small.target])
    return x, y, np.full(24, 1500 // 8)


def pacs(folder: Path) -> Pool:
    """PACS at 32 x 32, seven classes of four domains: 32 clients."""
    held = np.load(folder / "pacs32.npz")
    x = held["x"].reshape(len(held["x"]), 8, 4, 8, 4, 3).mean(axis=(2, 4)).reshape(len(held["x"]), -1)
    return x, held["y"], np.full(32, len(x) // 32)


def acs(folder: Path) -> Pool:
    """Income above 50,000 dollars in 39 US states (ACS 2018)."""
    rows = pd.read_parquet(folder / "acs_income.parquet")
    x = rows.drop(columns=["state", "PINCP"]).to_numpy(np.float64)
    return x, (rows["PINCP"] > 50_000).to_numpy().astype(int), np.full(rows["state"].nunique(), 1000)


def beijing(folder: Path) -> Pool:
    """Fine dust at 12 stations, by quartiles (UCI Beijing multi-site air quality)."""
    rows = pd.read_parquet(folder / "beijing_air.parquet").dropna(subset=["PM2.5"])
    x = rows[["SO2", "NO2", "CO", "O3", "TEMP", "PRES", "DEWP", "RAIN", "WSPM"]].to_numpy(np.float64)
    return x, pd.qcut(rows["PM2.5"], 4, labels=False).to_numpy(), np.full(rows["station"].nunique(), 3000)


LOADERS: dict[str, Callable[[Path], Pool]] = {
    "landmine": landmine, "heart": heart, "wisdm": wisdm, "digits": digits, "pacs": pacs, "acs": acs,
    "beijing": beijing,
}  # fmt: skip


def redealt(pool: Pool, seed: int) -> Metadata:
    """Deal all samples again at random, and summarise them client by client."""
    x, y, sizes = pool
    x = np.nan_to_num((x - np.nanmean(x, axis=0)) / np.maximum(np.nanstd(x, axis=0), 1e-9))
    rng = stream(seed, "redealt")
    hidden = rng.standard_normal((x.shape[1], HIDDEN)) / np.sqrt(x.shape[1])
    out = rng.standard_normal((HIDDEN, FEATURES)) / np.sqrt(HIDDEN)
    order = rng.permutation(len(x))[: sizes.sum()]
    features = np.maximum(np.maximum(x[order] @ hidden, 0) @ out, 0)
    client, cell = np.repeat(np.arange(len(sizes)), sizes), y[order]
    counts = np.zeros((len(sizes), int(y.max()) + 1), np.int64)
    np.add.at(counts, (client, cell), 1)
    phi = np.zeros((*counts.shape, FEATURES))
    np.add.at(phi, (client, cell), features)
    return Metadata(phi / np.maximum(counts, 1)[:, :, None], counts)


def run(folder: Path, seeds: range) -> None:
    """Choose K for every federation and seed that is not stored yet."""
    known = {(line["set"], line["seed"], line["least"]) for line in LINES.read()}
    for name, load in LOADERS.items():
        pool = load(folder)
        for seed in seeds:
            metadata = redealt(pool, seed)
            for least in (1, 3):
                if (name, seed, least) in known:
                    continue
                clients = len(metadata)
                experiment = parse_experiment(
                    {
                        "name": "redealt", "rounds": 1, "participation": 1.0,
                        "data": {"dataset": "digits", "clients": clients, "groups": 1, "per_label": 1},
                        "method": {"clusters": "auto"}, "scheme": {"kind": "plain", "min_cluster": least},
                    }
                )  # fmt: skip
                world = clustering_world(experiment, seed, metadata, np.zeros(clients, np.int64))
                method = build_method(experiment, world)
                simulate(method, world, clients)
                about = {"set": name, "clients": clients, "seed": seed, "least": least, "k": method.clusters}
                LINES.add({**about, **provenance("cpu")})
                print(about, flush=True)


def table() -> str:
    """Write the table of what is stored."""
    lines = LINES.read()
    found: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["set"], line["clients"]][line["least"]].append(line["k"])
    about = (__doc__ or "").partition("table\n\n")[2]
    text = [
        f"# No groups, no clusters\n\n{about}\n"
        "Made by `python reproduction/studies/redealt.py run`, then `table`.\n"
    ]
    text += ["| federation | clients | K = 1, no guard | K = 1, guard of 3 | chosen otherwise |"]
    text += ["|---|---|---|---|---|"]
    for (name, clients), by_least in found.items():
        cells = [f"{sum(k == 1 for k in by_least[least])} of {len(by_least[least])}" for least in (1, 3)]
        other = Counter(k for ks in by_least.values() for k in ks if k != 1)
        told = ", ".join(f"K = {k}: {n}" for k, n in sorted(other.items())) or "–"
        text.append(f"| {name} | {clients} | {' | '.join(cells)} | {told} |")
    parts = {
        "at seeds that had a part in choosing the rule's constants": [x for x in lines if x["seed"] < FRESH],
        "at fresh seeds": [x for x in lines if x["seed"] >= FRESH],
    }
    right = [
        f"K = 1 in {sum(line['k'] == 1 for line in part)} of {len(part)} {which}."
        for which, part in parts.items()
        if part
    ]
    return "\n".join([*text, "", *right, "", describe_provenance(lines)]) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    given = parser.parse_args()
    if given.what == "run":
        run(given.data, range(given.first, given.first + given.seeds))
    else:
        TABLE.write_text(table())
        print(TABLE)
