"""
The transducer's loss against the sum over all alignments, and its joint network against plain torch.
"""

from __future__ import annotations

import itertools

import numpy
import pytest

from returnn_common import nn, testing, zoo
from returnn_common.zoo.segmental.transducer import make_transducer
from returnn_common.zoo.segmental.transducer_parts import make_transducer_joint, transducer_loss

torch = pytest.importorskip("torch")
pytest.importorskip("tensorflow")

FRAMES, ROWS, CLASSES = (4, 1, 3), ([1, 0], [2], []), 4
BLANK = CLASSES - 1


def sum_over_alignments(log_probs, labels):
    """
    log of the sum over all ways to put the blanks, one for each frame and the last at the end, between the labels

    :param log_probs: `[frames, labels + 1, classes]`
    """
    frames, total = len(log_probs), -numpy.inf
    for places in itertools.combinations(range(frames - 1 + len(labels)), len(labels)):
        t = u = 0
        score = 0.0
        for step in range(frames + len(labels)):
            if step in places:
                score += log_probs[t, u, labels[u]]
                u += 1
            else:
                score += log_probs[t, u, BLANK]
                t += 1
        total = numpy.logaddexp(total, score)
    return total


def loss_step(*, extern_data, **_):
    labels, scores = extern_data["classes"], extern_data["data"]
    time_dim = extern_data["frames"].dims[1]
    loss = transducer_loss(
        nn.log_softmax(scores, axis=scores.feature_dim),
        labels,
        spatial_dim=time_dim,
        labels_dim=labels.dims[1],
        num_labels=labels.dims[1].get_size_tensor() - 1,
        blank_index=BLANK,
    )
    loss.mark_as_output("loss", shape=[nn.batch_dim])


def test_loss_is_the_sum_over_all_alignments():
    """On both backends, with padding in frames and labels."""
    time_dim, labels_dim = nn.SpatialDim("time"), nn.SpatialDim("labels")
    classes_dim = nn.FeatureDim("classes", CLASSES)
    dims = [nn.batch_dim, time_dim, labels_dim, classes_dim]
    extern_data = {
        "frames": nn.Tensor("frames", [nn.batch_dim, time_dim], "float32"),
        "classes": nn.Tensor(
            "classes", [nn.batch_dim, labels_dim], "int32", sparse_dim=classes_dim
        ),
        "data": nn.Tensor("data", dims, "float32"),
    }
    scores = numpy.random.RandomState(3).normal(size=(3, 4, 3, CLASSES)).astype("float32")
    padded = [[*row, BLANK, BLANK, BLANK][:3] for row in ROWS]
    lengths = numpy.array([len(row) + 1 for row in ROWS], "int32")
    batch = {
        "frames": numpy.zeros([3, 4], "float32"),
        "frames:size1": numpy.array(FRAMES, "int32"),
        "classes": numpy.array(padded, "int32"),
        "classes:size1": lengths,
        "data": scores,
        "data:size1": numpy.array(FRAMES, "int32"),
        "data:size2": lengths,
    }
    log_probs = scores - numpy.log(numpy.exp(scores).sum(-1, keepdims=True))
    expected = [
        -sum_over_alignments(log_probs[i, :frames], row)
        for i, (frames, row) in enumerate(zip(FRAMES, ROWS))
    ]
    lowered = nn.lower(nn.Module(), loss_step, extern_data, task="forward")
    for result in (
        testing.run_layers(lowered, batch),
        testing.run_torch(nn.Module, loss_step, extern_data, batch, task="forward"),
    ):
        numpy.testing.assert_allclose(result.values["loss"], expected, rtol=1e-5)


def test_joint_equals_plain_torch():
    dims = [nn.batch_dim, nn.SpatialDim("time"), nn.FeatureDim("encoder", 5)]
    others = [nn.batch_dim, nn.SpatialDim("labels"), nn.FeatureDim("predictor", 3)]
    extern_data = {
        "data": nn.Tensor("data", dims, "float32"),
        "other": nn.Tensor("other", others, "float32"),
    }
    rng = numpy.random.RandomState(3)
    batch = {
        "data": rng.normal(size=(2, 4, 5)).astype("float32"),
        "data:size1": numpy.array([4, 4], "int32"),
        "other": rng.normal(size=(2, 3, 3)).astype("float32"),
        "other:size1": numpy.array([3, 3], "int32"),
    }

    def step(*, model, extern_data, **_):
        out = model(extern_data["data"], extern_data["other"])
        out.mark_as_output("out", shape=[*dims[:2], others[1], model.out_dim])

    with testing.torch_backend():
        joint = make_transducer_joint(dims[2], others[2], 6, joint_dim=7)
    parameters = testing.random_parameters(joint)
    options = {"parameters": parameters, "task": "forward"}
    result = testing.run_torch(lambda: joint, step, extern_data, batch, **options)
    values = {path: torch.tensor(value) for path, value in parameters.items()}
    x, y = torch.tensor(batch["data"]), torch.tensor(batch["other"])
    left = x @ values["encoder.weight"] + values["encoder.bias"]
    hidden = torch.tanh(left[:, :, None] + (y @ values["predictor.weight"])[:, None])
    expected = hidden @ values["output.weight"] + values["output.bias"]
    numpy.testing.assert_allclose(result.values["out"], expected, rtol=1e-5, atol=1e-5)


def test_encoder_of_another_size():
    encoder = zoo.get("conformer", in_dim=20, out_dim=8, num_layers=1, num_heads=2)
    with pytest.raises(ValueError, match="the encoder takes 20 features, but in_dim is 80"):
        make_transducer(encoder=encoder)
