"""The project's dependencies and those of the extras named as arguments, one a line, without the project itself."""

import sys
import tomllib
from pathlib import Path


def main() -> None:
    """Print the requirements of ./pyproject.toml."""
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = [line for name in sys.argv[1:] for line in project["optional-dependencies"][name]]
    print("\n".join([*project["dependencies"], *extras]))


if __name__ == "__main__":
    main()
