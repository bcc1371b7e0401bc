"""A node's side, ready to be named in an app: `clientapp = "flameche.flower.client_app:app"`.

Flower starts a process for every message; all that a node must still know then lies in its own folder.
"""

from __future__ import annotations

import logging
import re

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from flameche.errors import BadInput, FlamecheError
from flameche.flower.records import SITE_ERROR, pack, unpack

REFUSED = 2  # Flower's code for an app that raised
PATH = re.compile(r"(?<!\w)[/\\][\w.]")  # the beginning of a file's, which is the site's own affair

app = ClientApp()


@app.query()
@app.train()
@app.evaluate()
def handle(message: Message, context: Context) -> Message:
    """Answer one message of the server; what goes wrong is told in one line, without anything of the data."""
    try:
        from flameche.flower.work import answer

        return Message(pack(answer(unpack(message.content), context)), reply_to=message)
    except FlamecheError as problem:
        reason, cause = str(problem), problem.__cause__
        if PATH.search(reason):
            reason, cause = f"failed: {type(problem).__name__}; its node's log says more", problem
        code = _code(problem, context)
    except Exception as problem:  # its words may hold values: they stay in this node's log
        reason, cause = f"failed: {type(problem).__name__}; its node's log says more", problem
        code = REFUSED
    logging.getLogger("flwr").error(reason, exc_info=cause)
    return Message(Error(code=code, reason=reason), reply_to=message)


def _code(problem: FlamecheError, context: Context) -> int:
    """Tell which site has to correct something; a node without a number stands for none."""
    number = context.node_config.get("partition-id")
    if isinstance(problem, BadInput) and type(number) is int and number >= 0:
        return SITE_ERROR + number
    return REFUSED
