"""``tracer mps``: which processes on the GPUs are in MPS, and why the others are not."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from probes.mps.audit import MpsClient
    from probes.mps.look import MpsLook

#: Raised when a reader of the JSON would misread it.
SCHEMA_VERSION = 1
_WORDS = {
    "client": "in MPS",
    "outside": "OUTSIDE MPS",
    "server": "MPS itself",
    "unknown": "not known",
}


@click.command("mps")
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON.")
def command(is_json: bool) -> None:
    """Say which processes on each GPU are in MPS, why the others are not, and what mends it.

    Reads NVML and /proc; the daemon's own control program is asked too where it is installed
    (get_server_list and get_client_list only).

    Example:
      tracer mps --json
    """
    from probes.mps.look import look

    found = look()
    if is_json:
        click.echo(json.dumps(_as_json(found), indent=1))
        return
    for line in _lines(found):
        click.echo(line)


def _as_json(found: MpsLook) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "is_simulated": found.inventory.is_simulated,
        "is_told_by_driver": found.is_told,
        "was_daemon_asked": found.was_daemon_asked,
        "n_unseen": found.n_unseen,
        "daemons": [
            {
                "pid": daemon.pid,
                "directory": daemon.directory,
                "is_control_there": daemon.control is not None,
                "uid": daemon.uid,
                "served_uid": daemon.served_uid,
                "is_multiuser": daemon.is_multiuser,
                "container": daemon.container,
                "servers": [asdict(server) for server in daemon.servers],
            }
            for daemon in found.daemons
        ],
        "clients": [asdict(client) for client in found.clients],
    }


def _lines(found: MpsLook) -> list[str]:
    """The report as text."""
    lines = []
    for daemon in found.daemons:
        servers = ", ".join(f"{item.pid} (uid {item.uid})" for item in daemon.servers) or "none yet"
        users = "several users" if daemon.is_multiuser else "one user at a time"
        lines.append(
            f"MPS daemon {daemon.pid}: pipe in {daemon.directory}, {users}; servers: {servers}"
        )
    if not found.daemons:
        lines.append("No MPS daemon is visible here.")
    for gpu in found.inventory.gpus:
        here = [client for client in found.clients if client.device == gpu["index"]]
        n_inside = sum(client.role == "client" for client in here)
        simulated = " (simulated)" if found.inventory.is_simulated else ""
        lines.append("")
        lines.append(
            f"GPU {gpu['index']} {gpu['name']}{simulated}: {len(here)} processes, {n_inside} in MPS"
        )
        for client in here:
            lines.extend(_client_lines(client))
    if found.n_unseen:
        lines.append("")
        lines.append(
            f"{found.n_unseen} further processes are not visible here; "
            "run it in the host's PID namespace (docker run --pid=host)."
        )
    return lines


def _client_lines(client: MpsClient) -> list[str]:
    """One process: what it is, why, and the mend."""
    place = f", container {client.container[:12]}" if client.container else ""
    lines = [f"  {client.pid} ({client.name}{place}): {_WORDS[client.role]}"]
    if client.detail:
        lines.append(
            textwrap.fill(client.detail, 88, initial_indent=" " * 4, subsequent_indent=" " * 4)
        )
    if client.mends is None:
        return lines
    if client.mend == client.mends.host:
        return [*lines, f"    Mend: {client.mends.host}"]
    lines.append(f"    Mend with Docker: {client.mends.docker}")
    lines.append("    Mend with Kubernetes:")
    lines.append(textwrap.indent(client.mends.kubernetes, " " * 6))
    return lines
