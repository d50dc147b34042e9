"""
For a checkout used as a package: as ``recipe/returnn_common`` or through ``returnn.import_``.
Not part of the wheel.

The inner package answers under the name by which this folder was imported: it takes its place in
``sys.modules``. Its ``__path__`` points inside only, so ``<name>.nn`` is the inner ``nn``, and no
module exists twice.
"""

import importlib.util
import os
import sys


def _load(name: str, path: str):
    """
    :return: the module of this file or the package of this folder, now in ``sys.modules``
    """
    is_package = os.path.isdir(path)
    spec = importlib.util.spec_from_file_location(
        name,
        os.path.join(path, "__init__.py") if is_package else path,
        submodule_search_locations=[path] if is_package else None,
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_here = os.path.dirname(os.path.abspath(__file__))
_package = _load(__name__, os.path.join(_here, "returnn_common"))
# The one module beside the inner package that `returnn.import_` asks for.
_package.test = _load(f"{__name__}.test", os.path.join(_here, "test.py"))
