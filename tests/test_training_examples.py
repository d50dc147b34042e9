"""The examples of training do what their pages say, on both backends."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy
import pytest

EXAMPLES = Path(__file__).parent.parent / "examples/training"
BACKENDS = ["tensorflow-net-dict", "torch"]


def results_of(name, **options):
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    return [main(backend, **options) for backend in BACKENDS]


def test_align_then_train():
    layers, torch = results_of("align_then_train", num_epochs=2)
    numpy.testing.assert_allclose(layers, torch, atol=0.01)
    assert layers[0] < 0.8 and layers[-1] > 0.95


def test_gan():
    layers, torch = results_of("gan", num_steps=300)
    numpy.testing.assert_allclose(layers, torch, atol=0.01)
    assert numpy.abs(layers - [2.0, -1.0]).max() < 1.0  # it begins at 0, 0


@pytest.mark.slow
def test_maml():
    layers, torch = results_of("maml", num_steps=2)
    numpy.testing.assert_allclose(layers, torch, rtol=0.01)
    assert layers[1] != layers[0]


@pytest.mark.slow
def test_maml_learns():
    main = runpy.run_path(str(EXAMPLES / "maml.py"))["main"]
    before, after = main("torch")
    assert after < 0.5 * before


def test_reinforce():
    layers, torch = results_of("reinforce", num_steps=60)
    for rewards in (layers, torch):
        assert numpy.mean(rewards[:3]) < 0.4 and numpy.mean(rewards[-5:]) > 0.8
