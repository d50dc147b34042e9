"""
The contract with RETURNN: each test says in a sentence what changed there, and what of ours relies on it.

The newest release is tested with the oldest supported one by ``python tests/run_floor_and_newest.py``.
"""

from __future__ import annotations

import inspect
import types
from pathlib import Path
from typing import Any

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor, batch_dim
from returnn.util.basic import BehaviorVersion

from returnn_common import nn, testing
from returnn_common.nn import _attention, _config_calls, _ctc, _lstm, _replaced, _returnn
from returnn_common.nn._backend import LayersBackend
from returnn_common.nn._graph import Node

time_dim = nn.SpatialDim("time")
feature_dim = nn.FeatureDim("features", 8)
extern_data = {"data": nn.Tensor("data", [nn.batch_dim, time_dim, feature_dim], "float32")}
DATA = {
    "data": numpy.ones((2, 3, 8), dtype="float32"),
    "data:size1": numpy.array([3, 1], dtype="int32"),
}


def changed(what: str, item: str, purpose: str) -> str:
    """what a maintainer reads"""
    return f"RETURNN {what}: _returnn.{item} relies on it for {purpose}."


def test_every_item_is_tested():
    text = Path(__file__).read_text(encoding="utf-8")
    missing = [name for name in _returnn.__all__ if f"_returnn.{name}" not in text]
    assert not missing, f"no test here mentions _returnn.{missing}"


# --- backends


def test_tensors_find_their_backend_by_the_type_of_their_raw_tensor():
    with _returnn.selected(LayersBackend):
        tensor = rf.zeros((), dtype="int32")
    message = changed("no longer maps raw types to backends", "register", "the layers backend")
    assert isinstance(tensor.raw_tensor, Node), message
    assert tensor._raw_backend is LayersBackend, message
    message = changed("looks backends up in another way", "backend_of", "nn.BatchNorm")
    assert _returnn.backend_of(tensor) is LayersBackend, message

    class OtherRaw:
        pass

    _returnn.register(OtherRaw, _returnn.Backend)
    other = Tensor("other", (), "int32")
    other._raw_tensor = OtherRaw()
    assert _returnn.backend_of(other) is _returnn.Backend, message


def test_as_tensor():
    number = _returnn.as_tensor(3.5, LayersBackend, dtype="float32")
    message = changed(
        "no longer passes _backend= on in convert_to_tensor", "as_tensor", "numbers as operands"
    )
    assert isinstance(number.raw_tensor, Node) and number.dtype == "float32", message
    assert _returnn.as_tensor(number, LayersBackend) is number, message


def test_global_backend_is_one_object_whose_class_says_which():
    class Other(_returnn.Backend):
        name = "other"

    before = type(_returnn.global_backend)
    message = changed("selects backends in another way", "selected", "tracing a model")
    with _returnn.selected(Other):
        assert type(_returnn.global_backend) is Other, message
        assert rf.get_selected_backend() == "other", message
        _returnn.select_if_none(LayersBackend)
        assert type(_returnn.global_backend) is Other
    assert type(_returnn.global_backend) is before
    with _returnn.selected(_returnn.Backend):
        _returnn.select_if_none(LayersBackend)
        assert rf.get_selected_backend() == LayersBackend.name, changed(
            "has another class where no backend is selected", "select_if_none", "modules at import"
        )


def test_behavior_version():
    message = changed("keeps its behavior version elsewhere", "behavior_version", "lowering")
    before = BehaviorVersion._get_state()
    with _returnn.behavior_version():
        assert BehaviorVersion.get() == _returnn.BEHAVIOR_VERSION, message
        BehaviorVersion._reset()
        assert not BehaviorVersion.is_set() and BehaviorVersion.get() == 0, message
        _returnn.require_behavior_version()
        assert BehaviorVersion.get() == _returnn.BEHAVIOR_VERSION, changed(
            "no longer knows a least behavior version", "require_behavior_version", "new modules"
        )
        BehaviorVersion._reset((21, 0))
        _returnn.require_behavior_version()
        assert BehaviorVersion.get() == 21, "the version that the process has chosen must stay"
    assert BehaviorVersion._get_state() == before, message
    assert BehaviorVersion._latest_behavior_version >= _returnn.BEHAVIOR_VERSION, changed(
        "does not know our behavior version", "BEHAVIOR_VERSION", "every generated config"
    )


# --- the run context


def test_run_ctx():
    message = changed("keeps its run context elsewhere", "run_ctx", "the losses of a step")
    outer = rf.get_run_ctx()
    with _returnn.run_ctx("train", train_flag=True, step=3) as ctx:
        assert rf.get_run_ctx() is ctx and ctx.stage == "train_step", message
        assert ctx.train_flag is True and ctx.step == 3, message
        with _returnn.run_ctx("forward", train_flag=False, step=4) as inner:
            assert rf.get_run_ctx() is inner and inner.stage == "forward_step", message
            assert inner.outputs.data == {}, message
        assert rf.get_run_ctx() is ctx, message
    assert rf.get_run_ctx() is outer, message


def test_marked_losses_have_the_options_that_become_layer_options():
    with _returnn.selected(LayersBackend), _returnn.run_ctx("train") as ctx:
        tensor = rf.zeros((), dtype="float32")
        tensor.mark_as_loss("one", scale=0.5, as_error=True, use_normalized_loss=True)
        loss = ctx.losses["one"]
    expected = {"name": "one", "scale": 0.5, "as_error": True, "use_normalized_loss": True}
    expected |= {"use_flatten_frames": True, "custom_inv_norm_factor": None}
    for name, value in expected.items():
        assert getattr(loss, name, "missing") == value, (
            f"RETURNN's Loss has no {name!r} as given: nn.lower reads it from run_ctx.losses"
        )
    assert loss.loss is tensor, "RETURNN's Loss no longer keeps the tensor: nn.lower reads .loss"


def test_extern_data_of_step():
    data = nn.TensorDict()
    data.data["data"] = extern_data["data"]
    assert _returnn.current_extern_data() is None
    with _returnn.extern_data_of_step(data):
        assert _returnn.current_extern_data()["data"] is extern_data["data"]
    assert _returnn.current_extern_data() is None


# --- replacements


def test_replaced_and_wrap_once():
    class Owner:
        def method(self, x):
            """doc"""
            return x

    original = Owner.method
    with _returnn.replaced({(Owner, "method"): lambda original, self, x: original(self, x) + 1}):
        assert Owner().method(1) == 2
    assert Owner.method is original
    for _ in range(2):
        _returnn.wrap_once(Owner, "method", lambda original, self, x: original(self, x) * 10)
    assert Owner().method(1) == 10 and Owner.method.__doc__ == "doc"


def test_mark_as_loss_takes_a_name_and_the_options_of_rf():
    original = inspect.unwrap(Tensor.mark_as_loss)
    first, second, *_ = inspect.signature(original).parameters
    assert (first, second) == ("self", "name"), changed(
        f"has Tensor.mark_as_loss{inspect.signature(original)}", "wrap_once", "optional loss names"
    )


@pytest.mark.parametrize(
    "function, name",
    [
        (_returnn.mel.log_mel_filterbank_from_raw, "mel_filterbank"),
        (rf.RelPosSelfAttention.__call__, "relative_positional_encoding"),
    ],
)
def test_rf_looks_names_up_as_globals(function, name):
    module = inspect.getmodule(function)
    assert module in (_returnn.mel, _returnn.attention)
    assert name in function.__code__.co_names and hasattr(module, name), (
        f"RETURNN's {function.__qualname__} no longer calls {name} as a global of its module: "
        f"our replacement in _replaced.REPLACED is not hit there."
    )


def accepts(function: Any, name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@pytest.mark.parametrize("owner, name", _replaced.REPLACED, ids=str)
def test_replacements_fit_what_they_replace(owner, name):
    what = f"{getattr(owner, '__name__', owner)}.{name}"
    assert hasattr(owner, name), f"RETURNN has no {what} any more: _replaced.REPLACED replaces it."
    theirs = inspect.signature(getattr(owner, name)).parameters
    replacement = _replaced.REPLACED[owner, name]
    ours = dict(list(inspect.signature(replacement).parameters.items())[1:])
    for parameter in theirs:
        assert accepts(replacement, parameter), (
            f"RETURNN's {what} has a parameter {parameter!r}: {replacement.__module__}.{replacement.__name__} "
            f"does not take it yet."
        )
    for parameter, kind in ours.items():
        assert kind.kind is kind.VAR_KEYWORD or parameter in theirs, (
            f"RETURNN's {what} has no parameter {parameter!r} any more: "
            f"{replacement.__module__}.{replacement.__name__} passes it on."
        )
        if parameter in theirs and kind.kind is not kind.VAR_KEYWORD:
            assert (kind.default is kind.empty) <= (theirs[parameter].default is kind.empty), (
                f"RETURNN's {what} has a default for {parameter!r}: "
                f"{replacement.__module__}.{replacement.__name__} still requires it."
            )


@pytest.mark.parametrize(
    "module, names",
    [
        (rf.LayerNorm, "in_dim scale bias eps"),
        (
            rf.BatchNorm,
            "in_dim running_mean running_variance gamma beta eps momentum affine use_mask",
        ),
        (rf.Linear, "in_dim out_dim weight bias"),
        (rf.LSTM, "in_dim out_dim ff_weight rec_weight bias"),
    ],
)
def test_modules_have_the_attributes_that_layers_own(module, names):
    made = (
        module(feature_dim, feature_dim) if module in (rf.Linear, rf.LSTM) else module(feature_dim)
    )
    missing = [name for name in names.split() if not hasattr(made, name)]
    assert not missing, (
        f"RETURNN's {module.__name__} has no {missing} any more: nn._attention, nn._ctc and the names of "
        f"parameters in checkpoints rely on them."
    )


# --- signatures of the backend

#: Methods of ours that hand their arguments on as they are.
PASSED_ON = {
    "ctc_loss": _ctc.ctc_loss,
    "scaled_dot_product_attention": _attention.dot_attention,
    "rel_pos_self_attention": _attention.rel_pos_self_attention,
    "lstm": _lstm.lstm,
}
#: Ours take these as ``**options``: those of the random layer, and what has no meaning for layers.
BY_KEYWORD = {
    "random": "mean stddev bound minval maxval seed algorithm explicit_state auto_update_state static",
    "full": "like",
}


def defined_in(name: str) -> type:
    return next(cls for cls in LayersBackend.__mro__ if name in vars(cls))


METHODS = [
    name
    for name in dir(LayersBackend)
    if inspect.isroutine(getattr(LayersBackend, name))
    and defined_in(name) not in (_returnn.Backend, object)
    and not name.startswith("__")
]


@pytest.mark.parametrize("name", METHODS)
def test_backend_methods_take_the_arguments_of_rf(name):
    assert hasattr(_returnn.Backend, name), (
        f"RETURNN's Backend has no method {name} any more: LayersBackend.{name} is never called."
    )
    theirs = inspect.signature(getattr(_returnn.Backend, name)).parameters
    ours = inspect.signature(PASSED_ON.get(name, getattr(LayersBackend, name))).parameters
    by_keyword = BY_KEYWORD.get(name, "").split()
    for parameter in theirs:
        assert parameter in ours or parameter in by_keyword, (
            f"RETURNN's Backend.{name} has a parameter {parameter!r}: LayersBackend.{name} does "
            f"not take it yet."
        )
    for parameter, kind in ours.items():
        required = kind.default is kind.empty and kind.kind not in (
            kind.VAR_KEYWORD,
            kind.VAR_POSITIONAL,
        )
        assert parameter in theirs or not required, (
            f"RETURNN's Backend.{name} no longer passes {parameter!r}: LayersBackend.{name} "
            f"requires it."
        )
    positional = [p.name for p in theirs.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p for p in ours if p in positional] == positional, (
        f"RETURNN's Backend.{name} has its positional parameters in another order: {positional}."
    )


def test_masked_select_with_batch():
    parameters = inspect.signature(_returnn.masked_select_with_batch).parameters
    assert list(parameters) == ["tensor", "mask", "dim", "out_dim"], changed(
        f"has _masked_select_subset with {list(parameters)}",
        "masked_select_with_batch",
        "masks with more dims than the selected one",
    )


# --- dims


@pytest.mark.parametrize(
    "make, kind, num_inputs",
    [
        (lambda a, b: a + b, "add", 2),
        (lambda a, b: a - 1, "add", 2),
        (lambda a, b: 3 * a, "mul", 2),
        (lambda a, b: a // 2, "floordiv", 2),
        (lambda a, b: a.ceildiv_right(2), "ceildiv", 2),
        (lambda a, b: a.ceildiv_left(2), "ceildiv_left", 2),
    ],
)
def test_operation_of(make, kind, num_inputs):
    a, b = nn.SpatialDim("a"), nn.SpatialDim("b")
    operation = _returnn.operation_of(make(a, b))
    message = changed(f"describes {kind!r} in another way", "operation_of", "dims in a config text")
    assert isinstance(operation, _returnn.DimOperation), message
    assert operation.kind == kind and len(operation.inputs) == num_inputs, (message, operation)
    assert all(isinstance(dim, Dim) for dim in operation.inputs), message
    assert _returnn.operation_of(a) is None, message


def test_operation_of_constant():
    one = _returnn.operation_of(nn.SpatialDim("a") + 1).inputs[-1]
    assert _returnn.operation_of(one).kind == "constant" and one.dimension == 1, changed(
        "describes the 1 in a + 1 in another way", "operation_of", "dims in a config text"
    )


def test_base_of():
    message = changed("links copies of a dim in another way", "base_of", "one name per dim")
    other = nn.SpatialDim("other")
    copied = time_dim.copy(match_priority=1)
    assert copied.match_priority == 1 and time_dim.match_priority == 0, message
    assert copied == time_dim, message
    assert _returnn.base_of(copied) is _returnn.base_of(time_dim) is time_dim, message
    assert _returnn.base_of(other) is other, message
    renamed = nn.SpatialDim("renamed")
    renamed.declare_same_as(other)
    assert _returnn.base_of(renamed) is _returnn.base_of(other), message


def test_special_dim():
    dim = _returnn.special_dim("any", Dim.Types.Feature)
    message = changed("no longer knows special dims", "special_dim", "nn.any_feature_dim")
    assert _returnn.is_special(dim) and not _returnn.is_special(feature_dim), message
    assert _returnn.is_special(nn.any_feature_dim) and dim != nn.FeatureDim("any", 3), message


def torch_sizes(values: list[int]) -> Tensor:
    torch = pytest.importorskip("torch")
    return Tensor("size", [batch_dim], "int32", raw_tensor=torch.tensor(values, dtype=torch.int32))


def test_sizes_of_dims():
    dim = nn.SpatialDim("sized")
    longer = dim + 2
    with testing.torch_backend():
        try:
            assert _returnn.size_of(dim) is None
            _returnn.set_size(dim, torch_sizes([3, 1]))
            message = changed("no longer computes sizes from dyn_size_ext", "set_size", "lengths")
            assert dim.get_size_tensor().raw_tensor.tolist() == [3, 1], message
            longer.complete_dyn_size()
            assert longer.get_size_tensor().raw_tensor.tolist() == [5, 3], message
            message = changed("keeps sizes elsewhere", "size_of", "the sizes of dynamic dims")
            assert _returnn.size_of(dim).raw_tensor.tolist() == [3, 1], message
            assert _returnn.size_of(longer).raw_tensor.tolist() == [5, 3], message
        finally:
            _returnn.reset_dims([dim, longer])
        message = changed("keeps old sizes somewhere", "reset_dims", "lowering a model twice")
        assert _returnn.size_of(dim) is None and _returnn.size_of(longer) is None, message
        _returnn.set_size(dim, torch_sizes([7, 4]))
        longer.complete_dyn_size()
        assert longer.get_size_tensor().raw_tensor.tolist() == [9, 6], message
        _returnn.reset_dims([dim, longer])


# --- names


def test_every_name_of_rf_is_a_name_of_nn():
    assert _returnn.batch_dim is nn.batch_dim and _returnn.Tensor is nn.Tensor
    for name in dir(rf):
        if not name.startswith("_"):
            assert hasattr(nn, name), f"nn.{name} does not give RETURNN's rf.{name}"
            assert name in dir(nn)


def test_config_text_imports_what_exists():
    import returnn.tf.util.data as module

    from returnn_common.nn import _text

    for name in _text._DIM_NAMES:
        assert hasattr(module, name), (
            f"RETURNN no longer has {module.__name__}.{name}, which generated configs import"
        )
    dim = module.FeatureDim("size", 3)
    assert dim.dimension == 3 and dim.kind == Dim.Types.Feature
    assert module.SpatialDim("time").dimension is None


# --- RETURNN's layers

#: The options that the layers backend emits, besides those of every layer.
OPTIONS = {
    "activation": "from activation opts",
    "batch_norm": "from in_dim masked_time use_shift use_std momentum epsilon gamma_init beta_init",
    "boolean_mask": "from mask dims out_dim",
    "cast": "from dtype",
    "combine": "from kind allow_broadcast_all_sources",
    "compare": "from kind value allow_broadcast_all_sources",
    "concat": "from out_dim allow_broadcast",
    "cond": "from condition true_layer false_layer",
    "constant": "value shape dtype sparse_dim shape_deps",
    "conv": (
        "from in_dim out_dim in_spatial_dims out_spatial_dims filter_size padding strides "
        "dilation_rate groups with_bias activation filter bias forward_weights_init "
        "bias_init dropout dropout_axis dropout_noise_shape dropout_on_forward"
    ),
    "copy": "from loss is_output_layer initial_output need_last",
    "ctc_loss": "logits targets logits_normalized blank_index max_approx label_loop",
    "cumsum": "from axis",
    "dot": "from reduce use_mask",
    "dropout": "from dropout dropout_axis dropout_noise_shape dropout_on_forward",
    "eval": "from eval eval_locals out_type allow_broadcast_all_sources",
    "expand_dims": "from axis dim",
    "gather": "from position axis clip_to_valid",
    "gating": "from activation gate_activation out_dim",
    "get_last_hidden_state": "from out_dim key",
    "global_train_step": "",
    "gradient": "y x",
    "layer_norm": "from in_dim epsilon",
    "length": "from axis",
    "linear": (
        "from in_dim out_dim activation with_bias dropout dropout_axis dropout_noise_shape "
        "dropout_on_forward forward_weights_init bias_init is_output_layer"
    ),
    "masked_computation": "from mask in_spatial_dim out_spatial_dim unit",
    "merge_dims": "from axes out_dim",
    "pad": "from axes padding out_dims mode value handle_dynamic_dims",
    "pool": (
        "from mode pool_size padding strides in_dim in_spatial_dims out_spatial_dims dilation_rate"
    ),
    "random": (
        "shape distribution dtype sparse_dim shape_deps stop_grad mean stddev bound "
        "minval maxval seed"
    ),
    "range_from_length": "from dtype out_spatial_dim",
    "range_in_axis": "from axis dtype sparse",
    "rec": (
        "from unit axis include_eos max_seq_len in_dim out_dim unit_opts initial_state reuse_params"
    ),
    "rec_last_output": "rec_layer sub_layer_name",
    "rec_unstack": "from axis",
    "reduce": "from mode axis use_time_mask",
    "reinterpret_data": "from set_axes set_dim_tags set_sparse set_sparse_dim loss",
    "reshape": "from in_dims out_dims extra_deps",
    "scaled_grad": "from scale shift scale_shift_by_sum_over_axis",
    "seq_len_mask": "from axis mask_value",
    "slice": "from axis out_dim slice_start slice_end slice_step",
    "slice_nd": "from axis start size out_spatial_dim",
    "softmax_over_spatial": "from axis energy_factor use_time_mask log_space",
    "sparse_softmax_cross_entropy_with_logits": "logits targets axis",
    "split": "from axis out_dims",
    "split_dims": "from axis dims pad_to_multiples pad_value",
    "squeeze": "from axis",
    "stft": "from in_spatial_dims out_spatial_dims out_dim frame_shift frame_size fft_size",
    "subnetwork": "from subnetwork",
    "switch": "condition true_from false_from",
    "top_k": "from axis k k_dim sorted",
    "train_flag": "",
    "transpose": "from perm",
    "transposed_conv": (
        "from in_dim out_dim in_spatial_dims out_spatial_dims filter filter_size "
        "filter_perm padding remove_padding output_padding strides with_bias bias"
    ),
    "variable": "shape dtype init trainable param_name name_scope",
    "variable_assign": "var value op",
    "variable_read": "var control_dependencies",
}
ALL_LAYERS = {
    "class",
    "loss_opts",
    "loss",
    "name_scope",
    "reuse_params",
    "trainable",
    "is_output_layer",
}


@pytest.mark.parametrize("layer", OPTIONS)
def test_layers_have_the_options_that_are_emitted(layer):
    from returnn.tf.network import get_layer_class

    known = {"from"}
    for cls in get_layer_class(layer).__mro__:
        if "__init__" in vars(cls):
            known |= set(inspect.signature(cls.__init__).parameters)
    for option in OPTIONS[layer].split():
        assert option in known, (
            f"RETURNN's layer {layer!r} no longer has the option {option!r}, which nn.lower emits."
        )


def doubled_rows(source: Any, self: Any, factor: int, **_: Any) -> Any:
    """an eval function with all that ours in _config_functions use"""
    x = source(0, as_data=True, auto_convert=False)
    raw = source(0, auto_convert=False)
    batch, time, feature = self.output.dims
    assert len(self.sources) == 1 and x.dims == (batch, time, feature)
    assert time.is_dynamic() and feature.dimension == 8 and time.dyn_size.shape.rank == 1
    transposed = x.copy_compatible_to_dims_raw([time, feature, batch])
    assert raw is x.placeholder and transposed.shape.as_list() == [None, 8, None]
    return x.placeholder * factor


def test_eval_functions_and_losses_of_a_net():
    import tensorflow as tf
    from returnn.config import Config, global_config_ctx
    from returnn.tf.network import TFNetwork

    layers = {
        "eval": {
            "class": "eval",
            "from": "data",
            "eval": doubled_rows,
            "eval_locals": {"factor": 2},
            "out_type": _config_calls.out_type(
                [batch_dim, time_dim, feature_dim], feature_dim=feature_dim
            ),
        },
        "sum": {"class": "reduce", "from": "eval", "mode": "sum", "axis": feature_dim},
        "loss": {"class": "copy", "from": "sum", "loss": "as_is", "loss_opts": {"scale": 0.5}},
        "error": {"class": "copy", "from": "sum", "loss": "as_is", "loss_opts": {"as_error": True}},
    }
    data = {"data": {"dim_tags": [batch_dim, time_dim, feature_dim], "dtype": "float32"}}
    config = Config({"extern_data": data, "network": layers, "behavior_version": 31})
    with (
        _returnn.behavior_version(),
        global_config_ctx(config),
        tf.Graph().as_default() as graph,
        tf.compat.v1.Session(graph=graph) as session,
    ):
        net = TFNetwork(config=config, train_flag=True, eval_flag=True)
        net.construct_from_dict(layers)
        feed = testing.feed_dict(net, DATA)
        message = changed("keeps the batch size elsewhere", "batch_size_of_net", "feeding a net")
        assert feed[_returnn.batch_size_of_net(net)] == 2, message
        values = session.run(_returnn.losses_of_net(net), feed_dict=feed)
    # 4 frames of 8 ones, doubled; the scale is only for the objective
    message = changed("reports losses in another way", "losses_of_net", "the values of losses")
    assert values == {"loss": 64.0, "error": 64.0}, (message, values)


# --- RF's own modules lower to compact layers


def classes_of(module: Any, call: Any) -> list[str]:
    """the layer classes of the module, without the loss"""

    def step(*, model, extern_data, **_):
        out = call(model, extern_data["data"])
        nn.reduce_sum(out, axis=out.feature_dim).mark_as_loss("loss")

    network = dict(nn.lower(module, step, extern_data).network)
    for opts in network.values():
        missing = set(opts) - ALL_LAYERS - set(OPTIONS[opts["class"]].split())
        assert not missing, f"{opts['class']} has {missing}: add them to OPTIONS"
    layers = [opts for name, opts in network.items() if name not in ("loss", "sum")]
    return [
        opts["eval"].__name__ if callable(opts.get("eval")) else opts["class"] for opts in layers
    ]


def linear() -> rf.Linear:
    return rf.Linear(feature_dim, feature_dim)


@pytest.mark.parametrize(
    "make, call, expected",
    [
        (lambda: rf.LayerNorm(feature_dim), lambda m, x: m(x), ["layer_norm"]),
        (lambda: rf.BatchNorm(feature_dim), lambda m, x: m(x), ["batch_norm"]),
        (linear, lambda m, x: rf.relu(m(x)), ["linear"]),
        (linear, lambda m, x: rf.dropout(m(x), 0.1), ["linear", "dropout"]),
        (linear, lambda m, x: m(rf.dropout(x, 0.1, axis=feature_dim)), ["linear"]),
        (linear, lambda m, x: rf.gating(m(x))[0], ["linear", "gating"]),
        (linear, lambda m, x: m(x).copy_masked(0.0), ["linear", "seq_len_mask"]),
        (
            linear,
            lambda m, x: rf.softmax(m(x), axis=feature_dim),
            ["linear", "softmax_over_spatial"],
        ),
        (
            linear,
            lambda m, x: rf.audio.mel_filterbank(
                m(x), in_dim=feature_dim, out_dim=nn.FeatureDim("mel", 3), sampling_rate=16000
            ),
            ["linear", "mel_filterbank"],
        ),
    ],
)
def test_rf_lowers_to_compact_layers(make, call, expected):
    found = classes_of(make(), call)
    assert found == expected, (
        f"RETURNN's own module or function is no longer replaced or fused: it lowers to {found} "
        f"instead of {expected}; see _replaced.REPLACED and _passes."
    )


ATTENTION = {
    "num_heads": 2,
    "key_dim_total": feature_dim,
    "value_dim_total": feature_dim,
    "att_dropout": 0.1,
}
COMMON = {"linear", "split", "split_dims", "merge_dims", "reinterpret_data"}


@pytest.mark.parametrize(
    "attention, core",
    [
        (rf.SelfAttention, ["dot", "softmax_over_spatial", "dropout", "einsum"]),
        (
            rf.RelPosSelfAttention,
            [
                "range_in_axis",
                "distance_encoding",
                "rel_pos_scores",
                "softmax_over_spatial",
                "dropout",
                "einsum",
            ],
        ),
    ],
)
def test_attention_of_rf_lowers_to_compact_layers(attention, core):
    module = attention(feature_dim, feature_dim, **ATTENTION)
    found = classes_of(module, lambda m, x: m(x, axis=time_dim))
    rest = [name for name in found if name not in {*COMMON, "variable"}]
    assert rest == core, (
        f"RETURNN's {attention.__name__} no longer goes through the backend's attention or the "
        f"replaced relative_positional_encoding: it lowers to {rest} instead of {core}."
    )


def test_log_mel_of_rf_uses_the_replaced_filterbank():
    samples_dim = nn.SpatialDim("samples")
    data = {"data": nn.Tensor("data", [nn.batch_dim, samples_dim], "float32")}

    def step(*, model, extern_data, **_):
        out, _ = rf.audio.log_mel_filterbank_from_raw(
            extern_data["data"], in_spatial_dim=samples_dim, out_dim=model.in_dim
        )
        nn.reduce_sum(model(out), axis=model.out_dim).mark_as_loss("loss")

    network = nn.lower(linear(), step, data).network
    found = [opts["eval"].__name__ for opts in network.values() if callable(opts.get("eval"))]
    assert found == ["mel_filterbank"], (
        "RETURNN's log_mel_filterbank_from_raw no longer calls the global mel_filterbank of its "
        "module: the filters become a constant in the config; see _returnn.mel."
    )


# --- what training takes from RETURNN


def test_details_of_losses_and_effects_of_a_net():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm(feature_dim)

    def step(*, model, extern_data, **_):
        x = nn.reduce_sum(model.norm(extern_data["data"]), axis=feature_dim)
        x.mark_as_loss("mean", use_normalized_loss=True, scale=0.5)
        nn.reduce_sum(extern_data["data"], axis=feature_dim).mark_as_loss("error", as_error=True)

    lowered = nn.lower(Model(), step, extern_data)
    with testing.layers_session(lowered, train=True) as (net, session):
        details = _returnn.loss_details_of_net(net)
        got = session.run(
            {name: (loss.total, loss.inverse_frames) for name, loss in details.items()},
            feed_dict=testing.feed_dict(net, DATA),
        )
        effects = _returnn.effects_of_nets()
    message = changed("keeps losses otherwise", "loss_details_of_net", "training.Session")
    assert got["error"] == (32.0, 0.25), message  # 4 frames of 8 ones
    loss: _returnn.NetLoss = details["mean"]
    assert loss.is_mean and loss.scale == 0.5 and loss.is_trained, message
    assert not details["error"].is_trained, message
    message = changed("runs running statistics otherwise", "effects_of_nets", "training.Session")
    assert len(effects) > 0, message


def test_layers_draw_and_loop_by_functions_that_can_be_replaced():
    import tensorflow as tf

    calls = []

    def counted(what):
        def call(original, *args, **kwargs):
            graph = tf.compat.v1.get_default_graph()
            calls.append((what, len(_returnn.loops_around(graph))))
            return original(*args, **kwargs)

        return call

    def step(*, model, extern_data, **_):
        def body(x, state):
            state = nn.dropout(x + state, 0.5) + nn.random_normal(x.dims, dtype="float32")
            return state, state

        x = nn.dropout(nn.dropout(model(extern_data["data"]), 0.5), 0.5, axis=feature_dim)
        initial = nn.zeros([nn.batch_dim, feature_dim], dtype="float32")
        x, _ = nn.scan(body, spatial_dim=time_dim, xs=x, initial=initial)
        nn.reduce_sum(x, axis=feature_dim).mark_as_loss("loss")

    lowered = nn.lower(linear(), step, extern_data)
    functions = {
        _returnn.random_uniform_of_layers(): counted("dropout"),
        (_returnn.generator_of_layers(), "normal"): counted("random"),
        _returnn.while_loop_of_layers(): counted("loop"),
    }
    with _returnn.replaced(functions), testing.layers_session(lowered, train=True):
        pass
    for name, what, number in [
        ("random_uniform_of_layers", "dropout", 3),
        ("generator_of_layers", "random", 1),
        ("while_loop_of_layers", "loop", 1),
    ]:
        message = changed("draws or loops otherwise", name, "random numbers that can be resumed")
        assert [w for w, _ in calls].count(what) == number, message
    message = changed("keeps contexts of loops otherwise", "loops_around", "dropout in loops")
    assert ("dropout", 1) in calls and calls.count(("dropout", 0)) == 2, message


def test_callable_of_session():
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x = tf.compat.v1.placeholder(tf.float32, [None])
        variable = tf.Variable(1.0)
        session.run(variable.initializer)
        add = variable.assign_add(tf.reduce_sum(x))
        double = _returnn.callable_of_session(session, [x], [2 * x], [add.op])
        checked = tf.debugging.check_numerics(x, "not finite")
        check = _returnn.callable_of_session(session, [x], [checked], [])
        (got,) = double(numpy.array([3.0, 4.0], dtype="float32"))
        message = changed("or TensorFlow runs graphs otherwise", "callable_of_session", "steps")
        assert got.tolist() == [6.0, 8.0] and session.run(variable) == 8.0, message
        with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
            check(numpy.array([numpy.inf], dtype="float32"))


def test_forget_names_of_variables():
    import tensorflow as tf

    get_variable = tf.compat.v1.get_variable
    with (
        tf.Graph().as_default() as graph,
        tf.compat.v1.variable_scope("", reuse=tf.compat.v1.AUTO_REUSE),
    ):
        one, same = (get_variable("W", [2]) for _ in range(2))
        _returnn.forget_names_of_variables(graph)
        other = get_variable("W", [2])
    message = changed("shares variables by name otherwise", "forget_names_of_variables", "steps")
    assert one is same and other is not one, message


def test_on_mark_as_loss():
    seen = []
    with _returnn.selected(LayersBackend), _returnn.run_ctx("train") as ctx:
        _returnn.on_mark_as_loss(ctx, seen.append)
        loss = nn.zeros((), dtype="float32")
        loss.mark_as_loss("loss")
    message = changed("marks losses otherwise", "on_mark_as_loss", "the check for marking twice")
    assert seen == [loss] and list(ctx.losses) == ["loss"], message


def test_raw_size_of():
    dim = Dim(Tensor("size", [batch_dim], "int32", raw_tensor=numpy.array([3, 1], dtype="int32")))
    message = changed("keeps sizes elsewhere", "raw_size_of", "feeding lengths")
    assert _returnn.raw_size_of(dim).tolist() == [3, 1], message


def test_quiet_log():
    from returnn.log import log

    _returnn.quiet_log()
    message = changed("initialises its log otherwise", "quiet_log", "sessions that print nothing")
    assert log.initialized, message


def test_quiet_devices(capsys):
    from returnn.tf.util import basic

    basic._list_local_devices, basic._setup_tf_thread_pools_called_once = None, False
    _returnn.quiet_devices()
    devices = basic.get_tf_list_local_devices()
    message = changed("looks for devices otherwise", "quiet_devices", "sessions that print nothing")
    assert devices and not capsys.readouterr().out, message


def test_attributes_set():
    class Base:
        @staticmethod
        def own():
            return "own"

        def inherited(self):
            return "inherited"

    class Derived(Base):
        pass

    module = types.ModuleType("module")
    module.name = "module"
    before = vars(Base)["own"]
    values = [(Base, "own", 1), (Derived, "inherited", 2), (module, "name", 3), (Base, "own", 4)]
    with pytest.raises(ZeroDivisionError), _returnn.attributes_set(values):
        assert (Base.own, Derived.inherited, module.name) == (4, 2, 3)
        raise ZeroDivisionError
    assert vars(Base)["own"] is before and Base.own() == "own"
    assert "inherited" not in vars(Derived) and Derived().inherited() == "inherited"
    assert module.name == "module"


def test_configured():
    import tensorflow as tf
    from returnn.config import Config, global_config_ctx

    message = changed("keeps its config elsewhere", "configured", "step loops without data")
    with tf.Graph().as_default(), global_config_ctx(Config({"num_epochs": 3})):
        assert _returnn.configured("num_epochs") == 3, message
        assert _returnn.configured("train") is None, message
