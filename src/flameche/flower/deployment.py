"""Flower's programs as child processes: one site's node, or a whole deployment on this machine."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.crypto.keyfile import PUBLIC, SECRET, read_info, write_public, write_secret
from flameche.crypto.registry import make_scheme
from flameche.errors import BadInput, ConfigError, FlamecheError
from flameche.experiments.config import Experiment, config_hash, load_experiment
from flameche.flower._fast.fork_server import SOCKET_FILE, fork_server_command, write_launchers
from flameche.flower.app_allowlist import ALLOWED_APPS, app_hash
from flameche.flower.certificates import Certificates, make_certificates, make_node_key
from flameche.flower.processes import ChildProcesses, Program, free_ports, last_line
from flameche.flower.settings import has_own_data
from flameche.registry import SCHEMES

HOST = "127.0.0.1"
LOG_PREFIX = "flameche: "  # of every line that our server app logs, in the output of `flwr run`
CONNECTION = "local"  # the SuperLink's name in Flower's configuration
# Without the last, the lines of a run would stay in a buffer until it is full.
FLOWER_ENV = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds between polls for tasks; Flower's default is 1
NODE_POLL_INTERVAL = "0.25"
START_TIMEOUT = 600.0  # seconds; a busy machine may need them, and a program that ended is noticed at once
FORGET_TIME = 75.0  # seconds after which a SuperLink has forgotten a node that was killed
FAILED_START, RETRY_PAUSE = 20.0, 10.0  # seconds: a node that ends earlier never started; until the next try
NODE_REFUSED = (
    "the SuperLink does not accept this node: is its node.key.pub registered there, "
    "and no other node running with the same key?"
)


def _toml(settings: Mapping[str, Any]) -> str:
    lines = (f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
    return "".join(lines)


def _node_tls(root_certificates: Path | None, identity: Path | None) -> list[str | Path]:
    """Return a SuperNode's options for TLS and for its identity."""
    options: list[str | Path] = ["--insecure"]
    if root_certificates is not None:
        options = ["--root-certificates", root_certificates]
    return options if identity is None else [*options, "--auth-supernode-private-key", identity]


def wait_for(
    condition: Callable[[], bool], processes: ChildProcesses, problem: str, timeout: float = START_TIMEOUT
) -> None:
    """Wait for a condition; raise FlamecheError after a timeout, or at once if a program ended."""
    end = time.monotonic() + timeout
    while not condition():
        processes.check()
        if time.monotonic() > end:
            raise FlamecheError(f"{problem} after {timeout:g} s")
        time.sleep(0.05)


@dataclass(frozen=True)
class SiteNode:
    """A site's node in the foreground: Flower's SuperNode with a fork server, perhaps limited to one app."""

    superlink: str
    folder: Path
    settings: Mapping[str, Any]
    root_certificates: Path | None = None  # who signed the SuperLink's certificate; None: without TLS
    identity: Path | None = None
    app: Path | None = None  # the only app that it runs
    log: Callable[[str], None] = print

    def run(self) -> int:
        """Run the node until it ends; return its exit code."""
        for file in (self.root_certificates, self.identity):
            if file is not None and not file.is_file():
                raise BadInput(f"{file}: no such file")
        allowed = {ALLOWED_APPS: "" if self.app is None else app_hash(self.app)}
        folder = self.folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config, programs = folder / "node.toml", folder / "programs"
        config.write_text(_toml({**self.settings, "folder": str(folder / "state")}))
        with ChildProcesses() as processes:
            found = write_launchers(programs)
            env = {
                "FLWR_HOME": str(folder / "flower"), POLL_INTERVAL: NODE_POLL_INTERVAL, **allowed, **found
            }  # fmt: skip
            processes.start("the fork server", fork_server_command(programs), programs / "log", env)
            wait_for((programs / SOCKET_FILE).exists, processes, "the fork server is not ready")
            command = [programs / "flower-supernode", *_node_tls(self.root_certificates, self.identity)]
            command += ["--superlink", self.superlink, "--port", str(free_ports(1)[0])]
            return self._run_until_accepted(processes, [*command, "--node-config", config], env)

    def _run_until_accepted(
        self, processes: ChildProcesses, command: list[str | Path], env: Mapping[str, str]
    ) -> int:
        """Run the node; try again while a SuperLink still lists it as online after it was killed."""
        end = time.monotonic() + FORGET_TIME
        while True:
            started = time.monotonic()
            node = processes.start("the node", command, None, env)
            code = node.wait()
            processes.stop([node])
            if code != 1 or time.monotonic() - started > FAILED_START:
                return code
            if time.monotonic() + RETRY_PAUSE > end:
                raise FlamecheError(NODE_REFUSED)
            left = end - time.monotonic()
            self.log(f"the SuperLink does not accept this node; trying for {left:.0f} s more")
            time.sleep(RETRY_PAUSE)


@dataclass
class LocalNode:
    """A node that runs on this machine, and its folder."""

    number: int
    folder: Path
    program: Program


class LocalNetwork:
    """A SuperLink and its nodes, all on this machine; use it in a `with` statement."""

    def __init__(
        self, folder: Path, nodes: int, certificates: Certificates | None = None, forked: bool = True
    ) -> None:
        self.folder, self.certificates = folder, certificates
        self._poll_interval = min(max(0.02 * nodes, 0.1), 1.0)  # many nodes that poll often slow the others
        self.processes = ChildProcesses()
        self.port = free_ports(1)[0]
        self.nodes: dict[int, LocalNode] = {}
        self.superlink: Program | None = None
        self._programs = folder / "programs"
        self._launcher_env = self._start_fork_server() if forked else {}

    def start_superlink(self) -> None:
        """Start the SuperLink and wait until it responds."""
        if self._launcher_env:
            wait_for((self._programs / SOCKET_FILE).exists, self.processes, "the fork server is not ready")
        tls = self.certificates
        options: list[str | Path] = ["--insecure"]
        if tls is not None:
            options = ["--ssl-ca-certfile", tls.ca, "--ssl-certfile", tls.certificate]
            options += ["--ssl-keyfile", tls.key, "--enable-supernode-auth"]
        self._write_connection()
        self.superlink = self.processes.start(
            "the SuperLink",
            [
                *(self._program("flower-superlink"), *options, "--host", HOST, "--port", str(self.port)),
                "--disable-runtime-dependency-installation",
            ],
            self.superlink_log,
            self._env("server"),
        )
        wait_for(self._responds, self.processes, "the SuperLink does not respond")

    def start_site(self, number: int, keys: Path | None = None, **settings: Any) -> LocalNode:
        """Start a node with its own state, a copy of the clients' key, and a registered identity."""
        folder = self.folder / f"site-{number}"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own: dict[str, Any] = {"partition-id": number, "folder": str(folder / "state"), **settings}
        if keys is not None:
            copied = folder / SECRET
            copied.unlink(missing_ok=True)  # it may be of another scheme, or out of date
            shutil.copy2(keys / SECRET, copied)
            own["key"] = str(copied)
        identity = None
        if self.certificates is not None:
            identity = folder / "node.key"
            if not identity.exists():
                make_node_key(folder, identity.name)
            with suppress(FlamecheError):  # it was registered earlier
                self.register(folder / "node.key.pub")
        return self.start_node(number, own, identity)

    def start_node(self, number: int, settings: Mapping[str, Any], identity: Path | None = None) -> LocalNode:
        """Start a node with these settings; `identity` is its private key, which must be registered."""
        folder = self.folder / f"site-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "node.toml"
        config.write_text(_toml(settings))
        root_certificates = None if self.certificates is None else self.certificates.ca
        program = self.processes.start(
            f"node {number}",
            [
                *(self._program("flower-supernode"), *_node_tls(root_certificates, identity)),
                *("--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_ports(1)[0])),
                *("--node-config", config),
            ],
            folder / "node.log",
            self._env(folder.name),
        )
        self.nodes[number] = LocalNode(number, folder, program)
        return self.nodes[number]

    def register(self, public: Path) -> None:
        """Register a node's public key at the SuperLink."""
        self._flwr("supernode", "register", str(public), CONNECTION)

    def unregister(self, node: int) -> None:
        """Remove a node, by Flower's id, from the SuperLink for good."""
        self._flwr("supernode", "unregister", str(node), CONNECTION)

    def run(self, app: Path, settings: Mapping[str, Any]) -> Iterator[str]:
        """Run an app; yield the lines that its server prints, until it ends."""
        config = self.folder / "server" / "run.toml"
        config.write_text(_toml(settings))
        command: list[str | Path] = [
            self._program("flwr"),
            "run",
            app,
            CONNECTION,
            "--stream",
            "--run-config",
            config,
        ]
        return self.processes.stream("`flwr run`", command, self._env("server"))

    def runs(self) -> list[dict[str, Any]]:
        """List the runs that the SuperLink knows, in Flower's format."""
        runs: list[dict[str, Any]] = json.loads(self._flwr("list", CONNECTION, "--format", "json"))["runs"]
        return runs

    def online(self) -> int:
        """Count the nodes that are connected to the SuperLink."""
        nodes = json.loads(self._flwr("supernode", "list", CONNECTION, "--format", "json"))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    @property
    def superlink_log(self) -> Path:
        """Return the log of the SuperLink and the server app."""
        return self.folder / "server" / "superlink.log"

    def close(self) -> None:
        """Stop everything, nodes first, so that they can sign off."""
        try:
            self.processes.stop([node.program for node in self.nodes.values()])
        finally:
            self.processes.close()

    def __enter__(self) -> LocalNetwork:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_fork_server(self) -> dict[str, str]:
        """Start the fork server without waiting for it; return the environment in which it is found."""
        found = write_launchers(self._programs)
        command = fork_server_command(self._programs)
        self.processes.start("the fork server", command, self._programs / "log", FLOWER_ENV)
        return found

    def _env(self, name: str) -> dict[str, str]:
        """Give each process a Flower home of its own: two nodes that unpack an app into one folder race."""
        home = self.folder / name / "flower"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        env = {**FLOWER_ENV, POLL_INTERVAL: str(self._poll_interval), "NO_PROXY": HOST, "no_proxy": HOST}
        return {**env, "PATH": path, **self._launcher_env, "FLWR_HOME": str(home)}

    def _program(self, name: str) -> str:
        """Find one of Flower's programs: its launcher, or the program beside this Python."""
        launcher = self._programs / name
        return str(launcher if launcher.exists() else Path(sys.executable).parent / name)

    def _write_connection(self) -> None:
        home = self.folder / "server" / "flower"
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true"
        if self.certificates is not None:
            trust = f"root-certificates = {json.dumps(str(self.certificates.ca))}"
        named = f'[superlink.{CONNECTION}]\naddress = "{HOST}:{self.port}"\n{trust}\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{CONNECTION}"\n\n{named}')

    def _flwr(self, *words: str) -> str:
        done = subprocess.run(
            [self._program("flwr"), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **self._env("server")},
            check=False,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            raise FlamecheError(f"`flwr {words[0]}` failed: {lines[-1] if lines else 'it printed nothing'}")
        return done.stdout

    def _responds(self) -> bool:
        context = None
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self.certificates.ca))
        scheme = "http" if context is None else "https"
        try:
            handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
            opener = urllib.request.build_opener(*handlers)
            with opener.open(f"{scheme}://{HOST}:{self.port}/health", timeout=2) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@dataclass(frozen=True)
class LocalRun:
    """A run of an app on this machine, with a number of nodes and all files under one folder."""

    app: Path
    folder: Path
    out: Path
    nodes: int
    seed: int = 0
    tls: bool = False
    overrides: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()  # added to the app's own
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
        """List all changes to the experiment: the app's own, this run's, and the number of nodes."""
        return [*self._own_changes, f"data.clients={self.nodes}"]

    @property
    def _own_changes(self) -> list[str]:
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
        """Read the experiment with all changes."""
        return self._read(self.changes)

    @property
    def described(self) -> Experiment:
        """Read the experiment as its file describes it, with the number of clients that it has there."""
        return self._read(self._own_changes)

    def _read(self, changes: list[str]) -> Experiment:
        return load_experiment(self.app / str(self.config.get("experiment", "experiment.toml")), changes)


def run_id_of_app(app: Path, overrides: Sequence[str]) -> str:
    """Return the identifier by which nodes know the run of an app."""
    plan = LocalRun(app, app, app, 0)
    changes = [*str(plan.config.get("set", "")).split(), *overrides]
    from flameche.experiments.deployment import run_id

    experiment = load_experiment(app / str(plan.config.get("experiment", "experiment.toml")), changes)
    return run_id(experiment, int(plan.config.get("seed", 0)))


def run_locally(plan: LocalRun, log: Callable[[str], None]) -> tuple[dict[str, Any], Path]:
    """Start all programs, run the app, stop all programs; return the run's summary and folder."""
    experiment = plan.experiment
    if (described := plan.described.data.clients) != plan.nodes:
        log(f"{plan.nodes} nodes take part (--nodes), not the {described} clients of data.clients")
    if any(" " in change for change in plan.changes):
        raise ConfigError("--set: a value with spaces cannot be sent to nodes; write it into the experiment")
    has_own_data({**plan.config, **dict(plan.settings)})
    data = [plan.data_of(number) for number in range(plan.nodes)]
    plan.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    tls = ensure_certificates(plan.folder / "tls") if plan.tls else None
    log("starting Flower")
    with LocalNetwork(plan.folder.resolve(), plan.nodes, tls) as network:
        # Imported only now, while the fork server does the same: it takes seconds.
        from flameche.experiments.deployment import check_deployable
        from flameche.experiments.run_folder import read_json, run_path

        check_deployable(experiment)
        keys = make_keys(experiment, plan.folder / "keys")
        network.start_superlink()
        log(f"starting {plan.nodes} nodes")
        for number in range(plan.nodes):
            network.start_site(number, keys, **data[number])
        _run_app(network, plan, keys, log)
    folder = run_path(plan.out, experiment.name, config_hash(experiment), plan.seed)
    return read_json(folder / "summary.json"), folder


def make_keys(experiment: Experiment, folder: Path) -> Path | None:
    """Make the key that the experiment's scheme needs, unless it exists; None if it needs none."""
    from flameche.experiments.protection import has_metadata

    scheme, clients = experiment.scheme, experiment.data.clients
    if not SCHEMES[scheme.kind].keyed or not has_metadata(experiment):
        return None
    own = folder / scheme.kind
    if (own / PUBLIC).exists():
        if read_info(own / PUBLIC).clients < clients:
            raise BadInput(f"{own} holds a key for fewer than {clients} clients; remove it to make another")
        return own
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    made = make_scheme(scheme.kind, clients=clients, bound=scheme.bound, key_bits=scheme.key_bits)
    write_secret(own / SECRET, made)
    write_public(own / PUBLIC, made)
    return own


def ensure_certificates(folder: Path) -> Certificates:
    """Make certificates for this machine, unless they exist."""
    existing = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    return existing if existing.key.exists() else make_certificates(folder, [HOST])


def _run_app(network: LocalNetwork, plan: LocalRun, keys: Path | None, log: Callable[[str], None]) -> None:
    settings = {
        "set": " ".join(plan.changes),
        "seed": plan.seed,
        "out": str(plan.out.resolve()),
        "key": "" if keys is None else str((keys / PUBLIC).resolve()),
        "patience": 120 + 3 * plan.nodes,  # many nodes take long to start
        **dict(plan.settings),
    }
    last = ""
    for line in network.run(plan.app.resolve(), settings):
        if LOG_PREFIX in line:
            last = line.partition(LOG_PREFIX)[2]
            log(last)
    ended = network.processes.ended
    if network.superlink is None or network.superlink.poll() is not None:
        network.processes.check()
    completed = (runs := network.runs()) and runs[0]["status"] == "finished:completed"
    for problem in ended:  # a run continues without these nodes
        log(problem)
    if not completed:
        reason = last or last_line(network.superlink_log)
        raise FlamecheError(f"the run failed: {reason}; see {network.superlink_log}")
