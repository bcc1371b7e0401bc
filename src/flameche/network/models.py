"""Models by name on a node: initial ones are made there, others come with a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from flameche.network.parcel import Parcel, Refused
from flameche.network.relay import ALIKE, MODEL
from flameche.network.replica import Fetch
from flameche.training.models import Models, stacked
from flameche.training.trainer import Trainer


class Missing(Exception):
    """Models that have to be fetched first."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(*names)
        self.names = list(dict.fromkeys(names))


def fetcher(parcel: Parcel, trainer: Callable[[], Trainer]) -> Fetch:
    """Give a way to models by name: those of a message, and those that every node makes for itself."""

    def fetch(names: Sequence[str]) -> Models:
        sent = {name: parcel.part(f"model/{name}") for name in names if not name.startswith("init.")}
        if lacking := [name for name, found in sent.items() if not found]:
            raise Missing(lacking)
        usual = trainer().initial(0)
        size = [usual.params.shape[1], usual.buffers.shape[1]]
        rows = []
        for name in names:
            own = sent.get(name, {})
            if "params" in own:
                if [own[key].size for key in MODEL if key in own] != size:
                    raise Refused(f"model {name} does not have the size of this node's: {ALIKE}")
                rows.append({key: own[key] for key in MODEL})
            else:  # nobody has trained it yet
                number = int(own["init"]) if own else int(name.removeprefix("init."))
                first = trainer().initial(number)
                rows.append({key: array[0] for key, array in first.to_arrays().items()})
        return stacked(rows)

    return fetch
