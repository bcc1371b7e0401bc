"""A sum by secure aggregation, with what it cost in the ledger."""

from __future__ import annotations

from flameche.crypto.secagg.driver import aggregate
from flameche.em.spherical import Ints
from flameche.protocol.ledger import Ledger


def masked_sum(vectors: Ints, clients: Ints, what: str, label: str, ledger: Ledger) -> Ints:
    """Run one whole session among clients [n] over vectors [n S]; their uploads count as `what`."""
    total, _, costs = aggregate(vectors, label=label)
    ledger.sent(what, clients, costs.up)
    ledger.received("secagg", clients, costs.down)
    ledger.add("client", "encryption", costs.client_seconds)
    ledger.add("server", "encryption", costs.server_seconds)
    return total
