"""The process in which Triton compiles: scripts apart from each other, failures with their traceback."""

from __future__ import annotations

import pytest

SCRIPT = """
import json, os, sys, textwrap
import triton
kernel = triton.jit(textwrap.indent)
seen = os.environ.get("AV_SEEN"), os.environ.get("TRITON_INTERPRET")
os.environ["AV_SEEN"] = "yes"
print("a line before")
print(json.dumps([type(kernel).__name__, seen, [json.loads(word) for word in sys.argv[1:]]]))
"""


def test_scripts_compile_and_leave_nothing_behind(triton_compiler):
    """Each runs in a fork: the second one sees neither the interpreter nor what the first one set."""
    for word in (["cuda", 90], {"a": None}):
        assert triton_compiler.run(SCRIPT, word, 7) == ["JITFunction", [None, None], [word, 7]]


@pytest.mark.parametrize(
    ("script", "said"),
    [("1 / 0", "ZeroDivisionError"), ("import sys; sys.exit('no such target')", "no such target")],
)
def test_a_script_that_fails_is_an_error_and_the_next_one_runs(triton_compiler, script, said):
    with pytest.raises(AssertionError, match=said):
        triton_compiler.run(script)
    assert triton_compiler.run("print(3)") == 3
