"""
The RF backend whose tensors are layers to be.

Every method says which RETURNN layer an RF operation is, and which dims the result has. Nothing
here needs TensorFlow: the shapes follow from the named dims alone, and RETURNN checks them when it
constructs the net.
"""

from __future__ import annotations

from ._graph import Node
from ._ops_elementwise import Elementwise
from ._ops_layers import Layers
from ._ops_products import Products
from ._ops_rest import Rest
from ._ops_shapes import Shapes
from ._ops_values import Values


class LayersBackend(Values, Elementwise, Shapes, Products, Layers, Rest):
    """RF operations as RETURNN layers."""

    name = "tensorflow-net-dict"
    RawTensorType = Node
    is_tensorflow = False  # in RF's sense: raw tensors are no TensorFlow objects
    is_backend_raw_tensor_dim_tag_independent = False
