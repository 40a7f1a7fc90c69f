"""Check, then time, flatten rows on a CUDA device; see metadata_rows.py."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.argv[1:1] = ["--strategy", "flatten"]
    runpy.run_path(str(Path(__file__).with_name("metadata_rows.py")), run_name="__main__")
