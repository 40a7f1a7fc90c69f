"""Chat templates run in a sandbox."""

from __future__ import annotations

import pytest

from adaverify_contracts import ModelFileError, PromptError
from adaverify_smollm2.chat import ChatTemplate

MESSAGES = [{"role": "user", "content": "hi"}]


def test_generation_prompt_is_asked_for():
    """The text ends where the assistant speaks."""
    template = ChatTemplate("{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}", ())
    assert template.render(MESSAGES) == "hi>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages.__init__.__globals__ }}",
    ],
)
def test_template_cannot_leave_the_sandbox(source):
    """A file from elsewhere reaches neither Python's classes nor the caller's list."""
    messages = list(MESSAGES)
    with pytest.raises(PromptError, match="refuses"):
        ChatTemplate(source, ()).render(messages)
    assert messages == MESSAGES


def test_template_may_refuse():
    """``raise_exception`` is how published templates object to an order of roles."""
    with pytest.raises(PromptError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}", ()).render(MESSAGES)


def test_broken_template_is_the_files_fault():
    """It is found while loading."""
    with pytest.raises(ModelFileError, match="does not compile"):
        ChatTemplate("{% if %}", ())
