"""The miglab teaching lab on Slurm: its spawner, its service with its pages, doctor's part.

Nothing else of miglab imports it: entry points bring it in, as `miglab_hub/plugins.py` says.
"""
