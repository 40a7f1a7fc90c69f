"""Benchmarks describe themselves, and no result has times without a check."""

import pytest

from adaverify_contracts import (
    BenchmarkColumn,
    BenchmarkDescriptor,
    BenchmarkOptions,
    BenchmarkResult,
    Capability,
    DescriptorError,
    Requirements,
    Sample,
    Times,
)


class NoTimer:
    def time(self, variants, *, captured=True):
        return {name: Times(Sample(1.0, 1.0, 1.0)) for name in variants}

    def under_load(self, variants):
        return {name: Sample(1.0, 1.0, 1.0) for name in variants}

    def captured(self, work):
        return work

    def synchronize(self):
        pass


CPU = Capability("cpu", "cpu", "CPU", None, 1, 0)
COLUMNS = (BenchmarkColumn("requests"), BenchmarkColumn("host_us", "us"))


def result(**changes):
    values = {
        "columns": COLUMNS,
        "rows": ((1, 2.5), (16, None)),
        "checks": ("rows equal the reference in 3 batches",),
        "data": "lengths uniform in 1..8",
        "cache": "warm",
    }
    return BenchmarkResult(**{**values, **changes})


def test_a_result_becomes_json_by_column_name():
    found = result(facts={"floor_us": 1.5}, notes=("a small model",)).as_dict()
    assert found["rows"] == [{"requests": 1, "host_us": 2.5}, {"requests": 16, "host_us": None}]
    assert found["units"] == {"requests": "", "host_us": "us"}
    assert found["facts"] == {"floor_us": 1.5}
    assert found["checks"] and found["data"] and found["cache"] and found["notes"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"checks": ()}, "no checks"),
        ({"checks": "rows equal"}, "tuple of non-empty strings"),
        ({"rows": ()}, "rows do not fit"),
        ({"rows": ((1,),)}, "rows do not fit"),
        ({"columns": ()}, "columns are missing"),
        ({"columns": (COLUMNS[0], COLUMNS[0])}, "repeat a name"),
        ({"data": ""}, "data"),
        ({"cache": ""}, "cache"),
    ],
)
def test_a_result_that_cannot_be_read_or_trusted_is_refused(change, says):
    with pytest.raises(DescriptorError, match=says):
        result(**change)


def test_a_sample_is_a_median_between_its_quartiles():
    assert Sample(2.0, 1.0, 3.0).median == 2.0
    with pytest.raises(DescriptorError, match="quartiles"):
        Sample(0.5, 1.0, 3.0)
    with pytest.raises(DescriptorError, match="quartiles"):
        Sample(float("nan"), 0.0, 1.0)


def test_a_column_is_a_key():
    with pytest.raises(DescriptorError, match="not a key"):
        BenchmarkColumn("host us")


@pytest.mark.parametrize(
    "change",
    [
        {"repeat": 0},
        {"requests": (0,)},
        {"requests": (4, 2)},
        {"requests": (2, 2)},
        {"steps": 0},
        {"timer": None},
        {"capability": "cpu"},
        {"device": 0},
        {"progress": None},
    ],
)
def test_options_out_of_range_are_refused(change):
    with pytest.raises(DescriptorError):
        BenchmarkOptions(**{"device": "cpu", "capability": CPU, "timer": NoTimer(), **change})


def test_options_have_usable_defaults():
    options = BenchmarkOptions("cpu", CPU, NoTimer())
    options.progress(0, 1, "case")
    assert options.requests == ()


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Not A Name"},
        {"name": "all"},
        {"description": ""},
        {"requirements": None},
        {"run": None},
    ],
)
def test_a_descriptor_checks_itself(change):
    values = {"name": "gemm", "description": "a product", "requirements": Requirements(), "run": result}
    assert BenchmarkDescriptor(**values).name == "gemm"
    with pytest.raises(DescriptorError):
        BenchmarkDescriptor(**{**values, **change})
