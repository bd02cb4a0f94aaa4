"""``tracer completion``: the script that makes a shell complete commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "fish", "zsh")


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the script that lets SHELL complete tracer's commands and options.

    Example:
      tracer completion bash > /etc/bash_completion.d/tracer
      tracer completion zsh > "${fpath[1]}/_tracer"
      tracer completion fish > ~/.config/fish/completions/tracer.fish
    """
    from tracer.cli import cli

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "tracer", "_TRACER_COMPLETE").source())
