# %% [markdown]
# # Your slice
#
# You share a GPU with others, and yet nobody else is on yours: the pool has cut a *slice* out of it,
# with processors (SMs) and memory of its own, and gave it to this server alone.
# This notebook shows what you hold, and lets it work for a moment.

# %% [markdown]
# ## What the pool gave you
#
# The lab tells each server what it holds in environment variables.
# A *shape* is what you chose on the start page; a *UUID* is the name of one slice.

# %%
import os

shape = os.environ.get("MIGLAB_SHAPE", "cpu")
uuids = [uuid for uuid in os.environ.get("MIGLAB_SLICES", "").split(",") if uuid]
is_simulated = os.environ.get("MIGLAB_SIMULATED") == "1"

print(f"shape:  {shape}")
print(f"lease:  {os.environ.get('MIGLAB_LEASE') or 'none: this server has no slice'}")
for uuid in uuids:
    print(f"slice:  {uuid}")
if is_simulated:
    print("These are simulated GPUs: the slices exist in the pool's books only.")

# %% [markdown]
# The pool also knows how large each slice is.
# Your server may ask it about its own lease, and about nothing else.

# %%
import json
import urllib.request


def ask_pool():
    """The lease as the pool sees it; None where there is no pool to ask."""
    api, token = os.environ.get("MIGLAB_API"), os.environ.get("JUPYTERHUB_API_TOKEN")
    if not (api and token and uuids):
        return None
    request = urllib.request.Request(f"{api}/api/lease", headers={"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)
    except OSError as error:
        print(f"The pool does not answer ({error}); your slice is yours all the same.")
        return None


lease = ask_pool()
for part in (lease or {}).get("slices", []):
    print(f"{part['profile']}: {part['sm_count']} SMs, {part['memory_mib'] / 1024:.2f} GiB, {part['uuid']}")

# %% [markdown]
# ## What PyTorch sees
#
# One process sees one slice: PyTorch calls it `cuda:0`, as if it were a whole GPU.
# Without a GPU it computes on the CPU, and everything below still runs.
# **Predict:** how many SMs will it find, and how much memory?

# %%
import torch

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if uuids and not is_simulated and device.type == "cpu":
    raise RuntimeError(
        "You hold a slice but PyTorch sees no GPU. Stop this server and start it again "
        "(File > Hub Control Panel); if it stays so, tell your instructor."
    )
if device.type == "cuda":
    seen = torch.cuda.get_device_properties(device)
    print(f"{seen.name}: {seen.multi_processor_count} SMs, {seen.total_memory / 2**30:.2f} GiB")
else:
    print(f"no GPU: the CPU of this server, {torch.get_num_threads()} threads")

# %% [markdown]
# ## A matrix product
#
# Multiplying two n × n matrices takes about 2 n³ operations.
# **Predict:** if n doubles, how much longer does it take?
# The first product is left out (it wakes the device), and the clock stops only when the device is done.

# %%
import statistics
import time


def product_s(n, repeats=5):
    """Seconds for one n × n product: the median of ``repeats``, after one that is not counted."""
    a = torch.rand(n, n, device=device)
    samples = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        a @ a
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        samples.append(time.perf_counter() - start)
    return statistics.median(samples[1:])


sizes = [256, 512, 1024] if device.type == "cpu" else [1024, 2048, 4096]
for n in sizes:
    seconds = product_s(n)
    print(f"n = {n:5d}: {seconds * 1e3:8.2f} ms, {2 * n**3 / seconds / 1e9:8.0f} GFLOP/s")

# %%
if device.type == "cuda":
    print(f"Measured on your slice ({shape}).")
elif is_simulated:
    print("Simulated GPUs: measured on this server's CPU. It says nothing about an A100.")
else:
    print("No GPU in this server: measured on its CPU.")

# %% [markdown]
# Small matrices reach few operations per second: there is too little work to keep every SM busy.
# A larger slice would help the large products, and hardly the small ones.
