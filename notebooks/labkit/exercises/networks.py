"""The two small networks that several notebooks train; import it in the kernel, call it in a child.

Both wake torch when they are called, and only then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


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

    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = torch.nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True
    )
    model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).to(device)
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
