# Compares installed versions with those given, like torch==2.8.0; a local part such as +cpu does not count.
import sys
from importlib.metadata import PackageNotFoundError, version

wrong = []
for wanted in sys.argv[1:]:
    name, _, number = wanted.partition("==")
    try:
        found = version(name)
    except PackageNotFoundError:
        found = ""
    if found.partition("+")[0] != number:
        wrong.append(f"{wanted} != {found}")
print("\n".join(wrong) or "ok")
sys.exit(bool(wrong))
