"""The ordinary service that most scenarios disturb, and its ordinary clients."""

from __future__ import annotations

import time

from tracer.simulated.load import Group
from tracer.simulated.options import ServerOptions
from tracer.simulated.stage import Stage

#: Chats: short prompts, a few hundred tokens out, one after the other.
CHATS = Group(n_clients=6)
#: The server as it is meant to run.
SERVER = ServerOptions()
#: Time for the clients to be all under way, in seconds.
SETTLE_S = 1.5


def serve_chats(stage: Stage, options: ServerOptions = SERVER, *more: Group) -> None:
    """Start the server with its ordinary clients (and others) and let them settle."""
    stage.serve(options, (CHATS, *more))
    time.sleep(SETTLE_S)
