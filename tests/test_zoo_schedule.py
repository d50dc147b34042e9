"""
The schedules against torch's, and against the formulas of the papers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import zoo

ROOT = Path(__file__).parent.parent


def torch_rates(lr: float, peer: str, num_steps: int) -> list[float]:
    """:return: of a scheduler of torch; in a process of its own, as torch.optim cannot be loaded after TensorFlow"""
    pytest.importorskip("torch")
    code = (
        "import json, torch\n"
        f"optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr={lr})\n"
        f"peer = torch.optim.lr_scheduler.{peer}\n"
        "rates = []\n"
        f"for step in range({num_steps}):\n"
        "    rates.append(peer.get_last_lr()[0])\n"
        "    optimizer.step()\n"
        f"    if step < {num_steps} - 1: peer.step()\n"
        "print(json.dumps(rates))\n"
    )
    command = [sys.executable, "-c", code]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_one_cycle_equals_torch():
    """torch divides: its factors are 1 / start_factor and start_factor / end_factor."""
    schedule = zoo.get(
        "one_cycle", peak=0.5, num_steps=50, rise=0.3, start_factor=0.2, end_factor=0.01
    )
    peer = (
        "OneCycleLR(optimizer, max_lr=0.5, total_steps=50, pct_start=0.3, three_phase=True, "
        "anneal_strategy='linear', div_factor=5, final_div_factor=20)"
    )
    expected = torch_rates(1.0, peer, 50)
    numpy.testing.assert_allclose([schedule(1, step) for step in range(50)], expected, rtol=1e-9)
    assert schedule(9, 1000) == pytest.approx(0.005)


def test_warmup_inverse_sqrt_equals_the_paper():
    """Equation 3 of the paper with d = 512 and 4000 steps, whose n counts from 1."""
    schedule = zoo.get("warmup_inverse_sqrt", peak=(512 * 4000) ** -0.5, warmup_steps=4000)
    for n in (1, 100, 3999, 4000, 4001, 10**5):
        expected = 512**-0.5 * min(n**-0.5, n * 4000**-1.5)
        assert schedule(1, n - 1) == pytest.approx(expected)


def test_warmup_cosine_equals_torch():
    """Behind the warm-up, which rises linearly from above 0 to the peak."""
    schedule = zoo.get("warmup_cosine", peak=0.5, num_steps=40, warmup_steps=9, end_factor=0.1)
    rises = [schedule(1, step) for step in range(10)]
    numpy.testing.assert_allclose(rises, numpy.arange(1, 11) * 0.05)
    expected = torch_rates(0.5, "CosineAnnealingLR(optimizer, T_max=31, eta_min=0.05)", 32)
    numpy.testing.assert_allclose([schedule(1, step) for step in range(9, 41)], expected)
    assert schedule(9, 1000) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("one_cycle", {"rise": 0.5}, "need 1 < rise"),
        ("one_cycle", {"num_steps": 2}, "need 1 < rise"),
        ("one_cycle", {"peak": 0.0}, "peak must be positive, got 0.0"),
        ("warmup_inverse_sqrt", {"warmup_steps": 0}, "warmup_steps must be positive, got 0"),
        ("warmup_cosine", {"num_steps": 5}, "need 0 < warmup_steps < num_steps"),
        ("warmup_cosine", {"end_factor": -1}, "end_factor must not be negative, got -1"),
    ],
)
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        zoo.get(name, **options)


def test_schedules_need_no_framework():
    code = (
        "import sys; from returnn_common import zoo\n"
        "for name in zoo.list(kind='schedule'): zoo.get(name)(1, 0)\n"
        "print(sorted({'returnn', 'tensorflow', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"
