"""`python -m ackline`: the command, where its script is not on PATH."""

from ackline.cli import main

if __name__ == "__main__":
    main()
