"""The driver's parts: NVML's calls, geometry, slices, activity and health."""
