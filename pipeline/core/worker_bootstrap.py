"""Start a worker in a managed environment: ``python bootstrap.py MODULE SPEC RESULT OUTPUT``.

Our other site-packages would conflict.
"""

import importlib
import importlib.util
import sys
from pathlib import Path


def register_packages(root: Path) -> None:
    """Make only our packages importable from `root`."""
    for name in ("pipeline", "recipes", "eval_gates"):
        folder = root / name
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is not a package")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


if __name__ == "__main__":
    # The script's own folder would shadow modules by its files' names; PYTHONSAFEPATH (Python 3.11)
    # leaves it out.
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    register_packages(Path(__file__).resolve().parents[2])
    from pipeline.core.worker_protocol import main

    sys.argv.pop(0)  # its own name: the worker's takes its place
    main(lambda: importlib.import_module(sys.argv[0]).run)
