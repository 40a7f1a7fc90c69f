"""Triton kernels compiled ahead of time, beside tests for which the interpreter stands in for the compiler.

Triton reads TRITON_INTERPRET when a kernel is imported, so compiling needs a process without it. Importing
torch and Triton takes longer than most kernels do: one process imports them and forks for every script.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

_SERVER = """
import json, os, sys, tempfile, traceback
os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"], *sys.path[:] = sys.argv[1:]
import torch, triton
import triton.backends.compiler, triton.compiler

for line in sys.stdin:
    script, arguments = json.loads(line)
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            code = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.argv = ["-c", *arguments]
                exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
                code = 0
            except SystemExit as end:
                print(end, file=sys.stderr)
                code = int(end.code not in (None, 0))
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        print(json.dumps([code, out.read(), err.read()]), flush=True)
"""


class TritonCompiler:
    """Runs scripts where Triton compiles, whatever TRITON_INTERPRET says here; needs Triton and fork.

    Args:
        cache: the folder of what was compiled. Scripts of one compiler share it.
    """

    def __init__(self, cache: Path) -> None:
        command = [sys.executable, "-c", _SERVER, str(cache), *filter(None, sys.path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, script: str, *arguments: object) -> Any:
        """Run a script in a process of its own and return the JSON of the last line that it printed.

        Args:
            arguments: its ``sys.argv[1:]``, each as JSON.

        Raises:
            AssertionError: the script failed; the message ends with its traceback.
        """
        assert self._process.stdin and self._process.stdout
        request = json.dumps([script, [json.dumps(argument) for argument in arguments]])
        self._process.stdin.write(request + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the compiling process ended with code {self._process.wait()}"
        code, printed, said = json.loads(answer)
        assert code == 0, f"the script ended with code {code}: {said[-3000:]}"
        return json.loads(printed.splitlines()[-1])

    def close(self) -> None:
        """End the process."""
        with self._process:
            pass

    def __enter__(self) -> TritonCompiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
