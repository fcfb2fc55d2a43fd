"""Looks for known vulnerabilities with pip-audit, and says how many packages it asked about in vain.

pip-audit itself says "No known vulnerabilities found" if the index has no data about any package, as a mirror may not have.
Exit code 0: no known vulnerability. 1: there are some. 2: pip-audit failed.

python .ci/audit.py LOCK-FILE [...]
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def summary(dependencies: Sequence[dict[str, Any]]) -> tuple[list[str], int]:
    """Returns the lines to print about pip-audit's report, and how many vulnerabilities there are."""
    skipped = [entry["name"] for entry in dependencies if "skip_reason" in entry]
    lines = [
        f"{entry['name']} {entry['version']}: {found['id']}, fixed in {', '.join(found['fix_versions']) or 'no version'}"
        for entry in dependencies
        for found in entry.get("vulns", ())
    ]
    vulnerabilities = len(lines)
    audited = len(dependencies) - len(skipped)
    if not audited:
        lines.append(f"nothing was audited: the package index has no data about any of {len(skipped)} packages")
    else:
        lines.append(f"{audited} packages were audited: {vulnerabilities or 'no'} known vulnerabilities")
        lines += [f"not audited, the package index has no data: {', '.join(skipped)}"] if skipped else []
    return lines, vulnerabilities


def main(files: Sequence[str]) -> int:
    """Audits lock files; returns the exit code."""
    command = [str(Path(sys.executable).with_name("pip-audit")), "--progress-spinner", "off", "--disable-pip"]
    command += ["--require-hashes", "--format", "json", *(part for file in files for part in ("-r", file))]
    audit = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        lines, vulnerabilities = summary(json.loads(audit.stdout)["dependencies"])
    except json.JSONDecodeError:
        sys.stderr.write(audit.stderr)
        return 2
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 1 if vulnerabilities else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
