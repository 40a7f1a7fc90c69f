"""The page of faults names tests that exist and every public reference that its rows are about."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PAGE = Path("docs/explanation/faults.md")
TEST = re.compile(r"`([\w./-]+\.py)::(\w+)`")

# One entry a row of the survey that the page answers, section by section; a row may have several references.
ROWS: dict[str, tuple[tuple[str, ...], ...]] = {
    "Planning and cost": (
        ("sglang #35413",),
        ("sglang #35413",),
        ("vllm #54046", "vllm #54065"),
        ("vllm #52057",),
        ("vllm #52233",),
        ("FreeToken #71",),
        ("lil-vllm #748",),
        ("a pipeline-parallel fork of vllm",),
        ("vllm #52362",),
        ("sglang #36136",),
        ("vllm #47808",),
        ("vllm #48494", "vllm #48329"),
        ("ds4 #621",),
        ("ds4 #776",),
        ("sparkinfer #911",),
        ("speed.llama.cpp release notes",),
        ("sparkinfer #920",),
        ("FreeToken #69",),
        ("tokenspeed #1132",),
        ("vllm #49369",),
        ("transformers #36337",),
        ("EAGLE #298",),
        ("recipes #967",),
    ),
    "Confidence and calibration": (
        ("vllm #57533",),
        ("vllm #52053",),
        ("DeepSpec #63",),
        ("vllm #52228",),
        ("vllm #50012", "vllm #47419"),
        ("vllm #54631",),
        ("sglang #31018",),
        ("vllm #47930", "vllm #48459"),
        ("vllm #56797", "vllm-ascend #16573"),
        ("lucebox #496", "lucebox #625"),
        ("speed.llama.cpp release notes",),
        ("ds4 #951", "ds4 #913"),
    ),
    "Layout, compaction and row maps": (
        ("vllm #52783", "vllm #56188"),
        ("vllm #52242", "vllm #51873"),
        ("vllm #50532", "vllm #51865", "vllm #39945", "lil-vllm #298"),
        ("vllm #47066",),
        ("vllm #39773",),
        ("vllm #50939",),
        ("vllm-ascend #14510",),
        ("vllm-ascend #16168",),
        ("DeepSeek-v4.1-Flash-DGX-Sparks #6", "sglang #39173"),
        ("strix-llama.cpp #4",),
        ("sglang #33412", "sglang #31023", "sglang #34297"),
    ),
    "Paged-MQA metadata": (
        ("vllm #51970", "vllm #51972", "DeepGEMM #353", "DeepGEMM #354", "TensorRT-LLM #14940"),
        ("vllm, comments in its sparse indexer",),
        ("vllm #53635",),
        ("vllm #43457", "vllm #52164"),
        ("DeepGEMM #324",),
        ("DeepGEMM #425",),
        ("vllm #48404", "lil-vllm #166"),
        ("nano-vllm #190",),
        ("vllm #56771",),
        ("dflash #146",),
    ),
    "Graph capture and dispatch": (
        ("vllm #53929",),
        ("vllm #56136",),
        ("vllm #54418",),
        ("vllm #56626",),
        ("vllm-ascend #16761",),
        ("vllm #36165",),
        ("vllm #32645",),
        ("InferenceX #3068",),
        ("onnxruntime-genai #2557",),
        ("FreeToken #71",),
    ),
    "Capability, plugins and start-up": (
        ("flash-attention #2529",),
        ("vllm #56620", "recipes #962", "recipes #963"),
        ("vllm #47808",),
        ("vllm #47808",),
        ("vllm #48277",),
        ("vllm-ascend #15107", "vllm-ascend #15098", "vllm-ascend #11126", "vllm-ascend #11431"),
    ),
    "Ranks and determinism": (
        ("vllm #54011",),
        ("vllm #56831",),
        ("sglang #33614",),
        ("vllm #35376",),
        ("vllm #48720", "vllm #49027", "vllm #46097"),
    ),
    "Operation: low load, drain, flapping, observability": (
        ("vllm #49548",),
        ("AdaFlash #2",),
        ("sglang #30204",),
        ("vllm #51510",),
        ("TensorRT-LLM, MTPDecodingConfig documentation",),
        ("vllm #51303",),
        ("sglang #9319", "sglang #1979", "llama.cpp #11933"),
    ),
}


def sections(text: str) -> dict[str, str]:
    """Return the page's sections by title, numbers left out."""
    parts = re.split(r"^## (?:\d+\. )?(.+)$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table_rows(section: str) -> list[list[str]]:
    """Return the cells of a section's table, heading left out."""
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def functions(file: Path) -> set[str]:
    """Return the test functions of a file, found by parsing and not by running it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(scope="module")
def page(root) -> str:
    return (root / PAGE).read_text(encoding="utf-8")


def test_every_named_test_exists(root, page):
    """A test that was renamed or removed leaves a fault without its proof."""
    named = TEST.findall(page)
    assert len(named) > 150
    known = {path: functions(root / path) for path, _ in named if (root / path).is_file()}
    assert [f"{path}::{name}" for path, name in named if name not in known.get(path, set())] == []


def test_no_test_is_named_in_another_form(page):
    """What the pattern does not find would not be checked."""
    assert page.count("::") == len(TEST.findall(page))


@pytest.mark.parametrize("title", ROWS)
def test_every_row_of_the_survey_is_answered(page, title):
    """One row of the page a row of the survey, in its order, with all its references."""
    found = [row[3].split(", ") for row in table_rows(sections(page)[title])]
    assert found == [", ".join(references).split(", ") for references in ROWS[title]]


def test_a_row_without_a_test_says_which_issue_it_waits_for(page):
    """Only what nothing here can have yet may be without a test."""
    empty = [row for title in ROWS for row in table_rows(sections(page)[title]) if not TEST.search(row[2])]
    assert len(empty) <= 1
    assert all(re.search(r"issue [2-6]", row[1]) for row in empty)


def test_every_row_has_its_outcome_in_words(page):
    """Four cells, none of them empty."""
    rows = [row for title in [*ROWS, "Parts that fail"] for row in table_rows(sections(page)[title])]
    assert all(len(row) == 4 and all(row) for row in rows)
