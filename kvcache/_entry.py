"""The `kvspec` command enters here and finds `conformance`, which only the checkout installs."""

import importlib
import sys
from typing import Final

HINT: Final = (
    "kvspec: the command needs the checkout, and only the wheel is installed here: "
    "there is no module 'conformance'; run `pip install -e .` in a clone of the kvspec repository\n"
)


def main() -> object:
    """Run the command and return its exit status; exit with 2 where it cannot be found.

    `conformance` is loaded by name and not before the call, so that `import kvcache` never needs
    it. Any other module that is missing is a fault to be seen, not a hint to be given.
    """
    try:
        command = importlib.import_module("conformance.cli")
    except ModuleNotFoundError as error:
        if error.name != "conformance":
            raise
        sys.stderr.write(HINT)
        raise SystemExit(2) from None
    return command.main()
