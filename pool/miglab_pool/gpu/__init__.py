"""What the hardware is and does.

geometry.py    profiles, placements, what still fits; pure
shapes.py      what a lease asks for, in words; pure
readings.py    what is read from a GPU, and what can go wrong
nvml.py        NVML, asked; health.py: whether a GPU is well, and how busy
driver.py      reads GPUs and cuts slices, through both
watched.py     opens GPUs; a driver whose calls cannot hang, one worker for each GPU
simulated/     simulated GPUs with pynvml's functions
"""
