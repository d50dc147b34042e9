"""x + 0, x * 1 and the like make no layer, whether RF's operators are native in this process or not."""

from __future__ import annotations

import pytest

from returnn_common import nn, testing


def step(*, extern_data, **_):
    x = extern_data["data"]
    ((1.0 * (0.0 + x - 0.0)) / 1.0).mark_as_loss("loss")


def test_neutral_numbers_make_no_layer():
    pytest.importorskip("torch")
    extern_data = {"data": nn.Tensor("data", [nn.batch_dim], "float32")}
    before = nn.lower(nn.Module(), step, extern_data).config_text()
    with testing.torch_backend():
        pass  # from here on the operators are native
    lowered = nn.lower(nn.Module(), step, extern_data)
    assert lowered.config_text() == before
    assert lowered.network == {"loss": {"class": "copy", "from": "data:data", "loss": "as_is"}}
