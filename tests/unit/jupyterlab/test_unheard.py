"""A kernel whose first words were lost is asked; one that computes is not taken for idle."""

import asyncio

import pytest
from jupyter_server.services.kernels.kernelmanager import AsyncMappingKernelManager

from miglab_jupyterlab.readings import ask_unheard

STARTS_S = 60.0


@pytest.fixture
async def kernel():
    """A kernel that has run nothing, its manager, and a client of it."""
    manager = AsyncMappingKernelManager()
    made = manager.get_kernel(await manager.start_kernel())
    client = made.client()
    client.start_channels()
    yield made, {"kernel_manager": manager}, client
    client.stop_channels()
    await manager.shutdown_all(now=True)
    manager.context.destroy(linger=0)  # its own is left to the garbage collector, which complains


async def heard(kernel):
    """Wait until the server has heard its status."""
    async with asyncio.timeout(STARTS_S):
        while kernel.execution_state == "starting":
            await asyncio.sleep(0.01)
    return kernel.execution_state


async def test_a_kernel_that_was_not_heard_is_idle_once_it_was_asked(kernel):
    """Without the question it would stay as it is."""
    made, settings, client = kernel
    await client.wait_for_ready()
    made.execution_state = "starting"
    ask_unheard(settings)
    assert await heard(made) == "idle"


async def test_one_that_computes_answers_when_it_has_done_so(kernel):
    """Its first "busy" was lost; while its cell runs nobody takes it for idle."""
    made, settings, client = kernel
    await client.wait_for_ready()
    prompts: asyncio.Queue[str] = asyncio.Queue()
    cell = "input('first'); input('second')"
    running = asyncio.create_task(
        client.execute_interactive(
            cell, stdin_hook=lambda said: prompts.put_nowait(said["content"]["prompt"])
        )
    )
    async with asyncio.timeout(STARTS_S):
        assert await prompts.get() == "first"
        while made.execution_state != "busy":  # it comes by another channel than the prompt
            await asyncio.sleep(0.01)
        made.execution_state = "starting"
        ask_unheard(settings)
        client.input("")
        assert await prompts.get() == "second"  # the kernel was there and back
        assert made.execution_state == "starting"
        client.input("")
        await running
    assert await heard(made) == "idle"
