"""Parameters from and for RETURNN's own engines: read what they trained, written for them to go on from."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import returnn_common
from returnn_common import nn, training
from returnn_common.training import checkpoints
from returnn_common.training._returnn_checkpoints import from_tensorflow

BACKENDS = ["tensorflow-net-dict", "torch"]
MODULE = """
import numpy
from returnn_common import nn, training

time_dim = nn.SpatialDim("time")
feature_dim, label_dim = nn.FeatureDim("features", 7), nn.FeatureDim("labels", 3)
extern_data = {
    "data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32"),
    "classes": nn.Tensor("classes", [nn.batch_dim, time_dim], "int32", sparse_dim=label_dim),
}


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(feature_dim, nn.FeatureDim("hidden", 5))
        self.norm = nn.LayerNorm(self.hidden.out_dim)
        self.conv = nn.Conv1d(self.hidden.out_dim, nn.FeatureDim("conv", 6), 3, padding="same")
        self.batch_norm = nn.BatchNorm(self.conv.out_dim)
        self.shift = nn.Parameter([self.conv.out_dim])
        self.shift.initial = 0.5
        self.output = nn.Linear(self.conv.out_dim, label_dim)

    def __call__(self, x):
        x = self.norm(nn.tanh(self.hidden(x)))
        x, _ = self.conv(x, in_spatial_dim=time_dim)
        return self.output(self.batch_norm(x) + self.shift)


def get_model():
    return Tagger()


def train_step(*, model, extern_data, **_):
    loss = nn.cross_entropy(model(extern_data["data"]), extern_data["classes"])
    loss.mark_as_loss("ce", use_normalized_loss=True)


def batches():
    rng = numpy.random.RandomState(1)
    for _ in range(4):
        data = rng.normal(size=(2, 6, 7)).astype("float32")
        yield {"data": data, "data:size1": [6, 6], "classes": data[..., :3].argmax(-1)}


def sequences():
    for batch in batches():
        for data, classes in zip(batch["data"], batch["classes"]):
            yield {"data": data, "classes": classes.astype("int32")}
"""
RETURNN = "import sys, runpy; sys.argv = ['returnn', 'x.config']; runpy.run_module('returnn', run_name='__main__')"
#: of the Tagger in TensorFlow, as RETURNN's layers name them
VARIABLES = {
    "hidden.weight": "hidden/W",
    "hidden.bias": "hidden/b",
    "norm.scale": "norm/scale",
    "norm.bias": "norm/bias",
    "conv.filter": "conv/W",
    "conv.bias": "conv/bias",
    "batch_norm.running_mean": "batch_norm/batch_norm/v2_mean",
    "batch_norm.running_variance": "batch_norm/batch_norm/v2_variance",
    "batch_norm.gamma": "batch_norm/batch_norm/v2_gamma",
    "batch_norm.beta": "batch_norm/batch_norm/v2_beta",
    "shift": "shift/param",
    "output.weight": "output/W",
    "output.bias": "output/b",
}


def imported(file: Path):
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def run_returnn(folder: Path, text: str):
    (folder / "x.config").write_text(text)
    root = Path(returnn_common.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-c", RETURNN],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(root), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"


def config_text(backend, tagger, start):
    settings = {
        "train": {
            "class": "StaticDataset",
            "data": list(tagger.sequences()),
            "output_dim": {"data": (7, 2), "classes": (3, 1)},
        },
        "batch_size": 1000,
        "max_seqs": 2,
        "num_epochs": 1,
        "learning_rate": 0.1,
        "import_model_train_epoch1": start,
        "model": "models/net",
        "log_verbosity": 3,
    }
    if backend == "torch":
        settings.update(device="cpu", torch_dataloader_opts={"num_workers": 0})
        text = nn.torch_config(
            tagger.get_model,
            tagger.train_step,
            tagger.extern_data,
            optimizer={"class": "sgd"},
            **settings,
        )
        return text.replace("backend =", "import numpy\n\nbackend =", 1)
    lowered = nn.lower(tagger.get_model(), tagger.train_step, tagger.extern_data)
    return lowered.config_text(optimizer={"class": "GradientDescent"}, **settings)


def make_session(tagger, backend):
    return training.Session(
        tagger.get_model(),
        extern_data=tagger.extern_data,
        optimizer={"class": "sgd"},
        learning_rate=0.1,
        backend=backend,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """
    RETURNN's engines train an epoch from what a session wrote: the folder, with the module, the start, and what each
    engine wrote
    """
    folder = tmp_path_factory.mktemp("trained")
    (folder / "my_tagger.py").write_text(MODULE)
    tagger = imported(folder / "my_tagger.py")
    start = make_session(tagger, "torch").parameters
    lowered = nn.lower(tagger.get_model(), tagger.train_step, tagger.extern_data)
    checkpoints.write_tensorflow(folder / "start/layers", start, lowered)
    checkpoints.write_parameters(folder / "start/torch.pt", start)
    starts = {"tensorflow-net-dict": folder / "start/layers", "torch": folder / "start/torch.pt"}
    for backend in BACKENDS:
        (folder / backend).mkdir()
        (folder / backend / "my_tagger.py").write_text(MODULE)
        run_returnn(folder / backend, config_text(backend, tagger, str(starts[backend])))
    files = {
        "tensorflow-net-dict": folder / "tensorflow-net-dict/models/net.001",
        "torch": folder / "torch/models/net.001.pt",
    }
    return tagger, start, files


def raw_variables(file):
    """by their names in TensorFlow, as they are in the file"""
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(file))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def expected(files, origin):
    """by path, in the layout of the model"""
    if origin == "torch":
        import torch

        return {n: v.numpy() for n, v in torch.load(files[origin])["model"].items()}
    values = {path: raw_variables(files[origin])[name] for path, name in VARIABLES.items()}
    values["conv.filter"] = numpy.einsum("kio->oik", values["conv.filter"])
    return values


def loss_of(values, batch):
    """with numpy"""
    x = numpy.tanh(batch["data"] @ values["hidden.weight"] + values["hidden.bias"])
    x = (x - x.mean(-1, keepdims=True)) / numpy.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = numpy.pad(x * values["norm.scale"] + values["norm.bias"], [(0, 0), (1, 1), (0, 0)])
    windows = numpy.stack([x[:, i : i + 6] for i in range(3)], axis=-1)
    x = numpy.einsum("btik,oik->bto", windows, values["conv.filter"]) + values["conv.bias"]
    deviation = numpy.sqrt(values["batch_norm.running_variance"] + 1e-3)
    x = (x - values["batch_norm.running_mean"]) / deviation
    x = x * values["batch_norm.gamma"] + values["batch_norm.beta"] + values["shift"]
    x = x @ values["output.weight"] + values["output.bias"]
    log_probs = x - numpy.log(numpy.exp(x).sum(-1, keepdims=True))
    return -numpy.take_along_axis(log_probs, batch["classes"][..., None], axis=-1).mean()


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_session_loads_what_returnn_trained(trained, backend):
    tagger, start, files = trained
    session = make_session(tagger, backend)
    evaluate = session.step(tagger.train_step, update=False)
    batch = next(tagger.batches())
    for origin in BACKENDS:
        values = expected(files, origin)
        assert sorted(session.load(files[origin])) == sorted(values) == sorted(VARIABLES)
        for path, value in values.items():
            numpy.testing.assert_array_equal(session.parameters[path], value, err_msg=path)
            if not path.endswith(".bias"):  # some have no gradient, or a tiny one
                assert numpy.abs(value - start[path]).max() > 1e-5, path
        numpy.testing.assert_allclose(evaluate(batch)["ce"], loss_of(values, batch), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("backend", BACKENDS)
def test_returnn_began_with_what_was_written(trained, backend):
    """an epoch of one's own loop from the same start ends where RETURNN's did"""
    tagger, start, files = trained
    session = make_session(tagger, backend)
    session.set_parameters(start)
    train = session.step(tagger.train_step)
    for batch in tagger.batches():
        train(batch)
    for path, value in expected(files, backend).items():
        numpy.testing.assert_allclose(session.parameters[path], value, atol=1e-6, err_msg=path)


@pytest.mark.slow
@pytest.mark.ci
def test_prefix_index_meta_and_parts_of_names(trained):
    tagger, _, files = trained
    prefix = files["tensorflow-net-dict"]
    values = checkpoints.read_parameters(prefix)
    for name in (f"{prefix}.index", f"{prefix}.meta", str(files["torch"])[: -len(".pt")]):
        assert checkpoints.read_parameters(name).keys() == values.keys()
    mean = checkpoints.average([prefix, files["torch"]])["conv.filter"]
    both = [expected(files, origin)["conv.filter"] for origin in BACKENDS]
    numpy.testing.assert_allclose(mean, (both[0] + both[1]) / 2, rtol=1e-6)
    session = make_session(tagger, "torch")
    loaded = session.load(prefix, rename={"hidden.": "old."}, only="output.*")
    assert sorted(loaded) == ["output.bias", "output.weight"]
    with pytest.raises(ValueError, match="missing: 'hidden.weight'.*unexpected: 'old.weight'"):
        session.load(prefix, rename={"hidden.": "old."})


# --- own functions to load and store


def test_parameters_go_anywhere_and_come_back(tmp_path):
    """to another backend, and not into a run that is continued"""
    in_dim, out_dim = nn.FeatureDim("in", 3), nn.FeatureDim("out", 5)
    data = {"data": nn.Tensor("data", [nn.batch_dim, nn.SpatialDim("time"), in_dim], "float32")}
    values = {"weight": numpy.arange(15, dtype="float32").reshape(3, 5), "bias": numpy.ones(5)}
    sessions = []
    for backend in BACKENDS:
        session = training.Session(nn.Linear(in_dim, out_dim), extern_data=data, backend=backend)
        session.resume(tmp_path)
        if session.is_new_run:
            session.set_parameters(values)
            numpy.savez(tmp_path / "values.npz", **session.parameters)
            session.save(tmp_path)
            values = {
                name: 2 * value for name, value in numpy.load(tmp_path / "values.npz").items()
            }
        sessions.append(session)
    for session in sessions:
        numpy.testing.assert_array_equal(session.parameters["weight"], values["weight"] / 2)
    sessions[1].set_parameters(numpy.load(tmp_path / "values.npz"))
    with pytest.raises(
        ValueError, match="the model has no parameter 'wight'; did you mean 'weight'"
    ):
        sessions[1].set_parameters({"wight": values["weight"]})


# --- names


class Many(nn.Module):
    """modules with parameters of all kinds"""

    def __init__(self, time_dim, in_dim, vocab_dim):
        super().__init__()
        dim = nn.FeatureDim("inner", 4)
        self.embedding = nn.Embedding(vocab_dim, in_dim)
        self.layers = nn.ModuleList(nn.Linear(in_dim, dim), nn.Linear(dim, dim, with_bias=False))
        self.grouped = nn.Conv1d(dim, nn.FeatureDim("grouped", 6), 3, padding="same", groups=2)
        self.conv2d = nn.Conv2d(
            nn.FeatureDim("one", 1), nn.FeatureDim("two", 2), (3, 5), padding="same"
        )
        self.norm = nn.BatchNorm(self.grouped.out_dim)
        self.lstm = nn.LSTM(self.grouped.out_dim, nn.FeatureDim("lstm", 5))
        self.scale = nn.Parameter([self.lstm.out_dim])
        self.time_dim = time_dim

    def __call__(self, labels):
        time = self.time_dim
        x = self.layers[1](self.layers[0](self.embedding(labels)))
        y = nn.expand_dim(x, self.conv2d.in_dim)
        y, _ = self.conv2d(y, in_spatial_dims=[time, self.layers[1].out_dim])
        x, _ = self.grouped(x + nn.reduce_sum(y, axis=self.conv2d.out_dim), in_spatial_dim=time)
        x = self.norm(x)
        state = self.lstm.default_initial_state(batch_dims=[nn.batch_dim])
        x, _ = self.lstm(x, spatial_dim=time, state=state)
        return x * self.scale


def test_names_and_axes_are_those_of_the_lowering():
    time_dim, vocab_dim = nn.SpatialDim("time"), nn.FeatureDim("vocab", 11)
    model = Many(time_dim, nn.FeatureDim("in", 7), vocab_dim)
    labels = nn.Tensor("data", [nn.batch_dim, time_dim], "int32", sparse_dim=vocab_dim)

    def step(*, model, extern_data, **_):
        nn.reduce_mean(model(extern_data["data"]), axis=model.lstm.out_dim).mark_as_loss("x")

    lowered = nn.lower(model, step, {"data": labels})
    rng = numpy.random.RandomState(1)
    values = {
        path: rng.normal(size=[dim.dimension for dim in param.dims])
        for path, param in model.named_parameters()
    }
    assert lowered.parameters.keys() == values.keys() and len(values) == 16
    got = from_tensorflow(lowered.to_tensorflow(values))
    assert got.keys() == values.keys()
    for path, value in values.items():
        numpy.testing.assert_array_equal(got[path], value, err_msg=path)


def test_names_and_axes_of_returnns_own_frontend():
    """as its layers backend makes variables of rf.Linear, rf.Conv1d, rf.BatchNorm"""
    shapes = {"linear/weight": (7, 5), "conv/filter": (6, 5, 3), "norm/running_mean": (6,)}
    values = {name: numpy.random.normal(size=shape) for name, shape in shapes.items()}
    got = from_tensorflow({f"{name}/param": value for name, value in values.items()})
    assert list(got) == ["linear.weight", "conv.filter", "norm.running_mean"]
    for name, value in values.items():
        numpy.testing.assert_array_equal(got[name.replace("/", ".")], value)


def test_what_is_no_parameter_is_left_out_and_other_names_get_dots():
    weight, other = numpy.ones((2, 3)), numpy.ones((4,))
    variables = {
        "W": weight,
        "W/Adam": weight,
        "W/Adam_1": weight,
        "W/part/param": weight,
        "global_step": numpy.array(3),
        "learning_rate": numpy.array(0.1),
        "beta1_power": numpy.array(0.9),
        "beta2_power_1": numpy.array(0.9),
        "rec/lstm_cell/kernel": other,
        "param": other,
    }
    names = ["weight", "W.part", "rec.lstm_cell.kernel", "param"]
    assert list(from_tensorflow(variables)) == names
    with pytest.raises(
        ValueError, match="become the parameter 'x.weight', the second is 'x/weight"
    ):
        from_tensorflow({"x/W": weight, "x/weight/param": weight})


# --- files


@pytest.fixture
def layers_files(tmp_path):
    """a small checkpoint of TensorFlow"""
    dim = nn.FeatureDim("dim", 3)
    model = nn.Linear(dim, nn.FeatureDim("out", 5))
    data = nn.Tensor("data", [nn.batch_dim, nn.SpatialDim("time"), dim], "float32")

    def step(*, model, extern_data, **_):
        model(extern_data["data"]).mark_as_default_output()

    lowered = nn.lower(model, step, {"data": data}, task="forward")
    values = {"weight": numpy.arange(15, dtype="float32").reshape(3, 5), "bias": numpy.ones(5)}
    checkpoints.write_tensorflow(tmp_path / "net.001", values, lowered)
    return tmp_path / "net.001", values, lowered


def test_written_for_tensorflow(layers_files):
    path, values, lowered = layers_files
    names = [f"net.001.{end}" for end in ("data-00000-of-00001", "index", "meta")]
    assert sorted(file.name for file in path.parent.iterdir()) == names
    variables = raw_variables(path)
    assert sorted(variables) == ["W", "b", "global_step"]
    numpy.testing.assert_array_equal(variables["W"], values["weight"])
    before = [(path.parent / name).read_bytes() for name in names]
    checkpoints.write_tensorflow(f"{path}.index", values, lowered)  # again, the same bytes
    assert [(path.parent / name).read_bytes() for name in names] == before
    with pytest.raises(ValueError, match="write_tensorflow: the parameters lack 'bias'"):
        checkpoints.write_tensorflow(path, {"weight": values["weight"]}, lowered)
    assert [(path.parent / name).read_bytes() for name in names] == before
    assert sorted(file.name for file in path.parent.iterdir()) == names


def test_written_for_torch(tmp_path):
    import torch

    values = {"b": numpy.float32([1, 2]), "a": numpy.array(3)}
    checkpoints.write_parameters(tmp_path / "new/x.pt", values)
    checkpoints.write_parameters(tmp_path / "y.pt", dict(reversed(values.items())))
    assert (tmp_path / "new/x.pt").read_bytes() == (tmp_path / "y.pt").read_bytes()
    content = torch.load(tmp_path / "y.pt", weights_only=True)
    assert content["model"]["b"].tolist() == [1, 2] and content["model"]["a"].dtype == torch.int64
    torch.save({"c": torch.ones(2, dtype=torch.bfloat16)}, tmp_path / "plain.pth")
    assert checkpoints.read_parameters(tmp_path / "plain.pth")["c"].tolist() == [1, 1]


def test_damaged_files_of_tensorflow(layers_files):
    path, *_ = layers_files
    index, data = (path.with_name(f"net.001.{end}") for end in ("index", "data-00000-of-00001"))
    whole = data.read_bytes()
    for content in (whole[:-9], b"x" + whole[1:], b""):
        data.write_bytes(content)
        with pytest.raises(ValueError, match="net.001' is damaged, or no TensorFlow checkpoint: "):
            checkpoints.read_parameters(path)
    data.unlink()
    with pytest.raises(ValueError, match="net.001' is damaged, or no TensorFlow checkpoint: "):
        checkpoints.read_parameters(path)
    data.write_bytes(whole)
    index.write_bytes(index.read_bytes()[:-5])
    with pytest.raises(ValueError, match="net.001' is damaged, or no TensorFlow checkpoint: "):
        checkpoints.read_parameters(index)
    index.unlink()
    with pytest.raises(
        ValueError, match="net.001.meta' is of a .* checkpoint without net.001.index"
    ):
        checkpoints.read_parameters(path.with_name("net.001.meta"))
    with pytest.raises(ValueError, match="there is no file .*net.001'; did you mean 'net.001.meta"):
        checkpoints.read_parameters(path)


class RunsCode:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_code_in_a_file_of_torch_does_not_run(tmp_path):
    import torch

    marker = tmp_path / "it_ran"
    evil = {"model": {"weight": RunsCode(marker)}}
    torch.save(evil, tmp_path / "zip.pt")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(evil, protocol=2))
    for name in ("zip.pt", "pickle.pt"):
        with pytest.raises(
            ValueError, match=f"{name}' is damaged, or has more than tensors and nu"
        ):
            checkpoints.read_parameters(tmp_path / name)
        assert not marker.exists()
    torch.load(tmp_path / "zip.pt", weights_only=False)
    assert marker.exists()  # it would have run


def test_other_and_damaged_files_of_torch(tmp_path):
    import torch

    file = tmp_path / "x.pt"
    checkpoints.write_parameters(file, {"a": numpy.ones(1000)})
    content = file.read_bytes()
    for damaged in (content[:-500], b"", b"some text"):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match="x.pt' is damaged, or has more than tensors"):
            checkpoints.read_parameters(file)
    for other in ({"optimizer": {}, "epoch": 3}, {"model": {}, "epoch": 3}):
        torch.save(other, file)
        with pytest.raises(ValueError, match="holds no parameters, .* it has .*, 'epoch'"):
            checkpoints.read_parameters(file)
    torch.save([1], file)
    with pytest.raises(ValueError, match="holds no parameters, .* it has <class 'list'>"):
        checkpoints.read_parameters(file)
    with pytest.raises(ValueError, match="there is no file .*y.pt'"):
        checkpoints.read_parameters(tmp_path / "y.pt")


def test_two_checkpoints_of_one_name(layers_files):
    path, values, _ = layers_files
    checkpoints.write_parameters(f"{path}.pt", values)
    with pytest.raises(
        ValueError, match="net.001' is two checkpoints, give the one with .index or"
    ):
        checkpoints.read_parameters(path)
    for end in ("pt", "index"):
        assert sorted(checkpoints.read_parameters(f"{path}.{end}")) == ["bias", "weight"]
