"""Rows of the paper's tables and figures: each names what its runs change of a set's description."""

from __future__ import annotations

from flameche.experiments.paper.plan import FORMER, Row

TITLES = {
    "oracle": "Oracle",
    "fedavg": "FedAvg",
    "fedgroup": "FedGroup (s)",
    "stocfl": "StoCFL (s)",
    "fesem": "FeSEM (s)",
    "ifca": "IFCA (c)",
    "kfed": "K-Fed (m)",
    "pacfl": "PACFL (m)",
}
FORMER_TITLE = "FLAMECHE, former default mode, since removed (m)"
KS = range(2, 9)


def _method(kind: str, *more: str) -> tuple[str, ...]:
    return (f"method.kind={kind}", *more)


PAPER_MODE = _method("flameche", "method.mode=paper")
FORMER_MODE = _method("flameche", FORMER)
DEFAULT_MODE = _method("flameche", "method.mode=sketch")
MAIN = {
    **{kind: Row(title, _method(kind)) for kind, title in TITLES.items()},
    "flameche-paper": Row("FLAMECHE, paper mode (m)", PAPER_MODE),
    "flameche-robust": Row(FORMER_TITLE, FORMER_MODE),
    "flameche": Row("FLAMECHE (m)", DEFAULT_MODE),
}
LACKING = ("data.label_skew=false", "data.missing_labels=1")
MISSING = {
    **{
        kind: Row(TITLES[kind], (*_method(kind), *LACKING))
        for kind in TITLES
        if kind not in ("oracle", "fedavg")
    },
    "flameche-paper": Row("FLAMECHE, paper mode (m)", (*PAPER_MODE, "method.missing=impute", *LACKING)),
    "flameche-robust": Row(FORMER_TITLE, (*FORMER_MODE, *LACKING)),
    "flameche": Row("FLAMECHE (m)", (*DEFAULT_MODE, *LACKING)),
}
EXTRACTORS = {
    "random-gaussian": "Gaussian",
    "random-uniform": "Uniform",
    "mean": "Mean",
    "mean-pca-local": "Mean + PCA",
    "subspace": "Subspaces (PACFL)",
}
AXES = {"mean-pca-local": ("metadata.components=50",)}  # the paper does not say; 5 gives too low a DBI
METADATA = {
    kind: Row(title, (*PAPER_MODE, f"metadata.kind={kind}", *AXES.get(kind, ())), training=False)
    for kind, title in EXTRACTORS.items()
}
RECLUSTER = {
    "tau-10": Row("tau = 10", (*PAPER_MODE, "method.tau=10"), training=False),
    "tau-20": Row("tau = 20", (*PAPER_MODE, "method.tau=20"), training=False),
    "tau-30": Row("tau = 30", (*PAPER_MODE, "method.tau=30"), training=False),
    "never": Row("no reclustering", (*PAPER_MODE, "method.tau=0"), training=False),
}
M_STEP = {
    "seen": Row("all seen clients", (*PAPER_MODE, "method.m_step=seen"), training=False),
    "participants": Row("participants", (*PAPER_MODE, "method.m_step=participants"), training=False),
}
SCHEMES = {
    "plain": "in the clear",
    "ckks-paper": "CKKS, the paper's parameters",
    "ckks": "CKKS, ours",
    "bfv": "BFV",
}
CKKS = {
    kind: Row(title, (*PAPER_MODE, f"scheme.kind={kind}", "scheme.min_cluster=1"), training=False)
    for kind, title in SCHEMES.items()
}
DBI = {
    **{f"k-{k}": Row(f"K = {k}", (*PAPER_MODE, f"method.clusters={k}"), training=False) for k in KS},
    **{
        f"k-{k}-trained": Row(f"K = {k}, trained", (*PAPER_MODE, f"method.clusters={k}"), seeds=(0,))
        for k in KS
    },
}
