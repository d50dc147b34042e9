"""
Networks as trees and pictures: what they say is true.
"""

from __future__ import annotations

import sys

import pytest

from returnn_common import cli, nn, showing, zoo
from returnn_common.showing import calls, picture
from returnn_common.showing.dims import dims_as_text
from returnn_common.testing import Case, battery, kinds
from returnn_common.zoo import registry

SIZES = {"in_dim": 7, "out_dim": 8, "num_layers": 3, "num_heads": 2}


@pytest.fixture(scope="module")
def conformer() -> showing.Block:
    return showing.blocks_of("conformer", **SIZES)


def child(block: showing.Block, *names: str) -> showing.Block:
    for name in names:
        (block,) = [block for block in block.children if block.name == name]
    return block


def test_blocks_of_a_conformer(conformer):
    assert conformer.name == "returnn_common/conformer"
    assert conformer.module == "Conformer"
    assert (conformer.source, conformer.out) == ("[B, time, 7]", "[B, time/4, 8]")
    parameters = zoo.get("conformer", **SIZES).parameters()
    assert conformer.parameters == sum(p.num_elements() for p in parameters)
    assert [block.name for block in conformer.children] == ["frontend", "layers.0-2"]
    layers = child(conformer, "layers.0-2")
    assert layers.repeat == 3
    assert [b.name for b in layers.children] == ["ff1", "self_att", "conv", "ff2", "norm"]
    ff = child(layers, "ff1")
    assert [b.name for b in ff.children] == ["norm", "linear_in", "linear_out"]
    assert child(ff, "linear_in").parameters == 8 * 32 + 32
    assert child(ff, "linear_in").out == "[B, time/4, 32]"
    assert child(ff, "norm").parameters == 2 * 8
    assert child(ff, "linear_in").layers == child(ff, "norm").layers == 1
    assert child(conformer, "frontend", "layers.1").source == "[B, time, 4, 32]"
    assert child(conformer, "frontend", "layers.1").out == "[B, time/2, 4, 64]"


def test_layers_are_those_of_the_network(conformer):
    """What one block more adds is what the lowering adds; the text of the config counts them."""

    def step(*, model, extern_data, **_):
        data = extern_data["data"]
        out, _ = model(data, in_spatial_dim=data.dims[1])
        out.mark_as_loss("sum")

    def num_layers(**sizes):
        model = zoo.get("conformer", **{**SIZES, **sizes})
        text = nn.lower(model, step, kinds.inputs("encoder", model)).config_text()
        return text.partition("\nnetwork = ")[2].count('"class": ')

    more = num_layers(num_layers=4) - num_layers()
    assert child(conformer, "layers.0-2").layers == more
    assert conformer.layers == num_layers()
    assert sum(block.repeat * block.layers for block in conformer.children) < conformer.layers


def test_model_is_as_before():
    model = zoo.get("conformer", **SIZES)
    before = {path: type(module) for path, module in model.named_modules()}
    with pytest.raises(ZeroDivisionError), calls.recorded(model) as found:
        assert type(model.frontend) is not before["frontend"]
        raise ZeroDivisionError
    assert {path: type(module) for path, module in model.named_modules()} == before
    assert found == {}


MODELS = [entry for entry in registry.entries() if entry.kind in kinds.KINDS]


def tiny_options(entry):
    case = Case(entry)
    options = {name: battery._value(value) for name, value in entry.tiny.items()}
    if "encoder" in case.arguments and "encoder" not in options:
        options["encoder"] = battery.tiny_encoder(options.get("in_dim", case.default("in_dim")))
    return options


@pytest.mark.parametrize("entry", MODELS, ids=lambda entry: entry.name)
def test_every_network_can_be_shown(entry):
    options = tiny_options(entry)
    root = showing.blocks_of(entry.full_name, **options)
    model = registry.get(entry.full_name, **options)
    assert root.parameters == sum(p.num_elements() for p in model.parameters())
    assert root.layers > 0
    assert root.source.startswith("[B, ")
    assert root.out
    lines = showing.as_text(root, depth=9).splitlines()
    assert lines[1].startswith(entry.full_name)
    assert all(line.split()[-1].isdigit() for line in lines[1:])  # the number of layers


def test_order_of_calls_and_shared_dims():
    root = showing.blocks_of(
        "transformer", in_dim=7, target_dim=5, num_layers=2, model_dim=8, num_heads=2
    )
    assert [block.name for block in root.children] == ["augmentation", "encoder", "decoder"]
    assert root.out.startswith("loss [B")
    assert child(root, "decoder").source == "[B, labels+1]"
    assert [b.name for b in child(root, "decoder").children] == [
        "embedding",
        "layers.0-1",
        "norm",
        "output",
    ]


def test_text(conformer):
    lines = showing.as_text(conformer, depth=2).splitlines()
    columns = ["block", "takes", "gives", "parameters", "layers"]
    assert lines[0].split() == columns
    assert [line.split()[1] for line in lines[2:8]] == ["frontend", *["├─"] * 3, "└─", "layers.0-2"]
    assert lines[-1].split()[:5] == ["└─", "norm", "LayerNorm", "[B,", "time/4,"]
    assert "3 x " in lines[7]
    assert len(showing.as_text(conformer, depth=0).splitlines()) == 2
    assert len(showing.as_text(conformer, depth=1).splitlines()) == 4


def test_dims_as_text():
    time_dim, other_dim, dim = nn.SpatialDim("time"), nn.SpatialDim("labels"), nn.FeatureDim("f", 7)
    half = time_dim.ceildiv_right(2)
    assert dims_as_text([dim, time_dim, nn.batch_dim]) == "[B, time, 7]"
    assert dims_as_text([half, dim]) == "[time/2, 7]"
    assert dims_as_text([half.ceildiv_right(3)]) == "[time/6]"
    assert dims_as_text([1 + other_dim]) == "[labels+1]"
    assert dims_as_text([time_dim - 2]) == "[time-2]"
    assert dims_as_text([(time_dim + 2).ceildiv_right(2)]) == "[~time]"
    assert dims_as_text([2 * dim]) == "[14]"
    assert dims_as_text([]) == ""
    same = nn.SpatialDim("conv:spatial0")
    same.declare_same_as(time_dim)
    assert dims_as_text([same, half], known={time_dim: "frames"}) == "[frames, frames/2]"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: showing.blocks_of("confromer"), "did you mean 'conformer'"),
        (
            lambda: showing.blocks_of("one_cycle"),
            "returnn_common/one_cycle is a schedule, not a network; ",
        ),
        (
            lambda: showing.draw(None, "x.jpeg"),
            "'x.jpeg' has the ending 'jpeg'.* valid are: svg, png",
        ),
    ],
)
def test_mistakes(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_picture(conformer, tmp_path):
    for name in ("a.svg", "b.svg", "c.png", "d.png"):
        showing.draw(conformer, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "c.png").read_bytes() == (tmp_path / "d.png").read_bytes()
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.svg").read_text()
    for label in (
        "returnn_common/conformer",
        "3 x ConformerBlock",
        "linear_out",
        "[B, time/4, 32]",
    ):
        assert f"<!-- {label} -->" in text  # matplotlib writes what it draws
    assert text.count("<!-- 3 x 288 -->") == 2  # the two linear_in, 8 x 32 + 32


def test_boxes_lie_in_each_other(conformer):
    boxes = picture._placed(conformer, 9)
    for box in boxes:
        inside = [
            other
            for other in boxes
            if other.place.level == box.place.level + 1
            and box.place.top < other.place.top < box.bottom
        ]
        assert len(inside) == len(box.block.children)
        assert all(other.bottom < box.bottom for other in inside)
        assert all(one.bottom < other.place.top for one, other in zip(inside, inside[1:]))
        assert all(box.place.left < o.place.left and o.right < box.right for o in inside)
    linear = [box for box in boxes if box.block.name == "linear_in"]
    assert [box.times for box in linear] == [3, 3, 3]


@pytest.mark.parametrize(
    ("source", "before", "label"),
    [
        ("[B, time/2, 7]", "[B, time/2, 7]", ""),
        ("[B, time/2, 7]", "[B, time, 5]", "[B, time/2, 7]"),
        ("[B, labels, 7]", "[B, time, 5]", "and [B, labels, 7]"),
        ("[B, 7]", "[B, time, 5]", "[B, 7]"),
    ],
)
def test_what_an_arrow_says(source, before, label):
    assert picture._label(source, before) == label


def test_without_matplotlib(conformer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="a picture needs matplotlib: pip install matplotlib"):
        showing.draw(conformer, tmp_path / "a.svg")
    assert list(tmp_path.iterdir()) == []


def test_command(tmp_path, capsys):
    out = tmp_path / "a.svg"
    assert cli.main(["show", "logmel", "num_filters=5", "--depth=1", f"--out={out}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "[B, time, 1]  [B, time/160, 5]" in lines[1]
    assert out.read_text().startswith("<?xml")
    assert cli.main(["show", "logmel", "5"]) == 1
    assert "expected OPTION=VALUE, got '5'" in capsys.readouterr().err
    assert cli.main(["show", "logmel", "num_filter=5"]) == 1
    assert "no option 'num_filter'; did you mean 'num_filters'" in capsys.readouterr().err
    assert cli.main(["show", "logmel", "num_filters=x"]) == 1
    assert "expected an int or a Dim, got 'x'" in capsys.readouterr().err
