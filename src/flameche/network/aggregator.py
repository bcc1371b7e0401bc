"""The server's arithmetic: it adds ciphertexts, averages models and passes reported numbers on.

It holds an `Adder` and no secret key. A contribution that cannot be used raises `InvalidContributions`, which
names the nodes that sent it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flameche.crypto.api import Adder
from flameche.crypto.envelope import numbers_of
from flameche.errors import SealError
from flameche.network.message import Arrays, Message, RejectedMessage, bytes_array, with_prefix
from flameche.protocol.ledger import Ledger
from flameche.protocol.vault import Vault
from flameche.training.models import Buffers, average, stacked

Ints = NDArray[np.int64]
Fields = dict[str, Any]
MODEL_ARRAYS = ("params", "buffers")
SHAPE_HINT = "do all nodes have images of the same shape, and the same classes?"


class InvalidContributions(RejectedMessage):
    """Some nodes sent what cannot be used; `nodes` gives the reasons by node number."""

    def __init__(self, nodes: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"node {number}: {reason}" for number, reason in nodes.items()))
        self.nodes = dict(nodes)


@dataclass(frozen=True)
class AggregationRules:
    """How sums and averages are formed, as the experiment says."""

    clients: int
    least: int  # clients in a sum that the server releases
    adder: Adder | None  # None under secure aggregation, where no ciphertexts are stored
    weighting: Literal["uniform", "samples"] = "uniform"
    buffers: Buffers = "mean"


class Aggregator:
    """Stored ciphertexts and models by name; nothing here can decrypt."""

    def __init__(self, rules: AggregationRules, ledger: Ledger) -> None:
        self.rules, self._ledger = rules, ledger
        self.vault: Vault | None = None
        self._sums = 0  # in the vault
        self._vault_state: Arrays = {}  # from a checkpoint, until the vault exists
        self.models: dict[str, Arrays] = {}
        self.sizes = np.zeros(rules.clients, np.int64)  # of the nodes' training sets
        self.term_length: int | None = None  # of a client's term, once the shape of metadata is known

    def has_term(self, number: int) -> bool:
        """Tell whether a client's encrypted metadata are stored here."""
        return self.vault is not None and bool(self.vault.holds(np.array([number]))[0])

    def receive(self, uploads: Sequence[Fields], arrays: Mapping[int, Sequence[Arrays]]) -> None:
        """Process uploads in order; all nodes send the same list, each with arrays of its own."""
        for at, upload in enumerate(uploads):
            sent = {number: own[at] for number, own in arrays.items()}
            kind = upload["kind"]
            if kind == "average":
                self._average(upload, sent)
            elif kind in ("store", "drop"):
                self._store_or_drop(kind, upload, sent)
            else:
                raise RejectedMessage(f"nodes upload '{kind}', which this server does not know")

    def _store_or_drop(self, kind: str, upload: Fields, arrays: Mapping[int, Arrays]) -> None:
        vault = self._vault_for(upload["sums"])
        if kind == "drop":
            vault.drop(np.array(upload["clients"], np.int64))
            return
        sent = {i: own for i, own in arrays.items() if i in upload["clients"]}
        missing = [i for i, own in sent.items() if "sealed" not in own and not self.has_term(i)]
        if missing:
            raise InvalidContributions(dict.fromkeys(missing, "sent no metadata, and none of it is stored"))
        new = {i: own["sealed"].tobytes() for i, own in sent.items() if "sealed" in own}
        self._check_terms(new, self.term_length)
        for i, data in sorted(new.items()):
            vault.store(np.array([i]), [data])

    def _check_terms(self, sealed: Mapping[int, bytes], length: int | None) -> None:
        """Refuse ciphertexts that are damaged, under another key, sums already, or of another length."""
        assert self.rules.adder is not None
        bad: dict[int, str] = {}
        numbers: dict[int, int] = {}
        for i, data in sealed.items():
            try:
                term = self.rules.adder.load(data)
                numbers[i] = numbers_of(data)
                if term.terms != 1:
                    bad[i] = f"its ciphertext is a sum of {term.terms} terms, expected 1"
            except (SealError, ValueError) as problem:
                bad[i] = f"its ciphertext cannot be used: {problem}"
        good = [numbers[i] for i in sealed if i not in bad]
        expected = length or (Counter(good).most_common(1)[0][0] if good else 0)
        bad |= {
            i: f"its ciphertext holds {numbers[i]} numbers, expected {expected}"
            for i in sealed
            if i not in bad and numbers[i] != expected
        }
        if bad:
            raise InvalidContributions(bad)

    def _average(self, upload: Fields, arrays: Mapping[int, Arrays]) -> None:
        """Average trained models cluster by cluster, and store the results under their new names.

        Clients that were lost meanwhile are left out; a cluster that nobody trained keeps its model.
        """
        present = [(at, i) for at, i in enumerate(upload["clients"]) if i in arrays]
        trained = self._trained_models(present, arrays)
        for k in set(upload["rows"]):
            old = upload["previous"][k]
            self.models[upload["names"][k]] = self.models.get(old) or {"init": _initial_number(old)}
        if not present:
            return
        rows = np.array([upload["rows"][at] for at, _ in present], np.int64)
        clients = np.array([i for _, i in present], np.int64)
        blank = {key: np.zeros_like(trained[0][key]) for key in MODEL_ARRAYS}
        stored = [self.models.get(name, blank) for name in upload["previous"]]
        previous = stacked([blank if "init" in one else one for one in stored])
        weight = self.sizes[clients].astype(np.float64) if self.rules.weighting == "samples" else None
        averaged = average(previous, stacked(trained), rows, weight=weight, buffers=self.rules.buffers)
        result = averaged.to_arrays()
        for k in np.unique(rows).tolist():
            self.models[upload["names"][k]] = {key: result[key][k] for key in MODEL_ARRAYS}

    def _trained_models(
        self, present: Sequence[tuple[int, int]], arrays: Mapping[int, Arrays]
    ) -> list[Arrays]:
        """Read the trained models, in order; report all invalid ones at once."""
        found: list[Arrays] = []
        bad: dict[int, str] = {}
        for at, i in present:
            own = {key: arrays[i].get(f"{at}/{key}") for key in MODEL_ARRAYS}
            for key, array in own.items():
                if array is None:
                    bad[i] = "sent no trained model"
                elif array.ndim != 1 or array.dtype != np.float32:
                    bad[i] = f"its model's {key} are {array.dtype}{list(array.shape)}, expected float32 [n]"
                elif not np.isfinite(array).all():
                    bad[i] = (
                        "its model holds NaN or infinite weights: its training diverged; lower training.lr"
                    )
            found.append({key: array for key, array in own.items() if array is not None})
        expected = self._model_shape(
            [one for (_, i), one in zip(present, found, strict=True) if i not in bad]
        )
        for (_, i), one in zip(present, found, strict=True):
            if i not in bad and _shape(one) != expected:
                bad[i] = f"its model has {_shape(one)[0]} parameters, expected {expected[0]}: {SHAPE_HINT}"
        if bad:
            raise InvalidContributions(bad)
        return found

    def _model_shape(self, trained: Sequence[Arrays]) -> tuple[int, ...]:
        """Return how many parameters and buffers a model has: as many as before, or as most now have."""
        known = next((model for model in self.models.values() if "init" not in model), None)
        if known is not None:
            return _shape(known)
        return Counter(_shape(one) for one in trained).most_common(1)[0][0] if trained else (0, 0)

    def keep_models(self, names: Sequence[str]) -> None:
        """Delete all models but these."""
        self.models = {name: model for name, model in self.models.items() if name in names}

    def answer(self, question: Fields, arrays: Mapping[int, Arrays]) -> Message:
        """Answer a question that all nodes asked, from the arrays that they sent with it."""
        kind = question["kind"]
        if kind == "averaged":
            return Message({"kind": kind})
        if kind == "tell":
            return self._gather(question, arrays)
        if kind == "totals":
            vault = self._vault_for(question["sums"])
            clients, rows = (np.array(question[key], np.int64) for key in ("clients", "rows"))
            stored = vault.holds(clients) if len(clients) else np.zeros(0, bool)
            return _sums_message(kind, vault.totals(clients[stored], rows[stored]))
        if kind == "once":
            return self._add_once(question, arrays)
        if kind == "exchange":
            if missing_clients(question, arrays):  # a later sum over all clients would reveal the missing one
                return Message({"kind": kind})
            return self._add_once({**question, "rows": [0] * len(question["clients"]), "sums": 1}, arrays)
        raise RejectedMessage(f"nodes ask for '{kind}', which this server does not know")

    def _gather(self, question: Fields, arrays: Mapping[int, Arrays]) -> Message:
        """Collect the numbers that clients report."""
        width, below, clients = question["width"], question["below"], question["clients"]
        values = np.full((len(clients), width), np.nan)
        bad: dict[int, str] = {}
        for at, number in enumerate(clients):
            if number not in arrays:
                continue
            value = arrays[number].get("value")
            if value is None or value.shape != (width,) or value.dtype.kind not in "fi":
                bad[number] = f"reports something else than {width} numbers"
            elif below is not None and not (np.isfinite(value).all() and value[0] in range(below)):
                bad[number] = f"reports a cluster that does not exist, expected 0 to {below - 1}"
            else:
                values[at] = value
        if bad:
            raise InvalidContributions(bad)
        return Message({"kind": "tell"}, {"values": values})

    def _add_once(self, question: Fields, arrays: Mapping[int, Arrays]) -> Message:
        """Add ciphertexts that were made for this question, and keep none of them."""
        vault = self._vault_for(question["sums"])
        present = [
            (i, row) for i, row in zip(question["clients"], question["rows"], strict=True) if i in arrays
        ]
        missing = [i for i, _ in present if "sealed" not in arrays[i]]
        if missing:
            raise InvalidContributions(dict.fromkeys(missing, "sent no ciphertext"))
        sealed = {i: arrays[i]["sealed"].tobytes() for i, _ in present}
        self._check_terms(sealed, None)
        rows = np.array([row for _, row in present], np.int64)
        return _sums_message(question["kind"], vault.once([sealed[i] for i, _ in present], rows))

    def _vault_for(self, sums: int) -> Vault:
        if self.vault is None:
            self.vault = self._new_vault(sums, self._vault_state)
            self._vault_state, self._sums = {}, sums
        if sums != self._sums:
            raise RejectedMessage(f"nodes expect {sums} sums, the server has {self._sums}")
        return self.vault

    def _new_vault(self, sums: int, state: Arrays) -> Vault:
        if self.rules.adder is None:
            raise RejectedMessage("nodes send ciphertexts, but the scheme is secure aggregation")
        vault = Vault(self.rules.adder, self.rules.clients, sums, self.rules.least, self._ledger)
        if state:
            vault.restore(state)
        return vault

    def state(self) -> Arrays:
        """Return everything that a checkpoint needs."""
        arrays = with_prefix("vault", self._vault_state if self.vault is None else self.vault.state())
        for name, model in self.models.items():
            arrays |= with_prefix(f"model/{name}", model)
        return {**arrays, "sizes": self.sizes}

    def restore(self, arrays: Arrays) -> None:
        """Restore what `state` returned."""
        stored = Message({}, arrays)
        self.vault, self._vault_state = None, stored.section("vault")
        self.sizes = arrays["sizes"].astype(np.int64)
        names = {key.split("/")[1] for key in arrays if key.startswith("model/")}
        self.models = {name: stored.section(f"model/{name}") for name in names}
        if self._vault_state:
            self._vault_for(len(self._vault_state["changes"]))


def missing_clients(question: Fields, arrays: Mapping[int, Arrays]) -> list[int]:
    """List the clients of a question that sent nothing for it."""
    return [i for i in question["clients"] if i not in arrays]


def _shape(model: Arrays) -> tuple[int, ...]:
    return tuple(len(model[key]) for key in MODEL_ARRAYS)


def _initial_number(name: str) -> NDArray[np.int64]:
    """Parse the number of an initial model from its name; nodes create initial models themselves."""
    number = name.removeprefix("init.")
    if not number.isdigit():
        raise RejectedMessage(f"nodes train the model '{name}', which does not exist")
    return np.array(int(number[:9]))


def _sums_message(kind: str, sums: Sequence[bytes | None]) -> Message:
    found = {str(k): bytes_array(total) for k, total in enumerate(sums) if total is not None}
    return Message({"kind": kind}, found)
