"""
Learning rate schedules: ``(epoch, step) -> float``, plain Python without any framework.

Epochs count from 1 as in RETURNN, steps from 0: the updates that were done before.
"""
