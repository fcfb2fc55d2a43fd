"""docs/platforms, read by programs: the files and commands of each page."""

import re
import shlex
from dataclasses import dataclass
from typing import Any

import yaml

from tests.manifests.load import ROOT

REGISTERED = ("kubeadm", "rke2", "k3s")
"""Pages of platforms whose own kube-scheduler is configured."""
PAGES = (*REGISTERED, "managed")
SUFFIX = "+"
"""Of keys that add to a list, in the configuration of RKE2 and k3s."""


@dataclass(frozen=True, slots=True)
class Page:
    """A page."""

    name: str  # of the file, without its suffix
    commands: list[list[str]]  # each line with a prompt, split as a shell does, without sudo
    files: dict[str, str]  # the YAML blocks by the text of their first line, a comment

    def file(self, name: str) -> Any:
        return yaml.safe_load(self.files[name])

    def matching(self, *words: str) -> list[list[str]]:
        return [command for command in self.commands if command[: len(words)] == list(words)]


def page(name: str) -> Page:
    """Reads a page."""
    text = (ROOT / f"docs/platforms/{name}.md").read_text()
    lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.S) for line in block.splitlines()]
    assert all(line.startswith("$ ") for line in lines), "every line is a command"
    commands = [shlex.split(line.removeprefix("$ ").removeprefix("sudo ")) for line in lines]
    blocks = re.findall(r"```yaml\n# ([^\n]*)\n(.*?)```", text, re.S)
    assert len(blocks) == text.count("```yaml"), "every block begins with its name"
    return Page(name, commands, dict(blocks))


def scheduler_flags(of: Page) -> list[list[str]]:
    """The flags that a page adds to kube-scheduler, in each of the forms that it shows."""
    if of.name == "kubeadm":
        (container,) = of.file("/etc/kubernetes/manifests/kube-scheduler.yaml")["spec"]["containers"]
        arguments = of.file("ClusterConfiguration in the ConfigMap kubeadm-config")["scheduler"]["extraArgs"]
        return [container["command"][1:], [f"--{entry['name']}={entry['value']}" for entry in arguments]]
    flags = [distribution(of)["kube-scheduler-arg"]]
    if of.name == "rke2":
        flags.append(yaml.safe_load(harvester_files(of)[0]["content"])[f"kube-scheduler-arg{SUFFIX}"])
    return [[f"--{flag}" for flag in each] for each in flags]


def distribution(of: Page) -> dict[str, list[str]]:
    entries = of.file(f"/etc/rancher/{of.name}/config.yaml.d/longhorn-scheduler-extender.yaml")
    assert all(key.endswith(SUFFIX) for key in entries)
    return {key.removesuffix(SUFFIX): value for key, value in entries.items()}


def harvester_files(of: Page) -> list[dict[str, Any]]:
    stages = yaml.safe_load(of.file("harvester.yaml")["spec"]["contents"])["stages"]
    files: list[dict[str, Any]] = stages["initramfs"][0]["files"]
    return files
