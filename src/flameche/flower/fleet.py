"""A SuperLink and SuperNodes on this machine: started, registered, given apps to run, ended."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.errors import FlamecheError
from flameche.flower.certificates import Certificates
from flameche.flower.processes import Processes, Program, free_ports
from flameche.flower.warm import SOCKET_FILE, command, write_stand_ins

HOST = "127.0.0.1"
MARK = "flameche: "  # opens every line of our server app in what `flwr run` streams
NAME = "local"  # of the SuperLink, for `flwr run`
# Without the last, lines of a run that is followed would wait in a buffer until it is full.
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONUNBUFFERED": "1"}
POLL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds between looks for tasks; Flower's default is 1
PATIENCE = 600.0  # seconds for a start, which a busy machine may need; a program that ended is seen at once


@dataclass
class Site:
    """A node that runs here, and its folder."""

    number: int
    folder: Path
    program: Program


class Fleet:
    """A SuperLink and its nodes, all on this machine; use it in a `with` statement."""

    def __init__(
        self, folder: Path, nodes: int, certificates: Certificates | None = None, warm: bool = True
    ) -> None:
        self.folder, self.certificates = folder, certificates
        self._poll = min(max(0.02 * nodes, 0.1), 1.0)  # fifty that look often leave no time for work
        self.processes = Processes()
        self.port = free_ports(1)[0]
        self.sites: dict[int, Site] = {}
        self.link: Program | None = None
        self._found = self._warm_up() if warm else {}  # where programs are

    def start_link(self) -> None:
        """Start the SuperLink and wait until it answers."""
        if self._found:
            ready = (self.folder / "warm" / SOCKET_FILE).exists
            wait_for(ready, self.processes, "the warm process is not ready")
        tls = self.certificates
        how: list[str | Path] = ["--insecure"]
        if tls is not None:
            how = ["--ssl-ca-certfile", tls.ca, "--ssl-certfile", tls.certificate, "--ssl-keyfile", tls.key]
            how.append("--enable-supernode-auth")
        self._write_connection()
        self.link = self.processes.start(
            "the SuperLink",
            [
                *(self._tool("flower-superlink"), *how, "--host", HOST, "--port", str(self.port)),
                "--disable-runtime-dependency-installation",
            ],
            self.link_log,
            self._env("server"),
        )
        wait_for(self._healthy, self.processes, "the SuperLink does not answer")

    def start_node(self, number: int, settings: Mapping[str, Any], key: Path | None = None) -> Site:
        """Start a node with its own settings; `key` proves who it is."""
        folder = self.folder / f"site-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "node.toml"
        config.write_text(
            "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
        )
        how: list[str | Path] = ["--insecure"]
        if self.certificates is not None:
            how = ["--root-certificates", self.certificates.ca]
            how += [] if key is None else ["--auth-supernode-private-key", key]
        program = self.processes.start(
            f"node {number}",
            [
                *(self._tool("flower-supernode"), *how, "--superlink", f"{HOST}:{self.port}"),
                *("--host", HOST, "--port", str(free_ports(1)[0]), "--node-config", config),
            ],
            folder / "node.log",
            self._env(folder.name),
        )
        self.sites[number] = Site(number, folder, program)
        return self.sites[number]

    def register(self, public: Path) -> None:
        """Tell the SuperLink a node's public key."""
        self._flwr("supernode", "register", str(public), NAME)

    def unregister(self, node: int) -> None:
        """Tell the SuperLink that the node with this id of Flower's is gone for good."""
        self._flwr("supernode", "unregister", str(node), NAME)

    def stop_node(self, number: int) -> None:
        """End a node."""
        self.processes.end([self.sites.pop(number).program])

    def run(self, app: Path, settings: Mapping[str, Any]) -> Iterator[str]:
        """Run an app; give what its server prints, line by line, until it ends."""
        config = self.folder / "server" / "run.toml"
        config.write_text(
            "".join(f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
        )
        words: list[str | Path] = [self._tool("flwr"), "run", app, NAME, "--stream", "--run-config", config]
        return self.processes.follow("`flwr run`", words, self._env("server"))

    def runs(self) -> list[dict[str, Any]]:
        """List the runs that the SuperLink knows, as Flower tells them."""
        runs: list[dict[str, Any]] = json.loads(self._flwr("list", NAME, "--format", "json"))["runs"]
        return runs

    def online(self) -> int:
        """Count the nodes that the SuperLink sees."""
        nodes = json.loads(self._flwr("supernode", "list", NAME, "--format", "json"))["nodes"]
        return sum(node["status"] == "online" for node in nodes)

    @property
    def link_log(self) -> Path:
        """Tell where the SuperLink's and the server app's words go."""
        return self.folder / "server" / "superlink.log"

    def close(self) -> None:
        """End everything: nodes first, so that they can say goodbye."""
        try:
            self.processes.end([site.program for site in self.sites.values()])
        finally:
            self.processes.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warm_up(self) -> dict[str, str]:
        """Start the process that the others are copies of; nobody waits for it yet."""
        folder = self.folder / "warm"
        found = write_stand_ins(folder)
        self.processes.start("the warm process", command(folder), folder / "log", QUIET)
        return found

    def _env(self, who: str) -> dict[str, str]:
        """Give each a Flower home of its own: two nodes that unpack an app into one folder race."""
        home = self.folder / who / "flower"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        direct = {"NO_PROXY": HOST, "no_proxy": HOST}
        return {**QUIET, POLL: str(self._poll), **direct, "PATH": path, **self._found, "FLWR_HOME": str(home)}

    def _tool(self, name: str) -> str:
        """Find one of Flower's programs: warm, or beside this Python."""
        warm = self.folder / "warm" / name
        return str(warm if warm.exists() else Path(sys.executable).parent / name)

    def _write_connection(self) -> None:
        home = self.folder / "server" / "flower"
        home.mkdir(parents=True, exist_ok=True)
        trust = "insecure = true"
        if self.certificates is not None:
            trust = f"root-certificates = {json.dumps(str(self.certificates.ca))}"
        named = f'[superlink.{NAME}]\naddress = "{HOST}:{self.port}"\n{trust}\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "{NAME}"\n\n{named}')

    def _flwr(self, *words: str) -> str:
        done = subprocess.run(
            [self._tool("flwr"), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, **self._env("server")},
            check=False,
        )
        if done.returncode != 0:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise FlamecheError(f"`flwr {words[0]}` failed: {said[-1] if said else 'it said nothing'}")
        return done.stdout

    def _healthy(self) -> bool:
        context = None
        if self.certificates is not None:
            context = ssl.create_default_context(cafile=str(self.certificates.ca))
        scheme = "http" if context is None else "https"
        try:
            handlers = [urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)]
            opener = urllib.request.build_opener(*handlers)
            with opener.open(f"{scheme}://{HOST}:{self.port}/health", timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


def wait_for(
    what: Callable[[], bool], processes: Processes, problem: str, patience: float = PATIENCE
) -> None:
    """Wait until something is so; give up after a while, or at once if a program ended."""
    end = time.monotonic() + patience
    while not what():
        processes.check()
        if time.monotonic() > end:
            raise FlamecheError(f"{problem} after {patience:g} s")
        time.sleep(0.05)
