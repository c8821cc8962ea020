"""What we read of Slurm, and `launcher exec`, on a real Slurm 22.05 with unequal nodes and one whose NodeName is no host name."""

from __future__ import annotations

import json
import re
import subprocess

from launcher.slurm.states import state
from tests.cluster.slurm.handle import SlurmCluster
from tests.slurm.programs import INVALID, Programs

ALLOCATION = """
import dataclasses, json, os
from launcher.slurm.allocation import allocation, step_options
given = allocation(os.environ)
print(json.dumps([dataclasses.asdict(given), step_options(sum(node.gpus for node in given.nodes))]))
"""
JOB_STATE = """
import dataclasses, json, sys
from launcher.slurm import ask
told = ask.job_state(sys.argv[1], float(sys.argv[2]) if sys.argv[2:] else None, haste=True)
print(json.dumps([type(told).__name__, dataclasses.asdict(told)]))
"""
IN_ALLOCATION = """
PYTHON -c "$PROGRAM" | tee given.json
unset SLURM_GPUS SLURM_GPUS_PER_TASK SLURM_GPUS_PER_NODE SLURM_NTASKS
srun --ntasks-per-node=1 -n $SLURM_JOB_NUM_NODES --mem=0 $(grep -o -e --gpus=[0-9]* given.json) \\
    bash -c 'echo $SLURMD_NODENAME $SLURM_GPUS_ON_NODE'
"""
FORMS = {
    "-N3 --gres=gpu:1": "m1 1 1 a100, m2 1 1 a100, n-three 1 1 -",
    "-N2 --gres=gpu:a100:2": "m1 1 2 a100, m2 1 2 a100",
    "-N2 --gpus-per-node=a100:2 -n3": "m1 2 2 a100, m2 1 2 a100",
    "-N2 --gpus=3": "m1 1 2 a100, m2 1 1 a100",
    "-N3 --gpus=5": "m1 1 2 a100, m2 1 2 a100, n-three 1 1 -",
    "-N3 -n5 --gpus-per-task=1": "m1 2 2 a100, m2 2 2 a100, n-three 1 1 -",
    "-N3 --exclusive": "m1 2 2 a100, m2 2 2 a100, n-three 1 1 -",
}
"""options of salloc: node, CPUs, GPUs and their type"""


def test_every_way_to_ask_for_gpus_is_understood(slurm: SlurmCluster) -> None:
    """What the job holds on each node is told, and a step that asks by our options sees all of it."""
    (slurm.shared / "in-allocation.sh").write_text(IN_ALLOCATION.replace("PYTHON", slurm.python))
    for options, expected in FORMS.items():
        script = f"salloc --quiet {options} bash in-allocation.sh"
        first, *seen = slurm.run(slurm.login, script, env={"PROGRAM": ALLOCATION}).stdout.splitlines()
        given, asked = json.loads(first)
        nodes = [f"{one['name']} {one['cpus']} {one['gpus']} {one['gpu_type'] or '-'}" for one in given["nodes"]]
        assert (options, ", ".join(nodes)) == (options, expected)
        assert sorted(seen) == [f"{one['name']} {one['gpus']}" for one in given["nodes"]]
        assert asked == [f"--gpus={sum(one['gpus'] for one in given['nodes'])}"]
        assert (given["cluster"], given["batch"], given["step_id"]) == (f"fake-{slurm.layout.name}", False, None)


def test_a_heterogeneous_job_and_fewer_gpus_than_asked_for_are_refused(slurm: SlurmCluster) -> None:
    """In an allocation and in a task."""
    launcher = f"{slurm.python} -m launcher exec -- true"
    script = (
        f'salloc --quiet -N1 : -N1 {slurm.python} -c "$PROGRAM"; salloc --quiet -N1 : -N1 srun --het-group=0,1 {launcher};'
        f"salloc --quiet -N1 -w m1 --gpus-per-node=2 srun --gpus-per-node=1 {launcher}"
    )
    said = slurm.run(slurm.login, script, env={"PROGRAM": ALLOCATION}, check=False).stderr
    assert "is heterogeneous, of 2 components; a launcher job cannot span them" in said
    assert "is heterogeneous, and the nodes of its steps have no order that all tasks agree on" in said
    assert "SLURM_GPUS_PER_NODE=2 was asked for, but this task sees 1 on m1" in said


def told(slurm: SlurmCluster, job: str, *words: str, path: str = "") -> tuple[str, dict[str, object]]:
    """The answer of ``job_state`` on the log-in machine, and its kind."""
    env = {"PATH": path} if path else {}
    done = slurm.run(slurm.login, [slurm.python, "-c", JOB_STATE, job, *words], env=env)
    kind, fields = json.loads(done.stdout)
    return kind, fields


def submit(slurm: SlurmCluster, command: str, *options: str) -> str:
    """The number of a batch job."""
    words = ["sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}"]
    return slurm.run(slurm.login, words).stdout.strip()


def until_over(slurm: SlurmCluster, *jobs: str) -> None:
    """Wait until Slurm has said of all of them that they are over."""
    slurm.run(slurm.login, f"until left=$(squeue -h -j {','.join(jobs)}) && [ -z \"$left\" ]; do sleep 0.2; done")


def test_states_of_jobs_without_accounting(slurm: SlurmCluster) -> None:
    """Held, ended, failed and cancelled jobs, with reason, times, nodes and exit code; a number that there never was."""
    held = submit(slurm, "true", "--hold")
    ended = submit(slurm, "exit 0", "--wait", "-w", "n-three")
    failed = submit(slurm, "exit 3")
    cancelled = submit(slurm, "sleep 600")
    slurm.run(slurm.login, ["scancel", cancelled])
    until_over(slurm, ended, failed, cancelled)
    kind, report = told(slurm, held)
    assert (kind, report["word"], report["reason"], report["nodes"]) == ("Report", "PENDING", "JobHeldUser", [])
    _, report = told(slurm, ended)
    assert (report["word"], report["exit_code"], report["nodes"], report["restarts"]) == ("COMPLETED", 0, ["n-three"], 0)
    submitted = report["submitted_at"]
    assert isinstance(submitted, float) and isinstance(report["ended_at"], float)
    assert told(slurm, ended, str(submitted + 5))[0] == "Report"
    assert told(slurm, ended, str(submitted - 3600))[0] == "NoSuchJob"
    assert told(slurm, failed)[1]["exit_code"] == 3
    assert told(slurm, cancelled)[1]["word"] == "CANCELLED"
    kind, answer = told(slurm, "99999")
    assert kind == "NoSuchJob" and INVALID in str(answer["words"])


def test_a_controller_that_is_away_is_no_answer(slurm: SlurmCluster) -> None:
    """And the job is found again once it is back."""
    job = submit(slurm, "sleep 600")
    slurm.stop_daemon(slurm.login)
    kind, answer = told(slurm, job)
    assert kind == "NoAnswer" and "is DOWN" in str(answer), answer
    slurm.start_daemon(slurm.login)
    assert told(slurm, job)[0] == "Report"


def test_the_accounting_tells_of_a_job_that_slurmctld_has_forgotten(slurm_accounting: SlurmCluster) -> None:
    """With who cancelled it, and its exit code."""
    slurm = slurm_accounting
    gone = Programs(slurm.shared / "gone")
    for name in ("squeue", "scontrol"):
        gone.says(name, err=INVALID, status=1)
    subprocess.run(["chmod", "-R", "a+rwX", str(gone.folder)], check=True)
    path = f"{gone.folder}/bin:/usr/bin:/bin"
    failed = submit(slurm, "exit 3")
    cancelled = submit(slurm, "sleep 600", "--dependency=afterany:" + failed)
    until_over(slurm, failed)
    slurm.run(slurm.login, ["scancel", cancelled])
    slurm.run(
        slurm.login,
        f"until sacct -n -X -j {failed},{cancelled} -o State | grep -c -E 'FAILED|CANCELLED' | grep -q 2; do sleep 0.2; done",
    )
    kind, report = told(slurm, failed, path=path)
    assert (kind, report["word"], report["exit_code"], report["source"]) == ("Report", "FAILED", 3, "sacct")
    _, report = told(slurm, cancelled, path=path)
    assert str(report["word"]).startswith("CANCELLED") and state(str(report["word"])).reason_code == "Cancelled"
    assert told(slurm, "99999", path=path)[0] == "NoSuchJob"


HOLDER = """
import socket, sys
held = [socket.create_server(("", port)) for port in (12000, 12001)]
print("here", flush=True)
sys.stdin.read()
"""


def environments(text: str) -> list[dict[str, str]]:
    """What each task's `env` printed, by rank; the lines of tasks begin with their number."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        task, _, rest = line.partition(": ")
        name, _, value = rest.partition("=")
        found.setdefault(task, {})[name] = value
    return sorted(found.values(), key=lambda one: int(one["RANK"]))


def test_exec_gives_each_task_of_a_step_its_place(slurm: SlurmCluster) -> None:
    """The address of the first node, by which the others reached it; one port; the GPUs of each node."""
    words = ["srun", "-N3", "--gpus=5", "--label", slurm.python, "-m", "launcher", "exec", "--", "env"]
    tasks = environments(slurm.run(slurm.login, words).stdout)
    assert [(one["RANK"], one["NODE_RANK"], one["SLURMD_NODENAME"], one["NPROC_PER_NODE"]) for one in tasks] == [
        ("0", "0", "m1", "2"),
        ("1", "1", "m2", "2"),
        ("2", "2", "n-three", "1"),
    ]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["GLOO_SOCKET_IFNAME"]) for one in tasks} == {
        ("3", slurm.address("m1"), "eth0")
    }
    assert len({one["MASTER_PORT"] for one in tasks}) == 1
    assert (slurm.shared / tasks[0]["PAI_OUTPUT_MODEL"]).is_dir()


def test_exec_goes_by_nodeaddr_and_not_by_nodename(slurm: SlurmCluster) -> None:
    """No resolver knows n-three."""
    words = ["srun", "-w", "n-three", "--label", slurm.python, "-m", "launcher", "exec", "env"]
    (only,) = environments(slurm.run(slurm.login, words).stdout)
    assert (only["MASTER_ADDR"], only["WORLD_SIZE"], only["NPROC_PER_NODE"]) == (slurm.address("n-three"), "1", "1")


def test_exec_needs_no_scontrol_where_names_have_addresses(slurm: SlurmCluster) -> None:
    """As in a container; a step of one node needs no address that others could find."""
    inside = ["/usr/bin/env", "PATH=/nowhere", slurm.python, "-m", "launcher", "exec", "/usr/bin/env"]
    tasks = environments(slurm.run(slurm.login, ["srun", "-w", "m1,m2", "--label", *inside]).stdout)
    assert [one["MASTER_ADDR"] for one in tasks] == [slurm.address("m1")] * 2
    (only,) = environments(slurm.run(slurm.login, ["srun", "-w", "n-three", "--label", *inside]).stdout)
    assert only["MASTER_ADDR"] == "127.0.0.1"


def test_exec_takes_the_port_that_slurm_reserves_and_names_who_has_it(slurm: SlurmCluster) -> None:
    """Node 0 exits with 69, which ends the step; once the holder is gone, another one runs."""
    slurm.configure(MpiParams="ports=12000-12001")
    words = ["srun", "--resv-ports=1", "-w", "m1,m2", "--label", slurm.python, "-m", "launcher", "exec", "env"]
    with subprocess.Popen(
        slurm.argv("m1", [slurm.python, "-c", HOLDER]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "here\n"
        done = slurm.run(slurm.login, ["srun", "--kill-on-bad-exit=1", *words[1:]], check=False)
        holder.communicate()
    said = re.search(r"m1: port (\d+) is taken on this node \(held by pid \d+, python", done.stderr)
    assert said and said[1] in ("12000", "12001") and "m1: task 0: Exited with exit code 69" in done.stderr, done.stderr
    tasks = environments(slurm.run(slurm.login, words).stdout)
    assert {one["MASTER_PORT"] for one in tasks} == {tasks[0]["SLURM_STEP_RESV_PORTS"]} <= {"12000", "12001"}


def test_exec_outside_of_a_task_and_for_several_on_a_node(slurm: SlurmCluster) -> None:
    """Exit 2, and the command that would do."""
    launcher = f"{slurm.python} -m launcher exec -- true"
    done = slurm.run(slurm.login, f"salloc --quiet -N1 {launcher}", check=False)
    assert done.returncode == 2 and "this is no task of an srun step" in done.stderr
    done = slurm.run(slurm.login, f"srun -N1 -n2 {launcher}", check=False)
    assert done.returncode == 2 and "several tasks share a node" in done.stderr
