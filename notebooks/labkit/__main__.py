"""The `labkit` command, which is for those who write and grade notebooks."""

import sys

NOT_HERE = (
    "This command is for those who write and grade notebooks; a student's server comes without it. "
    "Run it in a checkout of miglab."
)


def main() -> int:
    """Run it where the checkout is; elsewhere say so, with exit status 2."""
    try:
        from labkit_authoring.cli import main as run
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("labkit_"):
            raise
        print(NOT_HERE, file=sys.stderr)
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
