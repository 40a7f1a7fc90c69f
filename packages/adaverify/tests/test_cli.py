"""The command line as a process: version, help, consoles, closed pipes, and `report` on any file."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from adaverify import cli, console
from adaverify.course import Course
from adaverify_contracts import AdaverifyError, StepRecord
from adaverify_replay import TraceWriter

MAIN = "from adaverify.cli import main; main()"
# Imports the command line once and runs `main` in a fork for every request: a line with the folder, the
# arguments, standard output and standard error. Either is a path, "|" for a pipe that nobody reads, or null
# for closed. Answers with the exit code. A child makes its streams anew, as the start of an interpreter does
# (one whose descriptor is closed is None), and ends as an interpreter does; what was imported before the fork
# is out of the garbage collector's sight, or the last collection alone would take longer than all else.
FORKS = """
import gc, json, os, sys
from adaverify.cli import main

def stream(number, path):
    if path is None:
        os.close(number)
        return None
    if path == "|":
        reading, opened = os.pipe()
        os.close(reading)
    else:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
    os.dup2(opened, number)
    os.close(opened)
    return open(number, "w", encoding="utf-8", errors="backslashreplace" if number == 2 else "strict")

gc.collect()
gc.freeze()
answers = os.dup(1)
for line in sys.stdin:
    folder, arguments, out, err = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        sys.argv[1:] = arguments
        sys.stdout = sys.__stdout__ = stream(1, out)
        sys.stderr = sys.__stderr__ = stream(2, err)
        main()
        sys.exit()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(answers, b"%d\\n" % code)
"""


@pytest.fixture(scope="module")
def forks():
    """The process that forks for a command line."""
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process


@pytest.fixture
def exit_code(forks, tmp_path):
    """Return a function that runs a command line with streams of its own and returns its exit code.

    ``out`` and ``err`` are paths to write to, "|" for a pipe that nobody reads, None for closed.
    """

    def run(*arguments, out, err):
        streams = [None if one is None else str(one) for one in (out, err)]
        request = [str(tmp_path), arguments, *streams]
        forks.stdin.write(json.dumps(request) + "\n")
        forks.stdin.flush()
        return int(forks.stdout.readline())

    return run


@pytest.fixture
def trace(tmp_path):
    """A trace of three steps."""
    path = tmp_path / "trace.jsonl"
    with TraceWriter(path) as writer:
        for step in range(3):
            writer.write(
                StepRecord(
                    step=step,
                    state="full",
                    reason="a test",
                    requests=1,
                    certain_tokens=1,
                    scheduled=2,
                    planned=2,
                    verified=2,
                    accepted=1,
                    emitted=2,
                    tokens=3,
                    tier=3,
                    strategy="uniform",
                    predicted_seconds=None,
                    realised_seconds=0.5,
                    predicted_tokens=2.0,
                    realised_tokens=2,
                    lag=None,
                    digest="0",
                )
            )
    return path


def test_version_is_that_of_the_distribution(invoke, monkeypatch):
    """Installed it is a number; in a source tree it says that there is none."""
    monkeypatch.setattr(cli, "version", lambda name: f"7.8.9 of {name}")
    assert invoke("--version").stdout == "adaverify 7.8.9 of adaverify\n"

    def absent(name):
        raise cli.PackageNotFoundError(name)

    monkeypatch.setattr(cli, "version", absent)
    result = invoke("--version")
    assert (result.exit_code, "source tree" in result.stdout) == (0, True)


def test_help_names_every_command_and_code(invoke):
    """The page a user sees first."""
    shown = invoke("--help").stdout
    for word in ("run", "doctor", "profile", "audit", "plugins", "report", "--version", "Exit codes"):
        assert word in shown
    for command in ("run", "doctor", "profile", "audit", "report"):
        assert "1 a check failed" in " ".join(invoke(command, "--help").stdout.split())


def test_report_shows_and_plots_a_trace(invoke, trace, tmp_path):
    """Totals, states and a picture; the JSON has the same numbers."""
    result = invoke("report", trace, "--plot", tmp_path / "trace.png")
    assert result.exit_code == 0
    assert "tokens_per_second" in result.stdout
    assert "fallbacks: none" in result.stdout
    assert (tmp_path / "trace.png").read_bytes()[:4] == b"\x89PNG"
    summary = json.loads(invoke("report", trace, "--json").stdout)
    assert (summary["steps"], summary["emitted"], summary["tokens_per_second"]) == (3, 6, 4.0)


def test_report_leaves_a_torn_last_line_out_and_says_so(invoke, trace):
    """A crash of the machine may cut the last line."""
    trace.write_bytes(trace.read_bytes()[:-4])
    result = invoke("report", trace, "--json")
    assert json.loads(result.stdout)["steps"] == 2
    assert "was cut short and is left out" in result.stderr


@pytest.mark.parametrize("content", [None, "", "not a trace\n", '{"format": "other"}\n'])
def test_report_refuses_what_is_no_trace(invoke, tmp_path, content):
    """Missing, empty, foreign: a typed error with the path."""
    path = tmp_path / "x.jsonl"
    if content is not None:
        path.write_text(content)
    result = invoke("report", path)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "TraceError" in result.stderr
    assert "x.jsonl" in result.stderr


def test_a_closed_pipe_is_neither_a_failed_check_nor_a_traceback(exit_code, trace, tmp_path):
    """`adaverify ... | head` ends quietly with 128 + SIGPIPE."""
    code = exit_code("report", str(trace), out="|", err=tmp_path / "said")
    assert (code, (tmp_path / "said").read_text()) == (console.PIPE_CLOSED, "")


def test_tables_in_a_pipe_are_not_cut_at_80_columns(tiny, invoke, monkeypatch):
    """Nobody can widen a file afterwards; COLUMNS still decides where it is set."""
    assert max(map(len, invoke("doctor").stdout.splitlines())) <= 80
    monkeypatch.delenv("COLUMNS")
    console.out.cache_clear()
    lines = invoke("doctor").stdout.splitlines()
    widths = [len(line.rstrip()) for line in lines]
    assert 80 < max(widths) < 1000
    (row,) = [line for line in lines if line.startswith("n-gram")]
    assert "deterministic" in row


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys, monkeypatch):
    """At most one in ten seconds, with task, share and note; a log shows that a long run is alive."""
    now = [100.0]
    monkeypatch.setattr(console, "monotonic", lambda: now[0])
    with console.progress() as display:
        task = display.add_task("running", total=8, note="fixed 12.0 tokens/s")
        for done, seconds in enumerate((3.0, 6.0, 2.0, 1.0, 20.0, 4.0), 1):
            now[0] += seconds
            display.update(task, completed=done)
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" (")[0] for line in lines] == [
        "running: 38 % fixed 12.0 tokens/s",
        "running: 62 % fixed 12.0 tokens/s",
    ]


def test_numbers_that_are_not_finite_become_null(capsys):
    """JSON has no infinity; a reader must still get one value."""
    console.emit_json({"gap": float("inf"), "more": [float("nan"), 1.5, ("a", -float("inf"))]})
    assert json.loads(capsys.readouterr().out) == {"gap": None, "more": [None, 1.5, ["a", None]]}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (3, "3"),
        (0.12345, "0.123"),
        (123.456, "123.5"),
        ("[x]", "[x]"),
    ],
)
def test_cells(value, shown):
    """What a table shows of each kind of value."""
    assert console.cell(value) == shown


def test_tables_keep_brackets_and_align_numbers(capsys):
    """An extra in square brackets is no markup; numbers stand right, also when they were formatted before."""
    console.out().print(console.table("T[1]", ("a", "b"), [("x[plot]", "1.5 %"), ("y", "10.25 %")]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].rstrip() == "T[1]"
    assert [line.rstrip() for line in lines[3:]] == ["x[plot]   1.5 %", "y       10.25 %"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that takes nothing")
@pytest.mark.parametrize(
    ("out", "reason"), [(None, "it is closed"), ("/dev/full", "No space left on device")]
)
def test_an_output_that_is_not_there_is_one_line_and_code_4(exit_code, trace, tmp_path, out, reason):
    """Closed or full, a table, JSON or a help page: never a traceback, never code 1."""
    said = tmp_path / "said"
    for line in (["report", str(trace)], ["report", str(trace), "--json"], ["report", "--help"], ["--help"]):
        assert exit_code(*line, out=out, err=said) == console.FAULT
        assert said.read_text() == f"standard output cannot be written: {reason}\n"
        said.unlink()


def test_a_shell_that_closes_the_output_gets_code_4(trace):
    """The same from the start of a process of its own."""
    line = f"{shlex.join([sys.executable, '-c', MAIN, 'report', str(trace)])} >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        console.FAULT,
        "standard output cannot be written: it is closed\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that takes nothing")
@pytest.mark.parametrize("err", [None, "/dev/full"])
def test_messages_that_nobody_can_read_keep_the_exit_code(exit_code, err):
    """The code is what is left to tell."""
    assert exit_code("report", "absent", out="/dev/null", err=err) == 3
    assert exit_code("nonsense", out="/dev/null", err=err) == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that takes nothing")
def test_streams_that_take_nothing_leave_the_exit_code(exit_code, trace):
    """Neither the result nor the message about it can be written: code 4 all the same."""
    for line in (["report", str(trace)], ["--help"]):
        assert exit_code(*line, out="/dev/full", err="/dev/full") == console.FAULT


def test_control_characters_are_shown_as_escapes(invoke, tmp_path):
    """A file must not steer the terminal of whoever looks at it."""
    path = tmp_path / "bin.txt"
    path.write_bytes(b"\x1b]0;title\x07\x1b[31m\x9b\n")
    result = invoke("report", path)
    assert result.exit_code == 3
    assert "arrived: \\x1b]0;title\\x07\\x1b[31m" in result.stderr
    assert not set(result.stderr) & {"\x1b", "\x07", "\x9b"}
    assert json.loads(console.json_text({"a": "\x9b\u202e\udcff"}, indent=1)) == {"a": "\x9b\u202e\udcff"}
    assert console.json_text("\x9b\udcff", indent=1) == '"\\u009b\\udcff"'


def test_a_trace_without_steps_says_so(invoke, tmp_path):
    """Zeros everywhere would leave the reader to guess."""
    path = tmp_path / "empty.jsonl"
    TraceWriter(path).close()
    result = invoke("report", path)
    assert result.exit_code == 0
    assert "holds a header and no step" in result.stderr


def test_progress_never_runs_backwards():
    """Not where a total grows, not between stages, and it ends where each stage said."""
    with console.progress() as display:
        course = Course(display)
        shares = []
        course.stage("loading", 0.1)
        course_steps = [
            (None, 0.1),
            ([(30, 60), (60, 60), (60, 90), (75, 90), (90, 90)], 0.5),
            ([(1, 2), (2, 2)], 1.0),
        ]
        for reports, until in course_steps:
            advance = course.stage("a stage", until)
            for done, total in reports or ():
                advance(done, total)
                shares.append(course.share)
        assert shares == sorted(shares)
        assert shares[4] == pytest.approx(0.5)
        assert shares[-1] == pytest.approx(1.0)


def test_a_narrow_console_leaves_words_whole(capsys, monkeypatch):
    """Twenty columns broke them in the middle; a table of many columns is wider than that."""
    monkeypatch.setenv("COLUMNS", "20")
    heads = ("mode", "regime", "position", "predicted", "difference")
    console.out().print(console.table("T", heads, [("adaptive", "greedy", 1, 0.5, 0.25)]))
    said = capsys.readouterr().out.split()
    assert set(heads) | {"adaptive", "0.500"} <= set(said)


def test_a_line_across_is_ascii_where_the_output_is(monkeypatch):
    """Eighty escapes were written in its place."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii", "backslashreplace"))
    console.rule()
    sys.stdout.flush()
    assert written.getvalue().decode().strip("\n") == "-" * 80


def test_a_text_among_numbers_keeps_its_quotes(capsys):
    """'1' was refused for being a text, and shown as 1."""
    console.print_error(AdaverifyError("no", arrived=("1", 2), allowed="two ints"))
    console.print_error(AdaverifyError("no", arrived=["a", "b"], allowed="ints"))
    said = capsys.readouterr().err
    assert "arrived: '1', 2" in said and "arrived: a, b" in said
