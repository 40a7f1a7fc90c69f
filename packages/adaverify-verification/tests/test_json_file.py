"""Files that have no end, no size or no JSON are told as such, and never read as a whole."""

import os

import pytest

from adaverify_contracts import CalibrationError, CostTableError
from adaverify_verification import CostTable, json_file, load_state
from adaverify_verification.json_file import read_json, write_whole


def test_what_is_json_is_read(tmp_path):
    path = tmp_path / "value.json"
    path.write_text('{"a": [1, null]}', encoding="utf-8")
    assert read_json(path) == {"a": [1, None]}


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused_unread(device, tmp_path):
    """Reading one filled the memory of the machine."""
    with pytest.raises(ValueError, match="no regular file"):
        read_json(type(tmp_path)(device))
    with pytest.raises(CalibrationError, match="no regular file"):
        load_state(type(tmp_path)(device))
    with pytest.raises(CostTableError, match=device) as caught:
        CostTable.load(device, None)
    assert "no regular file" in str(caught.value)


def test_a_pipe_is_not_waited_for(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(ValueError, match="no regular file"):
        read_json(path)


def test_what_is_too_large_or_too_deep_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "value.json"
    path.write_text("[" * 100_000, encoding="utf-8")
    with pytest.raises(ValueError, match="too deeply"):
        read_json(path)
    monkeypatch.setattr(json_file, "MAX_BYTES", 99_999)
    with pytest.raises(ValueError, match="100000 bytes are more than 99999"):
        read_json(path)


def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    """Ctrl-C after the text, before the rename."""
    path = tmp_path / "calibration.json"
    write_whole(path, "old")

    def interrupt(number):
        raise KeyboardInterrupt

    monkeypatch.setattr(json_file.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_whole(path, "new")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("calibration.json", "old")]


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link_and_its_file_is_written(tmp_path, there):
    """Also where the file that it points to is yet to be made."""
    (tmp_path / "elsewhere").mkdir()
    target, link = tmp_path / "elsewhere" / "table.json", tmp_path / "table.json"
    if there:
        target.write_text("old")
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink() and target.read_text() == "new"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere", "table.json"]
    assert [entry.name for entry in target.parent.iterdir()] == ["table.json"]
