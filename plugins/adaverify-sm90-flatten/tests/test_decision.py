"""When query tokens are flattened, as a table."""

import pytest

from adaverify_contracts import GraphSupport, LimitsError
from adaverify_sm90_flatten import use_flattening

RAGGED, UNIFORM = GraphSupport.VARLEN_DECODE, GraphSupport.UNIFORM_BATCH


@pytest.mark.parametrize(
    ("query_len", "options", "needed", "support", "word"),
    [
        # No native kernel for K + 1 rows: needed in every mode (vllm #43457: K = 2 hit an assertion).
        (8, {"adaptive": False}, True, RAGGED, "no native kernel for 8"),
        (8, {"adaptive": True}, True, RAGGED, "no native kernel for 8"),
        (3, {"adaptive": False}, True, RAGGED, "it takes 1 or 2"),
        (4, {"adaptive": False}, True, RAGGED, "it takes 1 or 2"),
        # The pinned build takes 4 when told so.
        (4, {"adaptive": False, "native": (1, 2, 4)}, False, UNIFORM, "natively"),
        (3, {"adaptive": False, "native": (1, 2, 4)}, True, RAGGED, "1 or 2 or 4"),
        # A native kernel, nothing trimmed.
        (1, {"adaptive": False}, False, UNIFORM, "natively"),
        (2, {"adaptive": False}, False, UNIFORM, "natively"),
        # A native kernel, but trimming: only flattened rows read device lengths.
        (2, {"adaptive": True}, True, RAGGED, "only the device knows"),
        (2, {"adaptive": True, "requests": 2}, True, RAGGED, "only the device knows"),
        (2, {"adaptive": True, "requests": 0}, True, RAGGED, "only the device knows"),
        # One request has equal boundaries on host and device.
        (2, {"adaptive": True, "requests": 1}, False, UNIFORM, "single request"),
        (1, {"adaptive": True, "requests": 1}, False, UNIFORM, "single request"),
        (5, {"adaptive": True, "requests": 1}, True, RAGGED, "no native kernel for 5"),
        # A chip whose kernel reads ragged lengths needs none of it.
        (8, {"adaptive": True, "ragged_kernel": True}, False, RAGGED, "itself"),
        (1, {"adaptive": False, "native": ()}, True, RAGGED, "it takes no"),
    ],
)
def test_the_decision_and_its_graph_support(query_len, options, needed, support, word):
    found = use_flattening(query_len, **options)
    assert (found.needed, found.graph_support) == (needed, support)
    assert word in found.reason


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("query_len", range(1, 10))
def test_flattened_rows_always_have_ragged_graph_support(query_len, adaptive):
    """vllm #47808: the flag said ragged, the builder said uniform."""
    for requests in (None, 0, 1, 2, 64):
        found = use_flattening(query_len, adaptive=adaptive, requests=requests)
        assert found.needed == (found.graph_support is RAGGED)


@pytest.mark.parametrize(("query_len", "requests"), [(0, None), (-1, 3), (2, -1)])
def test_impossible_shapes_are_refused(query_len, requests):
    with pytest.raises(LimitsError, match="query_len >= 1"):
        use_flattening(query_len, adaptive=True, requests=requests)
