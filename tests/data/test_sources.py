import re

import pytest

from leanbayes.data import names
from leanbayes.data.mnist import FILES
from leanbayes.data.sources import SOURCES


@pytest.mark.parametrize("source", [source for sources in SOURCES.values() for source in sources], ids=lambda s: s.url)
def test_sources_are_well_formed(source):
    assert re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", source.checksum)
    assert source.url.startswith(("https://", "http://")) and source.filename in source.url


def test_sources_are_those_of_the_readers():
    assert set(SOURCES) <= set(names())
    for name in ("mnist", "fashion-mnist"):
        assert {source.filename for source in SOURCES[name]} == {f"{file}.gz" for file in FILES}


def test_no_checksum_serves_two_files():
    sums = [source.checksum for sources in SOURCES.values() for source in sources]
    assert len(sums) == len(set(sums))
