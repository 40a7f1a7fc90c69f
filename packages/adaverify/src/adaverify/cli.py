"""The command line: registers the commands and nothing else."""

from __future__ import annotations

import typer

from adaverify.commands.doctor import doctor
from adaverify.commands.plugins import plugins
from adaverify.commands.profile import profile
from adaverify.commands.report import report
from adaverify.commands.run import run

app = typer.Typer(
    name="adaverify",
    help="Adaptive verification for speculative decoding.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, doctor, profile, plugins, report):
    app.command()(command)


def main() -> None:
    """Run the command line."""
    app()
