"""Writes results/one-group.md from the lines that reproduction/studies/one_group.py stored."""

from __future__ import annotations

from pathlib import Path

from one_group import BATCH, DRAWS, EPOCHS, LAST, PICKED, ROUNDS
from one_group_ways import CLIENTS, PARTS, Way, ways

from flameche_reproduction.results_index import ResultsFile, describe_provenance

STORED = Path("results/one-group.jsonl")
INTRODUCTION = f"""# One group alone

What ways to train make of a quarter of Oracle: one group of {CLIENTS} clients, {PICKED} of them a
round, {ROUNDS} rounds of {EPOCHS} epochs with batches of {BATCH}; 50 samples of each label at each
client. Accuracy over the last {LAST} rounds, ± over those rounds; bfloat16
(`reproduction/studies/one_group.py`). Tests are 1,500, 2,500 or 10,000 images of the set's, drawn once each
together with the clients' samples: rows with other tests have other clients too. Those with 2,500 were
made by a predecessor of the script, which trained in the same way; those with 10,000 are plain runs,
`flameche run experiments/cifar10.toml` with `data.clients=25 data.groups=1 data.heterogeneity=none
method.kind=fedavg model.kind=resnet18-unpooled training.precision=bf16` and the row's own keys. Most
rows are of one seed; two seeds of one way differ by 9 points. *Unpooled stem*: 7x7 as the usual one,
without its pooling; *small stem*: 3x3, no stride, no pooling. *First client's statistics*: BatchNorm's,
in place of the clients' mean. *Misread*: laid out as height, width, channel and read as channel,
height, width. What they are worth: [docs/reproducing.md](../docs/reproducing.md)."""
FIRSTS = f"""## Groups in first updates

ARI of what is found in the updates of 36 clients, each trained for one round from the initial model.
*Linked*: what a searched threshold of cosines links, as StoCFL has it; *described*: k-means over
cosines with the {PARTS} leading directions, as FedGroup has it; *placed*: k-means over the weights, as
FeSEM begins. *20 first*: groups are sought among 20 clients, as in a first round; the other 16 join the
mean update that is most similar, or nearest, and count five times each, as 80 of 100 would ({DRAWS}
draws). Cosines: mean within and between the true groups. `pairs`: csl with MNIST's pairs. *Moved*:
flipped, turned and shifted. Sought after the runs, in the products of the updates, which are not
stored."""
TITLES = {"cifar10": "CIFAR-10", "pathmnist": "PathMNIST"}
MOVES = {"": "images as they are", "fs": "flips, shifts", "fts": "flips, turns, shifts"}


def words(way: Way) -> str:
    """Say how a way trains."""
    said = [
        f"{way.stem} stem",
        MOVES[way.moves] + (f", cut to {way.crop} pixels in training" if way.crop else ""),
        f"{100 * way.holdout:g}% held out",
        "first client's statistics" if way.statistics == "first" else "",
        "images misread" if way.misread else "",
        f"SGD ({way.sgd[0]:g}, momentum {way.sgd[1]:g})" if way.sgd else "",
        f"seed {way.seed}" if way.seed else "",
    ]
    return "; ".join(part for part in said if part)


def main() -> None:
    """Write the tables of what is stored."""
    lines = {line["name"]: line for line in ResultsFile(STORED).read()}
    there = [(way, lines[name]) for name, way in ways().items() if name in lines]
    parts = [INTRODUCTION]
    for dataset, title in TITLES.items():
        rows = [
            f"| {words(way)} | {way.view}{', label skew' if way.skew else ''} "
            f"| {100 * line['accuracy']:.1f} ± {100 * line['sd']:.1f} | {line['tests']:,} |"
            for way, line in there
            if way.dataset == dataset and not way.setting
        ]
        parts += [
            f"## {title}",
            "\n".join(
                ["| training | group's transform | accuracy % | tests |", "|---|---|---:|---:|", *rows]
            ),
        ]
    rows = [
        f"| {TITLES[way.dataset]} | {way.setting} | {way.stem}"
        f"{', images moved' if way.moves else ''} "
        f"| {'SGD' if way.sgd else 'Adam'} | "
        + f"{round(line['linked'], 2) + 0:.2f} | "
        + " | ".join(
            f"{line[how] + 0:.2f} | {line[f'{how}_late'][0] + 0:.2f} ± {line[f'{how}_late'][1]:.2f}"
            for how in ("described", "placed")
        )
        + f" | {line['cosine_within']:.2f}, {line['cosine_between']:.2f} |"
        for way, line in there
        if way.setting
    ]
    head = (
        "| set | setting | stem | updates by | linked | described | 20 first | placed | 20 first | cosines |"
    )
    parts += [
        FIRSTS,
        "\n".join([head, "|---|---|---|---|---:|---:|---:|---:|---:|---:|", *rows]),
        describe_provenance(lines.values()),
    ]
    STORED.with_suffix(".md").write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
