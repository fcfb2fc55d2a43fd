"""The stable JSON of `doctor`."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from app.schemas.explain import Answer
from app.schemas.pod_explanation import API_VERSION
from scheduler_core.installation.diagnosis import is_well
from scheduler_core.installation.facts import Finding, Severity


class FindingAnswer(Answer):
    """What one check says."""

    check: str
    severity: Severity
    what: str
    where: str = Field(description="the object, as kubectl names it; empty for none")
    command: str = Field(description="what mends it; empty if there is nothing to do")


class DiagnosisAnswer(Answer):
    """All findings, in the order of the checks."""

    api_version: str = Field(default=API_VERSION, serialization_alias="apiVersion")
    kind: str = "Diagnosis"
    well: bool = Field(description="whether nothing is to be mended")
    findings: list[FindingAnswer]


def diagnosis_answer(findings: Sequence[Finding]) -> DiagnosisAnswer:
    """Returns findings as data."""
    entries = [
        FindingAnswer(
            check=entry.check, severity=entry.severity, what=entry.what, where=entry.where, command=entry.command
        )
        for entry in findings
    ]
    return DiagnosisAnswer(well=is_well(findings), findings=entries)
