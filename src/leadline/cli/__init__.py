"""The command line: argument parsing only. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from leadline.cli import diagnosis, laws, papers, planning, regression, sweeps
from leadline.errors import LeadlineError

app = typer.Typer(
    name="leadline",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Measure what depth, width, context and time buy a transformer.",
)


def _say_version(asked: bool) -> None:
    if asked:
        from leadline import __version__

        typer.echo(f"leadline {__version__}")
        raise typer.Exit


@app.callback()
def _top(  # pyright: ignore[reportUnusedFunction]  # typer calls it
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", callback=_say_version, is_eager=True),
    ] = False,
) -> None:
    del version


for command in (
    regression.predict,
    regression.train,
    sweeps.sweep,
    sweeps.runs,
    laws.inspect,
    laws.fit,
    laws.forecast,
    laws.compare,
    planning.plan,
    diagnosis.diagnose,
    papers.reproduce,
    papers.demo,
):
    app.command()(command)

EXTRAS = {"jax": "simulation", "matplotlib": "report", "jinja2": "report"}
"""The extra that installs each package which is not always there."""


def main() -> None:
    """Run the command line; an error of the user's is one line and exit code 2."""
    command = typer.main.get_command(app)
    code = 0
    try:
        # calling the app would swallow interruptions and closed pipes
        with command.make_context("leadline", sys.argv[1:] or ["--help"]) as call:
            command.invoke(call)
    except typer.Exit as done:
        code = done.exit_code
    except LeadlineError as error:
        code = _refuse(str(error))
    except typer.TyperException as error:
        code = _refuse(error.format_message())
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(error.name or "")
        if extra is None:
            raise
        code = _refuse(
            f"{error.name} is not installed; install leadline with the extra {extra!r}: "
            f"pip install 'leadline[{extra}]', or '.[{extra}]' in its folder"
        )
    except KeyboardInterrupt as error:
        typer.echo(str(error) or "stopped", err=True)
        code = 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _refuse(message: str) -> int:
    typer.echo("error: " + " ".join(message.split()), err=True)
    return 2
