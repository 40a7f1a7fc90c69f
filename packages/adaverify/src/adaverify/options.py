"""Options that more than one command takes, spelt and explained once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from adaverify.usage import path
from adaverify_runtime import Mode

MODES: tuple[Mode, ...] = ("none", "fixed", "adaptive")
_DTYPES = ("float32", "bfloat16")


def _modes(named: list[str] | None) -> list[str] | None:
    for name in named or ():
        if name not in MODES:
            raise typer.BadParameter(f"{name!r} is no mode; allowed: {', '.join(MODES)}")
    return named


def _dtype(name: str | None) -> str | None:
    if name is not None and name not in _DTYPES:
        raise typer.BadParameter(f"{name!r} is not supported; allowed: {', '.join(_DTYPES)}")
    return name


Json = Annotated[bool, typer.Option("--json", help="Print one JSON value and nothing else.")]
Offline = Annotated[bool, typer.Option("--offline", help="Never download anything.")]
Model = Annotated[str, typer.Option(help="Target model.")]
Drafter = Annotated[
    str | None,
    typer.Option(help="Drafter; the one made for the model when omitted, n-gram where there is none."),
]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--drafter",
        help="Drafter; repeat it to hold others against the first. When omitted: the one made for the model "
        "and n-gram, or n-gram alone.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(help="Torch device, such as cpu or cuda:0; the accelerator if there is one when omitted."),
]
Dtype = Annotated[
    str | None,
    typer.Option(callback=_dtype, help="float32 (tokens are identical in all modes) or bfloat16 (fast)."),
]
Calibration = Annotated[
    Path | None,
    typer.Option(
        parser=path,
        metavar="PATH",
        help="File of `adaverify calibrate`, or another engine's JSON temperatures; chooses the signal.",
    ),
]
DraftTokens = Annotated[
    int | None,
    typer.Option(min=0, max=65536, help="K, draft tokens for each request; 0 turns speculation off."),
]
Concurrency = Annotated[int | None, typer.Option(min=1, max=65536, help="Requests that run at once; 4.")]
Tokens = Annotated[int, typer.Option(min=1, max=1 << 20, help="New tokens for each prompt, at most.")]
Modes = Annotated[
    list[str] | None,
    typer.Option("--mode", callback=_modes, help="Compare only this mode; may be repeated."),
]
Plot = Annotated[
    Path | None, typer.Option(parser=path, metavar="PATH", help="Draw it to this .png, .svg or .pdf file.")
]
