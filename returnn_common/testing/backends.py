"""
Run a model on both backends and compare.

:func:`run_layers` constructs a lowered net with RETURNN and runs it once; :func:`run_torch` runs the same step on
RETURNN's torch backend. Both take and give numpy arrays, parameters by their paths in the model, in RF's layout.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from ..nn import _returnn
from ..nn._shapes import lengths_of
from ..nn.lowering import with_feature_dim
from .kernels import gpu_at_hand


@dataclass
class Result:
    """
    What one run gives: losses summed over all frames, outputs, gradients of the total loss, sizes of the graph.

    ``rows`` are the losses before the sum, one array for each sequence, without padding.
    """

    values: dict[str, numpy.ndarray] = field(default_factory=dict)
    rows: dict[str, list[numpy.ndarray]] = field(default_factory=dict)
    lengths: dict[str, list[numpy.ndarray | None]] = field(default_factory=dict)
    gradients: dict[str, numpy.ndarray] = field(default_factory=dict)
    num_layers: int = 0
    num_ops: int = 0


def random_parameters(model: Any, *, seed: int = 1, scale: float = 0.2) -> dict[str, numpy.ndarray]:
    """values for all parameters of ``model``, none of them at its default; variances are positive"""
    rng = numpy.random.RandomState(seed)
    values = {}
    for path, param in model.named_parameters():
        value = rng.normal(scale=scale, size=[dim.dimension for dim in param.dims]).astype(
            "float32"
        )
        values[path] = numpy.abs(value) + 0.5 if path.endswith("variance") else value
    return values


def assert_backends_agree(
    get_model: Callable[[], Any],
    step: Callable,
    extern_data: Mapping[str, Any],
    data: Mapping[str, numpy.ndarray],
    *,
    task: str = "train",
    tolerance: float = 1e-4,
) -> Result:
    """
    Layers and torch give the same losses or outputs, and gradients, from the same random parameters.

    ``tolerance`` is relative to the largest entry of each array, with an absolute floor of 1e-6.
    Gives the layers' result.
    """
    from .. import nn

    model = get_model()
    lowered = nn.lower(model, step, extern_data, task=task)
    parameters = random_parameters(model)
    gradients = task == "train"
    layers = run_layers(lowered, data, parameters=parameters, gradients=gradients)
    torch = run_torch(
        get_model, step, extern_data, data, parameters=parameters, task=task, gradients=gradients
    )
    assert sorted(layers.values) == sorted(torch.values), (list(layers.values), list(torch.values))
    for name, expected in torch.values.items():
        for ours, theirs in zip(layers.lengths.get(name) or [], torch.lengths.get(name) or []):
            assert theirs is None or numpy.array_equal(numpy.asarray(ours), theirs), (
                f"lengths of {name}: {ours} and {theirs}"
            )
        assert_close(
            f"value {name}", layers.values[name], expected, tolerance, torch.lengths.get(name)
        )
    for path in layers.gradients:
        assert_close(
            f"gradient of {path}", layers.gradients[path], torch.gradients[path], tolerance
        )
    return layers


def assert_close(what: str, ours: Any, theirs: Any, tolerance: float, lengths: Any = None) -> None:
    """
    ``ours`` (layers) and ``theirs`` (torch) differ by at most ``tolerance`` times the largest entry, with an absolute
    floor of 1e-6; ``lengths`` of a batch leave its padding out
    """
    ours, theirs = numpy.asarray(ours), numpy.asarray(theirs)
    assert ours.shape == theirs.shape, (
        f"{what}: shape {ours.shape} on layers, {theirs.shape} on torch"
    )
    mask = _valid(theirs.shape, lengths)
    difference = numpy.abs(numpy.where(mask, ours.astype("float64") - theirs, 0.0)).max(initial=0.0)
    scale = numpy.abs(numpy.where(mask, theirs, 0.0)).max(initial=0.0)
    assert difference <= tolerance * scale + 1e-6, (
        f"{what}: layers differ from torch by {difference:g} of {scale:g}"
    )


def _valid(shape: tuple[int, ...], lengths: Any) -> numpy.ndarray:
    """true where a batch-major array has frames, false in the padding"""
    mask = numpy.ones(shape, dtype=bool)
    for axis, size in enumerate(lengths or []):
        if size is not None and size.ndim == 1:
            inside = numpy.arange(shape[axis])[None, :] < size[:, None]
            mask &= inside.reshape(
                [shape[0]] + [shape[axis] if i == axis else 1 for i in range(1, len(shape))]
            )
    return mask


def _raw_size(dim: Any) -> Any:
    """the lengths of a dynamic dim as a tensor of its framework; None for all others"""
    size = _returnn.size_of(dim) if dim.is_dynamic() and not dim.is_batch_dim() else None
    return None if size is None else size.raw_tensor


# --- layers


@contextlib.contextmanager
def layers_session(
    lowered: Any, *, train: bool | None = False, flat: bool = True, optimize: bool = True
) -> Iterator[tuple[Any, Any]]:
    """
    (RETURNN's TFNetwork, TensorFlow session) of the lowered net, parameters initialised; ``train`` None is a
    placeholder that is false by default, as in RETURNN's own training; without ``optimize`` TensorFlow runs the graph
    as it is, which is faster for a few steps of a small net
    """
    import returnn.tf.compat as tf_compat
    import tensorflow as tf
    from returnn.config import Config, global_config_ctx
    from returnn.tf.network import TFNetwork

    config = Config(lowered.config())
    if not flat:
        config.set("flat_net_construction", False)
    graph = tf.Graph()
    flat = config.bool("flat_net_construction", False)
    with (
        contextlib.nullcontext() if flat else _deep_recursion(),
        _returnn.behavior_version(),
        graph.as_default(),  # first: RETURNN keeps the config in the graph
        global_config_ctx(config),
        tf_compat.v1.Session(graph=graph, config=_session_options(optimize)) as session,
    ):
        tf_compat.v1.set_random_seed(1)
        if train is None:
            train = tf_compat.v1.placeholder_with_default(False, ())
        net = TFNetwork(config=config, train_flag=train, eval_flag=True)
        net.construct_from_dict(config.typed_value("network"))
        net.initialize_params(session)
        yield net, session


def _session_options(optimize: bool) -> Any:
    import tensorflow as tf

    options = tf.compat.v1.ConfigProto()
    if not optimize:
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        options.graph_options.optimizer_options.opt_level = -1  # L0
    return options


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """nets with loops are constructed recursively, for which their config raises the limit"""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def set_layer_parameters(
    lowered: Any, net: Any, session: Any, values: Mapping[str, numpy.ndarray]
) -> None:
    """set the variables of ``net`` from values in RF's layout"""
    variables = {var.op.name: var for var in net.get_params_list()}
    wanted = {variables[name]: value for name, value in lowered.to_tensorflow(values).items()}
    initializers = [var.initializer for var in wanted]
    feed = {op.inputs[1]: value for op, value in zip(initializers, wanted.values())}
    session.run(initializers, feed_dict=feed)


def run_layers(
    lowered: Any,
    data: Mapping[str, numpy.ndarray],
    *,
    parameters: Mapping[str, numpy.ndarray] | None = None,
    train: bool = False,
    gradients: bool = False,
) -> Result:
    """one step of the lowered net; ``data`` has a batch as arrays, lengths under ``NAME:size1``"""
    flag = _evaluation_flag(lowered) if gradients and not train else train
    with layers_session(lowered, train=flag) as (net, session):
        if parameters is not None:
            set_layer_parameters(lowered, net, session, parameters)
        feed = feed_dict(net, data)
        result = Result(
            num_layers=len(lowered.network), num_ops=len(session.graph.get_operations())
        )
        for name, tensor in _fetched(net, lowered.task).items():
            result.values[name], result.lengths[name] = _fetch(session, tensor, feed)
        if gradients:
            result.gradients = _layer_gradients(lowered, net, session, feed)
        return result


def _evaluation_flag(lowered: Any) -> bool | None:
    """the train flag for gradients outside of training: RETURNN's loops have none where it is constantly false"""
    return False if lowered.config().get("flat_net_construction") else None


def run_losses_on_layers(
    lowered: Any,
    batches: Sequence[Mapping[str, numpy.ndarray]],
    *,
    parameters: Mapping[str, numpy.ndarray],
) -> list[Result]:
    """the rows of the losses for each batch, in one session; for the first batch also the gradients"""
    results = []
    with layers_session(lowered, train=_evaluation_flag(lowered), optimize=False) as (net, session):
        set_layer_parameters(lowered, net, session, parameters)
        outputs = {name: net.get_layer(name).output for name in _returnn.losses_of_net(net)}
        for data in batches:
            feed = feed_dict(net, data)
            result = Result()
            for name, output in outputs.items():
                value, sizes = _fetch(session, output.copy_as_batch_major(), feed)
                result.rows[name] = _without_padding(value, sizes)
            results.append(result)
        results[0].gradients = _layer_gradients(lowered, net, session, feed_dict(net, batches[0]))
    return results


def _without_padding(
    value: numpy.ndarray, sizes: Sequence[numpy.ndarray | None]
) -> list[numpy.ndarray]:
    """the sequences of a batch-major array"""
    rows = []
    for i, row in enumerate(value):
        inside = [slice(None) if size is None else slice(size[i]) for size in sizes[1:]]
        rows.append(row[tuple(inside)])
    return rows


def training_graph(lowered: Any) -> Any:
    """the GraphDef of the lowered net in training with gradients, as on a machine with a GPU"""
    import tensorflow as tf

    with gpu_at_hand(), layers_session(lowered, train=True) as (net, session):
        parameters = net.get_trainable_params()
        if parameters:
            tf.compat.v1.gradients(net.get_objective(), parameters)
        return session.graph.as_graph_def()


def feed_dict(net: Any, data: Mapping[str, numpy.ndarray]) -> dict[Any, Any]:
    feed: dict[Any, Any] = {}
    for name, tensor in net.extern_data.data.items():
        if name not in data:
            continue
        feed[tensor.placeholder] = data[name]
        for _, key, dim in lengths_of(name, tensor):
            feed[_raw_size(dim)] = data[key]
    feed[_returnn.batch_size_of_net(net)] = len(next(iter(data.values())))
    return feed


def _fetched(net: Any, task: str) -> dict[str, Any]:
    if task == "train":
        return {name: _Scalar(loss) for name, loss in _returnn.losses_of_net(net).items()}
    return {layer.name: layer.output for layer in net.get_output_layers()}


class _Scalar:
    """a loss, summed over all frames"""

    def __init__(self, placeholder: Any):
        self.placeholder = placeholder
        self.dims = ()


def _fetch(
    session: Any, tensor: Any, feed: dict[Any, Any]
) -> tuple[numpy.ndarray, list[numpy.ndarray | None]]:
    sizes = [_raw_size(dim) for dim in tensor.dims]
    wanted = [size for size in sizes if size is not None]
    value, *got = session.run([tensor.placeholder, *wanted], feed_dict=feed)
    rest = iter(got)
    return value, [None if size is None else next(rest) for size in sizes]


def _layer_gradients(
    lowered: Any, net: Any, session: Any, feed: dict[Any, Any]
) -> dict[str, numpy.ndarray]:
    import tensorflow as tf

    variables = {var.op.name: var for var in net.get_params_list()}
    wanted = {path: v for path, v in lowered.parameters.items() if variables[v.name].trainable}
    total = net.get_objective()
    grads = tf.compat.v1.gradients(total, [variables[v.name] for v in wanted.values()])
    dense = [
        tf.convert_to_tensor(g) if g is not None else tf.zeros_like(variables[v.name])
        for g, v in zip(grads, wanted.values())
    ]
    arrays = session.run(dense, feed_dict=feed)
    return {
        path: numpy.transpose(a, numpy.argsort(v.axes))
        for (path, v), a in zip(wanted.items(), arrays)
    }


# --- torch


@contextlib.contextmanager
def torch_backend() -> Iterator[None]:
    """RETURNN's torch backend selected, with our pinned behavior version"""
    import returnn.frontend as rf
    from returnn.tensor import batch_dim

    batch, batch_dim.batch = batch_dim.batch, None  # TensorFlow's network leaves its own there
    try:
        with _returnn.behavior_version(), _returnn.selected(type(_returnn.global_backend)):
            rf.select_backend_torch()
            yield
    finally:
        batch_dim.batch = batch


def run_torch(
    get_model: Callable[[], Any],
    step: Callable,
    extern_data: Mapping[str, Any],
    data: Mapping[str, numpy.ndarray],
    *,
    parameters: Mapping[str, numpy.ndarray] | None = None,
    task: str = "train",
    train: bool = False,
    gradients: bool = False,
) -> Result:
    """the same as :func:`run_layers` with a model built on torch"""
    import torch

    with torch_backend():
        model = get_model()
        for path, param in model.named_parameters():
            if parameters is not None:
                param.raw_tensor.data = torch.tensor(parameters[path])
        with torch.set_grad_enabled(gradients):
            tensors = _torch_data(extern_data, data)
            try:
                with (
                    _returnn.extern_data_of_step(tensors),
                    _returnn.run_ctx(task, train_flag=train) as ctx,
                ):
                    step(model=model, extern_data=tensors)
                    result = _torch_result(ctx, task)
                    if gradients and any(True for _ in model.parameters()):
                        ctx.total_loss().raw_tensor.backward()
                        result.gradients = _torch_gradients(model)
            finally:
                _returnn.reset_dims(
                    [
                        dim
                        for tensor in tensors.data.values()
                        for dim in tensor.dims
                        if dim.is_dynamic()
                    ]
                )
        return result


def _torch_data(extern_data: Mapping[str, Any], data: Mapping[str, numpy.ndarray]) -> Any:
    import torch
    from returnn.tensor import Tensor, TensorDict, batch_dim

    tensors = TensorDict()
    batch_size = torch.tensor(len(next(iter(data.values()))), dtype=torch.int32)
    _returnn.set_size(batch_dim, Tensor("batch", (), "int32", raw_tensor=batch_size))
    for name, template in extern_data.items():
        tensor = with_feature_dim(template.copy_template())
        for _, key, dim in lengths_of(name, tensor):
            lengths = torch.tensor(data[key], dtype=torch.int32)
            size = Tensor(f"{dim.name}_size", [batch_dim], "int32", raw_tensor=lengths)
            _returnn.set_size(dim, size)
        tensor.raw_tensor = torch.tensor(data[name])
        tensors.data[name] = tensor
    return tensors


def _torch_result(ctx: Any, task: str) -> Result:
    result = Result()
    if task == "train":
        for name, loss in ctx.losses.items():
            result.values[name] = loss.get_summed_loss().raw_tensor.detach().numpy()
            if loss.loss.have_batch_axis():
                result.rows[name] = _rows_on_torch(loss.loss.copy_as_batch_major())
        return result
    for name, tensor in ctx.outputs.data.items():
        result.values[name] = tensor.raw_tensor.detach().numpy()
        sizes = [_raw_size(dim) for dim in tensor.dims]
        result.lengths[name] = [None if size is None else size.numpy() for size in sizes]
    return result


def _rows_on_torch(tensor: Any) -> list[numpy.ndarray]:
    sizes = [_raw_size(dim) for dim in tensor.dims]
    return _without_padding(
        tensor.raw_tensor.detach().numpy(),
        [None if size is None else size.numpy() for size in sizes],
    )


def _torch_gradients(model: Any) -> dict[str, numpy.ndarray]:
    return {
        path: numpy.zeros([d.dimension for d in param.dims], "float32")
        if param.raw_tensor.grad is None
        else param.raw_tensor.grad.numpy()
        for path, param in model.named_parameters()
        if not param.auxiliary
    }
