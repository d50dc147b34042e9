"""
SpecAugment: what its masks look like, counted with numpy over many draws.
"""

from __future__ import annotations

import numpy
import pytest
import returnn.frontend as rf
from returnn.tensor import Dim, Tensor

from returnn_common import nn, testing, zoo
from returnn_common.zoo.augmentation.specaugment import make_specaugment

torch = pytest.importorskip("torch")

FEATURE_DIM = nn.FeatureDim("feature", 40)


@pytest.fixture(autouse=True)
def torch_backend():
    with testing.torch_backend():
        rf.set_random_seed(1)
        yield


def masks(lengths, *, train=True, dim=FEATURE_DIM, **options):
    """:return: for each of `lengths`, bool `[T, F]`, True where masked"""
    return masks_of(make_specaugment(**options), lengths, train=train, dim=dim)


def masks_of(module, lengths, *, train=True, dim=FEATURE_DIM):
    """:return: what this module masks"""
    rf.init_train_step_run_ctx(train_flag=train, step=0, epoch=1)
    sizes = torch.tensor(lengths, dtype=torch.int32)
    batch_dim = Dim(len(lengths), name="batch")
    time_dim = Dim(Tensor("time", [batch_dim], "int32", raw_tensor=sizes), name="time")
    dims = [batch_dim, time_dim, dim]
    raw = torch.ones([d.get_dim_value() for d in dims])
    source = Tensor("source", dims, "float32", raw_tensor=raw, feature_dim=dim)
    out = module(source, spatial_dim=time_dim)
    raw = out.copy_transpose(dims).raw_tensor.numpy()
    assert set(numpy.unique(raw)) <= {0.0, 1.0}
    return [row[:length] == 0 for row, length in zip(raw, lengths, strict=True)]


def spans(mask):
    """:return: start and width of each run of True"""
    edges = numpy.flatnonzero(numpy.diff(numpy.concatenate([[False], mask, [False]])))
    return [(a, b - a) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def time_spans(mask):
    return spans(mask.all(axis=1))


def feature_spans(mask):
    return spans(mask.all(axis=0))


def test_no_effect_outside_training():
    assert not any(mask.any() for mask in masks([100, 3], train=False))


@pytest.mark.parametrize("length", [1, 3, 24])
def test_below_25_frames_there_are_only_feature_masks(length):
    for mask in masks([length] * 50):
        assert not time_spans(mask)
        assert feature_spans(mask)


def test_one_mask_where_the_length_allows_one():
    found = [time_spans(mask) for mask in masks([49] * 2000)]
    assert {len(f) for f in found} == {1}
    starts, widths = numpy.array([f[0] for f in found]).T
    assert set(starts) == set(range(49))
    whole = widths[starts <= 29]  # the others may be cut at the end
    counts = numpy.bincount(whole)
    assert set(numpy.flatnonzero(counts)) == set(range(1, 21))
    expected = len(whole) / 20
    assert numpy.all(numpy.abs(counts[1:] - expected) < 5 * expected**0.5)


def test_number_of_time_masks_is_uniform_up_to_one_for_25_frames():
    """With masks of one frame among very many, they hardly ever touch, and can be counted."""
    found = masks([5000] * 300, dim=nn.FeatureDim("few", 2), frames_per_mask=1000, max_width=1)
    counts = numpy.bincount([len(time_spans(mask)) for mask in found])
    assert set(numpy.flatnonzero(counts)) == {2, 3, 4, 5}
    assert numpy.all(numpy.abs(counts[2:] - 75) < 5 * 75**0.5)


def test_every_sequence_follows_its_own_length():
    """The share of masked frames is the same in a short sequence beside a long one as alone."""

    def share(lengths):
        return numpy.mean([masks(lengths)[0].all(axis=1).mean() for _ in range(300)])

    alone, beside = share([60, 60]), share([60, 600])
    assert abs(alone - beside) < 0.03
    assert 0.2 < alone < 0.35  # two masks of 10.5 frames, with overlaps and cuts


def test_feature_masks():
    found = [feature_spans(mask) for mask in masks([3] * 2000)]
    assert max(len(f) for f in found) <= 5
    assert min(len(f) for f in found) >= 1
    starts = {start for f in found for start, _ in f}
    assert starts == set(range(40))
    single = numpy.array(
        [mask.all(axis=0).sum() for mask in masks([3] * 2000, max_feature_masks=1)]
    )
    assert set(single) == set(range(1, 9))  # 40 // 5 = 8


def test_masks_differ_between_sequences():
    found = masks([100] * 20)
    assert len({mask.tobytes() for mask in found}) == 20


def test_one_feature_is_never_masked():
    dim = nn.FeatureDim("single", 1)
    found = masks([24, 3], dim=dim)
    assert not any(mask.any() for mask in found)


# --- the policies of the paper: name, number of masks, largest width of a feature and of a time mask

POLICIES = [
    ("librispeech_basic", 1, 26, 99, 1.0),
    ("librispeech_double", 2, 26, 99, 1.0),
    ("switchboard_mild", 2, 14, 69, 0.2),
    ("switchboard_strong", 2, 26, 69, 0.2),
]
LENGTHS = [400] * 300 + [50] * 300


@pytest.mark.parametrize(("name", "number", "feature_width", "time_width", "fraction"), POLICIES)
def test_policy_of_the_paper(name, number, feature_width, time_width, fraction):
    """Table 1: so many masks, of widths from 0 up to F - 1, and to T - 1 or p times the length."""
    module = zoo.get(f"specaugment_{name}")
    drawn = masks_of(module, LENGTHS, dim=nn.FeatureDim("feature", 80))
    widths = {"feature": [], 400: [], 50: []}
    for length, mask in zip(LENGTHS, drawn, strict=True):
        widths[length].append(total(time_spans(mask), number))
        if length == 400:  # a short sequence may be masked altogether
            widths["feature"].append(total(feature_spans(mask), number))
    limits = {length: min(time_width, int(length * fraction)) for length in (400, 50)}
    for key, most in {"feature": feature_width, **limits}.items():
        size, mean = 80 if key == "feature" else key, number * most / 2
        assert 0.9 * most < max(widths[key]) <= number * most
        assert min(widths[key]) < mean / 2
        if number * most < size / 4:  # masks hardly overlap
            assert 0.8 * mean < numpy.mean(widths[key]) < 1.1 * mean


def total(found, number):
    """:return: the sum of the widths of at most so many masks"""
    assert len(found) <= number
    return sum(width for _, width in found)


def test_policies_do_nothing_outside_training():
    module = zoo.get("specaugment_librispeech_double")
    assert not any(mask.any() for mask in masks_of(module, [100, 3], train=False))


def test_a_mask_starts_where_it_fits():
    """A time mask of the basic policy reaches the end of the sequence as often as its begin."""
    module = zoo.get("specaugment_librispeech_basic")
    drawn = masks_of(module, [120] * 2000, dim=nn.FeatureDim("feature", 80))
    spans_ = [found[0] for found in map(time_spans, drawn) if found]
    starts = numpy.array([start for start, _ in spans_])
    ends = numpy.array([start + width for start, width in spans_])
    assert ends.max() == 120
    assert abs(starts.mean() - (120 - ends).mean()) < 3
