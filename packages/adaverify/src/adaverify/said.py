"""What a command has told the user already, and a library's log would tell again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from adaverify_verification import manager
from adaverify_verification.parts import UNPRICED


@contextmanager
def priced_or_said(said: bool) -> Iterator[None]:
    """Keep the manager's warning of missing prices out of the log while ``said``; it stays in records."""
    if not said:
        yield
        return
    log = logging.getLogger(manager.__name__)
    log.addFilter(_is_news)
    try:
        yield
    finally:
        log.removeFilter(_is_news)


def _is_news(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(UNPRICED)
