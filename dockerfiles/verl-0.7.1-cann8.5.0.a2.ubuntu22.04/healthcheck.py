# Compares installed versions with the given ones (torch==2.8.0, without +cpu); --doctor also runs the doctor here.
import json
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# What lies in the image. Cards, driver and network belong to the host, and a session to who enters.
AREAS = ("python", "cann", "nnal", "stack")


def unlike(words):
    for wanted in words:
        name, _, number = wanted.partition("==")
        try:
            found = version(name)
        except PackageNotFoundError:
            found = ""
        if found.partition("+")[0] != number:
            yield f"{wanted} != {found}"


def judged():
    doctor = Path(__file__).with_name("npuenv-doctor.pyz")
    command = [sys.executable, str(doctor), "--level", "0", "--json"]
    try:
        said = subprocess.run(command, capture_output=True, timeout=100).stdout
        findings = json.loads(said)["findings"]
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        yield f"{doctor.name}: {type(error).__name__}: {error}"
        return
    for finding in findings:
        if finding["status"] == "fail" and finding["check"].partition(".")[0] in AREAS:
            yield f"{finding['check']}: {finding['says']}"


words = sys.argv[1:]
wrong = list(unlike(word for word in words if word != "--doctor"))
wrong += judged() if "--doctor" in words else ()
print("\n".join(wrong) or "ok")
sys.exit(bool(wrong))
