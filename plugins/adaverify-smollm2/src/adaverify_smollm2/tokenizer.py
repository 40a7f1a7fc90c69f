"""Text to ids and back, from the vocabulary, the merges and the chat template inside the GGUF file."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from adaverify_contracts import ModelFileError, PromptError
from adaverify_smollm2.chat import ChatTemplate
from adaverify_smollm2.gguf_file import GgufFile

if TYPE_CHECKING:
    import tokenizers

# Values of tokenizer.ggml.token_type.
_CONTROL = 3
_END_OF_TEXT = "<|endoftext|>"


class SmolTokenizer:
    """Byte-level BPE as SmolLM2 was trained with: digits one by one, then GPT-2's splitting.

    The vocabulary lacks 21 of the 256 bytes: 13 that UTF-8 never uses, two that begin characters of planes 4
    to 11 (nothing is assigned there yet), and the control characters 04, 06, 13, 14, 16 and 1D. Such bytes
    are dropped on encoding, as the model's own tokenizer does; every other text comes back unchanged.

    Args:
        file: a GGUF file whose ``tokenizer.ggml.pre`` is ``smollm``.

    Raises:
        ModelFileError: a key is missing, another tokenizer kind, or merges the vocabulary does not know.
    """

    def __init__(self, file: GgufFile) -> None:
        _require(file, "tokenizer.ggml.model", "gpt2")
        _require(file, "tokenizer.ggml.pre", "smollm")
        tokens: list[str] = file.items("tokenizer.ggml.tokens", str)
        kinds: list[int] = file.items("tokenizer.ggml.token_type", int)
        if len(kinds) != len(tokens) or len(set(tokens)) != len(tokens):
            raise ModelFileError(
                "the vocabulary of the model file contradicts itself",
                arrived=f"{len(tokens)} tokens, {len(set(tokens))} distinct, {len(kinds)} types",
                allowed="distinct tokens, one type each",
                remedy="delete the file so that it is fetched again",
            )
        control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
        merges = [_pair(merge) for merge in file.items("tokenizer.ggml.merges", str)]
        self._codec = _build_codec({token: index for index, token in enumerate(tokens)}, merges, control)
        self._lock = threading.Lock()
        self._size = len(tokens)
        self._control = tuple(control)
        self._chat = ChatTemplate(file.text("tokenizer.chat_template"), self._control)
        self._stop_tokens = _stop_tokens(file, tokens)

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return self._size

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Ids that end a sequence: the end of a turn and the end of a text."""
        return self._stop_tokens

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text. A marker spelt out in the text is text, not a marker.

        Raises ``PromptError`` for text that has no UTF-8 form, that is, with half a surrogate pair in it.
        """
        return self._encode(text, markers=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of ``tokens``, markers skipped.

        A character cut in half decodes to U+FFFD. Raises ``PromptError`` for an id outside the vocabulary.
        """
        for token in tokens:
            if not 0 <= token < self._size:
                raise PromptError(
                    "a token id is outside the vocabulary",
                    arrived=token,
                    allowed=f"0 .. {self._size - 1}",
                    remedy="pass ids that this tokenizer or this model produced",
                )
        return self._codec.decode(list(tokens), skip_special_tokens=True)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Return the ids of the model's chat template, ready for the assistant's turn.

        Args:
            messages: each with the keys ``role`` and ``content``. Without a leading ``system`` message the
                template adds the model's own.

        Raises:
            PromptError: no message, another shape, or a message that contains a marker.
        """
        return self._encode(self._chat.render(messages), markers=True)

    def _encode(self, text: str, *, markers: bool) -> list[int]:
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                "a prompt cannot be encoded",
                arrived=str(error),
                allowed="text with a UTF-8 form",
                remedy="decode the prompt's bytes with errors='replace' before passing it on",
            ) from error
        # One codec serves both uses, so the flag is set before each.
        with self._lock:
            self._codec.encode_special_tokens = not markers
            return self._codec.encode(text, add_special_tokens=False).ids


def _build_codec(
    vocabulary: dict[str, int], merges: list[tuple[str, str]], control: list[str]
) -> tokenizers.Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    try:
        codec = Tokenizer(models.BPE(vocabulary, merges))
    except Exception as error:  # the library raises bare Exception for an unknown merge
        raise ModelFileError(
            "the merges of the model file do not fit its vocabulary",
            arrived=str(error),
            allowed="pairs of tokens whose concatenation is a token",
            remedy="delete the file so that it is fetched again",
        ) from error
    codec.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    codec.decoder = decoders.ByteLevel()
    codec.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return codec


def _pair(merge: str) -> tuple[str, str]:
    # No token holds a plain space: byte-level BPE writes it as U+0120.
    first, _, second = merge.partition(" ")
    return first, second


def _require(file: GgufFile, key: str, allowed: str) -> None:
    if file.text(key) != allowed:
        raise ModelFileError(
            f"{key} of the model file names a tokenizer this plugin does not build",
            arrived=file.text(key),
            allowed=allowed,
            remedy="pass the GGUF of SmolLM2",
        )


def _stop_tokens(file: GgufFile, tokens: list[str]) -> tuple[int, ...]:
    stops = {file.integer("tokenizer.ggml.eos_token_id")}
    if max(stops) >= len(tokens):
        raise ModelFileError(
            "tokenizer.ggml.eos_token_id of the model file is outside its vocabulary",
            arrived=max(stops),
            allowed=f"0 .. {len(tokens) - 1}",
            remedy="delete the file so that it is fetched again",
        )
    # The instruct model ends a turn with eos, but a plain continuation may end with the pre-training marker.
    if _END_OF_TEXT in tokens:
        stops.add(tokens.index(_END_OF_TEXT))
    return tuple(sorted(stops))
