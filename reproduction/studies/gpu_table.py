"""Writes results/gpu-train.jsonl, the useful lines of what gpu_train.py printed, and gpu-train.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_notes import NOTES

RESULTS = Path(__file__).parents[2] / "results"
NETS = {"lenet5": "LeNet-5", "resnet18": "ResNet-18"}
PLANS = {"lenet5": "5 epochs, batch 128", "resnet18": "10 epochs, batch 256"}
KEPT = ("device", "way", "run", "score", "scale", "accuracy", "check", "tune", "profile", "layer")
MADE = ("versions", "commit", "device")
GROUPS = {  # how the names of kernels begin, or for products what they contain
    "patches": ("im2col_kernel", "im2col_images_kernel"),
    "fold": ("col2im_kernel",),
    "sliding": ("conv_", "sum_weight_gradient_kernel", "expand_weights_kernel"),
    "norm": ("norm_", "batch_norm_", "moments_", "affine_kernel"),
    "adam": ("adam_kernel",),
    "pool": ("max_pool_", "bias_relu_"),
}
PRODUCTS = ("gemm", "cutlass", "nvjet", "xmma")
Line = dict[str, Any]


def gather(outputs: list[Path]) -> list[Line]:
    """Read outputs, in the order of the measurements; each line says which of them it is from."""
    found: list[Line] = []
    for number, file in enumerate(outputs, start=1):
        made: Line = {}  # by which versions, commit and device; said before the measurements
        for text in file.read_text().splitlines():
            line = json.loads(text) if text.startswith("{") else {}
            if "share" in line:
                shares = found[-1].setdefault("groups", {})
                group = _group(line["kernel"])
                shares[group] = round(shares.get(group, 0.0) + line["ms"], 3)
            elif any(key in line for key in KEPT) and not (
                "error" in line or line.get("call") or ("layer" in line and number != 2)
            ):
                line.pop("all", None)
                line |= {"weigh_us": min(line["weigh_us"].values())} if "weigh_us" in line else {}
                made = made or {key: line[key] for key in MADE if key in line}
                found.append({"from": number, **line, **made})
    return found


def _group(kernel: str) -> str:
    for group, names in GROUPS.items():
        if kernel.startswith(names):
            return group
    return "products" if any(part in kernel for part in PRODUCTS) else "other"


def write(outputs: list[Path]) -> None:
    """Write the lines, where outputs are given, and the table of the lines."""
    file = RESULTS / "gpu-train.jsonl"
    if outputs:
        file.write_text("".join(json.dumps(line) + "\n" for line in gather(outputs)))
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    (RESULTS / "gpu-train.md").write_text(table(lines))


def table(lines: list[Line]) -> str:
    """Put it all down."""
    notes = [note.strip() for note in NOTES]
    parts = [notes[0]]
    for net, note in zip(NETS, notes[1:3], strict=True):
        parts += [f"## {NETS[net]}: a round of 20 clients of 500 samples, {PLANS[net]}", _rounds(lines, net)]
        parts += ["Device time of a round, ms, by kernels (the 25 longest; the rest is in `other`):"]
        parts += [_shares(lines, net), note]
    parts += ["## Whole runs", notes[3], _runs(lines), "## Scoring", notes[4], _scores(lines)]
    parts += ["## Many clients", notes[5], _scale(lines)]
    parts += ["## Accuracy", notes[6], _accuracy(lines)]
    parts += ["## Against the plain loop", notes[7], _checks(lines)]
    parts += ["## Tiles", notes[8], _tiles(lines)]
    return "\n\n".join(parts) + "\n"


def _grid(head: str, rows: list[list[Any]]) -> str:
    names = head.split(" | ")
    listed = [names, ["---"] * len(names), *rows]
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in listed)


def _latest(lines: list[Line], net: str) -> dict[str, Line]:
    """Give the last measurement of each way; those of call 2 have been replaced since."""
    return {x["way"]: x for x in lines if "way" in x and x.get("net") == net and x["from"] != 2}


def _rounds(lines: list[Line], net: str) -> str:
    ways = _latest(lines, net)
    loop = ways["loop"]["round_ms"]
    rows = [
        [way, f"{line['round_ms']:.2f}" if line["round_ms"] < 100 else f"{line['round_ms']:.0f}",
         f"{loop / line['round_ms']:.1f}", line["first_s"], line["peak_gib"], line["from"]]
        for way, line in ways.items()
    ]  # fmt: skip
    return _grid("way | ms a round | times the loop's speed | first round, s | peak GiB | call", rows)


def _shares(lines: list[Line], net: str) -> str:
    names = [*GROUPS, "products"]
    rows = []
    for line in lines:
        if line.get("profile") == net and line["from"] > 2 and not line["way"].startswith("score"):
            parts = [line["groups"].get(name, 0.0) for name in names]
            rest = line["busy_ms"] - sum(parts)
            listed = [f"{part:.1f}" if part else "" for part in [*parts, rest]]
            rows.append([line["way"], line["wall_ms"], line["busy_ms"], *listed])
    return _grid(" | ".join(["way", "wall", "busy", *names, "other"]), rows)


def _runs(lines: list[Line]) -> str:
    rows = [
        [NETS[line["run"]], line["precision"], line.get("sliding", "(before)"), line["rounds"],
         line["total_s"], line["train"], line["average"], line["score"], line["from"]]
        for line in lines if "run" in line and (line["from"] > 2 or line["run"] == "resnet18")
    ]  # fmt: skip
    return _grid("net | precision | sliding | rounds | s | training | averaging | scoring | call", rows)


def _scores(lines: list[Line]) -> str:
    busy = {(x["profile"], x["way"]): x["busy_ms"] for x in lines if "profile" in x}
    rows = [
        [NETS[x["score"]], x["precision"], x["sliding"], x["ms"],
         busy[x["score"], f"score {x['precision']} {x['sliding']}"], x["first_s"]]
        for x in lines if x.get("images")
    ]  # fmt: skip
    return _grid("net | precision | sliding | ms | device busy, ms | first, s", rows)


def _scale(lines: list[Line]) -> str:
    rows = [
        [NETS[x["scale"]], x["clients"], x["round_ms"], x["per_client_ms"], x["width"][-1], x["budget_gib"],
         x["peak_gib"]]
        for x in lines if "scale" in x
    ]  # fmt: skip
    return _grid("net | clients | ms a round | ms a client | at once | budget, GiB | peak, GiB", rows)


def _accuracy(lines: list[Line]) -> str:
    rows = [
        [x["accuracy"], f"{x['mean']:.4f}", ", ".join(f"{each:.4f}" for each in x["seeds"]),
         f"{x['gap_mean']:+.4f}", f"{x['gap_worst']:.4f}"]
        for x in lines if "seeds" in x
    ]  # fmt: skip
    return _grid("way | mean | seeds 0, 1, 2 | mean gap to the loop | worst", rows)


def _checks(lines: list[Line]) -> str:
    rows = [
        [NETS[x["check"]], f"float64, round {x['round']}: largest gap of a weight", f"{x['params']:.1e}",
         f"{x['buffers']:.1e}", x["from"]]
        for x in lines if "dtype" in x
    ]  # fmt: skip
    rows += [
        [NETS[x["check"]], f"{x['gradient']}: relative gap of a step's gradient", x["off"], x["buffers"],
         x["from"]]
        for x in lines if "gradient" in x
    ]  # fmt: skip
    return _grid("net | what | weights | statistics | call", rows)


def _tiles(lines: list[Line]) -> str:
    rows = [
        [NETS[x["tune"]], {4: "tf32", 2: "bf16"}[x["width"]], f"{x['map']} to {x['out']}, {x['window']}",
         x["kernel"], x["tile"], x["us"], x["chosen"]]
        for x in lines if "tune" in x
    ]  # fmt: skip
    return _grid("net | precision | map, window | kernel | fastest tile | us | us of the one before", rows)
