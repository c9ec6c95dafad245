"""envs.py ROOT PRODUCT BIG: an environment for each of the product's tasks over the machine's own Python, and the settings that name them.

An environment is a folder as `python -m venv` makes it, whose one .pth file lists the carried trees and then the machine's packages.
"""

import os
import platform
import site
import sys
from pathlib import Path

TREES = {"main": ("main", "base"), "serve": ("vllm", "base"), "quantize": ("quant", "base"), "evaluate": ("eval", "base")}
root, product, big = map(Path, sys.argv[1:4])
base = Path(os.path.realpath(sys.executable))
theirs = [folder for folder in site.getsitepackages() if Path(folder).is_dir()]
version = f"{sys.version_info[0]}.{sys.version_info[1]}"
rehearsal = os.environ.get("REHEARSE")


def has_bytecode(folder: str) -> bool:
    return any(Path(folder, "torch", "__pycache__").glob(f"__init__.{sys.implementation.cache_tag}.pyc"))


first = []
if not any(has_bytecode(folder) or os.access(folder, os.W_OK) for folder in theirs):
    # Else each process would compile torch again.
    first.append(f"import sys; sys.pycache_prefix = {str(root / 'pyc')!r}")
for name, trees in TREES.items():
    folder = root / "env" / name
    packages = folder / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (folder / "bin").mkdir(exist_ok=True)
    for link in ("python", "python3", f"python{version}"):
        (folder / "bin" / link).unlink(missing_ok=True)
        (folder / "bin" / link).symlink_to(base)
    (folder / "pyvenv.cfg").write_text(
        f"home = {base.parent}\ninclude-system-site-packages = false\nversion = {platform.python_version()}\nexecutable = {base}\n"
    )
    lines = list(first)
    if name == "serve":  # transformers would import it, with pandas, at each start of a server: seconds
        lines.append("import sys; sys.modules.setdefault('sklearn', None)")
    if name == "main":
        lines.append(str(product))
    if rehearsal:
        lines.append(
            f"import sys; sys.path.insert(0, {rehearsal!r}); import rehearse_{name}"
            if Path(rehearsal, f"rehearse_{name}.py").is_file()
            else ""
        )
    lines += [str(root / "site" / tree) for tree in trees]
    lines += [f"import site; site.addsitedir({folder!r})" for folder in theirs]
    (packages / "kit.pth").write_text("\n".join(filter(None, lines)) + "\n")
command = root / "env" / "main" / "bin" / "prepare"
command.write_text(f"#!{root}/env/main/bin/python\nfrom pipeline.cli.main import main\n\nmain()\n")
command.chmod(0o755)
(root / "settings.yaml").write_text(
    f"home: {big}/home\nstore: {big}/store\nenvironments:\n"
    + "".join(f"  {name}: {{python: {root}/env/{name}/bin/python}}\n" for name in TREES if name != "main")
)
bytecode = f"{any(map(has_bytecode, theirs))}{', kept apart' if first else ''}"
print(f"Python {platform.python_version()} at {base}; packages: {', '.join(theirs)}; bytecode there: {bytecode}")
