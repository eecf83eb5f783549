"""`python -m bot` and the `recalld` command are the same."""

from bot.cli import main

if __name__ == "__main__":
    main()
