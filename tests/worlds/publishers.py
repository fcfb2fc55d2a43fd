"""The endpoint of a Service, and the placement guard's certificate, as tests say that they are."""

import asyncio

from app.kube.client import ApiError


class FakePublisher:
    """The endpoint of a Service; what is written to it is noted in a story."""

    def __init__(self, story: list[str] | None = None, name: str = "") -> None:
        self.story = [] if story is None else story
        self._name = name
        self.error: ApiError | None = None  # every call raises it
        self.calls = 0  # how often it was called
        self.hangs = False  # whether calls do not return

    async def _call(self, event: str) -> bool:
        self.calls += 1
        if self.hangs:
            await asyncio.sleep(60)
        if self.error is not None:
            raise self.error
        self.story.append(f"{self._name}{event}")
        return True

    async def publish(self) -> bool:
        return await self._call("published")

    async def withdraw(self) -> None:
        await self._call("withdrawn")

    async def empty(self) -> bool:
        return await self._call("emptied")


class FakeCertificate:
    """A certificate that clients accept, unless a test says otherwise."""

    def __init__(self) -> None:
        self.ready = True
        self.problem = ""
