"""Synthetic speech: what is said, that it is the same every time, and what happens without the wheel."""

from __future__ import annotations

import sys

import numpy
import pytest

from returnn_common.data import espeak
from returnn_common.data.digits import WORDS


def test_without_the_wheel_there_is_one_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(ImportError, match="pip install espeakng-loader"):
        espeak.Synthesizer()


def test_strings():
    pytest.importorskip("espeakng_loader")
    first, again, other = (
        espeak.synthetic_strings(9, lengths=(1, 7), seed=seed) for seed in (1, 1, 2)
    )
    assert len(first) == 9
    for utterance in first:
        words = utterance.text.split()
        assert 1 <= len(words) <= 7 and set(words) <= set(WORDS)
        assert 0.15 < len(utterance.audio) / 8000 / len(words) < 0.8
        level = numpy.sqrt(numpy.mean(utterance.audio**2))
        assert level == pytest.approx(0.1, rel=1e-3) or numpy.abs(
            utterance.audio
        ).max() == pytest.approx(1.0)
    assert [utterance.text for utterance in first] == [utterance.text for utterance in again]
    for a, b in zip(first, again, strict=True):
        numpy.testing.assert_array_equal(a.audio, b.audio)
    assert [utterance.text for utterance in first] != [utterance.text for utterance in other]


def test_no_such_voice():
    pytest.importorskip("espeakng_loader")
    with pytest.raises(ValueError, match="no voice 'xx-nowhere', expected a name such as 'en-us'"):
        espeak.Synthesizer()("one", voice="xx-nowhere")
