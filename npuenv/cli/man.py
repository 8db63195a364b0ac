"""`npuenv man`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npuenv import __version__
from npuenv.cli.common import HelpfulCommand, first_sentence

if TYPE_CHECKING:
    from collections.abc import Iterable

# What roff takes for itself, and the signs that it prints as typographic ones: a copied command must work.
_SIGNS = str.maketrans({"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti", '"': r"\(dq"})


@click.command("man", cls=HelpfulCommand)
def command() -> int:
    """Print the manual page with the help of all commands.

    \b
    read it:  npuenv man | man -l -
    keep it:  npuenv man > ~/.local/share/man/man1/npuenv.1
    """
    from npuenv.cli.app import npuenv

    root = click.Context(npuenv, info_name="npuenv", **npuenv.context_settings)
    page = _Page()
    # Neither hyphens nor wide spaces: both would come along with what is copied.
    page.write(f'.TH NPUENV 1 "" "npuenv {__version__}"\n.nh\n.ad l\n')
    page.write(f".SH NAME\nnpuenv \\- {_roff(first_sentence(npuenv))}\n")
    _write(root, page)
    click.echo(page.getvalue(), nl=False)
    return 0


def _write(ctx: click.Context, page: _Page) -> None:
    """The help of a command, then that of each command below it."""
    ctx.command.format_help(ctx, page)
    if isinstance(ctx.command, click.Group):
        for name in ctx.command.list_commands(ctx):
            below = ctx.command.get_command(ctx, name)
            if below is not None and not below.hidden:
                _write(click.Context(below, info_name=name, parent=ctx), page)


class _Page(click.HelpFormatter):
    """Takes what `--help` writes and writes it with the macros of man(7)."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        self.write(f".SH {_roff(prog)}\n.B {_roff(prog)}\n{_roff(args)}\n")

    def write_heading(self, heading: str) -> None:
        self.write(f".SS {_roff(heading)}\n")

    def write_paragraph(self) -> None:
        """Nothing: each text and each heading begins a paragraph by itself."""

    def write_text(self, text: str) -> None:
        for paragraph in text.split("\n\n"):
            is_as_written = paragraph.startswith("\b\n")
            body = _roff(paragraph.removeprefix("\b\n"))
            self.write(f".PP\n.nf\n{body}\n.fi\n" if is_as_written else f".PP\n{body}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        for term, text in rows:
            self.write(f".TP\n.B {_roff(term)}\n{_roff(text)}\n")


def _roff(text: str) -> str:
    """A text of which no sign and no beginning of a line means anything to roff."""
    return "\n".join(r"\&" + line if line.startswith(".") else line for line in text.translate(_SIGNS).splitlines())
