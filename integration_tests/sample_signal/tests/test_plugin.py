"""Values worked by hand, and what the manager relies on."""

import pytest
import torch
from adaverify_contracts import Limits
from adaverify_testing import isolated_manager

from adaverify_sample_signal import hooks


@pytest.fixture
def signal():
    """The signal as the runtime makes it."""
    ((descriptor,),) = isolated_manager(hooks).hook.adaverify_register_signals()
    limits = Limits(max_requests=4, draft_tokens=3, max_model_len=64, page_size=16)
    return descriptor.factory(limits, torch.device("cpu"))


def test_confidences_of_two_requests(signal):
    """sigmoid(0), sigmoid(-0.2), sigmoid(-0.4), and a NaN score that gives 0."""
    scores = torch.tensor([[0.0, 0.0, 0.0], [50.0, -50.0, float("nan")]])
    found = signal.confidences(scores, torch.tensor([0, 1]))
    assert found.dtype == torch.float32
    expected = torch.tensor([[0.5, 0.450166, 0.401312], [1.0, 0.0, 0.0]])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_the_buffers_are_static(signal):
    """A captured graph keeps the address: the next step writes to the same one."""
    first = signal.confidences(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert signal.confidences(torch.ones(1, 3), torch.tensor([0])).data_ptr() == first.data_ptr()


def test_it_is_ready(signal):
    """It may drive trimming from the first step."""
    assert signal.ready()[0]
