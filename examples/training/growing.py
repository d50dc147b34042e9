"""
A network that grows over the epochs: each time it gets one layer more, and computes what it did before.

The new layer is a residual branch whose last weights are zero, as in section 5.1 of Goyal et al., 2017,
https://arxiv.org/abs/1706.02677; growing without a change of the function is Chen et al., "Net2Net", 2015,
https://arxiv.org/abs/1511.05641. One session holds all layers from the start, and for each depth there is a
step which uses only the lower ones: so what the optimizer keeps of these goes on, too, and a checkpoint is
one of the whole. The toy data are frames, tagged with the largest of
their features, summed over seven frames: a layer sees three.

    python examples/training/growing.py --backend torch
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy

from returnn_common import nn, training

NUM_LAYERS, EPOCHS_EACH = 3, 2
TIME = nn.SpatialDim("time")
FEATURES, TAGS = nn.FeatureDim("features", 4), nn.FeatureDim("tags", 4)
MODEL_DIM = nn.FeatureDim("model", 16)
EXTERN_DATA = {
    "data": nn.Tensor("data", [nn.batch_dim, TIME, FEATURES], "float32"),
    "tags": nn.Tensor("tags", [nn.batch_dim, TIME], "int32", sparse_dim=TAGS),
}


class Layer(nn.Module):
    """a convolution over three frames, in a residual branch that gives zero at the start"""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(MODEL_DIM, nn.FeatureDim("branch", 32), 3, padding="same")
        self.output = nn.Linear(self.conv.out_dim, MODEL_DIM)
        self.output.weight.initial = 0.0

    def __call__(self, x: nn.Tensor) -> nn.Tensor:
        branch, _ = self.conv(x, in_spatial_dim=TIME)
        return x + self.output(nn.relu(branch))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(FEATURES, MODEL_DIM)
        self.layers = nn.ModuleList([Layer() for _ in range(NUM_LAYERS)])
        self.output = nn.Linear(MODEL_DIM, TAGS)

    def __call__(self, source: nn.Tensor, *, num_layers: int) -> nn.Tensor:
        x = self.input(source)
        for layer in list(self.layers)[:num_layers]:
            x = layer(x)
        return self.output(x)


def step_with(num_layers: int) -> Callable:
    """the training step of the lower layers"""

    def step(*, model, extern_data, **_):
        logits = model(extern_data["data"], num_layers=num_layers)
        loss = nn.cross_entropy(logits, extern_data["tags"])
        loss.mark_as_loss("ce", use_normalized_loss=True)

    return step


def batches(epoch: int, number: int = 50):
    rng = numpy.random.RandomState(epoch)
    for _ in range(number):
        data = rng.normal(size=(8, 12, 4)).astype("float32")
        padded = numpy.pad(data, [(0, 0), (3, 3), (0, 0)])
        tags = sum(padded[:, shift : shift + 12] for shift in range(7)).argmax(axis=-1)
        yield {"data": data, "data:size1": numpy.full([8], 12), "tags": tags.astype("int32")}


def main(
    backend: str = "tensorflow-net-dict", epochs_each: int = EPOCHS_EACH
) -> list[dict[str, float]]:
    """the dev loss with each number of layers, before its training and behind it"""
    session = training.Session(
        Model(), extern_data=EXTERN_DATA, learning_rate=0.005, backend=backend
    )
    lines: list[dict[str, float]] = []
    for epoch in session.epochs(NUM_LAYERS * epochs_each):
        num_layers = 1 + (epoch - 1) // epochs_each
        if num_layers > len(lines):
            step = step_with(num_layers)
            train, evaluate = session.step(step), session.step(step, update=False)
            dev = session.averages(evaluate, batches(0, 10))
            lines.append({"layers": num_layers, "before": dev["ce"]})
        for batch in batches(epoch):
            train(batch)
        dev = session.averages(evaluate, batches(0, 10))
        lines[-1]["after"] = dev["ce"]
        texts = [f"{name} {value:.4g}" for name, value in lines[-1].items()]
        print(f"epoch {epoch}: {', '.join(texts)}")
    return lines


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--backend", choices=training.BACKENDS, default=training.BACKENDS[0])
    main(parser.parse_args().backend)
