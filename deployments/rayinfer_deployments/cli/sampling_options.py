"""The options that say how an answer is drawn, shared by the commands that ask for one."""

from typing import Annotated

import typer

MaxTokens = Annotated[int, typer.Option(min=1, help="longest answer, in tokens")]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="0 always takes the likeliest token")]
TopP = Annotated[float, typer.Option(min=0.0, max=1.0, help="keep the likeliest tokens up to this probability")]
Seed = Annotated[int | None, typer.Option(help="the same seed draws the same answer")]
