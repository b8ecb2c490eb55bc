"""What the hardware is and does.

geometry.py    profiles, placements, what still fits; pure
shapes.py      what a lease asks for, in words; pure
readings.py    what is read from a GPU
errors.py      what can go wrong
driver.py      reads GPUs and cuts slices, through NVML; nvml/ has its parts
watched.py     opens GPUs; a driver whose calls cannot hang, one worker for each GPU
simulated/     simulated GPUs with pynvml's functions
"""
