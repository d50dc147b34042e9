"""
The two RETURNN configs of the demo: training and recognition. All paths in them are relative to their folder.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from .. import nn
from ..data.digits import LABELS
from ..data.oggzip import ogg_zip_opts
from .model import forward_step, make_extern_data, make_model, train_step

POSTERIORS = "posteriors.hdf"

# TensorFlow's graph optimiser takes longer than all that it saves in minutes of training.
_SESSION = {"graph_options": {"rewrite_options": {"disable_meta_optimizer": True}}}


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How long and how fast to train. Found by trial on two CPU cores, with FSDD."""

    num_strings: tuple[int, int, int]  # of train, dev, test
    num_epochs: int
    partition_epoch: int  # an epoch is this part of the training strings
    learning_rate: float = (
        1e-3  # the highest; with 2e-3 some seeds never leave the plateau at 2 nats
    )
    warmup: float = 0.25  # part of the epochs in which the learning rate rises
    batch_size: int = 100_000  # samples of audio, with padding: 12.5 s

    def learning_rates(self) -> list[float]:
        """:return: for each epoch: up in a line, down in a line (https://arxiv.org/abs/1708.07120)"""
        top = max(1, round(self.warmup * self.num_epochs))
        down = self.num_epochs - top
        up = [(epoch + 1) / top for epoch in range(top)]
        return [
            round(self.learning_rate * factor, 7)
            for factor in up + [1 - (i + 1) / (down + 1) for i in range(down)]
        ]


REAL = Recipe((3000, 100, 200), num_epochs=12, partition_epoch=5)
SYNTHETIC = Recipe((1000, 50, 100), num_epochs=8, partition_epoch=2)


def train_config(backend: str, recipe: Recipe, *, seed: int) -> str:
    """:return: Python text, for ``python -m returnn``"""
    settings = {
        **_common(),
        "train": ogg_zip_opts(
            "corpus/train.zip",
            labels=LABELS,
            seq_ordering="laplace:.100",  # similar lengths together, for little padding
            partition_epoch=recipe.partition_epoch,
            epoch_wise_filter={(1, 2): {"max_mean_len": 200}},  # first strings of 2 s on average
        ),
        "dev": ogg_zip_opts("corpus/dev.zip", labels=LABELS),
        "num_epochs": recipe.num_epochs,
        "learning_rates": recipe.learning_rates(),
        "learning_rate_file": "learning_rates",
        "batch_size": recipe.batch_size,
        "max_seqs": 200,
        "optimizer": {"class": "adam", "epsilon": 1e-8},
        "gradient_clip_global_norm": 5.0,
        "random_seed": seed,
        "save_interval": 1,
    }
    if backend == "torch":
        settings["torch_dataloader_opts"] = {"num_workers": 0}
        return nn.torch_config(make_model, train_step, make_extern_data(), **settings)
    settings["tf_session_opts"] = _SESSION
    return nn.lower(make_model(), train_step, make_extern_data()).config_text(**settings)


def recognition_config(backend: str, recipe: Recipe) -> str:
    """:return: Python text, for ``python -m returnn``; it writes the posteriors of the test part to `POSTERIORS`"""
    extern_data = {"data": make_extern_data()["data"]}
    settings: dict[str, Any] = {
        **_common(),
        "task": "forward",
        "eval": ogg_zip_opts("corpus/test.zip", labels=LABELS),
        "load_epoch": recipe.num_epochs,
        "num_epochs": recipe.num_epochs,
    }
    if backend == "torch":
        settings |= {
            "forward_data": "eval",
            "batch_size": recipe.batch_size,
            "torch_dataloader_opts": {"num_workers": 0},
        }
        text = nn.torch_config(make_model, forward_step, extern_data, **settings)
        return (
            f"{text}\nfrom {__package__}.recognition import PosteriorWriter as forward_callback\n"
        )
    settings |= {
        "forward_batch_size": 2 * recipe.batch_size,
        "forward_output_layer": "log_probs",
        "output_file": POSTERIORS,
        "tf_session_opts": _SESSION,
        "forward_override_hdf_output": True,
    }
    return nn.lower(make_model(), forward_step, extern_data, task="forward").config_text(**settings)


def num_parameters() -> int:
    """:return: numbers in all parameters of the model"""
    return sum(parameter.num_elements() for parameter in make_model().parameters())


def _common() -> dict[str, Any]:
    return {"model": "checkpoints/net", "log_verbosity": 5}
