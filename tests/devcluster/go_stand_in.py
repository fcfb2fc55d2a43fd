"""A stand-in for `go`, which creates empty programs at once."""

import sys
from pathlib import Path

PROGRAM = f"""#!{sys.executable} -IS
import os, pathlib, sys, time
calls = pathlib.Path(__file__).with_name("calls")
def create(path):
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_text("")
    os.chmod(path, 0o755)
if sys.argv[1] == "version":
    print("go version go{{version}} linux/amd64")
else:
    with calls.open("a") as file:
        file.write(sys.argv[1] + chr(10))
    if {{broken}}:
        sys.exit("main.go:1: broken")
    if {{hangs}}:
        import subprocess
        compiler = subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        calls.with_name("pids").write_text(str(os.getpid()) + " " + str(compiler.pid) + chr(10))
        time.sleep(600)
    time.sleep(0.1)
    if sys.argv[1:3] == ["mod", "download"]:
        print('{{{{"GoMod": "' + str(calls.with_name("kubernetes.mod")) + '"}}}}')
    elif sys.argv[1] == "mod":
        pathlib.Path("go.sum").write_text("")
    else:
        create(sys.argv[sys.argv.index("-o") + 1] if sys.argv[1] == "build" else os.environ["GOBIN"] + "/" + sys.argv[-1].partition("@")[0].rpartition("/")[2])
"""


KUBERNETES_GO_MOD = """module k8s.io/kubernetes

go 1.25.0

require (
\tgo.etcd.io/etcd/api/v3 v3.6.5
\tk8s.io/api v0.0.0
)

require go.etcd.io/etcd/server/v3 v3.6.5 // indirect

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kubectl => ./staging/src/k8s.io/kubectl
)
"""


class Go:
    """The stand-in in a folder that PATH names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "kubernetes.mod").write_text(KUBERNETES_GO_MOD)
        self.behave()

    def behave(self, *, version: str = "1.99.0", broken: bool = False, hangs: bool = False) -> None:
        """Sets the version that it prints, and whether its builds fail, or run on without an end as a compiler of theirs does."""
        program = self._folder / "go"
        program.write_text(PROGRAM.format(version=version, broken=broken, hangs=hangs))
        program.chmod(0o755)

    def pids(self) -> list[int]:
        """The process IDs of a hanging build and its compiler. The list is empty before both run."""
        file = self._folder / "pids"
        text = file.read_text() if file.exists() else ""
        return [int(pid) for pid in text.split()] if text.endswith("\n") else []

    def builds(self) -> list[str]:
        calls = self._folder / "calls"
        return calls.read_text().split() if calls.exists() else []


def ignore(_: str) -> None:
    """Ignores a line of progress."""
