"""``python -m miglab_hub.cli``: the `miglab` command."""

from miglab_hub.cli import main

if __name__ == "__main__":
    main()
