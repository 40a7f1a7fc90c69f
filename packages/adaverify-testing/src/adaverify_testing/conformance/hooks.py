"""The pytest side of the kit: options, one item for each check, a summary and a file of results."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from adaverify_contracts import AdaverifyError, Capability, DecodeStrategyDescriptor
from adaverify_testing.conformance.report import FAILED, NOT_RUN, SKIPPED, CheckFailed

if TYPE_CHECKING:
    from adaverify_testing.conformance.subject import Subject

_SESSION = pytest.StashKey["ConformanceSession"]()
_PROPERTY = "adaverify-conformance"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the conformance kit."""
    group = parser.getgroup("adaverify", "conformance of decode strategies")
    group.addoption(
        "--adaverify-conformance",
        metavar="NAME",
        action="append",
        default=[],
        help="check the decode strategy NAME of an installed plugin; repeatable; runs no test file not named",
    )
    group.addoption(
        "--adaverify-device",
        metavar="DEVICE",
        default="cpu",
        help="device that the batches live on: cpu (default), cuda, cuda:1",
    )
    group.addoption(
        "--adaverify-assume",
        metavar="WORD",
        help="take the device for this architecture, required kernels included; a wrong WORD lists them all",
    )
    group.addoption(
        "--adaverify-conformance-json", metavar="FILE", help="write every outcome and the latency to FILE"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Find the named strategies, or refuse with what was found.

    Raises:
        UsageError: a name, a device or an architecture does not exist, or an option lacks its strategy.
    """
    names = list(dict.fromkeys(config.getoption("--adaverify-conformance")))
    if not names:
        for option in ("--adaverify-assume", "--adaverify-conformance-json"):
            if config.getoption(option):
                raise pytest.UsageError(f"{option} needs --adaverify-conformance NAME")
        return
    target = config.getoption("--adaverify-conformance-json")
    if target and not Path(target).absolute().parent.is_dir():
        raise pytest.UsageError(f"--adaverify-conformance-json: {target!r} is in no folder that exists")
    try:
        session = _prepare(config, names)
    except AdaverifyError as error:
        raise pytest.UsageError(f"--adaverify-conformance: {error}") from error
    config.stash[_SESSION] = session
    config.pluginmanager.register(session, "adaverify-conformance")
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        # Nobody named test files: the kit alone runs, in any folder.
        config.args = []


def _prepare(config: pytest.Config, names: list[str]) -> ConformanceSession:
    import torch

    from adaverify_capability import probe
    from adaverify_contracts import CapabilityError
    from adaverify_testing.conformance.discovery import discover

    found = discover()
    strategies = [found.strategy(name) for name in names]
    word = device = config.getoption("--adaverify-device")
    try:
        usable = torch.device(word).type in ("cpu", "cuda")
    except RuntimeError:
        usable = False
    if not usable or (word.startswith("cuda") and not torch.cuda.is_available()):
        raise CapabilityError(
            f"device {word!r} is not here",
            arrived=word,
            allowed="cpu" + (", cuda" if torch.cuda.is_available() else "; torch finds no CUDA device"),
            remedy="name a device of this machine; --adaverify-assume WORD injects a capability instead",
        )
    assumed = config.getoption("--adaverify-assume")
    capabilities = {
        item.name: _assumed(assumed, item) if assumed else probe(device, found.probes) for item in strategies
    }
    return ConformanceSession(config, device, strategies, capabilities, found.owners)


def _assumed(word: str, strategy: DecodeStrategyDescriptor) -> Capability:
    from adaverify_testing.capabilities import fake_capability

    return fake_capability(word, kernels=strategy.requirements.kernels)


class ConformanceItem(pytest.Item):
    """One check of one strategy."""

    def __init__(self, *, check: str, subject: Subject, owner: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.check = check
        self.subject = subject
        self.owner = owner

    def runtest(self) -> None:
        """Run the check; a failure carries the kit's message instead of a traceback."""
        from adaverify_testing.conformance.checks import run_check

        outcome = run_check(self.check, self.subject)
        numbers = dict(outcome.numbers)
        record = {
            "strategy": self.subject.descriptor.name,
            "owner": self.owner,
            "device": str(self.subject.device),
            "architecture": self.subject.capability.architecture,
            "assumed": self.subject.capability.assumed,
            "check": self.check,
            "status": outcome.status,
            "message": outcome.message,
            "numbers": numbers,
        }
        self.user_properties.append((_PROPERTY, record))
        if outcome.status == FAILED:
            raise CheckFailed(outcome.message)
        if outcome.status == SKIPPED:
            pytest.skip(outcome.message)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show the message of a check, and the traceback of anything else."""
        if isinstance(excinfo.value, CheckFailed):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the heading of a failure."""
        return self.path, None, f"{self.subject.descriptor.name}: {self.check}"


class ConformanceSession:
    """The kit's part of one pytest session; registered only when a strategy is named."""

    def __init__(
        self,
        config: pytest.Config,
        device: str,
        strategies: list[DecodeStrategyDescriptor],
        capabilities: Mapping[str, Capability],
        owners: Mapping[str, str],
    ) -> None:
        self._config = config
        self._device = device
        self._strategies = strategies
        self._capabilities = capabilities
        self._owners = owners
        self._records: list[dict[str, Any]] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: list[pytest.Item]) -> None:
        """Add the checks in front of whatever was collected."""
        items[:0] = list(self._items(session))

    def _items(self, session: pytest.Session) -> Iterator[ConformanceItem]:
        from adaverify_testing.conformance.checks import CHECKS
        from adaverify_testing.conformance.running import make_subject

        for strategy in self._strategies:
            subject = make_subject(strategy, None, self._device, self._capabilities[strategy.name])
            for check in CHECKS:
                yield ConformanceItem.from_parent(
                    session,
                    name=f"{strategy.name}::{check}",
                    nodeid=f"adaverify-conformance::{strategy.name}::{check}",
                    check=check,
                    subject=subject,
                    owner=self._owners[strategy.name],
                )

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the record of a check; it travels in the report, from worker processes too."""
        if report.when == "call":
            self._records += [dict(value) for name, value in report.user_properties if name == _PROPERTY]  # type: ignore[call-overload]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Write the file; fail when a named strategy was not judged: silence must not look like a pass."""
        if hasattr(self._config, "workerinput") or self._config.option.collectonly:
            return
        target = self._config.getoption("--adaverify-conformance-json")
        if target:
            text = json.dumps({"version": 1, "outcomes": self._records}, indent=2)
            Path(target).write_text(text + "\n", encoding="utf-8")
        if self.unjudged() and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def unjudged(self) -> list[str]:
        """Return the named strategies of which no check ran to a verdict."""
        judged = {record["strategy"] for record in self._records if record["status"] != SKIPPED}
        return [strategy.name for strategy in self._strategies if strategy.name not in judged]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print a line for each strategy: counts, device and latency."""
        if self._config.option.collectonly:
            return
        terminalreporter.section("adaverify conformance")
        for strategy in self._strategies:
            records = [record for record in self._records if record["strategy"] == strategy.name]
            terminalreporter.write_line(_summary(strategy.name, self._owners[strategy.name], records))
            for line in _remarks(records):
                terminalreporter.write_line(f"  {line}")


def _remarks(records: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each thing to say; checks that say the same share one."""
    sayers: dict[str, list[str]] = {}
    for record in records:
        if record["status"] != "passed" or record["check"] in ("allocation", "capture_and_replay"):
            words = record["message"].partition("\n")[0]
            if words:
                sayers.setdefault(words, []).append(record["check"])
    for words, checks in sayers.items():
        unrun = words.startswith(NOT_RUN)
        if unrun and len(checks) > 2:
            yield f"{len(checks)} checks could not run for this reason: {words.removeprefix(NOT_RUN)}"
        else:
            yield f"{', '.join(checks)}: {words}"


def _summary(name: str, owner: str, records: list[dict[str, Any]]) -> str:
    if not any(record["status"] != SKIPPED for record in records):
        return f"{name} ({owner}): NOT JUDGED, no check ran; this is a failure"
    counts = dict.fromkeys(("passed", "failed", "skipped"), 0)
    for record in records:
        counts[record["status"]] += 1
    first = records[0]
    where = f"{first['device']}, {first['architecture']}{', assumed' * first['assumed']}"
    numbers = {key: value for record in records for key, value in record["numbers"].items()}
    median = numbers.get("median_us")
    time = "" if median is None else f"; build {median:.1f} us for {numbers['tokens']:.0f} tokens, median"
    listing = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    return f"{name} ({owner}) on {where}: {listing}{time}"
