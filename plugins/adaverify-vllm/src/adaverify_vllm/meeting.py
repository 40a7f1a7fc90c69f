"""Whether every rank of a group has the bridge, before any of them waits for another in a collective.

A node without the bridge, or with it switched off, takes part in no collective of ours: the others would wait
for it until vLLM's own calls met ours. A key of the store that the ranks were started with costs nobody
anything.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from typing import Any

# Ranks come here from the same call of vLLM's executor; what lies between them is the pace of their hosts.
SECONDS = 60.0

_meetings = count()


def meeting_name(group: str, members: Sequence[int]) -> str:
    """Return a name that the members' processes agree on and no other meeting of theirs has."""
    return f"adaverify/{group}/{'-'.join(map(str, members))}/{next(_meetings)}"


def absent(store: Any, name: str, members: Sequence[int], me: int, seconds: float = SECONDS) -> list[int]:
    """Return the members that did not come within ``seconds``, in the first member's word, the same on all.

    Args:
        store: of torch.distributed, shared by the members.
        name: of the meeting.
        members: global ranks; the first one decides.
        me: this process's rank.
        seconds: to wait for the others; twice as long for the first one's word.
    """
    store.set(f"{name}/{me}", "here")
    word = f"{name}/absent"
    if me != members[0]:
        if not _there(store, word, time.monotonic() + 2 * seconds):
            return [members[0]]
        return [int(rank) for rank in store.get(word).split()]
    until = time.monotonic() + seconds
    missing = [rank for rank in members if not _there(store, f"{name}/{rank}", until)]
    store.set(word, " ".join(map(str, missing)))
    return missing


def _there(store: Any, key: str, until: float) -> bool:
    left = max(0.001, until - time.monotonic())
    try:
        store.wait([key], timedelta(seconds=left))
    except RuntimeError:
        return False
    return True
