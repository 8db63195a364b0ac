"""`npuenv completion`."""

from __future__ import annotations

import click

from npuenv.cli.common import HelpfulCommand

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_NPUENV_COMPLETE"


@click.command("completion", cls=HelpfulCommand)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> int:
    """Print the completion script for a shell.

    \b
    bash: npuenv completion bash > ~/.local/share/bash-completion/completions/npuenv
    zsh:  echo 'eval "$(npuenv completion zsh)"' >> ~/.zshrc    (after compinit)
    fish: npuenv completion fish > ~/.config/fish/completions/npuenv.fish
    """
    from click.shell_completion import get_completion_class

    from npuenv.cli.app import npuenv

    found = get_completion_class(shell)
    assert found is not None, shell
    script = found(npuenv, {}, "npuenv", VARIABLE)
    click.echo(script.source_template % script.source_vars())
    return 0
