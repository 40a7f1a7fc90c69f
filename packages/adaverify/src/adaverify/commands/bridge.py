"""``adaverify doctor --vllm``: what a bridge into another engine would do here.

A bridge is found by entry point and reports on itself; the command line depends neither on it nor on its
engine.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from adaverify.console import out, say, table
from adaverify_contracts import PluginError

GROUP = "adaverify.bridges"


def bridge_report(name: str) -> dict[str, Any]:
    """Return the report of the bridge of this name.

    Raises:
        PluginError: it is not installed, or cannot be imported.
    """
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise PluginError(
            f"the bridge into {name} is not installed",
            arrived=sorted(point.name for point in entry_points(group=GROUP)) or "no bridge",
            allowed=f"an installed adaverify-{name}",
            remedy=f"pip install adaverify-{name}, in the environment that serves",
        )
    report: dict[str, Any] = _load(found[0])()
    return report


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except ImportError as error:
        raise PluginError(
            f"the bridge {point.name} cannot be imported",
            arrived=f"{type(error).__name__}: {error}",
            allowed="a bridge with all that it needs",
            remedy=f"install adaverify-{point.name} anew",
        ) from error


def render_bridge(report: dict[str, Any]) -> None:
    """Print a bridge's report."""
    tables = (
        table("Versions", ("of", "version"), list(report["versions"].items())),
        table(
            "Seams",
            ("seam", "fits", "found"),
            [
                (item["name"], item["fits"], "as expected" if item["fits"] else item["found"])
                for item in report["seams"]
            ],
        ),
        table(
            "Parts",
            ("part", "active", "reasons against"),
            [
                (part["name"], part["active"], "\n".join(part["reasons"]) or "none")
                for part in report["parts"]
            ],
        ),
    )
    for one in tables:
        out().print(one)
        out().print()
    for line in report.get("warnings", ()):
        say(f"warning: {line}", "yellow")
    for line in report["problems"]:
        say(f"problem: {line}", "bold red")
    if not report["problems"]:
        say(f"The bridge into {report['bridge']} can act here, where adaptive verification is asked for.")
