"""Prompts: HumanEval by default, text or JSONL by request, typed errors for everything else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from adaverify.prompts import human_eval_prompts, numbered_prompts
from adaverify_contracts import PromptError


def test_human_eval_has_its_164_prompts() -> None:
    """The published set is complete and every prompt is Python source that defines a function."""
    prompts = human_eval_prompts()
    assert len(prompts) == 164
    assert all("def " in prompt for prompt in prompts)
    assert human_eval_prompts(3) == prompts[:3]


def test_text_is_one_prompt_a_line(tmp_path: Path) -> None:
    """Blank lines are skipped and surrounding blanks removed."""
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\n  second  \n", encoding="utf-8")
    assert numbered_prompts(path) == [(1, "first"), (3, "second")]
    assert numbered_prompts(path, 1) == [(1, "first")]


def test_jsonl_takes_strings_and_objects(tmp_path: Path) -> None:
    """Both spellings may be mixed in one file; inner newlines survive."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\\nb"\n{"prompt": "c", "id": 7}\n', encoding="utf-8")
    assert numbered_prompts(path) == [(1, "a\nb"), (2, "c")]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("empty.txt", b"\n  \n", "holds no prompt"),
        ("binary.txt", b"\xff\xfe\x00", "cannot be read"),
        ("broken.jsonl", b'{"prompt": "a"}\n{oops\n', "line 2 is not JSON"),
        ("keyless.jsonl", b'{"text": "a"}\n', "line 1 has no prompt"),
        ("blank.jsonl", b'{"prompt": "  "}\n', "line 1 has no prompt"),
        ("number.jsonl", b"3\n", "line 1 has no prompt"),
    ],
)
def test_unusable_files_are_named_with_the_line(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    """Every malformed file ends in a PromptError that says where."""
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(PromptError, match=says):
        numbered_prompts(path)


def test_a_missing_file_and_a_folder_are_prompt_errors(tmp_path: Path) -> None:
    """Neither is a traceback from deep inside."""
    for path in (tmp_path / "absent.txt", tmp_path):
        with pytest.raises(PromptError, match="cannot be read"):
            numbered_prompts(path)


def test_a_byte_order_mark_is_no_part_of_the_first_prompt(tmp_path: Path) -> None:
    """Editors of one platform put it in front."""
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\nsecond\r\n")
    assert numbered_prompts(path) == [(1, "first"), (2, "second")]


def test_only_line_feeds_end_a_json_line(tmp_path: Path) -> None:
    """A line separator of another alphabet may stand inside a JSON string."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('"a\u2028b"\n"c"\n', encoding="utf-8")
    assert numbered_prompts(path) == [(1, "a\u2028b"), (2, "c")]


def test_json_nested_beyond_reason_is_a_prompt_error(tmp_path: Path) -> None:
    """The parser's recursion limit is no traceback of ours."""
    path = tmp_path / "prompts.jsonl"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(PromptError, match="line 1 is not JSON"):
        numbered_prompts(path)


def test_devices_and_pipes_are_refused_unread(tmp_path: Path) -> None:
    """/dev/zero has no end, and a pipe may have no writer."""
    pipe = tmp_path / "prompts.txt"
    os.mkfifo(pipe)
    for path in (Path("/dev/zero"), pipe):
        with pytest.raises(PromptError, match="device or a pipe"):
            numbered_prompts(path)


def test_a_number_of_any_length_is_no_prompt(tmp_path: Path) -> None:
    """It was called no JSON."""
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": ' + "9" * 5000 + "}", encoding="utf-8")
    with pytest.raises(PromptError, match="line 1 has no prompt"):
        numbered_prompts(path)
