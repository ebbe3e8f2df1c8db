"""`python -m privet` is `privet`."""

from privet.cli import main

if __name__ == "__main__":
    main()
