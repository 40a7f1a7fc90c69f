"""What holds for every test of the workspace."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Take the imported modules and the collected tests out of the garbage collector's sight.

    They stay to the end anyway, and every full collection would walk all of them: a graph capture starts one.
    """
    gc.collect()
    gc.freeze()
