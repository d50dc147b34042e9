"""
TensorFlow training graphs as RETURNN's engine makes them: from a net dict, with its train flag and its updater.

The optimizer is RETURNN's ``adam``, TensorFlow's `AdamOptimizer`.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import _models

OPTIMIZER = {"optimizer": {"class": "adam"}, "learning_rate": 1e-4}


def our_config(**sizes: Any) -> tuple[Any, dict[str, Any]]:
    """:return: the RETURNN config of our conformer, and its net dict"""
    from returnn.config import Config

    from returnn_common import nn

    lowered = nn.lower(_models.our_conformer(**sizes), _models.step, _models.extern_data())
    config = Config(lowered.config(**OPTIMIZER))
    return config, config.typed_dict["network"]


def rf_config(**sizes: Any) -> tuple[Any, dict[str, Any]]:
    """:return: the RETURNN config of RF's conformer, and the net dict of RETURNN's own layers backend"""
    from returnn.config import Config, global_config_ctx
    from returnn.tf.frontend_layers.config_entry_points import get_net_dict

    backend = {"backend": "tensorflow-net-dict", "use_tensorflow": True}
    config = Config(_models.rf_settings(share_masks=True, **backend, **OPTIMIZER, **sizes))
    with global_config_ctx(config):
        net_dict, _ = get_net_dict(epoch=1, step=0)
    return config, net_dict


def rf_lowered_config(**sizes: Any) -> tuple[Any, dict[str, Any]]:
    """:return: RF's conformer as :func:`rf_config` has it, lowered by us"""
    from returnn.config import Config, global_config_ctx

    from returnn_common import nn

    with global_config_ctx(Config(_models.rf_settings(share_masks=True))):
        lowered = nn.lower(_models.rf_conformer(**sizes), _models.step, _models.extern_data())
        config = Config(lowered.config(**OPTIMIZER))
    return config, config.typed_dict["network"]


MAKERS = {"ours": our_config, "rf": rf_config, "rf_lowered": rf_lowered_config}


class TrainingGraph:
    """
    One training graph, with a time in seconds after each part.

    :param make_config: see `MAKERS`
    """

    def __init__(self, make_config: Callable[..., tuple[Any, dict[str, Any]]], **sizes: Any):
        self._start = time.perf_counter()
        self.config, self.net_dict = make_config(**sizes)
        self.seconds = {"trace": self._elapsed()}
        self.num_layers = count_layers(self.net_dict)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._start

    @contextlib.contextmanager
    def constructed(
        self, *, dynamic_train_flag: bool, train: bool = True
    ) -> Iterator[TrainingGraph]:
        """
        the network in a graph of its own; ``num_ops`` are its ops, before objective and gradients

        :param dynamic_train_flag: the train flag is fed, as in RETURNN's engine, which trains and evaluates with one
            graph; else the graph is for training only
        """
        import tensorflow as tf
        from returnn.config import global_config_ctx
        from returnn.tf.network import ExternData, TFNetwork
        from returnn.tf.util.basic import get_global_train_flag_placeholder

        with global_config_ctx(self.config), tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(1)
            data = ExternData()
            data.init_from_config(config=self.config, auto_create_placeholders=True)
            self.train_flag = get_global_train_flag_placeholder() if dynamic_train_flag else train
            self.network = TFNetwork(
                config=self.config, extern_data=data, train_flag=self.train_flag, eval_flag=True
            )
            self.network.construct_from_dict(self.net_dict)
            self.seconds["construct"] = self._elapsed()
            self.num_ops = len(graph.get_operations())
            yield self

    @contextlib.contextmanager
    def trainable(self) -> Iterator[Callable[[], float]]:
        """gradients, updater and session; gives a function that runs one step and returns the loss"""
        import tensorflow as tf
        from returnn.tf.updater import Updater

        with self.constructed(dynamic_train_flag=True), tf.compat.v1.Session() as session:
            self.network.initialize_params(session)
            updater = Updater(config=self.config, network=self.network, initial_learning_rate=1e-4)
            updater.set_trainable_vars(self.network.get_trainable_params())
            optimize = updater.get_optim_op()
            updater.init_optimizer_vars(session)
            updater.set_learning_rate(OPTIMIZER["learning_rate"], session)
            self.num_ops_with_updater = len(session.graph.get_operations())
            fetches = [self.network.get_objective(), optimize]
            feed = {**self.feed(_models.batch()), self.train_flag: True}
            yield lambda **options: session.run(fetches, feed_dict=feed, **options)[0]

    def feed(self, data: dict[str, Any]) -> dict[Any, Any]:
        from returnn_common import testing

        return testing.feed_dict(self.network, data)

    def first_step(self) -> None:
        """construct, and train one step; the time goes to ``seconds``"""
        with self.trainable() as train_step:
            train_step()
            self.seconds["start"] = self._elapsed()


def count_layers(net_dict: Any) -> int:
    """:return: the layers of a net dict, those inside of others counted too"""
    if isinstance(net_dict, dict):
        return ("class" in net_dict) + sum(count_layers(item) for item in net_dict.values())
    if isinstance(net_dict, (list, tuple)):
        return sum(count_layers(item) for item in net_dict)
    return 0


def with_deep_stack(function: Callable[[], None]) -> None:
    """Call it where Python may recurse as deeply as RETURNN constructs the nested layers of RF."""
    sys.setrecursionlimit(10**6)
    threading.stack_size(2**30 - 2**20)
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()
