"""
From a model and a step function to a RETURNN config of compact layers.

The step runs once on tensors that are layers to be (:mod:`._backend`); what it computed is then simplified
(:mod:`._passes`), named (:mod:`._emit`) and written down (:mod:`._text`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, TensorDict, batch_dim

from ..hints import near_misses
from . import _passes, _returnn
from ._backend import LayersBackend
from ._config_calls import ConfigFunction, out_type
from ._emit import Emitter, Variable
from ._graph import Graph, Node, add_node, layer
from ._held import as_nodes
from ._program import Program
from ._replaced import REPLACED
from ._shapes import give_size
from ._text import layers_config

_LOCK = threading.RLock()
TASKS = ("train", "forward")


class Parts(NamedTuple):
    """What a config text is made of; values may be dims and config functions."""

    network: dict[str, Any]
    extern_data: dict[str, Any]
    functions: list[str]


class Lowered:
    """
    A lowered model: what :func:`lower` gives.

    ``parameters`` maps each parameter path of the model to its :class:`Variable` in TensorFlow.
    """

    def __init__(
        self,
        *,
        task: str,
        program: dict[str, Any],
        extern_data: dict[str, Any],
        functions: list[str],
        variables: list[Variable],
        outputs: list[str],
    ):
        self.task = task
        #: names of the tensors that the step marked as outputs
        self.outputs = outputs
        self.parameters = {
            variable.path: variable for variable in sorted(variables, key=lambda v: v.path)
        }
        #: net dict, extern data and config functions before they become text
        self.parts = Parts(program, extern_data, functions)

    def __repr__(self) -> str:
        return f"<Lowered {self.task}: {len(self.parts.network)} layers, {len(self.parameters)} parameters>"

    @property
    def network(self) -> dict[str, Any]:
        """the net dict, as RETURNN reads it from the config; the same object every time"""
        return self._default_config["network"]

    @property
    def extern_data(self) -> dict[str, Any]:
        """the ``extern_data`` dict that goes with :attr:`network`: the dims are the same objects"""
        return self._default_config["extern_data"]

    @functools.cached_property
    def _default_config(self) -> dict[str, Any]:
        return self.config()

    def config(self, **settings: Any) -> dict[str, Any]:
        """
        The RETURNN config as a dict: what :meth:`config_text` defines, with dims of its own.

        Like RETURNN itself it imports TensorFlow.
        """
        code = compile(self.config_text(**settings), "<returnn_common config>", "exec")

        def run() -> dict[str, Any]:
            namespace: dict[str, Any] = {}
            exec(code, namespace)
            return namespace

        return options_of(run)

    def to_tensorflow(self, parameters: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """
        The TensorFlow variables by name that hold these parameters (by path, in the model's layout).

        Raises KeyError where a parameter of the model is missing.
        """
        return {
            variable.name: numpy.transpose(_named(parameters, path, "parameters"), variable.axes)
            for path, variable in self.parameters.items()
        }

    def from_tensorflow(self, variables: Mapping[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
        """
        The parameters by path, in the layout of the model and of torch, from TensorFlow variables by
        name, e.g. of a checkpoint. Others, like those of an optimizer, are left out.

        Raises KeyError where a variable is missing.
        """
        return {
            path: numpy.transpose(
                _named(variables, variable.name, "variables"), numpy.argsort(variable.axes)
            )
            for path, variable in self.parameters.items()
        }

    def config_text(self, **settings: Any) -> str:
        """
        The RETURNN config as Python text, the same bytes every time; it runs without this package.

        ``settings`` are RETURNN's own options: ``train=``, ``dev=``, ``optimizer=``, ``batch_size=``, ``num_epochs=``,
        ``model=``, ... ``task`` defaults to the task this was lowered for.
        """
        return growing_config_text({1: self}, **settings)


def options_of(define: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """what a config defines, without its modules, functions, classes and dims"""
    limit = sys.getrecursionlimit()
    try:
        namespace = define()
    finally:
        sys.setrecursionlimit(limit)  # which the config of a net with loops raises
    helpers = (types.ModuleType, types.FunctionType, type, Dim)
    return {
        key: value
        for key, value in namespace.items()
        if not key.startswith("__") and not isinstance(value, helpers)
    }


def growing_config_text(stages: Mapping[int, Lowered], **settings: Any) -> str:
    """
    One RETURNN config for a net that grows: ``stages`` are lowered models by the epoch from which on each is trained.

    Where the net changes, RETURNN keeps the values of all parameters that the net before had under the same names and
    with the same shapes, initialises the others, and starts the optimizer anew. ``settings`` are as for
    :meth:`Lowered.config_text`.

    Raises ValueError where no stage begins with epoch 1, or stages differ in task or extern data.
    """
    if 1 not in stages:
        raise ValueError(f"growing_config_text: no stage for epoch 1, only for {sorted(stages)}")
    first = stages[1]
    for epoch, stage in stages.items():
        if (stage.task, stage.parts.extern_data) != (first.task, first.parts.extern_data):
            raise ValueError(
                f"growing_config_text: the stage from epoch {epoch} on has another task or extern data than the first; "
                f"lower all with the same templates"
            )
    reserved = {"network", "get_network", "extern_data", "behavior_version", "use_tensorflow"}
    for name in sorted(reserved & set(settings)):
        raise ValueError(f"config_text: {name!r} is set by the lowering, leave it out")
    return layers_config(
        networks={epoch: stage.parts.network for epoch, stage in stages.items()},
        extern_data=first.parts.extern_data,
        settings={"task": first.task, **settings},
        functions=sorted({name for stage in stages.values() for name in stage.parts.functions}),
        nested=any(
            _has_net(layer)
            for stage in stages.values()
            for layer in _all_dicts(stage.parts.network)
        ),
    )


def _named(values: Mapping[str, numpy.ndarray], name: str, what: str) -> numpy.ndarray:
    if name not in values:
        raise KeyError(f"the {what} lack {name!r}{near_misses(name, values)}")
    return values[name]


def lower(
    model: rf.Module, step: Callable, extern_data: Mapping[str, Any], *, task: str = "train"
) -> Lowered:
    """
    The RETURNN layers that compute ``step`` on ``model``.

    ``step(*, model, extern_data, **_)`` marks losses (task ``train``) or outputs (task
    ``forward``). ``extern_data`` maps names to tensor templates, or to the options of one as in a
    RETURNN config. The model stays as it is and can be lowered again, for another task or with
    another step.

    Raises ValueError where the step marks nothing, and TypeError where an argument is of another kind.
    """
    _check_arguments(model, step, extern_data, task)
    with tracing(as_nodes(model.parameters())) as graph:
        graph.name_module(model)
        data = _extern_tensors(extern_data)
        with (
            dims_keep_their_names(data),
            _returnn.extern_data_of_step(data),
            _returnn.run_ctx(task, **run_options(task)) as ctx,
        ):
            step(model=model, extern_data=data)
            roots = _roots(ctx, task, step)
        return _finish(graph, model, data, roots, ctx)


@contextlib.contextmanager
def dims_keep_their_names(data: TensorDict) -> Iterator[None]:
    """RETURNN gives a dim that a convolution keeps the name that it has for the convolution's output"""
    names = {id(dim): (dim, dim.name) for tensor in data.data.values() for dim in tensor.dims}
    try:
        yield
    finally:
        for dim, name in names.values():
            dim.name = name


def _check_arguments(model: Any, step: Any, extern_data: Any, task: str) -> None:
    if not isinstance(model, rf.Module):
        raise TypeError(f"nn.lower: the model is a {type(model).__name__}, expected an nn.Module")
    if not callable(step):
        raise TypeError(
            f"nn.lower: the step is {step!r}, expected a function step(*, model, extern_data, **_)"
        )
    if not isinstance(extern_data, (Mapping, TensorDict)):
        raise TypeError(
            f"nn.lower: extern_data is a {type(extern_data).__name__}, expected a dict of nn.Tensor templates"
        )
    check_task(task, "nn.lower")


def check_task(task: str, where: str) -> None:
    """ValueError for a task that is none of :data:`TASKS`"""
    if task not in TASKS:
        raise ValueError(f"{where}: unknown task {task!r}, expected one of {', '.join(TASKS)}")


@contextlib.contextmanager
def tracing(parameters: contextlib.AbstractContextManager) -> Iterator[Graph]:
    """a new graph, the layers backend selected, RF's composed functions replaced; in ``parameters`` these are nodes"""
    outer, graph = Graph.current, Graph()
    with (
        _LOCK,
        parameters,
        _returnn.behavior_version(),
        _returnn.selected(LayersBackend),
        _returnn.replaced(REPLACED),
    ):
        Graph.current = graph
        try:
            yield graph
        finally:
            Graph.current = outer
            for param, before in graph.assigned.values():
                param.raw_tensor = before
            _returnn.reset_dims([*graph.touched, *graph.dims])


def run_options(task: str) -> dict[str, Any]:
    """the train flag, step and epoch as layers; those that nothing reads vanish"""
    train_flag = layer("train_flag", {}, dims=(), dtype="bool")
    step = layer("global_train_step", {}, dims=(), dtype="int64", hint="step")
    kind = out_type([], dtype="int32")
    options = {"from": [], "eval": ConfigFunction("current_epoch"), "out_type": kind}
    epoch = layer("eval", options, dims=(), dtype="int32", hint="epoch")
    counts = {"step": step, "epoch": epoch}
    return {"train_flag": train_flag, **counts} if task == "train" else counts


def _extern_tensors(extern_data: Any) -> TensorDict:
    templates = as_templates(extern_data)
    for template in templates.values():
        for dim in template.dims:
            if dim.is_dynamic():
                _returnn.set_size(dim, None)
    data = TensorDict()
    data.data = {name: _extern_tensor(name, tensor) for name, tensor in templates.items()}
    _give_sizes()
    return data


def as_templates(extern_data: Any) -> dict[str, Tensor]:
    """tensor templates by name, from these or from the options of ``extern_data`` in a RETURNN config"""
    templates = TensorDict()
    given = extern_data.data if isinstance(extern_data, TensorDict) else extern_data
    templates.update(dict(given), auto_convert=True)
    return templates.data


def fed_templates(extern_data: Any) -> dict[str, Tensor]:
    """templates of what a batch is fed to, by name, with their feature dims"""
    templates = as_templates(extern_data)
    return {name: with_feature_dim(tensor.copy_template()) for name, tensor in templates.items()}


def add_extern_tensor(data: TensorDict, name: str, template: Tensor) -> Tensor:
    """one more tensor of the data of the trace that is open"""
    for dim in template.dims:
        if dim.is_dynamic() and dim not in Graph.current.dims:
            _returnn.set_size(dim, None)
    data.data[name] = _extern_tensor(name, template)
    _give_sizes()
    return data.data[name]


def _give_sizes() -> None:
    for dim, sources in list(Graph.current.dims.items()):
        if _returnn.size_of(dim) is None:
            give_size(dim, sources[0])


def _extern_tensor(name: str, template: Tensor) -> Tensor:
    tensor = with_feature_dim(template.copy_template(name=name))
    node = Node("data", {}, dims=tensor.dims, dtype=tensor.dtype)
    node.name, node.hint = name, name
    placed = add_node(node)
    if tensor.have_batch_axis():
        Graph.current.dims.setdefault(batch_dim, [placed])
    tensor.raw_tensor = node
    node.tensor = tensor
    return tensor


def with_feature_dim(tensor: Tensor) -> Tensor:
    """the last dim of dense data is its feature dim where it has a fixed size and nothing else is said"""
    if (
        tensor.sparse_dim is None
        and tensor.feature_dim is None
        and tensor.dims
        and tensor.dims[-1].is_static()
    ):
        tensor.feature_dim = tensor.dims[-1]
    return tensor


# --- losses and outputs


def _roots(ctx: rf.RunCtx, task: str, step: Callable) -> list[Tensor]:
    name = getattr(step, "__name__", "step")
    if task == "train":
        if not ctx.losses:
            raise ValueError(
                f"{name} marks no loss; for task 'train' it must call loss.mark_as_loss() at least once"
            )
        roots = losses_of(ctx)
    else:
        if not ctx.outputs.data:
            raise ValueError(
                f"{name} marks no output; for task 'forward' it must call tensor.mark_as_output(...)"
            )
        roots = [output(out_name, tensor) for out_name, tensor in ctx.outputs.data.items()]
    return [*roots, *effects()]


def losses_of(ctx: rf.RunCtx) -> list[Tensor]:
    """the layers of all losses that a step marked; RETURNN runs in training only what a loss depends on"""
    losses = list(ctx.losses.values())
    for effect in Graph.current.effects if losses else ():
        tensor = losses[0].loss  # a zero is added to
        losses[0] = dataclasses.replace(losses[0], loss=tensor + rf.cast(effect, tensor.dtype))
    return [_loss(loss) for loss in losses]


def effects() -> list[Tensor]:
    """the layers that run though nothing reads them"""
    return [_effect(tensor) for tensor in Graph.current.effects]


def _effect(tensor: Tensor) -> Tensor:
    tensor.raw_tensor.is_output = True
    return tensor


def output(name: str, tensor: Tensor) -> Tensor:
    """an output layer of this name"""
    node = tensor.raw_tensor
    if node.name or node.region is not Graph.current.root or node.cls == "data":
        tensor = layer(
            "copy",
            {"from": tensor},
            dims=tensor.dims,
            dtype=tensor.dtype,
            sparse_dim=tensor.sparse_dim,
            feature_dim=tensor.feature_dim,
        )
        node = tensor.raw_tensor
    node.name, node.is_output = name, name != "output"
    return tensor


def _loss(loss: Any) -> Tensor:
    """a layer of the loss's name with RETURNN's loss ``as_is``, which sums it over all frames"""
    tensor, norm = loss.loss, loss.custom_inv_norm_factor
    dynamic = [dim for dim in tensor.dims if dim.is_dynamic() and not dim.is_batch_dim()]
    others = [dim for dim in tensor.dims if not dim.is_batch_dim() and dim not in dynamic]
    if len(dynamic) > 1 or others or (dynamic and not tensor.have_batch_axis()):
        norm = rf.num_elements_of_shape(tensor.dims) if norm is None else norm
        norm = rf.convert_to_tensor(norm, dtype="int32") if isinstance(norm, int) else norm
        tensor = rf.reduce_sum(tensor, axis=[*dynamic, *others])
        dynamic = []
    options = {"set_axes": {"T": dynamic[0]}} if dynamic else {}
    out = layer(
        "reinterpret_data" if dynamic else "copy",
        {"from": tensor, **options, "loss": "as_is", **_loss_options(loss, norm)},
        dims=tensor.dims,
        dtype=tensor.dtype,
    )
    out.raw_tensor.name = loss.name
    return out


def _loss_options(loss: Any, norm: Any) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if loss.scale != 1:
        options["scale"] = loss.scale
    if loss.as_error:
        options["as_error"] = True
    if loss.use_normalized_loss:
        options["use_normalized_loss"] = True
    if not loss.use_flatten_frames:
        options["use_flatten_frames"] = False
    if norm is not None:
        options["custom_inv_norm_factor"] = norm
    return {"loss_opts": options} if options else {}


# --- the result


def _finish(
    graph: Graph, model: rf.Module, data: TensorDict, roots: list[Tensor], ctx: rf.RunCtx
) -> Lowered:
    program = Program(graph, roots)
    program.parameters = {
        id(_variable_node(param)): (path, param) for path, param in model.named_parameters()
    }
    task = "train" if ctx.losses else "forward"
    return emit(program, graph, data, task=task, outputs=list(ctx.outputs.data))


def emit(
    program: Program, graph: Graph, data: TensorDict, *, task: str, outputs: list[str]
) -> Lowered:
    """the layers of a program whose parameters are known"""
    _passes.run(program)
    # in recognition RETURNN takes a layer of the name "output" for the result
    reserved = ("data", "output") if task == "forward" else ("data",)
    emitter = Emitter(program, graph.modules or {}, reserved)
    network = emitter.net_dict()
    extern = {name: extern_options(tensor) for name, tensor in data.data.items()}
    # RETURNN takes all but "data" for targets, which recognition and the nets inside of layers lack
    if task == "forward" or any(_has_net(layer) for layer in _all_dicts(network)):
        for name in extern.keys() - {"data"}:
            extern[name]["available_for_inference"] = True
    return Lowered(
        task=task,
        program=network,
        extern_data=extern,
        functions=sorted(emitter.functions),
        variables=emitter.variables,
        outputs=outputs,
    )


def _variable_node(param: rf.Parameter) -> Node:
    node = param.raw_tensor
    while node.cls == "variable_read":  # assigned in this step
        node = node.opts["var"].raw_tensor
    return node


def extern_options(tensor: Tensor) -> dict[str, Any]:
    """the entry of ``extern_data`` for a tensor template"""
    options: dict[str, Any] = {"dim_tags": list(tensor.dims), "dtype": tensor.dtype}
    if tensor.sparse_dim is not None:
        options["sparse_dim"] = tensor.sparse_dim
    elif tensor.feature_dim is not None:
        options["feature_dim_axis"] = tensor.dims.index(tensor.feature_dim)
    if not tensor.available_for_inference:
        options["available_for_inference"] = False
    return options


def _has_net(layer: dict[str, Any]) -> bool:
    """whether another net is inside; the unit of a rec layer may also be one of RETURNN's, by its name"""
    return layer.get("class") == "cond" or isinstance(layer.get("unit"), dict)


def _all_dicts(value: Any) -> Iterator[dict]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _all_dicts(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _all_dicts(item)


__all__ = ["Lowered", "growing_config_text", "lower"]
