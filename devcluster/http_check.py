"""One HTTP request to a process on this machine."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any

# Never through a proxy of the environment: the process runs on this machine.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def is_filtered(status: int, answer: Any) -> bool:
    """Whether an answer of /filter is a decision. A process that may not answer says so with status 200 and `Error`, which
    kube-scheduler shows.
    """
    return status == 200 and isinstance(answer, dict) and not answer.get("Error")


def http_request(url: str, body: object | None = None, seconds: float = 15) -> tuple[int, Any]:
    """Sends a GET, or a POST of JSON; returns status and answer. The answer to a success is decoded if it is JSON; with any other
    status it is a text. Status 0: there was no answer, and the text is the reason.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310 # our own process
    try:
        with _opener.open(request, timeout=seconds) as answer:
            text = answer.read()
            is_json = answer.headers.get_content_type() == "application/json"
            return answer.status, json.loads(text) if is_json else text.decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        return 0, str(error)
