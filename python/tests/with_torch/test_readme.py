"""The READMEs' examples that need torch."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

import peakledger

pytestmark = pytest.mark.torch

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("readme", ["README.md", "README.zh-CN.md"])
def test_examples_in_the_readmes(readme: str) -> None:
    text = (REPOSITORY / readme).read_text(encoding="utf-8")
    blocks = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks, readme
    for block in blocks:
        test = doctest.DocTestParser().get_doctest(block, {"peakledger": peakledger}, readme, readme, 0)
        assert test.examples and doctest.DocTestRunner().run(test).failed == 0
