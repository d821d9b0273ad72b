"""The Typer application with all commands."""

from __future__ import annotations

from typing import Annotated

import typer

from tide.cli import evaluate, fit, installed, run, scorers, serve
from tide.cli.options import Command

app = typer.Typer(
    help="Test-time detoxification of language models by banning words or moving embeddings.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    # `main` has answered `--version`; it stands here for the help.
    return


app.command("run", cls=Command)(run.run)
app.command("eval", cls=Command)(evaluate.evaluate)
app.command("judge", cls=Command)(evaluate.judge)
app.command("score", cls=Command)(scorers.score)
app.command("serve", cls=Command, context_settings={"auto_envvar_prefix": serve.PREFIX})(
    serve.serve
)
app.command("threshold", cls=Command)(scorers.threshold)
app.command("report", cls=Command)(evaluate.report)
app.command("fit", cls=Command)(fit.fit)
app.command("methods", cls=Command)(installed.methods)
app.command("scorers", cls=Command)(installed.scorers)
app.command("doctor", cls=Command)(installed.doctor)
app.add_typer(fit.data_app, name="data")
