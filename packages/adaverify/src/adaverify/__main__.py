"""``python -m adaverify``."""

from __future__ import annotations

from adaverify.start import main

if __name__ == "__main__":
    main()
