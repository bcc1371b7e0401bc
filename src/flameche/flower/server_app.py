"""The server's side, ready to be named in an app: `serverapp = "flameche.flower.server_app:app"`."""

from __future__ import annotations

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flameche.errors import FlamecheError
from flameche.flower.fleet import MARK
from flameche.flower.settings import Serving, Shared
from flameche.flower.strategy import Flameche

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the app's experiment."""
    say = logging.getLogger("flwr").info
    try:
        shared, serving = Shared.read(context.run_config), Serving.read(context.run_config)
        strategy = Flameche(
            shared.experiment,
            shared.seed,
            out=serving.out,
            key=serving.key,
            patience=serving.patience,
            least_nodes=serving.least_nodes,
            removed=serving.removed,
            own_data=shared.own_data,
            tensorboard=serving.tensorboard,
            say=lambda line: say(f"{MARK}{line}"),
        )
        strategy.start(grid=grid, timeout=serving.timeout)
    except FlamecheError as problem:
        logging.getLogger("flwr").error(f"{MARK}{problem}")
        sys.tracebacklimit = 0  # Flower shows what was raised once more; this process ends
        raise
