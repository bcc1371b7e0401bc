"""A whole deployment on this machine: keys, certificates, a SuperLink, nodes, one run of an app."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.crypto.keyfile import PUBLIC, SECRET, read_info, write_public, write_secret
from flameche.crypto.registry import keyed_schemes, make_scheme
from flameche.errors import BadInput, ConfigError, FlamecheError
from flameche.experiments.config import Experiment, config_hash, load_experiment
from flameche.flower.certificates import Certificates, make_certificates, make_node_key
from flameche.flower.fleet import HOST, MARK, Fleet
from flameche.flower.processes import last_words
from flameche.flower.settings import has_own_data
from flameche.flower.template import DEALT, PYPROJECT


@dataclass(frozen=True)
class Local:
    """What is to be played here: an app, by so many nodes, with everything under one folder."""

    app: Path
    folder: Path
    out: Path
    nodes: int
    seed: int = 0
    tls: bool = False
    overrides: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()  # more of the app's own
    data: Path | None = None  # a folder with an npz, or a folder, for each node

    @property
    def config(self) -> dict[str, Any]:
        """Read the app's own settings."""
        file = self.app / "pyproject.toml"
        try:
            app = tomllib.loads(file.read_text())["tool"]["flwr"]["app"]
            config: dict[str, Any] = app["config"]
        except (OSError, KeyError, ValueError) as problem:
            raise BadInput(f"{file}: not a Flower app; `flameche deploy init DIR` writes one") from problem
        return config

    @property
    def changes(self) -> list[str]:
        """List what is changed of the experiment: the app's own changes, these, and the number of nodes."""
        return [*self._described, f"data.clients={self.nodes}"]

    @property
    def _described(self) -> list[str]:
        return [*str(self.config.get("set", "")).split(), *self.overrides]

    def data_of(self, number: int) -> dict[str, str]:
        """Find a node's own data."""
        if self.data is None:
            return {}
        for path in (self.data / f"{number}.npz", self.data / str(number)):
            if path.exists():
                return {"data": str(path.resolve())}
        raise BadInput(f"{self.data} holds neither {number}.npz nor a folder {number}, for node {number}")

    @property
    def experiment(self) -> Experiment:
        """Read the experiment that will be played."""
        return self._read(self.changes)

    @property
    def described(self) -> Experiment:
        """Read the experiment as its file describes it, for as many clients as that says."""
        return self._read(self._described)

    def _read(self, changes: list[str]) -> Experiment:
        return load_experiment(self.app / str(self.config.get("experiment", "experiment.toml")), changes)


DIGITS = """\
# The embedded digits, dealt to nodes in two hidden groups: the second one swaps labels.
name = "flower-digits"
rounds = 3
participation = 1.0

[data]
dataset = "digits"
clients = 6
groups = 2
per_label = 8
heterogeneity = "csl"

[training]
epochs = 2
batch = 16

[method]
clusters = 2

[scheme]
kind = "bfv"             # server and nodes need a key: flameche keys new
"""


def digits_app(folder: Path) -> Path:
    """Write an app that plays the embedded digits, dealt to nodes in two hidden groups."""
    folder.mkdir(parents=True, exist_ok=True)
    told = PYPROJECT.format(
        name="flower-app", publisher="flameche", what="the embedded digits", data=DEALT, classes='""'
    )
    (folder / "pyproject.toml").write_text(told)
    (folder / "experiment.toml").write_text(DIGITS)
    return folder


def run_of(app: Path, overrides: Sequence[str]) -> str:
    """Name the run that an app plays, as nodes know it."""
    plan = Local(app, app, app, 0)
    changes = [*str(plan.config.get("set", "")).split(), *overrides]
    from flameche.experiments.deployment import run_id

    experiment = load_experiment(app / str(plan.config.get("experiment", "experiment.toml")), changes)
    return run_id(experiment, int(plan.config.get("seed", 0)))


def play(plan: Local, say: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
    """Start everything, run the app, end everything; return the run's summary and folder."""
    experiment = plan.experiment
    if (described := plan.described.data.clients) != plan.nodes:
        say(f"{plan.nodes} nodes play (--nodes), not the {described} clients of data.clients")
    if any(" " in change for change in plan.changes):
        raise ConfigError("--set: a value with spaces cannot be told to nodes; write it into the experiment")
    has_own_data({**plan.config, **dict(plan.settings)})
    sites = [plan.data_of(number) for number in range(plan.nodes)]
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tls = certificates(plan.folder / "tls") if plan.tls else None
    say("starting Flower")
    with Fleet(plan.folder.resolve(), plan.nodes, tls) as fleet:
        # Imported only now, while the warm process does so too: it takes seconds.
        from flameche.experiments.deployment import check_deployable
        from flameche.experiments.run_folder import read_json, run_path

        check_deployable(experiment)
        keys = make_keys(experiment, plan.folder / "keys")
        fleet.start_link()
        say(f"starting {plan.nodes} nodes")
        for number in range(plan.nodes):
            start_node(fleet, number, keys, **sites[number])
        _run(fleet, plan, keys, say)
    folder = run_path(plan.out, experiment.name, config_hash(experiment), plan.seed)
    return read_json(folder / "summary.json"), folder


def start_node(fleet: Fleet, number: int, keys: Path | None, **settings: Any) -> None:
    """Start a node with a folder of its own, its copy of the clients' key, and a registered identity."""
    folder = fleet.folder / f"site-{number}"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    own: dict[str, Any] = {"partition-id": number, "folder": str(folder / "state"), **settings}
    if keys is not None:
        copied = folder / SECRET
        copied.unlink(missing_ok=True)  # of another scheme, or replaced meanwhile
        shutil.copy2(keys / SECRET, copied)
        own["key"] = str(copied)
    identity = None
    if fleet.certificates is not None:
        identity = folder / "node.key"
        if not identity.exists():
            make_node_key(folder, identity.name)
        with suppress(FlamecheError):  # registered earlier
            fleet.register(folder / "node.key.pub")
    fleet.start_node(number, own, identity)


def make_keys(experiment: Experiment, folder: Path) -> Path | None:
    """Make the key that the experiment's scheme needs, unless it is there; None where none is needed."""
    from flameche.experiments.protection import has_metadata

    how, clients = experiment.scheme, experiment.data.clients
    if how.kind not in keyed_schemes() or not has_metadata(experiment):
        return None
    own = folder / how.kind
    if (own / PUBLIC).exists():
        if read_info(own / PUBLIC).clients < clients:
            raise BadInput(f"{own} holds a key for fewer than {clients} clients; remove it to make another")
        return own
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    scheme = make_scheme(how.kind, clients=clients, bound=how.bound, key_bits=how.key_bits)
    write_secret(own / SECRET, scheme)
    write_public(own / PUBLIC, scheme)
    return own


def certificates(folder: Path) -> Certificates:
    """Make certificates for this machine alone, unless they are there."""
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    return made if made.key.exists() else make_certificates(folder, [HOST])


def _run(fleet: Fleet, plan: Local, keys: Path | None, say: Callable[[str], None]) -> None:
    settings = {
        "set": " ".join(plan.changes),
        "seed": plan.seed,
        "out": str(plan.out.resolve()),
        "key": "" if keys is None else str((keys / PUBLIC).resolve()),
        "patience": 120 + 3 * plan.nodes,  # many nodes take their time to start
        **dict(plan.settings),
    }
    said = ""
    for line in fleet.run(plan.app.resolve(), settings):
        if MARK in line:
            said = line.partition(MARK)[2]
            say(said)
    ended = fleet.processes.ended
    if fleet.link is None or fleet.link.poll() is not None:
        fleet.processes.check()
    done = (runs := fleet.runs()) and runs[0]["status"] == "finished:completed"
    for problem in ended:  # a run goes on without them
        say(problem)
    if not done:
        raise FlamecheError(f"the run failed: {said or last_words(fleet.link_log)}; see {fleet.link_log}")
