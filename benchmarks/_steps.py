"""
What trains in the benchmarks: for each contestant a context that gives a function which trains one step.

One step is forward, backward and Adam, on the batch of `_models` in float32. On torch the optimizer is
``torch.optim.Adam``; on TensorFlow RETURNN's updater with ``adam``. Both are Kingma & Ba, https://arxiv.org/abs/1412.6980;
TensorFlow adds epsilon before the correction of the bias.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import _graphs
import _models

LEARNING_RATE = _graphs.OPTIMIZER["learning_rate"]


@contextlib.contextmanager
def tensorflow_layers(maker: str, **sizes: Any) -> Iterator[Callable[[], float]]:
    """a net dict: ``ours`` or ``rf``, see `_graphs.MAKERS`"""
    with _graphs.TrainingGraph(_graphs.MAKERS[maker], **sizes).trainable() as train_step:
        yield train_step


@contextlib.contextmanager
def tensorflow_layerless(**sizes: Any) -> Iterator[Callable[[], float]]:
    """RF's conformer on RETURNN's backend ``tensorflow``: one graph, no layers"""
    from returnn.config import Config, global_config_ctx
    from returnn.tf.engine_rf import Engine
    from returnn.util.basic import BackendEngine

    config = Config(_models.rf_settings(backend="tensorflow", **_graphs.OPTIMIZER, **sizes))
    with global_config_ctx(config):
        BackendEngine.select_engine(config=config)
        engine = Engine(config)
        engine.init_train_from_config(config)
        engine._updater.set_learning_rate(LEARNING_RATE, session=engine.session)
        batch, data = _models.batch(), engine.extern_data.data["data"]
        feed = {
            data.raw_tensor: batch["data"],
            data.dims[1].dyn_size_ext.raw_tensor: batch["data:size1"],
        }
        yield lambda: engine.session.run([engine._loss, engine._optim_op], feed_dict=feed)[0]


@contextlib.contextmanager
def returnn_torch(module: str, *, share_masks: bool = False, device: str = "cpu", autocast: Any = None,
                  lengths: tuple[int, ...] | None = None, **sizes: Any) -> Iterator[Callable[[], float]]:  # fmt: skip
    """
    RETURNN's torch backend

    :param module: ``ours`` (zoo) or ``rf``
    :param autocast: dtype of torch's automatic mixed precision
    """
    import returnn.frontend as rf
    from returnn.config import Config, global_config_ctx
    from returnn.tensor import TensorDict
    from returnn.torch.data.extern_data import raw_dict_to_extern_data

    from returnn_common import testing
    from returnn_common.nn import _returnn

    config = Config(_models.rf_settings(backend="torch", share_masks=share_masks))
    get_model = {"ours": _models.our_conformer, "rf": _models.rf_conformer}[module]
    with global_config_ctx(config), testing.torch_backend(), rf.set_default_device_ctx(device):
        model = get_model(**sizes)
        template = TensorDict(_models.extern_data())
        features, seq_lens = _torch_batch(device, lengths)
        raw = {"data": features, "data:seq_len": seq_lens.cpu()}

        def loss() -> Any:
            data = raw_dict_to_extern_data(raw, extern_data_template=template, device=device)
            with _returnn.run_ctx("train", train_flag=True) as ctx:
                _models.step(model=model, extern_data=data)
                return ctx.total_loss().raw_tensor

        yield _torch_step(loss, [p.raw_tensor for p in model.parameters()], device, autocast)


@contextlib.contextmanager
def plain_torch(
    **sizes: Any,
) -> Iterator[Callable[[], float]]:
    """the conformer of i6_models"""
    model = _models.i6_conformer(**sizes).train()
    features, lengths = _torch_batch("cpu", None)
    yield _torch_step(
        lambda: _models.i6_loss(model, features, lengths), model.parameters(), "cpu", None
    )


def _torch_batch(device: str, lengths: tuple[int, ...] | None) -> tuple[Any, Any]:
    import torch

    batch = _models.batch(lengths) if lengths else _models.batch()
    features, seq_lens = (torch.tensor(batch[key], device=device) for key in ("data", "data:size1"))
    return features, seq_lens


def _torch_step(
    get_loss: Callable[[], Any], parameters: Any, device: str, autocast: Any
) -> Callable[[], float]:
    import torch

    optimizer = torch.optim.Adam([p for p in parameters if p.requires_grad], lr=LEARNING_RATE)

    def train_step() -> float:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=autocast, enabled=autocast is not None):
            loss = get_loss()
        loss.backward()
        optimizer.step()
        return loss.item()

    if device == "cpu":
        _choose_threads(train_step)
    return train_step


def _choose_threads(train_step: Callable[[], float]) -> None:
    """torch gets one thread, or one for each core where that is faster: on a busy machine they wait for each other"""
    import torch

    seconds = {}
    for threads in {1, os.cpu_count() or 1}:
        torch.set_num_threads(threads)
        train_step()
        start = time.perf_counter()
        train_step()
        seconds[threads] = time.perf_counter() - start
    torch.set_num_threads(min(seconds, key=seconds.__getitem__))
