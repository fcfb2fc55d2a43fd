"""docs/platforms: the files and flags of each page, loaded by the real kube-scheduler where it can be."""

import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from app.cli.commands import load_command
from devcluster.build import SCHEDULER, ensure_built
from devcluster.scheduler_config import rewrite
from scheduler_core.installation.kube_scheduler_config import Platform, SentPods, configuration_path, steps
from tests.manifests.load import CONFIGS, ROOT
from tests.manifests.platform_pages import PAGES, REGISTERED, distribution, harvester_files, page, scheduler_flags
from tests.worlds.command_line import Run
from tests.worlds.fake_api import write_kubeconfig

FILE = "kube-scheduler-config.yaml"
ADDRESS = "http://10.43.12.34:9504"
# On nodes, and of other programs.
FOREIGN = ("install", "systemctl", "rm")


def printed(run: Run, name: str) -> str:
    """What the page's command prints, with an address given because there is no cluster."""
    (command,) = page(name).matching("longhorn-extender", "scheduler-config")
    assert command[-2:] == [">", FILE]
    result = run(*command[1:-2], "--url-prefix", ADDRESS)
    assert result.code == 0, result.err
    return result.out


def install(folder: Path, name: str, text: str) -> Path:
    """Runs the page's command that installs the file, below a folder; its path there."""
    (command,) = page(name).matching("install")
    source = folder / FILE
    source.write_text(text)
    assert command[-2] == FILE
    target = folder / command[-1].lstrip("/")
    subprocess.run([*command[:-2], str(source), str(target)], check=True, timeout=10)
    return target


@pytest.mark.parametrize("name", REGISTERED)
def test_the_real_kube_scheduler_loads_the_printed_file_by_the_pages_flags(run: Run, tmp_path: Path, name: str) -> None:
    text = rewrite(printed(run, name), write_kubeconfig(tmp_path, "http://127.0.0.1:1"))
    installed = install(tmp_path, name, text)
    written = tmp_path / "understood.yaml"
    for flags in scheduler_flags(page(name)):
        (path,) = [flag.removeprefix("--config=") for flag in flags]
        assert tmp_path / path.lstrip("/") == installed
        # It opens its port before it writes; another kube-scheduler may have the usual one.
        flags_here = [f"--config={installed}", f"--write-config-to={written}", "--secure-port=0"]
        command = [str(ensure_built() / SCHEDULER), *flags_here]
        subprocess.run(command, check=True, timeout=30, capture_output=True)
        (extender,) = yaml.safe_load(written.read_text())["extenders"]
        (recommended,) = yaml.safe_load((CONFIGS / "recommended-managed.yaml").read_text())["extenders"]
        # What it writes leaves out what is false.
        given = {key: value for key, value in recommended.items() if value is not False}
        assert extender == {**given, "urlPrefix": ADDRESS}
        written.unlink()


def test_the_real_kube_scheduler_loads_a_merged_file(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    kubeconfig = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    file.write_text(
        "# ours\napiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"clientConnection:\n  kubeconfig: {kubeconfig} # its own\n"
        "extenders:\n  # the first\n  - urlPrefix: http://127.0.0.1:9251\n    filterVerb: predicate\n"
    )
    arguments = ["--platform", "kubeadm", "--url-prefix", ADDRESS, "--merge", str(file)]
    file.write_text(run("scheduler-config", *arguments).out)
    written = tmp_path / "understood.yaml"
    command = [str(ensure_built() / SCHEDULER), f"--config={file}", f"--write-config-to={written}", "--secure-port=0"]
    subprocess.run(command, check=True, timeout=30, capture_output=True)
    understood = yaml.safe_load(written.read_text())
    assert [entry["urlPrefix"] for entry in understood["extenders"]] == ["http://127.0.0.1:9251", ADDRESS]
    assert understood["percentageOfNodesToScore"] == 100


@pytest.mark.parametrize("name", REGISTERED)
def test_the_page_installs_the_file_where_the_command_says(name: str) -> None:
    platform = Platform(name)
    commands = [" ".join(command) for command in page(name).commands]
    assert f"install -D -m 0600 {FILE} {configuration_path(platform)}" in commands
    programs = {"install", "systemctl", "longhorn-extender"}
    said = [line.strip() for line in steps(platform, SentPods.REQUESTING)]
    said = [line for line in said if line.split()[0] in programs or line.startswith("kubectl apply")]
    assert set(said) <= set(commands)


def test_kubeadms_two_forms_mount_the_same_folder() -> None:
    (static, declared) = page("kubeadm").files
    spec = page("kubeadm").file(static)["spec"]
    (mount,) = spec["containers"][0]["volumeMounts"]
    (volume,) = spec["volumes"]
    (extra,) = page("kubeadm").file(declared)["scheduler"]["extraVolumes"]
    assert volume["name"] == mount["name"]
    assert extra == {
        **mount, "hostPath": volume["hostPath"]["path"], "pathType": volume["hostPath"]["type"]
    }  # fmt: skip
    assert configuration_path(Platform.KUBEADM).startswith(f"{mount['mountPath']}/")


def test_rke2_mounts_the_folder_of_the_file() -> None:
    """Its kube-scheduler is a static pod; k3s needs no mount."""
    folder = str(Path(configuration_path(Platform.RKE2)).parent)
    assert distribution(page("rke2"))["kube-scheduler-extra-mount"] == [f"{folder}:{folder}:ro"]
    assert "kube-scheduler-extra-mount" not in distribution(page("k3s"))


def test_harvester_writes_rke2s_files() -> None:
    settings, config = harvester_files(page("rke2"))
    assert yaml.safe_load(settings["content"]) == page("rke2").file(
        "/etc/rancher/rke2/config.yaml.d/longhorn-scheduler-extender.yaml"
    )
    assert config["path"] == configuration_path(Platform.RKE2)
    assert {entry["permissions"] for entry in (settings, config)} == {0o600}


@pytest.mark.parametrize("name", PAGES)
def test_every_command_of_a_page_exists(name: str) -> None:
    for program, *arguments in page(name).commands:
        if program == "kubectl":
            folders = [after for flag, after in pairwise(arguments) if flag == "-k"]
            assert all(folder == "my-cluster" or (ROOT / folder / "kustomization.yaml").exists() for folder in folders)
        elif program == "longhorn-extender":
            command = load_command(arguments[0])
            known = {flag for parameter in command.params for flag in parameter.opts}
            assert {argument for argument in arguments if argument.startswith("--")} <= known
        else:
            assert program in FOREIGN


@pytest.mark.parametrize("name", PAGES)
def test_the_policy_comes_last_and_goes_first(name: str) -> None:
    """Before the extender is registered and after it is removed, pods that ask would wait."""
    lines = [" ".join(command) for command in page(name).commands]
    policy = "scheduler-name-policy" if name == "managed" else "ask-policy"
    order = [
        "kubectl apply -k my-cluster",
        f"kubectl apply -k manifests/overlays/{policy}",
        "longhorn-extender doctor",
        f"kubectl delete -k manifests/overlays/{policy}",
        "longhorn-extender doctor --uninstall",
        "kubectl delete -k my-cluster",
    ]
    assert [line for line in lines if line in order] == order
    if name in REGISTERED:
        (register,) = page(name).matching("install")
        assert lines.index(" ".join(register)) < lines.index(order[1])


def test_every_page_is_linked_from_the_installation() -> None:
    text = (ROOT / "docs/installation.md").read_text()
    pages = {path.stem for path in (ROOT / "docs/platforms").glob("*.md")}
    assert pages == {*PAGES, "talos"}
    assert all(f"(platforms/{name}.md)" in text for name in pages)
