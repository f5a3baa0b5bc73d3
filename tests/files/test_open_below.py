"""Files whose size the file system does not tell."""

import pytest

from evaluator.files.open_below import read_named, read_regular


@pytest.mark.parametrize("read", [read_named, read_regular])
def test_a_file_longer_than_its_size_is_not_cut_off(read):
    assert read("/proc/self/comm", 100).endswith(b"\n")
    with pytest.raises(OSError, match="more than 10 bytes"):
        read("/proc/self/maps", 10)
