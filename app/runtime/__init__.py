"""What every long-running program needs: leader election, server, probes, work queue, logs and metrics.

elector        leader election on a Lease, in a thread of its own
leader_loop    runs a program while this process leads
server         serves HTTP next to a service, until a signal
probes         /healthz, /readyz and /metrics; what the metrics of several programs share
work_queue     keys to handle, one worker per key at a time
event_recorder  Events about objects, and the dispatcher of calls that no work waits for
decision_thread  the thread that runs the core's decisions, the most urgent first
logs           structured logs
"""

import asyncio


async def wait_at_most(event: asyncio.Event, seconds: float | None) -> bool:
    """Waits for an event; returns whether it came in time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
