"""Render the chat template that a model file carries."""

from __future__ import annotations

from collections.abc import Sequence

from adaverify_contracts import ModelFileError, PromptError


class ChatTemplate:
    """A Jinja template from a file nobody here wrote, so it runs in Jinja's sandbox.

    Args:
        source: the template, in the dialect model hubs use.
        markers: control tokens that no message may contain.

    Raises:
        ModelFileError: the template does not compile.
    """

    def __init__(self, source: str, markers: tuple[str, ...]) -> None:
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelFileError(
                "the chat template of the model file does not compile",
                arrived=str(error),
                allowed="a Jinja template",
                remedy="delete the file so that it is fetched again",
            ) from error
        self._markers = markers

    def render(self, messages: Sequence[dict[str, str]]) -> str:
        """Return the conversation as one text that ends where the assistant's turn begins.

        Raises:
            PromptError: no message, another shape, a message that contains a marker, or the template refuses.
        """
        import jinja2

        self._check(messages)
        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True)
        except jinja2.TemplateError as error:
            raise PromptError(
                "the chat template refuses these messages",
                arrived=str(error),
                allowed="roles and an order the template knows",
                remedy="use the roles system, user and assistant",
            ) from error

    def _check(self, messages: Sequence[dict[str, str]]) -> None:
        if not messages:
            raise _bad_messages("there is no message to answer", len(messages))
        for index, message in enumerate(messages):
            role, content = message.get("role"), message.get("content")
            if not isinstance(role, str) or not isinstance(content, str):
                raise _bad_messages(f"message {index} has another shape", message)
            for marker in self._markers:
                # Otherwise whoever wrote the message could end its turn and speak as another role.
                if marker in role or marker in content:
                    raise _bad_messages(f"message {index} contains a control token", marker)


def _refuse(reason: str) -> None:
    import jinja2

    raise jinja2.TemplateRuntimeError(reason)


def _bad_messages(problem: str, arrived: object) -> PromptError:
    return PromptError(
        problem,
        arrived=arrived,
        allowed="one or more {'role': text, 'content': text}, without control tokens",
        remedy="correct the messages",
    )
