"""The command line `flameche`: one module for each command, and what they share.

Commands print results to stdout and everything else to stderr. The modules import torch and other heavy
packages inside their functions, so that `flameche --help` answers at once.
"""


def main() -> None:
    """Run the command that `sys.argv` names; this is the entry point of the `flameche` program.

    Raises:
        SystemExit: with code 2 for bad input, 1 for a failure, 130 after Ctrl-C; see `flameche.cli.errors`.
    """
    from flameche.cli.commands import app  # not above: companion packages import this package's modules
    from flameche.cli.errors import run_app

    run_app(app)
