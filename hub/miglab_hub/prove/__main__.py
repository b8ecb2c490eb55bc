"""``python -m miglab_hub.prove``: on a machine without a lab, everything that changes nothing.

It needs Python 3.11, pynvml and the folders ``hub``, ``pool`` and ``api`` of a checkout on the
path; with pydantic the profiles are compared with the simulated card's, too.
"""

import argparse
import sys
from pathlib import Path

from miglab_hub.prove.command import print_line_answer, print_summary, proof_file, undo_on_sigterm
from miglab_hub.prove.report import write_report
from miglab_hub.prove.session import Options, prove_host
from miglab_pool.gpu.readings import GpuError


def main() -> int:
    """Run the proof and write its file; return the exit status."""
    parser = argparse.ArgumentParser(prog="miglab_hub.prove", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="try each line less often")
    parser.add_argument(
        "--program", action="store_true", help="also run a PyTorch program on an idle GPU"
    )
    parser.add_argument("--out", type=Path, default=None, help="the file to write")
    arguments = parser.parse_args()
    options = Options(is_quick=arguments.quick, runs_programs=arguments.program)
    undo_on_sigterm()
    try:
        proof = prove_host(options, print_line_answer)
    except GpuError as error:
        print(f"miglab_hub.prove: {error}", file=sys.stderr)
        return 2
    file = proof_file(arguments.out)
    write_report(proof.report, file, proof.gpus, proof.names)
    return print_summary(proof.report, file)


if __name__ == "__main__":
    sys.exit(main())
