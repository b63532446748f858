"""Software bill of materials of an image, as CycloneDX: Python packages of this interpreter, and Debian's."""

import json
import shutil
import subprocess
from importlib.metadata import distributions


def main() -> None:
    """Print the list as JSON."""
    components = sorted([*_python_packages(), *_debian_packages()], key=lambda each: str(each["purl"]))
    document = {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}
    print(json.dumps(document, indent=1))


def _python_packages() -> list[dict[str, object]]:
    found = []
    for package in distributions():
        name, version = package.metadata["Name"], package.version
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
        licence = package.metadata.get("License-Expression")
        licences = {"licenses": [{"expression": licence}]} if licence else {}
        found.append({"type": "library", "name": name, "version": version, "purl": purl, **licences})
    return found


def _debian_packages() -> list[dict[str, object]]:
    if shutil.which("dpkg-query") is None:
        return []
    command = ["dpkg-query", "--show", "--showformat", "${Package} ${Version} ${Architecture}\n"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:deb/debian/{name}@{version}?arch={machine}"}
        for name, version, machine in (line.split() for line in lines)
    ]


if __name__ == "__main__":
    main()
