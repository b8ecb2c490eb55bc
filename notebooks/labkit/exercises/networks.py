"""The small networks that several notebooks train; import it in the kernel, call it in a child.

They wake torch when they are called, and only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.arguments import public
from labkit.records import Place


@public
def sizes_for_two(place: Place) -> tuple[int, int]:
    """Choose and print width and batch of layers that two ranks share; smaller on CPU cores."""
    batch_factor = min(4, max(1, int(place.cpu.cores // 2)))  # by the threads of each CPU rank
    width, batch = (2048, 4096) if place.is_several else (512, 1024 * batch_factor)
    cores = "gloo processes on this container's CPU (scaled down)"
    ranks = "a device each" if place.is_several else cores
    print(f"two ranks: {ranks}; layers {width} wide, batch {batch}")
    return width, batch


@public
def mlp(width: int, depth: int) -> tuple[Any, str]:
    """Square linear layers with ReLU between, the same weights in every rank.

    Returns:
        The network on this process's device, and the device's name for torch.
    """
    import torch

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [
        part for _ in range(depth) for part in (torch.nn.Linear(width, width), torch.nn.ReLU())
    ]
    return torch.nn.Sequential(*layers).to(device), device


def _transformer(torch: Any, width: int, layers: int) -> tuple[Any, str]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
    return model, device


@public
def transformer_answer(
    batch: int, width: int, layers: int, length: int, *, to_host: bool = True
) -> Callable[[], Any]:
    """Inference with the same encoder; bf16 autocast on a GPU, fp32 on a CPU.

    Args:
        batch: sequences a request.
        width: of the model; a head for every 64.
        layers: of the encoder.
        length: of each sequence.
        to_host: bring the answer to the host, so that a call returns when it is there; without
            this it can be recorded as a CUDA graph.

    Returns:
        One request, to be timed.
    """
    import torch

    model, device = _transformer(torch, width, layers)
    # in training mode, without dropout: evaluation takes a fused path that autocast leaves out
    batch_of = torch.randn(batch, length, width, device=device)

    def answer() -> Any:
        with (
            torch.no_grad(),
            torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False),
        ):
            output = model(batch_of)
        return output.cpu() if to_host else output

    return answer


@public
def transformer_step(batch: int, width: int, layers: int, length: int) -> Callable[[], None]:
    """One training step of a transformer encoder with AdamW; bf16 autocast on a GPU, fp32 on a CPU.

    It never asks the GPU for a result, so that it can be recorded as a CUDA graph.

    Args:
        batch: sequences a step.
        width: of the model; a head for every 64.
        layers: of the encoder.
        length: of each sequence.

    Returns:
        The step, to be timed; what it needs has been made.
    """
    import torch

    model, device = _transformer(torch, width, layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, capturable=device == "cuda")
    batch_of = torch.randn(batch, length, width, device=device)

    def step() -> None:
        # a cast kept from an earlier step would be missing in a graph, so none is kept
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda", cache_enabled=False):
            loss = model(batch_of).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@public
def blocks(width: int, depth: int) -> tuple[Any, str]:
    """Pairs of linear layers without bias, to four times the width and back, ReLU between.

    Returns:
        The network on this process's device, a block an entry, and the device's name for torch.
    """
    import torch

    def block() -> Any:
        wide = torch.nn.Linear(width, 4 * width, bias=False)
        return torch.nn.Sequential(
            wide, torch.nn.ReLU(), torch.nn.Linear(4 * width, width, bias=False)
        )

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.nn.Sequential(*(block() for _ in range(depth))).to(device), device


@public
def gradients_of(
    network: Any, width: int, rows: int, micro_batches: int = 1, checkpoint: bool = False
) -> None:
    """Forward and backward of `blocks`; the gradients of all micro-batches are added.

    Args:
        network: of `blocks`.
        width: of it.
        rows: samples of the step, over all micro-batches.
        micro_batches: how many the step is cut into, one after another.
        checkpoint: keep the inputs of blocks only, and compute their insides again going back.
    """
    import torch
    from torch.utils.checkpoint import checkpoint as again

    device = next(network.parameters()).device
    for _ in range(micro_batches):
        x = torch.randn(rows // micro_batches, width, device=device, requires_grad=checkpoint)
        for block in network:
            checkpoint_options = {"use_reentrant": True, "preserve_rng_state": False}
            x = again(block, x, **checkpoint_options) if checkpoint else block(x)
        (x.square().mean() / micro_batches).backward()
        del x  # before the next micro-batch is made
