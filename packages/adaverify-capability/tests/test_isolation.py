"""A module that crashes, hangs or misbinds does so in a child process."""

import shutil
import subprocess
import sys

import pytest

from adaverify_capability import run_isolated


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes an importable module and returns its name."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


def test_a_module_imports_and_its_code_returns_a_value(module):
    name = module("sound_kernels", "__version__ = '2.5.0'\ndef rank(): return 2\n")
    result = run_isolated(name, "result = {'rank': module.rank()}")
    assert result.ok
    assert (result.stage, result.version, result.value) == ("done", "2.5.0", {"rank": 2})
    assert result.file.endswith("sound_kernels.py")
    assert result.seconds > 0
    assert name not in sys.modules


def test_the_child_starts_with_every_symbol_bound_at_once_and_keeps_the_rest_of_the_environment(
    module, monkeypatch
):
    monkeypatch.setenv("ADAVERIFY_TEST_WORD", "kept")
    name = module("environment_reader", "import os\n")
    code = "result = [module.os.environ.get('LD_BIND_NOW'), module.os.environ.get('ADAVERIFY_TEST_WORD')]"
    assert run_isolated(name, code).value == ["1", "kept"]
    assert run_isolated(name, code, bind_now=False).value == [None, "kept"]


def test_an_import_that_only_works_with_lazy_binding_is_found_out(module, tmp_path):
    """sgl-deep-gemm 0.2.2 imported with a symbol missing and failed at the first call, seen."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler to build a library with a missing symbol")
    source = tmp_path / "lazy.c"
    source.write_text("extern int missing_symbol(void);\nint call(void) { return missing_symbol(); }\n")
    library = tmp_path / "liblazy.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-z,lazy", "-o", library, source], check=True)
    name = module("lazy_kernels", f"import ctypes, os\nctypes.CDLL({str(library)!r}, mode=os.RTLD_LAZY)\n")
    assert run_isolated(name, bind_now=False).ok
    strict = run_isolated(name)
    assert not strict.ok
    assert strict.stage == "import"
    assert "missing_symbol" in strict.reason
    assert strict.reason.startswith("OSError")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("assert False", "AssertionError: no message while importing"),
        ("raise ImportError('other torch')", "ImportError: other torch while importing"),
        ("import sys; sys.exit(3)", "SystemExit: 3 while importing"),
        ("import os; os._exit(4)", "exited with status 4 while importing"),
        ("import os; os._exit(0)", "left no result while importing"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "died of SIGSEGV while importing"),
    ],
)
def test_whatever_ends_the_import_is_the_reason(module, text, reason):
    result = run_isolated(module("broken_kernels", text))
    assert not result.ok
    assert result.stage == "import"
    assert reason in result.reason


def test_a_missing_module_is_named():
    result = run_isolated("no_such_module_at_all")
    assert result.reason.startswith("ModuleNotFoundError: No module named 'no_such_module_at_all'")


def test_a_crash_in_the_code_keeps_what_the_import_told(module):
    name = module("crashing_kernels", "__version__ = '1'\n")
    code = (
        "import os, signal, sys\n"
        "print('half a check', file=sys.stderr, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGABRT)\n"
    )
    result = run_isolated(name, code)
    assert (result.ok, result.stage, result.version) == (False, "run", "1")
    assert "died of SIGABRT while running the probe of crashing_kernels: half a check" in result.reason


def test_a_result_that_is_no_plain_value_is_an_error_of_the_code(module):
    result = run_isolated(module("odd_kernels", ""), "result = object()")
    assert not result.ok
    assert result.reason.startswith("TypeError")


def test_a_child_that_hangs_is_killed(module):
    result = run_isolated(module("hanging_kernels", "import time\ntime.sleep(60)\n"), timeout_s=0.5)
    assert not result.ok
    assert "was killed after 0.5 s while importing hanging_kernels" in result.reason
    assert result.seconds < 20
