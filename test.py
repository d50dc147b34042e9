"""
The example for RETURNN's ``import_``; the tests of this project are in ``tests/``.
"""


def hello() -> str:
    """
    :return: "hello world", to show that the import works
    """
    return "hello world"
