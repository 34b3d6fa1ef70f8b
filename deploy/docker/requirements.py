"""Prints what an extra of the distribution requires: `python requirements.py router [gpu …]`.

So an image can install its packages before the sources are copied, and a change of code leaves that
layer as it was. torch is left out: it comes first, from the build that fits the machine.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
print("\n".join(each for each in wanted if not each.startswith("torch>")))
