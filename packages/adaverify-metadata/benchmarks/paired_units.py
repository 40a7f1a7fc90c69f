"""Check, then time, paired-units schedules on a CUDA device; see metadata_rows.py."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.argv[1:1] = ["--schedules"]
    runpy.run_path(str(Path(__file__).with_name("metadata_rows.py")), run_name="__main__")
