"""The memory that a process may use: control groups of both versions."""

from pathlib import Path

import pytest

from app.memory import DEFAULT_LIMIT, memory_limit

MIB = 1024**2


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        pytest.param({}, DEFAULT_LIMIT, id="no control group"),
        pytest.param({"proc/self/cgroup": "0::/\n"}, DEFAULT_LIMIT, id="no limit file"),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n"}, DEFAULT_LIMIT, id="v2, no limit"
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": f"{512 * MIB}\n"}, 512 * MIB, id="v2, container"
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/pods/a\n",
                "sys/fs/cgroup/pods/memory.max": f"{300 * MIB}\n",
                "sys/fs/cgroup/pods/a/memory.max": f"{400 * MIB}\n",
            },
            300 * MIB,
            id="v2, the lowest of the ancestors",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/../../x\n", "sys/fs/cgroup/memory.max": f"{200 * MIB}"},
            200 * MIB,
            id="v2, outside",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{256 * MIB}\n",
            },
            256 * MIB,
            id="v1",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:memory:/x\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            DEFAULT_LIMIT,
            id="v1, no limit",
        ),
    ],
)
def test_the_limit_is_the_lowest_of_the_control_groups(tmp_path: Path, files: dict[str, str], limit: int) -> None:
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    assert memory_limit(tmp_path) == limit
