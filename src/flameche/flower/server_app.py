"""The server's side, ready to be named in an app: `serverapp = "flameche.flower.server_app:app"`."""

from __future__ import annotations

import logging
import sys

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from flameche.errors import FlamecheError
from flameche.flower.deployment import LOG_PREFIX
from flameche.flower.settings import RunSettings, ServerSettings
from flameche.flower.strategy import Flameche

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app's experiment."""
    logger = logging.getLogger("flwr")
    try:
        run, server = RunSettings.read(context.run_config), ServerSettings.read(context.run_config)
        strategy = Flameche(
            run.experiment,
            run.seed,
            out=server.out,
            key=server.key,
            patience=server.patience,
            least_nodes=server.least_nodes,
            removed=server.removed,
            own_data=run.own_data,
            tensorboard=server.tensorboard,
            log=lambda line: logger.info(f"{LOG_PREFIX}{line}"),
        )
        strategy.start(grid=grid, timeout=server.timeout)
    except FlamecheError as problem:
        logger.error(f"{LOG_PREFIX}{problem}")
        sys.tracebacklimit = 0  # Flower prints the exception again; this process ends
        raise
