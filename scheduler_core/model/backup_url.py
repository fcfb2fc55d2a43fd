"""The names in a backup's URL, and in other URLs with a query. As names of Kubernetes objects, they have nothing
escaped.
"""

from __future__ import annotations


def query_values(url: str) -> dict[str, str]:
    """Returns the values of a URL's query by name, such as ``?backup=NAME&volume=NAME``; the first of each name counts."""
    _, _, query = url.partition("?")
    pairs = (entry.partition("=") for entry in query.partition("#")[0].split("&"))
    return {name: value for name, _, value in reversed(list(pairs)) if name}


def backup_name(url: str) -> str:
    """Returns the backup that a URL such as ``s3://bucket@region/?backup=NAME&volume=NAME`` names, "" if it names none
    (backupstore.DecodeBackupURL).
    """
    return query_values(url).get("backup", "")
