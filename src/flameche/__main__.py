"""`python -m flameche`: the command line."""

from flameche.cli import main

main()
