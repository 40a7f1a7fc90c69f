"""Where results and pictures lie, and that nothing else is written there."""

from __future__ import annotations

from pathlib import Path

from adaverify_contracts import AdaverifyError

FOLDER = Path("endtoend")
"""Taken when the user names none."""
STORE = "endtoend.json"
THROUGHPUT, PLANNING, CURVE, CAPTURE = "throughput.png", "planning.png", "curve.png", "capture.png"
_KEPT = {STORE: "results", **dict.fromkeys((THROUGHPUT, PLANNING, CURVE, CAPTURE), "plots")}


def require_apart(report: Path, folder: Path | None) -> None:
    """Refuse a file for the report that is one of those that the benchmark keeps in its folder.

    Links are followed, and a file of two names counts under both.

    Raises:
        AdaverifyError: it would be overwritten.
    """
    folder = FOLDER if folder is None else folder
    for name, what in _KEPT.items():
        if _same(report, folder / name):
            raise AdaverifyError(
                f"the file of --json is where endtoend keeps its {what}",
                arrived=str(report),
                allowed=f"any file but {', '.join(_KEPT)} in {folder}",
                remedy="choose another file for --json, or another folder with --out",
            )


def _same(left: Path, right: Path) -> bool:
    try:
        return left.resolve() == right.resolve() or left.samefile(right)
    except (OSError, RuntimeError):
        # One of them is not there, or a link leads in a circle: no file is lost.
        return False
