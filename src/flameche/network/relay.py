"""What the server does with what nodes send: it passes numbers on, adds sealed terms, averages models.

It has an `Adder` and no key. Whatever does not fit, from whomever, is `Garbage` with a name on it.
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
from flameche.network.parcel import Arrays, Parcel, Refused, from_bytes, prefixed
from flameche.protocol.ledger import Ledger
from flameche.protocol.vault import Vault
from flameche.training.models import Buffers, average, stacked

Ints = NDArray[np.int64]
About = dict[str, Any]
MODEL = ("params", "buffers")
ALIKE = "have all nodes images of one shape, and the same classes?"


class Garbage(Refused):
    """What some nodes sent cannot be used; why, by their numbers."""

    def __init__(self, nodes: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"node {number}: {why}" for number, why in nodes.items()))
        self.nodes = dict(nodes)


@dataclass(frozen=True)
class Rules:
    """How sums and averages are formed, as the experiment says."""

    clients: int
    least: int  # clients in a sum that leaves the server
    adder: Adder | None  # None under secure aggregation, which has no stored terms
    weighting: Literal["uniform", "samples"] = "uniform"
    buffers: Buffers = "mean"


class Relay:
    """Sealed terms, models by name, and nothing that could open anything."""

    def __init__(self, rules: Rules, ledger: Ledger) -> None:
        self.rules, self._ledger = rules, ledger
        self.vault: Vault | None = None
        self._sums = 0  # in it
        self._loaded: Arrays = {}  # of a checkpoint, until the number of sums is known
        self.models: dict[str, Arrays] = {}
        self.sizes = np.zeros(rules.clients, np.int64)  # of the nodes' training sets
        self.length: int | None = None  # of a client's term, once the shape of metadata is known

    def holds(self, number: int) -> bool:
        """Tell whether a client's sealed metadata are here."""
        return self.vault is not None and bool(self.vault.holds(np.array([number]))[0])

    def take(self, gives: Sequence[About], parts: Mapping[int, Sequence[Arrays]]) -> None:
        """Take what the nodes gave, in order: `gives` is what all say, `parts` each node's own of it."""
        for at, about in enumerate(gives):
            mine = {number: given[at] for number, given in parts.items()}
            kind = about["kind"]
            if kind == "average":
                self._average(about, mine)
            elif kind in ("store", "drop"):
                self._keep(kind, about, mine)
            else:
                raise Refused(f"nodes give '{kind}', which this server does not know")

    def _keep(self, kind: str, about: About, parts: Mapping[int, Arrays]) -> None:
        vault = self._vault_for(about["sums"])
        if kind == "drop":
            vault.drop(np.array(about["clients"], np.int64))
        else:
            sent = {i: part for i, part in parts.items() if i in about["clients"]}
            bare = [i for i, part in sent.items() if "sealed" not in part and not self.holds(i)]
            if bare:
                raise Garbage(dict.fromkeys(bare, "sent no metadata, and there are none of it here"))
            new = {i: part["sealed"].tobytes() for i, part in sent.items() if "sealed" in part}
            self._check_terms(new, self.length)
            for i, data in sorted(new.items()):
                vault.store(np.array([i]), [data])

    def _check_terms(self, sealed: Mapping[int, bytes], length: int | None) -> None:
        """Refuse terms that are damaged, of another key, of several clients, or of another length."""
        assert self.rules.adder is not None
        bad: dict[int, str] = {}
        numbers: dict[int, int] = {}
        for i, data in sealed.items():
            try:
                term = self.rules.adder.load(data)
                numbers[i] = numbers_of(data)
                if term.terms != 1:
                    bad[i] = f"its term is a sum of {term.terms}, expected its own"
            except (SealError, ValueError) as problem:
                bad[i] = f"its sealed term cannot be used: {problem}"
        good = [numbers[i] for i in sealed if i not in bad]
        usual = length or (Counter(good).most_common(1)[0][0] if good else 0)
        bad |= {
            i: f"its sealed term holds {numbers[i]} numbers, expected {usual}"
            for i in sealed
            if i not in bad and numbers[i] != usual
        }
        if bad:
            raise Garbage(bad)

    def _average(self, about: About, parts: Mapping[int, Arrays]) -> None:
        """Average what was trained, row by row, and keep the models under their new names.

        Who was lost meanwhile is left out; a row that nobody trained keeps its model.
        """
        there = [(at, i) for at, i in enumerate(about["clients"]) if i in parts]
        trained = self._trained(there, parts)
        for k in set(about["rows"]):
            old = about["previous"][k]
            self.models[about["names"][k]] = self.models.get(old) or {"init": _init_number(old)}
        if not there:
            return
        rows = np.array([about["rows"][at] for at, _ in there], np.int64)
        clients = np.array([i for _, i in there], np.int64)
        blank = {key: np.zeros_like(trained[0][key]) for key in MODEL}
        known = [self.models.get(name, blank) for name in about["previous"]]
        previous = stacked([blank if "init" in one else one for one in known])
        weight = self.sizes[clients].astype(np.float64) if self.rules.weighting == "samples" else None
        made = average(previous, stacked(trained), rows, weight=weight, buffers=self.rules.buffers)
        arrays = made.to_arrays()
        for k in np.unique(rows).tolist():
            self.models[about["names"][k]] = {key: arrays[key][k] for key in MODEL}

    def _trained(self, there: Sequence[tuple[int, int]], parts: Mapping[int, Arrays]) -> list[Arrays]:
        """Read the trained models, in order; all that cannot be used are told at once."""
        found: list[Arrays] = []
        bad: dict[int, str] = {}
        for at, i in there:
            own = {key: parts[i].get(f"{at}/{key}") for key in MODEL}
            for key, array in own.items():
                if array is None:
                    bad[i] = "sent no trained model"
                elif array.ndim != 1 or array.dtype != np.float32:
                    bad[i] = (
                        f"its model's {key} are {array.dtype}{list(array.shape)}, expected float32 in a row"
                    )
                elif not np.isfinite(array).all():
                    bad[i] = (
                        "its model holds NaN or infinite weights: its training diverged; lower training.lr"
                    )
            found.append({key: array for key, array in own.items() if array is not None})
        usual = self._usual_shape([one for (_, i), one in zip(there, found, strict=True) if i not in bad])
        for (_, i), one in zip(there, found, strict=True):
            if i not in bad and _shape(one) != usual:
                bad[i] = f"its model has {_shape(one)[0]} parameters, expected {usual[0]}: {ALIKE}"
        if bad:
            raise Garbage(bad)
        return found

    def _usual_shape(self, trained: Sequence[Arrays]) -> tuple[int, ...]:
        """Tell how many parameters and buffers a model has: as many as before, or as most have."""
        known = next((model for model in self.models.values() if "init" not in model), None)
        if known is not None:
            return _shape(known)
        return Counter(_shape(one) for one in trained).most_common(1)[0][0] if trained else (0, 0)

    def forget_models(self, names: Sequence[str]) -> None:
        """Keep only the models that are still in use."""
        self.models = {name: model for name, model in self.models.items() if name in names}

    def answer(self, question: About, parts: Mapping[int, Arrays]) -> Parcel:
        """Answer a question of all nodes, from the parts that came."""
        kind = question["kind"]
        if kind == "averaged":
            return Parcel({"kind": kind})
        if kind == "tell":
            return self._told(question, parts)
        if kind == "totals":
            vault = self._vault_for(question["sums"])
            clients, rows = (np.array(question[key], np.int64) for key in ("clients", "rows"))
            here = vault.holds(clients) if len(clients) else np.zeros(0, bool)
            return _sums(kind, vault.totals(clients[here], rows[here]))
        if kind == "once":
            return self._once(question, parts)
        if kind == "exchange":
            if lacking(question, parts):  # a later sum over all would show who is missing in this one
                return Parcel({"kind": kind})
            return self._once({**question, "rows": [0] * len(question["clients"]), "sums": 1}, parts)
        raise Refused(f"nodes ask for '{kind}', which this server does not know")

    def _told(self, question: About, parts: Mapping[int, Arrays]) -> Parcel:
        width, below, clients = question["width"], question["below"], question["clients"]
        values = np.full((len(clients), width), np.nan)
        bad: dict[int, str] = {}
        for at, number in enumerate(clients):
            if number not in parts:
                continue
            value = parts[number].get("value")
            if value is None or value.shape != (width,) or value.dtype.kind not in "fi":
                bad[number] = f"tells something else than {width} numbers"
            elif below is not None and not (np.isfinite(value).all() and value[0] in range(below)):
                bad[number] = f"tells a cluster that there is not, expected 0 to {below - 1}"
            else:
                values[at] = value
        if bad:
            raise Garbage(bad)
        return Parcel({"kind": "tell"}, {"values": values})

    def _once(self, question: About, parts: Mapping[int, Arrays]) -> Parcel:
        vault = self._vault_for(question["sums"])
        there = [(i, row) for i, row in zip(question["clients"], question["rows"], strict=True) if i in parts]
        bare = [i for i, _ in there if "sealed" not in parts[i]]
        if bare:
            raise Garbage(dict.fromkeys(bare, "sent no sealed term"))
        sealed = {i: parts[i]["sealed"].tobytes() for i, _ in there}
        self._check_terms(sealed, None)
        rows = np.array([row for _, row in there], np.int64)
        return _sums(question["kind"], vault.once([sealed[i] for i, _ in there], rows))

    def _vault_for(self, sums: int) -> Vault:
        if self.vault is None:
            self.vault = self._new_vault(sums, self._loaded)
            self._loaded, self._sums = {}, sums
        if sums != self._sums:
            raise Refused(f"nodes speak of {sums} sums, there are {self._sums}")
        return self.vault

    def _new_vault(self, sums: int, state: Arrays) -> Vault:
        if self.rules.adder is None:
            raise Refused("nodes send sealed terms, but the scheme is secure aggregation")
        vault = Vault(self.rules.adder, self.rules.clients, sums, self.rules.least, self._ledger)
        if state:
            vault.restore(state)
        return vault

    def state(self) -> Arrays:
        """Give everything, for a checkpoint."""
        arrays = prefixed("vault", self._loaded if self.vault is None else self.vault.state())
        for name, model in self.models.items():
            arrays |= prefixed(f"model/{name}", model)
        return {**arrays, "sizes": self.sizes}

    def restore(self, arrays: Arrays) -> None:
        """Take back what `state` gave."""
        whole = Parcel({}, arrays)
        self.vault, self._loaded, self.sizes = None, whole.part("vault"), arrays["sizes"].astype(np.int64)
        names = {key.split("/")[1] for key in arrays if key.startswith("model/")}
        self.models = {name: whole.part(f"model/{name}") for name in names}
        if self._loaded:
            self._vault_for(len(self._loaded["changes"]))


def lacking(question: About, parts: Mapping[int, Arrays]) -> list[int]:
    """List the clients of a question that have no part in its answer."""
    return [i for i in question["clients"] if i not in parts]


def _shape(model: Arrays) -> tuple[int, ...]:
    return tuple(len(model[key]) for key in MODEL)


def _init_number(name: str) -> NDArray[np.int64]:
    """Tell which of the initial models a name means; nodes make these themselves."""
    number = name.removeprefix("init.")
    if not number.isdigit():
        raise Refused(f"nodes train the model '{name}', which there is not")
    return np.array(int(number[:9]))


def _sums(kind: str, sums: Sequence[bytes | None]) -> Parcel:
    found = {str(k): from_bytes(total) for k, total in enumerate(sums) if total is not None}
    return Parcel({"kind": kind}, found)
