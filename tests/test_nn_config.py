"""The generated configs run with RETURNN: training, resuming, depth, and the torch engine."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from returnn_common import nn, testing
from returnn_common.zoo.encoder.conformer import make_conformer

ROOT = Path(__file__).resolve().parent.parent
DATASET = {"class": "Task12AXDataset", "num_seqs": 20}
SETTINGS = {
    "train": DATASET,
    "dev": {**DATASET, "fixed_random_seed": 1},
    "optimizer": {"class": "adam"},
    "learning_rate": 0.01,
    "batch_size": 2000,
    "num_epochs": 2,
    "model": "models/net",
    "log_verbosity": 4,
}

time_dim = nn.SpatialDim("time")
feature_dim = nn.FeatureDim("features", 9)
label_dim = nn.FeatureDim("labels", 2)
extern_data = {
    "data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, time_dim], "int32", sparse_dim=label_dim),
}


class Tagger(nn.Module):
    def __init__(self, hidden: int):
        super().__init__()
        self.hidden = nn.Linear(feature_dim, nn.FeatureDim("hidden", hidden))
        self.output = nn.Linear(self.hidden.out_dim, label_dim)

    def __call__(self, source):
        return self.output(nn.relu(self.hidden(source)))


def make_model(hidden: int = 5) -> Tagger:
    return Tagger(hidden)


def train_step(*, model, extern_data, **_):
    nn.cross_entropy(model(extern_data["data"]), extern_data["classes"]).mark_as_loss("ce")


def run_returnn(folder: Path, *, without_package: bool) -> str:
    """RETURNN's log; without our package where that is asked for"""
    hide = "sys.modules['returnn_common'] = None;" if without_package else ""
    program = (
        f"import sys, runpy; {hide} sys.argv = ['returnn', 'x.config'];"
        "runpy.run_module('returnn', run_name='__main__')"
    )
    env = {
        **os.environ,
        "PYTHONPATH": "" if without_package else os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


def test_config_trains_without_this_package(tmp_path):
    lowered = nn.lower(make_model(), train_step, extern_data)
    (tmp_path / "x.config").write_text(lowered.config_text(**SETTINGS))
    log = run_returnn(tmp_path, without_package=True)
    assert (tmp_path / "models" / "net.002.index").exists()
    assert "epoch 2" in log and "ce" in log
    assert "reinit" not in log.lower()


def test_a_tensorflow_checkpoint_gives_the_same_on_torch(tmp_path):
    """what RETURNN trained on layers, read by the rule of names, and evaluated on both backends"""
    import tensorflow as tf

    lowered = nn.lower(make_model(), train_step, extern_data)
    (tmp_path / "x.config").write_text(lowered.config_text(**{**SETTINGS, "num_epochs": 1}))
    run_returnn(tmp_path, without_package=True)
    reader = tf.train.load_checkpoint(str(tmp_path / "models" / "net.001"))
    variables = {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    parameters = lowered.from_tensorflow(variables)
    assert set(parameters) == {path for path, _ in make_model().named_parameters()}
    assert all((variables[k] == v).all() for k, v in lowered.to_tensorflow(parameters).items())
    rng = numpy.random.RandomState(1)
    lengths = numpy.array([5, 3], dtype="int32")
    data = {
        "data": rng.normal(size=(2, 5, 9)).astype("float32"),
        "classes": rng.randint(0, 2, (2, 5)).astype("int32"),
        "data:size1": lengths,
        "classes:size1": lengths,
    }
    layers = testing.run_layers(lowered, data, parameters=parameters)
    torch = testing.run_torch(make_model, train_step, extern_data, data, parameters=parameters)
    numpy.testing.assert_allclose(layers.values["ce"], torch.values["ce"], rtol=1e-5)
    with pytest.raises(KeyError, match="the variables lack 'hidden/b'; did you mean 'hiden/b'"):
        lowered.from_tensorflow({"hiden/b": variables["hidden/b"]})


class DeepTagger(nn.Module):
    """`num_layers` hidden layers"""

    def __init__(self, num_layers: int):
        super().__init__()
        self.hidden = nn.ModuleList(
            nn.Linear(hidden_dim if i else feature_dim, hidden_dim) for i in range(num_layers)
        )
        self.output = nn.Linear(hidden_dim, label_dim)

    def __call__(self, source):
        for layer in self.hidden:
            source = nn.relu(layer(source))
        return self.output(source)


hidden_dim = nn.FeatureDim("hidden", 5)


def grown(folder, first, second, *, learning_rate: float):
    """trained for two epochs of each; the variables after the second and the third epoch, and the log"""
    stages = {1: nn.lower(first, train_step, extern_data)}
    stages[3] = nn.lower(second, train_step, extern_data)
    settings = {**SETTINGS, "num_epochs": 4, "learning_rates": [0.01, 0.01] + 2 * [learning_rate]}
    (folder / "x.config").write_text(nn.growing_config_text(stages, **settings))
    log = run_returnn(folder, without_package=True)
    import tensorflow as tf

    readers = [tf.train.load_checkpoint(str(folder / f"models/net.00{i}")) for i in (2, 3)]
    variables = [
        {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
        for reader in readers
    ]
    return variables, log


def test_a_net_that_grows_keeps_its_parameters(tmp_path):
    (before, after), log = grown(tmp_path, DeepTagger(1), DeepTagger(2), learning_rate=0.0)
    assert "reinit because network description differs" in log
    assert "hidden/1/W" in after and "hidden/1/W" not in before, log[-2000:]
    for name in ("hidden/0/W", "hidden/0/b", "output/W", "output/b"):
        numpy.testing.assert_array_equal(before[name], after[name], err_msg=name)


def test_the_same_net_in_the_next_epoch_is_not_built_again(tmp_path):
    _, log = grown(tmp_path, DeepTagger(2), DeepTagger(2), learning_rate=0.01)
    assert "reinit" not in log.lower(), log[-3000:]


def test_growing_needs_a_beginning():
    lowered = nn.lower(DeepTagger(1), train_step, extern_data)
    with pytest.raises(ValueError, match=r"no stage for epoch 1, only for \[2\]"):
        nn.growing_config_text({2: lowered})
    other = nn.lower(
        nn.Linear(feature_dim, label_dim),
        lambda *, model, extern_data, **_: model(extern_data["data"]).mark_as_loss("all"),
        {"data": extern_data["data"]},
    )
    with pytest.raises(ValueError, match="from epoch 4 on has another task or extern data"):
        nn.growing_config_text({1: lowered, 4: other})


def test_torch_config_trains(tmp_path):
    (tmp_path / "my_tagger.py").write_text(Path(__file__).read_text())
    program = (
        "import functools, numpy, my_tagger as m; from returnn_common import nn;"
        "open('x.config', 'w').write(nn.torch_config(functools.partial(m.make_model, hidden=3),"
        " m.train_step, m.extern_data, **m.SETTINGS, my_array=numpy.ones(2)))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=env, check=True)
    text = (tmp_path / "x.config").read_text()
    assert "_make_model(hidden=3)" in text and "from my_tagger import feature_dim" in text
    log = run_returnn(tmp_path, without_package=False)
    assert (tmp_path / "models" / "net.002.pt").exists(), log[-2000:]


@pytest.mark.parametrize(
    "get_model, message",
    [
        (lambda: None, "is a lambda"),
        (functools.partial(lambda x: None, 1), "is a lambda"),
        (Tagger(2).__call__, "no function of a module"),
    ],
)
def test_torch_config_refuses_what_cannot_be_imported(get_model, message):
    with pytest.raises(ValueError, match=message):
        nn.torch_config(get_model, train_step, extern_data)


def test_torch_config_refuses_closures():
    def inner():
        return make_model()

    with pytest.raises(ValueError, match="'test_torch_config_refuses_closures.<locals>.inner'"):
        nn.torch_config(inner, train_step, extern_data)


def lowered_conformer(num_layers: int):
    model = make_conformer(9, 8, num_layers=num_layers, num_heads=2)

    def step(*, model, extern_data, **_):
        out, _ = model(extern_data["data"], in_spatial_dim=time_dim)
        nn.reduce_mean(nn.square(out), axis=model.out_dim).mark_as_loss("loss")

    data = {"data": nn.Tensor("data", [nn.batch_dim, time_dim, model.in_dim], "float32")}
    return nn.lower(model, step, data)


@pytest.mark.slow
@pytest.mark.ci
def test_24_layers_at_the_default_recursion_limit():
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # the default; a config with loops has raised it for this process
    try:
        with testing.layers_session(lowered_conformer(24)) as (net, _):
            assert len(net.layers) > 24 * 30
    finally:
        sys.setrecursionlimit(limit)


def test_flat_and_recursive_construction_give_the_same_graph():
    lowered = lowered_conformer(1)
    graphs = []
    for flat in (True, False):
        with testing.layers_session(lowered, flat=flat) as (_, session):
            ops = session.graph.get_operations()
            graphs.append(
                sorted((op.name, op.type, tuple(i.name for i in op.inputs)) for op in ops)
            )
    assert graphs[0] == graphs[1]
