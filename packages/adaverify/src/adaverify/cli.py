"""The command line: registers the commands and nothing else."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from adaverify.commands.audit import audit
from adaverify.commands.bench import bench
from adaverify.commands.calibrate import calibrate
from adaverify.commands.doctor import doctor
from adaverify.commands.plugins import plugins
from adaverify.commands.profile import profile
from adaverify.commands.record import record
from adaverify.commands.report import report
from adaverify.commands.run import run
from adaverify.commands.simulate import simulate
from adaverify.console import EXIT_CODES, run_process, say
from adaverify.usage import VisibleGroup

app = typer.Typer(
    name="adaverify",
    cls=VisibleGroup,
    no_args_is_help=True,
    epilog=EXIT_CODES,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, doctor, profile, calibrate, audit, bench, record, simulate, report):
    app.command(epilog=EXIT_CODES)(command)
app.add_typer(plugins, name="plugins")


def _version(wanted: bool) -> None:
    if not wanted:
        return
    try:
        say(f"adaverify {version('adaverify')}")
    except PackageNotFoundError:
        say("adaverify, run from its source tree: not installed, so without a version")
    raise typer.Exit


@app.callback()
def adaverify(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Adaptive verification for speculative decoding."""


def main() -> None:
    """Run the command line."""
    run_process(app)
