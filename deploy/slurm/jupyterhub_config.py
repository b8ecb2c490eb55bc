"""A hub on a Slurm cluster: who signs in, and the site's table.  See docs/howto/slurm.md."""

from miglab_slurm.hub_setup import set_up

set_up(c)  # noqa: F821 - JupyterHub gives it  # custom scope, servers outlive the hub
c.JupyterHub.spawner_class = "mig-slurm"  # noqa: F821
c.JupyterHub.authenticator_class = "pam"  # noqa: F821
c.Authenticator.allow_all = True  # noqa: F821
c.JupyterHub.hub_ip = "0.0.0.0"  # noqa: F821, S104 - the nodes reach it; close it to others
c.MIGSlurmSpawner.lab_id = "teaching"  # noqa: F821
c.MIGSlurmSpawner.slurm = {  # noqa: F821
    "partition": "lab",
    "run_as": "sudo -u {username}",
    "unix_group": "students",
    "prologue": "module load jupyter",
    "shapes": {
        "1g.5gb": {"gres": "gpu:1g.5gb:1", "gpu_memory_gib": 4.75, "sm_count": 14},
        "2x1g.5gb": {"gres": "gpu:1g.5gb:2", "gpu_memory_gib": 4.75, "sm_count": 14},
        "3g.20gb": {"gres": "gpu:3g.20gb:1", "gpu_memory_gib": 19.5, "sm_count": 42},
        "cpu": {"partition": "lab-cpu"},
    },
    "courses": {
        "everyone": {
            "title": "Open lab",
            "shapes": ["1g.5gb", "2x1g.5gb", "3g.20gb", "cpu"],
            "default": "1g.5gb",
        },
    },
}
