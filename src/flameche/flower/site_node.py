"""A site's node, in the foreground: Flower's SuperNode, kept warm, prompt, and held to agreed apps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flameche.errors import BadInput, FlamecheError
from flameche.flower.agreed import AGREED, app_hash
from flameche.flower.fleet import POLL, wait_for
from flameche.flower.processes import Processes, free_ports
from flameche.flower.warm import SOCKET_FILE, command, write_stand_ins

LOOK = "0.25"  # seconds between looks for tasks
FORGETS = 75.0  # seconds after which a SuperLink has forgotten a node that was killed
QUICK, PAUSE = 20.0, 10.0  # seconds: a start that failed, and until the next
REFUSED = (
    "the SuperLink does not take this node: is its node.key.pub registered there, "
    "and no other node running with the same key?"
)


@dataclass(frozen=True)
class SiteNode:
    """What a site's node is started with."""

    superlink: str
    folder: Path
    settings: Mapping[str, Any]
    trust: Path | None = None  # the certificate of who signed the SuperLink's; None: without TLS
    identity: Path | None = None
    app: Path | None = None  # the only one that it runs
    say: Callable[[str], None] = print

    def run(self) -> int:
        """Run the node until it ends; give its exit code."""
        for file in (self.trust, self.identity):
            if file is not None and not file.is_file():
                raise BadInput(f"{file}: no such file")
        agreed = {AGREED: "" if self.app is None else app_hash(self.app)}
        folder = self.folder.expanduser().resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        config = folder / "node.toml"
        own = {**self.settings, "folder": str(folder / "state")}
        config.write_text("".join(f"{k} = {json.dumps(v, ensure_ascii=False)}\n" for k, v in own.items()))
        how: list[str | Path] = ["--insecure"] if self.trust is None else ["--root-certificates", self.trust]
        if self.identity is not None:
            how += ["--auth-supernode-private-key", self.identity]
        port = str(free_ports(1)[0])
        with Processes() as processes:
            found = write_stand_ins(folder / "warm")
            env = {"FLWR_HOME": str(folder / "flower"), POLL: LOOK, **agreed, **found}
            processes.start("the warm process", command(folder / "warm"), folder / "warm" / "log", env)
            wait_for((folder / "warm" / SOCKET_FILE).exists, processes, "the warm process is not ready")
            program = [folder / "warm" / "flower-supernode", *how, "--superlink", self.superlink]
            program += ["--port", port, "--node-config", config]
            return self._insist(processes, program, env)

    def _insist(self, processes: Processes, program: list[str | Path], env: Mapping[str, str]) -> int:
        """Start the node; a SuperLink that still sees it, although it was killed, is asked again."""
        end = time.monotonic() + FORGETS
        while True:
            begun = time.monotonic()
            node = processes.start("the node", program, None, env)
            code = node.wait()
            processes.end([node])
            if code != 1 or time.monotonic() - begun > QUICK:
                return code
            if time.monotonic() + PAUSE > end:
                raise FlamecheError(REFUSED)
            self.say(f"the SuperLink does not take this node; trying for {end - time.monotonic():.0f} s more")
            time.sleep(PAUSE)
