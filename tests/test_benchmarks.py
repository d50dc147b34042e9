"""
The benchmarks: that they run, and the figures of theirs that do not depend on the machine.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def run(script, *args):
    """:return: what the script prints"""
    command = [sys.executable, str(BENCHMARKS / script), *map(str, args)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def load(name):
    """:return: one of the benchmarks as a module"""
    spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.ci
def test_lowering_is_compact(tmp_path):
    """The layers and ops of the six-layer conformer are below their bars."""
    pytest.importorskip("tensorflow")
    table = run("lowering.py", "--quick", "--json", tmp_path / "lowering.json")
    assert "MISSED" not in table
    figures = json.loads((tmp_path / "lowering.json").read_text())["figures"]
    assert 6 * 20 < figures["ours_layers"] <= 290
    assert 6 * 200 < figures["ours_ops"] <= 5000
    assert figures["ours_construct"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "entries",
    [
        pytest.param([], id="all"),
        pytest.param(["ctc", "blstm", "specaugment", "lstm_lm"], id="some", marks=pytest.mark.ci),
    ],
)
def test_entries_of_the_zoo_are_ready_for_a_gpu(entries, tmp_path):
    """no operation without a kernel for it, in training and in recognition"""
    pytest.importorskip("tensorflow")
    run("gpu_ready.py", *entries, "--json", tmp_path / "gpu.json")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert len(found) == 2 * len(entries) if entries else len(found) >= 12
    assert {graph["task"] for graph in found} == {"train", "forward"}
    assert all(graph["ops"] > 1 for graph in found)


def test_ops_without_a_gpu_kernel_are_found():
    """TensorFlow's CTCLoss has a kernel for the CPU only, also inside a branch; a function in Python has none."""
    tf = pytest.importorskip("tensorflow")
    gpu_ready = load("gpu_ready")
    with tf.Graph().as_default() as graph:
        x = tf.zeros([4, 2, 3])
        labels = {
            "labels_indices": tf.constant([[0, 0]], tf.int64),
            "labels_values": [1],
            "sequence_length": [4, 4],
        }
        loss = lambda: tf.raw_ops.CTCLoss(inputs=x, **labels)[0]  # noqa: E731
        tf.cond(tf.constant(True), loss, lambda: tf.zeros([2]))
        tf.compat.v1.py_func(lambda y: y, [x], tf.float32)
        tf.matmul(x, x, transpose_b=True)
        result = gpu_ready.check_graph(graph.as_graph_def())
    problems = sorted(problem.split(": ")[1] for problem in result["problems"])
    assert len(problems) == 2, problems
    assert "CTCLoss" in problems[1] and "calls back into Python" in problems[0]


def test_types_count():
    """A product of bool tensors has no kernel anywhere, of floats it has."""
    tf = pytest.importorskip("tensorflow")
    gpu_ready = load("gpu_ready")
    node = tf.compat.v1.NodeDef(name="x", op="MatMul")
    node.attr["T"].type = tf.float32.as_datatype_enum
    assert gpu_ready.has_gpu_kernel(node)
    node.attr["T"].type = tf.bool.as_datatype_enum
    assert not gpu_ready.has_gpu_kernel(node)


def test_a_config_sees_the_gpu_that_is_simulated():
    tf = pytest.importorskip("tensorflow")
    gpu_ready = load("gpu_ready")
    with gpu_ready.gpu_at_hand():
        assert tf.config.list_physical_devices("GPU")
        assert len(tf.config.list_physical_devices()) == 2


@pytest.mark.slow
def test_layers_and_torch_are_compared_and_trained(tmp_path):
    pytest.importorskip("tensorflow")
    pytest.importorskip("torch")
    table = run("training.py", "--quick", "--json", tmp_path / "training.json")
    assert "MISSED" not in table
    figures = json.loads((tmp_path / "training.json").read_text())
    assert len(figures["differences"]) == 5
    assert 0 < figures["differences"]["gradients, joined"] < 1e-4
    assert all(rate > 0 for rate in figures["steps_per_second"].values())


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["loop", "engine", "random"])
@pytest.mark.parametrize("backend", ["tensorflow-net-dict", "torch"])
def test_a_session_is_compared(mode, backend):
    pytest.importorskip("tensorflow" if backend != "torch" else "torch")
    if (mode, backend) == ("random", "torch"):
        pytest.skip("the peer is TensorFlow's")
    out = run("session.py", mode, "--backend", backend, "--rounds", 2, "--steps", 2)
    ratios = [line for line in out.splitlines() if line.startswith(f"{backend}: session / ")]
    assert len(ratios) == 2, out
    # far off only where one of the two does something else
    assert all(0.3 < float(line.split(" = ")[1].split(",")[0]) < 3 for line in ratios), out


def test_utilisation_of_a_gpu():
    """Without a GPU it says so; the peak belongs to the whole name."""
    torch = pytest.importorskip("torch")
    gpu = load("gpu")
    assert gpu.peaks_of("NVIDIA A100-SXM4-80GB") == (19.5, 312.0)
    assert gpu.peaks_of("NVIDIA H100 PCIe") == (51.0, 756.0)
    assert gpu.peaks_of("NVIDIA A1000") is None
    if not torch.cuda.is_available():
        assert "no GPU" in run("gpu.py")
