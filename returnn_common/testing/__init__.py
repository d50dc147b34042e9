"""
Checks for the tests of this package, and for those of a plugin.

:mod:`.backends` runs a model on both backends and compares; :func:`check_plugin` runs the battery that all
entries of the zoo have to pass.
"""

from .backends import (
    Result,
    assert_backends_agree,
    feed_dict,
    layers_session,
    random_parameters,
    run_layers,
    run_torch,
    set_layer_parameters,
    torch_backend,
)
from .battery import CHECKS, Case, Report, check_entry, check_plugin

__all__ = [
    "CHECKS",
    "Case",
    "Report",
    "Result",
    "assert_backends_agree",
    "check_entry",
    "check_plugin",
    "feed_dict",
    "layers_session",
    "random_parameters",
    "run_layers",
    "run_torch",
    "set_layer_parameters",
    "torch_backend",
]
