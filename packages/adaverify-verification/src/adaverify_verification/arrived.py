"""Confidences that have arrived: the manager's methods that read the relay."""

from __future__ import annotations

from collections.abc import Callable

from adaverify_contracts import StepState
from adaverify_verification.forecast import Forecast
from adaverify_verification.lagged import LaggedReader
from adaverify_verification.law import LawRule
from adaverify_verification.ledger import Entry
from adaverify_verification.options import ManagerOptions
from adaverify_verification.ranking import Ranking
from adaverify_verification.relay import Relay


class ArrivedConfidences:
    """The manager's methods that ask the relay what has arrived."""

    options: ManagerOptions
    _closed: bool
    _forecast: Forecast
    _law: LawRule
    _note: Callable[[Entry | None, str], None]
    _reader: LaggedReader
    _relay: Relay

    def prepare(self) -> bool:
        """Digest the newest confidences that have arrived, so that the next plan finds them done.

        For a host that is about to wait. Host work only: it waits for nothing and calls no signal and no
        policy. No plan depends on it: ``plan`` asks the relay for what it may read itself, and takes a digest
        only of that very snapshot. An error of the relay is raised, and leaves all as it was.

        Returns:
            Whether anything was digested: False where nothing new has arrived, and where nothing reads
            confidences, which is so in mode ``none`` and once the manager is closed.
        """
        if self._closed or self.options.mode == "none":
            return False
        snapshot = self._relay.latest()
        ranking = self._reader.prepare(snapshot)
        if snapshot is None or ranking is None:
            return False
        self._forecast.prepare(ranking, snapshot.step)
        return True

    def _survivals(self, state: StepState, entry: Entry) -> tuple[Ranking, int | None]:
        """Return the survivals that the budget may read, and their lag."""
        snapshot = self._relay.latest(at_most=self._law.newest(state))
        found = self._reader.survivals(snapshot, state)
        if found.odd is not None:
            self._note(entry, found.odd)
        entry.foreseen = found.foreseen
        return self._forecast.of(found, state), found.lag
