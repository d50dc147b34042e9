"""RETURNN's own engines with a dataset, as they run a config: for each backend a function that trains one epoch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Trains an epoch and gives how many steps it had.
Epoch = Callable[[], int]


def tensorflow_engine(text: str, dataset: Mapping[str, Any]) -> Epoch:
    """``returnn.tf.engine.Engine`` with the config text that ``nn.lower`` gives"""
    from returnn.config import Config, set_global_config
    from returnn.tf.engine import Engine
    from returnn.util.basic import BackendEngine

    namespace: dict[str, Any] = {}
    exec(compile(text, "<config>", "exec"), namespace)
    config = Config({key: value for key, value in namespace.items() if not key.startswith("__")})
    set_global_config(config)  # its threads look it up
    BackendEngine.select_engine(config=config)
    engine = Engine(config)
    engine.init_train_from_config(config, train_data=_open(dataset))

    def train() -> int:
        before = engine.global_train_step or 0
        engine.start_epoch = engine.final_epoch = (engine.epoch or 0) + 1
        set_global_config(config)
        engine.train()
        return engine.global_train_step - before

    return train


def torch_engine(settings: Mapping[str, Any], dataset: Mapping[str, Any]) -> Epoch:
    """``returnn.torch.engine.Engine``"""
    from returnn.config import Config, set_global_config
    from returnn.torch.engine import Engine

    config = Config({"backend": "torch", "device": "cpu", **settings})
    config.typed_dict["torch_dataloader_opts"] = {"num_workers": 0}
    set_global_config(config)
    engine = Engine(config)
    engine.init_train_from_config(config, train_data=_open(dataset))

    def train() -> int:
        before = engine.global_train_step
        engine._start_epoch = engine._final_epoch = (engine.epoch or 0) + 1
        set_global_config(config)
        engine.train()
        return engine.global_train_step - before

    return train


def _open(dataset: Mapping[str, Any]) -> Any:
    from returnn.datasets.basic import init_dataset

    opened = init_dataset(dict(dataset))
    opened.init_seq_order(epoch=1)
    return opened
