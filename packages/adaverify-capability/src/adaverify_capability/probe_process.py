"""Run probes in a child process: one that aborts or segfaults is an absent kernel, and nothing worse."""

from __future__ import annotations

import base64
import faulthandler
import json
import multiprocessing
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaverify_capability.isolation import end_of, run_child, signal_name
from adaverify_capability.probing import current_device, excluded, run_probe
from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Compiling kernels for the first time takes a minute with some libraries; a hang must end some day.
TIMEOUT_S = 300.0

_CHILD = """
import json, sys
request = json.load(sys.stdin)
sys.path[:] = request["path"]
from adaverify_capability.probe_process import serve
serve(request)
"""


def run_probes_isolated(
    probes: Sequence[ProbeDescriptor], facts: Capability, device: str, *, timeout_s: float = TIMEOUT_S
) -> tuple[KernelReport, ...]:
    """Return one report a probe, in order; a child that dies is the reason of the probe it died in.

    All probes share one child, which takes as long to start as torch to import; after a death the rest go on
    in another. A probe that cannot be handed over by name, a lambda for instance, runs in a fork of this
    process, or within it where a fork would be useless: once an accelerator is in use, or where there is no
    fork.

    Args:
        probes: what to run.
        facts: the device's facts.
        device: made the current one.
        timeout_s: seconds after which a child is killed.
    """
    reports: dict[int, KernelReport] = {}
    waiting: dict[int, str] = {}
    alone: list[int] = []
    for index, item in enumerate(probes):
        without = excluded(item, facts)
        packed = _packed(item)
        if without is not None:
            reports[index] = without
        elif packed is None:
            alone.append(index)
        else:
            waiting[index] = packed
    while waiting:
        found, foreign = _run_batch(waiting, probes, facts, device, timeout_s)
        reports |= found
        alone += foreign
        waiting = {i: blob for i, blob in waiting.items() if i not in found and i not in foreign}
    for index in alone:
        reports[index] = _run_forked(probes[index], facts, device, timeout_s)
    return tuple(reports[index] for index in range(len(probes)))


def serve(request: dict[str, Any]) -> None:
    """Run the probes of one request, in the child; each start and each report is written at once."""
    facts = pickle.loads(base64.b64decode(request["facts"]))
    report_to = Path(request["report"])
    with report_to.open("a", encoding="utf-8") as file, current_device(request["device"], facts):
        for index, blob in request["probes"]:
            _write(file, index, "start")
            try:
                descriptor = pickle.loads(base64.b64decode(blob))
            except Exception:  # noqa: BLE001 - a module that only the parent has; it runs the probe itself
                _write(file, index, "foreign")
                continue
            report = run_probe(descriptor, facts)
            values = (report.version, int(report.level), report.reason)
            _write(file, index, "done", values)


def _write(file: Any, index: int, stage: str, values: object = None) -> None:
    file.write(json.dumps([index, stage, values]) + "\n")
    file.flush()


def _packed(value: object) -> str | None:
    try:
        return base64.b64encode(pickle.dumps(value)).decode()
    except Exception:  # noqa: BLE001 - pickle raises whatever the object's own hooks raise
        return None


def _run_batch(
    waiting: dict[int, str],
    probes: Sequence[ProbeDescriptor],
    facts: Capability,
    device: str,
    timeout_s: float,
) -> tuple[dict[int, KernelReport], list[int]]:
    """Return the reports of one child, and the probes that it could not load; never both empty."""
    with tempfile.TemporaryDirectory(prefix="adaverify-") as folder:
        path = Path(folder) / "report.jsonl"
        request = {
            "path": sys.path,
            "report": str(path),
            "device": device,
            "facts": _packed(facts),
            "probes": list(waiting.items()),
        }
        ended, stderr = run_child([sys.executable, "-c", _CHILD], json.dumps(request), timeout_s)
        lines = _lines(path)
    reports: dict[int, KernelReport] = {}
    foreign: list[int] = []
    started: int | None = None
    for index, stage, values in lines:
        started = index if stage == "start" else None
        if stage == "foreign":
            foreign.append(index)
        elif stage == "done":
            version, level, reason = values
            reports[index] = KernelReport(probes[index].name, version, KernelLevel(level), reason)
    if started is not None:
        reports[started] = _died(probes[started], "running the probe", ended, stderr)
    elif not reports and not foreign:
        for index in waiting:
            reports[index] = _died(probes[index], "starting", ended, stderr)
    return reports, foreign


def _lines(path: Path) -> list[tuple[int, str, Any]]:
    with suppress(OSError, ValueError):
        return [tuple(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return []


def _died(descriptor: ProbeDescriptor, doing: str, ended: str, stderr: str) -> KernelReport:
    reason = f"not executed, for {end_of(ended or 'ended without a report', doing, stderr)}"
    return KernelReport(descriptor.name, "", KernelLevel.ABSENT, reason)


def _run_forked(
    descriptor: ProbeDescriptor, facts: Capability, device: str, timeout_s: float
) -> KernelReport:
    """Run a probe that has no name to be found by in a fork, or here where a fork would tell lies."""
    if "fork" not in multiprocessing.get_all_start_methods() or _accelerator_in_use():
        with current_device(device, facts):
            return run_probe(descriptor, facts)
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_serve_fork, args=(there, descriptor, facts, device))
    with warnings.catch_warnings():
        # Python warns of forks beside threads; a child that hangs for it is killed, and says so.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    there.close()
    arrived, report = False, None
    try:
        arrived = here.poll(timeout_s)
        report = here.recv() if arrived else None
    except (EOFError, OSError):
        pass
    finally:
        # Of an interruption, too: this process would wait for the child before it ends.
        if not arrived:
            child.kill()
        child.join()
    if isinstance(report, KernelReport):
        return report
    ended = f"exited with status {child.exitcode}"
    if child.exitcode is not None and child.exitcode < 0:
        ended = f"died of {signal_name(-child.exitcode)}"
    return _died(
        descriptor, "running the probe", ended if arrived else f"was killed after {timeout_s:g} s", ""
    )


def _serve_fork(out: Connection, descriptor: ProbeDescriptor, facts: Capability, device: str) -> None:
    # What a library prints while it dies must not end up among this process's output.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    faulthandler.disable()
    with current_device(device, facts):
        out.send(run_probe(descriptor, facts))


def _accelerator_in_use() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())
