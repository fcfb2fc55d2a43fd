"""What the outside relies on changes only on purpose. Texts are compared byte for byte."""

import pytest

from tests.contract.frozen import GOLDENS, frozen_texts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.mark.smoke
def test_the_outside_sees_no_difference() -> None:
    now = frozen_texts()
    before = {path.name: path.read_text() for path in GOLDENS.iterdir()}
    assert now.keys() == before.keys()
    assert [name for name in now if now[name] != before[name]] == []
