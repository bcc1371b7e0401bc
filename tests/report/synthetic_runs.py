"""Writes run folders as `flameche run` leaves them, small and deterministic."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

LABELS = {"flameche": "FLAMECHE", "fedavg": "FedAvg", "oracle": "Oracle"}
CLIENTS, GROUPS, ROUNDS = 20, 4, 6
GROUP = [client * GROUPS // CLIENTS for client in range(CLIENTS)]
# (accuracy, ari) by method and seed: small numbers whose mean and sd can be done by hand
RESULTS = {
    ("flameche", 0): (0.90, 0.80),
    ("flameche", 1): (0.94, 1.00),
    ("fedavg", 0): (0.70, None),
    ("fedavg", 1): (0.72, None),
    ("oracle", 0): (0.95, 1.00),
    ("oracle", 1): (0.97, 1.00),
}


def write_run(
    runs: Path, method: str, seed: int, *, rounds: int = ROUNDS, name: str = "digits-csl", **changes: Any
) -> Path:
    """One finished run; `changes` replace keys of its summary."""
    folder = runs / name / f"{method}0a1b2c" / str(seed)
    folder.mkdir(parents=True)
    accuracy, ari = RESULTS.get((method, seed), (0.5, None))
    noise = np.random.default_rng([seed, len(method)])
    clustered = method != "fedavg"
    final = [(g + 1) % GROUPS for g in GROUP] if clustered else [0] * CLIENTS  # clusters are permuted groups
    if method == "flameche" and seed == 0:
        final[0], final[-1] = 2, 3
    lines = []
    for r in range(1, rounds + 1):
        seen = CLIENTS if not clustered else min(CLIENTS, 5 + 3 * r)
        assignment = [c if i % CLIENTS < seen else -1 for i, c in enumerate(final)]
        value = accuracy - 0.4 * (1 - r / rounds) if accuracy is not None else None
        lines.append(
            {
                "round": r,
                "accuracy": None if r == 2 else value,
                "ari": None if ari is None else ari * r / rounds,
                "sizes": np.bincount(final, minlength=GROUPS if clustered else 1).tolist(),
                "participants": list(range(0, CLIENTS, 4)),
                "assignment": assignment,
                "reclustered": clustered and r == 3,
                "bytes_up": 1000 * r,
                "bytes_down": 2000 * r,
                "seconds": {"training": 0.1 * r},
            }
        )
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.toml").write_text(
        f'name = "{name}"\nseeds = [0, 1]\nrounds = {rounds}\n\n[method]\nkind = "{method}"\n'
    )
    (folder / "environment.json").write_text(
        json.dumps({"python": "3.11.2", "commit": "abc1234", "cores": 2})
    )
    angle = np.array(GROUP) * np.pi / 2
    has_map = method == "flameche"
    pd.DataFrame(
        {
            "client": range(CLIENTS),
            "group": GROUP,
            "assignment": final,
            "samples": 50,
            "accuracy": np.clip(accuracy + noise.normal(0, 0.02, CLIENTS), 0, 1),
            "bytes_up": 150,
            "bytes_down": 300,
            "rounds": 2,
            "map_x": np.cos(angle) + noise.normal(0, 0.15, CLIENTS) if has_map else np.nan,
            "map_y": np.sin(angle) + noise.normal(0, 0.15, CLIENTS) if has_map else np.nan,
        }
    ).to_parquet(folder / "clients.parquet")
    summary: dict[str, Any] = {
        "method": method,
        "label": LABELS.get(method, method),
        "dataset": "digits",
        "setting": "csl",
        "seed": seed,
        "scheme": "bfv" if method == "flameche" else "plain",
        "rounds": rounds,
        "accuracy": accuracy,
        "accuracy_per_round": [line["accuracy"] for line in lines],
        "ari": ari,
        "ari_final": ari,
        "dbi": 0.5 if clustered else None,
        "ch": 12.25 if clustered else float("nan"),
        "k": GROUPS if clustered else None,
        "assignment": final,
        "bytes_up": 3_000_000,
        "bytes_down": 6_000_000,
        "seconds": {"training": 2.0, "clustering": 0.25},
        "wall_s": 2.5,
        "device": "cpu",
        "versions": {},
        "config_hash": "0a1b2c",
        "ledger": {
            "up": {"metadata": 400_000, "model": 2_600_000},
            "down": {"centroids": 1_000_000, "model": 5_000_000},
            "server_seconds": {"adding": 0.004},
            "client_seconds": {"training": 1.8, "encryption": 0.2},
            "tuning_runs": 0,
            "oracle_knowledge": ["groups"] if method == "oracle" else [],
        },
        "leakage": {"server": {"sums": 0, "solved": 0}, "client": {"sums": 12, "leverage": 0.43, "solved": 0}}
        if method == "flameche"
        else None,
        "notes": [],
    }
    (folder / "summary.json").write_text(json.dumps(summary | changes))
    return folder


def write_runs(runs: Path) -> Path:
    """Three methods and two seeds, one unfinished run, one with a damaged file."""
    for method, seed in RESULTS:
        write_run(runs, method, seed)
    unfinished = write_run(runs, "flameche", 2)
    (unfinished / "summary.json").unlink()
    text = (unfinished / "rounds.jsonl").read_text()
    (unfinished / "rounds.jsonl").write_text(
        "".join(text.splitlines(keepends=True)[:3]) + '{"round": 4, "acc'
    )
    broken = write_run(runs, "fedavg", 2)
    (broken / "summary.json").write_text('{"method": "fedavg", ')
    return runs


def write_network_run(runs: Path) -> Path:
    """One run as a real network leaves it: nobody knows the groups, and a node was lost."""
    folder = write_run(
        runs, "flameche", 0, name="sites", dataset="own", setting="network", ari=None, ari_final=None, k=3,
        device="network", assignment=[0, 0, 1, 1, 2, 2],
    )  # fmt: skip
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    for record in rounds:
        seen = [0, 0, 1, 1, 2, 2] if record["round"] > 1 else [0, -1, 1, -1, 2, -1]
        record |= {"ari": None, "sizes": [2, 2, 2], "assignment": seen, "exchanges": 4}
        record["lost"] = {"4": "no answer in 30 s"} if record["round"] == 2 else {}
    (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
    frame = pd.read_parquet(folder / "clients.parquet").head(6)
    frame = frame.assign(group=-1, assignment=[0, 0, 1, 1, 2, 2], map_x=np.nan, map_y=np.nan)
    frame.to_parquet(folder / "clients.parquet")
    return folder
