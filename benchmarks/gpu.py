"""
Frames per second and model FLOP utilisation of our six-layer conformer in training, on torch, on a GPU.

    python benchmarks/gpu.py [--batch 32] [--frames 1600] [--steps 20] [--peak-tflops FLOAT32 BFLOAT16] [--json FILE]

RF's ``ConformerEncoder`` of the same sizes is the peer. FLOPs are counted by torch over one step (matrix products and
convolutions, forward and backward) and divided by the time of a step and the peak of the GPU without sparsity. float32
is without TF32; bfloat16 is torch's automatic mixed precision.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

#: TFLOP/s of float32 (outside of tensor cores) and of bfloat16 (dense), from NVIDIA's data sheets.
PEAKS = {
    "H200": (67.0, 989.0),
    "H100 80GB HBM3": (67.0, 989.0),
    "H100 PCIe": (51.0, 756.0),
    "A100": (19.5, 312.0),
    "L40S": (91.6, 362.0),
    "L4": (30.3, 121.0),
    "A10": (31.2, 125.0),
}
PRECISIONS = ("float32", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument("--batch", type=int, default=32, help="sequences")
    parser.add_argument("--frames", type=int, default=1600, help="of 80 features, per sequence")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--peak-tflops", type=float, nargs=2, metavar=("FLOAT32", "BFLOAT16"))
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write all figures to this file")
    args = parser.parse_args()
    import torch

    if args.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU that torch can use here, so nothing is measured.")
        return
    name = torch.cuda.get_device_name() if args.device == "cuda" else args.device
    peaks = args.peak_tflops or peaks_of(name)
    if peaks is None:
        print(f"The peak of {name} is not known: give --peak-tflops to see the utilisation.")
    lengths = (args.frames,) * args.batch
    figures = [
        {
            "model": model,
            "precision": precision,
            **measure(model, precision, lengths, args.steps, args.device),
        }
        for model in ("ours", "rf")
        for precision in PRECISIONS
    ]
    print_table(name, figures, dict(zip(PRECISIONS, peaks or (None, None), strict=True)))
    if args.json:
        from _process import write_json

        write_json(
            args.json,
            {"gpu": name, "peak_tflops": peaks, "torch": torch.__version__, "figures": figures},
        )


def peaks_of(name: str) -> tuple[float, float] | None:
    """:return: those of `PEAKS` for a device name of CUDA like ``NVIDIA H100 PCIe``"""
    words = f" {name.replace('-', ' ')} "
    known = [key for key in PEAKS if f" {key} " in words]
    return PEAKS[max(known, key=len)] if known else None


def measure(
    model: str, precision: str, lengths: tuple[int, ...], steps: int, device: str
) -> dict[str, float]:
    """:return: frames per second, FLOPs of a step, and the utilisation of the peak where that is known"""
    import _steps
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    autocast = torch.bfloat16 if precision == "bfloat16" else None
    with _steps.returnn_torch(
        model, device=device, autocast=autocast, lengths=lengths
    ) as train_step:
        with FlopCounterMode(display=False) as counter:
            train_step()
        seconds = seconds_of(train_step, steps, device)
    frames = sum(lengths)
    return {
        "frames_per_second": frames / seconds,
        "flops_per_step": counter.get_total_flops(),
        "tflops_per_second": counter.get_total_flops() / seconds / 1e12,
    }


def seconds_of(train_step: Callable[[], Any], steps: int, device: str) -> float:
    """:return: the median time of a step, after some to warm up; a step reads its loss, so it ends on the GPU"""
    times = []
    for _ in range(steps + 3):
        start = time.perf_counter()
        train_step()
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[3:])


def print_table(name: str, figures: list[dict[str, Any]], peaks: dict[str, float | None]) -> None:
    print(name)
    print(f"{'':16s}{'frames/s':>12s}{'TFLOP/s':>10s}{'of peak':>10s}")
    for figure in figures:
        peak = peaks[figure["precision"]]
        figure["mfu"] = figure["tflops_per_second"] / peak if peak else None
        utilisation = "" if peak is None else f"{figure['mfu']:10.1%}"
        label = f"{figure['model']}, {figure['precision']}"
        print(
            f"{label:16s}{figure['frames_per_second']:12,.0f}{figure['tflops_per_second']:10.2f}{utilisation}"
        )


if __name__ == "__main__":
    main()
