"""A FastAPI route that only reads the body. Its time is the lower bound of the time of /filter."""

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

app = FastAPI()


@app.post("/nothing")
async def nothing(request: Request) -> Response:
    """Reads the body; returns an empty object."""
    await request.body()
    return Response(b"{}", media_type="application/json")


if __name__ == "__main__":
    uvicorn.run(
        app,
        port=int(sys.argv[1]),
        http="httptools",
        loop="uvloop",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=120,
    )
