"""`flameche methods`, `schemes` and `datasets`: what is available, and what it needs."""

from __future__ import annotations

from dataclasses import asdict

from flameche.cli.options import JsonOption
from flameche.cli.output import log, out_console, print_json, print_rows

COST_LEGEND = (
    "Work and bytes beyond FedAvg's, over a run; R rounds, N clients, n participants a round, K clusters, "
    "S restarts, M numbers in a model, d in a client's metadata."
)


def methods(as_json: JsonOption = False) -> None:
    """List the methods: what each needs of the server, what clients upload, what it costs beyond FedAvg."""
    from flameche.methods import METHODS

    rows = [
        {
            "method": kind,
            "name": m.about.title,
            "family": m.about.family,
            "server sees": m.about.needs,
            "schemes": _usable_schemes(m.about.needs, m.about.family),
            "clients upload": m.about.uploads,
            "server work": m.about.server,
            "client work": m.about.client,
            "up": m.about.up,
            "down": m.about.down,
        }
        for kind, m in METHODS.loaded().items()
    ]
    print_rows(rows, as_json)
    if not as_json:
        log.print(COST_LEGEND, soft_wrap=True)


def schemes(as_json: JsonOption = False) -> None:
    """List the schemes: what each is built on, who opens sums, how secure it is, if it can sum updates."""
    from importlib.util import find_spec

    from flameche.registry import SCHEMES

    rows = [
        {
            "scheme": info.name,
            "what": info.title,
            "here": not info.needs or find_spec(info.needs) is not None,
            "needs": info.needs or "–",
            "sums opened by": info.opened_by,
            "security": info.security,
            "sums": "exact" if info.exact else "approximate",
            "updates": info.updates,
        }
        for info in SCHEMES.loaded().values()
    ]
    print_rows(rows, as_json)


def datasets(as_json: JsonOption = False) -> None:
    """List the datasets: which are here, and how to get the others."""
    from flameche.data import available

    infos = available()
    if as_json:
        print_json([{**asdict(info), "where": str(info.where) if info.where else None} for info in infos])
        return
    rows = [
        {
            "dataset": info.name,
            "images": "x".join(map(str, (*info.size, info.channels))),
            "classes": info.classes,
            "train": info.train,
            "test": info.test,
            "here": info.found,
            "what": info.title,
        }
        for info in infos
    ]
    print_rows(rows, as_json=False)
    for info in infos:
        if not info.found:
            out_console.print(f"\n{info.missing}", soft_wrap=True)
        elif info.note:
            out_console.print(f"\n{info.name}: {info.note}", soft_wrap=True)


def _usable_schemes(needs: str, family: str) -> str:
    """Name the schemes under which a method runs: all for metadata, two of them for model updates."""
    if needs == "terms":
        return "plain"
    return "all" if family == "metadata" else "plain; updates: secagg, ckks"
