"""Checksums and stamps."""

from __future__ import annotations

import hashlib
import os

from adaverify_smollm2.checksum import is_verified, sha256_of, stamp_path

CONTENT = b"weights" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


def test_absent_file_is_not_verified(tmp_path):
    """A missing file is an answer, not an error."""
    assert not is_verified(tmp_path / "none", 3, SHA)


def test_right_file_is_verified_and_stamped(tmp_path):
    """The first check hashes and leaves a stamp."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    assert SHA in stamp_path(path).read_text()
    assert sha256_of(path) == SHA


def test_stamp_makes_the_second_check_quick(tmp_path):
    """With a fresh stamp the file is not even opened."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    times = path.stat()
    path.write_bytes(b"X" * len(CONTENT))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert is_verified(path, len(CONTENT), SHA), "same size and time: the documented limit of the stamp"


def test_edited_file_is_found_despite_its_stamp(tmp_path):
    """Same size, other bytes, other time."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    path.write_bytes(b"X" * len(CONTENT))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert not is_verified(path, len(CONTENT), SHA)


def test_truncated_file_is_found(tmp_path):
    """A shorter file fails on size alone, whatever the stamp says."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    path.write_bytes(CONTENT[:-1])
    assert not is_verified(path, len(CONTENT), SHA)


def test_stamp_of_another_pin_or_rubbish_is_ignored(tmp_path):
    """A stamp proves one checksum only, and a damaged stamp proves nothing."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    assert not is_verified(path, len(CONTENT), "0" * 64)
    stamp_path(path).write_text("{rubbish")
    assert is_verified(path, len(CONTENT), SHA)


def test_a_stamp_has_the_mode_of_any_other_new_file(tmp_path):
    """A cache that several users share would be hashed at every start of all but one of them."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    assert stamp_path(path).stat().st_mode == path.stat().st_mode
    assert sorted(tmp_path.iterdir()) == sorted([path, stamp_path(path)])


def test_without_its_stamp_a_file_is_hashed_again(tmp_path):
    """How a user forces a full check: delete the stamp."""
    path = tmp_path / "model"
    path.write_bytes(CONTENT)
    assert is_verified(path, len(CONTENT), SHA)
    times = path.stat()
    path.write_bytes(b"X" * len(CONTENT))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    stamp_path(path).unlink()
    assert not is_verified(path, len(CONTENT), SHA)
