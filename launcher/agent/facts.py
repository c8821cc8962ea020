"""What a node tells of itself, and how its log-in manager treats processes of users who are gone.

Runs on the nodes: standard library only, Python 3.8.
"""

import _socket as socket  # the interpreter's own parts: `socket` would bring enum and selectors
import _struct as struct
import fcntl
import os
import pwd
import sys
import time

from launcher.agent import procs

_RTM_GETADDR, _REQUEST_DUMP, _NLMSG_ERROR, _NLMSG_DONE, _IFA_ADDRESS, _IFA_LOCAL = 22, 0x301, 2, 3, 1, 2
_SIOCGIFFLAGS, _IFF_UP = 0x8913, 1


def machine(root):
    """Facts of this machine as a JSON object; ``root`` is our directory, whose file system is measured."""
    space, gpus = os.statvfs(root), gpu_ids()
    return {
        "hostname": socket.gethostname(),
        "user": user(),
        "uid": os.getuid(),
        "boot_id": procs.boot_id(),
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "time": time.time(),
        "gpus": len(gpus),
        "gpu_ids": gpus,
        "cpus": len(os.sched_getaffinity(0)),
        "free_bytes": space.f_bavail * space.f_frsize,
        "free_inodes": space.f_favail,
        "rsync": which("rsync"),
        "addresses": addresses(),
        # A step's task says where it called from, sshd where it was called.
        "reached_at": [os.environ["LAUNCHER_REACHED_AT"]]
        if "LAUNCHER_REACHED_AT" in os.environ
        else os.environ.get("SSH_CONNECTION", "").split()[2:3],
        "logout": logout_rules(),
    }


def which(program, path=None):
    """As shutil.which, without the compression libraries that shutil loads."""
    for directory in (os.environ.get("PATH", os.defpath) if path is None else path).split(os.pathsep):
        found = os.path.join(directory, program)
        if directory and os.path.isfile(found) and os.access(found, os.X_OK):
            return found
    return None


def user():
    """The log-in name, or the number where it has no entry."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def gpu_ids():
    """GPUs that a process here may use: those named by CUDA_VISIBLE_DEVICES, else NVIDIA's, else AMD's, numbered from 0."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [one.strip() for one in visible.split(",") if one.strip() not in ("", "-1", "NoDevFiles")]
    nvidia = [name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()]
    return [str(number) for number in range(len(nvidia) or _amd_gpus())]


def _amd_gpus():
    # A topology node without SIMD units is a CPU (Linux, drivers/gpu/drm/amd/amdkfd/kfd_topology.c).
    top = "/sys/class/kfd/kfd/topology/nodes"
    if not os.path.isdir(top):
        return 0
    count = 0
    for path in [os.path.join(top, node, "properties") for node in os.listdir(top)]:
        with open(path) as file:
            count += any(line.startswith("simd_count ") and line.split()[1] != "0" for line in file)
    return count


def addresses():
    """[interface, address] of every interface that is up, loopback and link-local addresses left out."""
    hidden = ("127.", "169.254.", "fe80:")
    shown = [(index, text) for index, text in _all_addresses() if not text.startswith(hidden) and text != "::1"]
    # A machine with many containers has an interface, and a link-local address, for each.
    found = [(socket.if_indextoname(index), text) for index, text in shown]
    with_socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    try:
        up = {name for name in {name for name, _ in found} if _is_up(with_socket.fileno(), name)}
    finally:
        with_socket.close()
    return [[name, text] for name, text in found if name in up]


def _all_addresses():
    """(index of its interface, text) of every IPv4 and IPv6 address, asked of the kernel as in rtnetlink(7)."""
    kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    try:
        kernel.send(struct.pack("=IHHIIBxxxI", 24, _RTM_GETADDR, _REQUEST_DUMP, 1, 0, socket.AF_UNSPEC, 0))
        found = []
        while True:
            received = kernel.recv(1 << 16)
            while received:
                length, kind = struct.unpack_from("=IH", received)
                if kind in (_NLMSG_DONE, _NLMSG_ERROR):
                    return found
                found += _addresses_in(received[16:length])
                received = received[_aligned(length) :]
    finally:
        kernel.close()


def _addresses_in(message):
    """Of one struct ifaddrmsg and its attributes: the local address where there is another end (IFA_LOCAL), else the one."""
    family, index = struct.unpack_from("=BxxxI", message)
    if family not in (socket.AF_INET, socket.AF_INET6):
        return []
    values, rest = {}, message[8:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        values[kind] = rest[4:length]
        rest = rest[_aligned(length) :]
    value = values.get(_IFA_LOCAL, values.get(_IFA_ADDRESS))
    return [] if value is None else [(index, socket.inet_ntop(family, value))]


def _aligned(length):
    return max(4, (length + 3) & ~3)


def _is_up(fd, name):
    try:
        told = fcntl.ioctl(fd, _SIOCGIFFLAGS, struct.pack("40s", os.fsencode(name)))
    except OSError:
        return False
    return bool(struct.unpack_from("H", told, 16)[0] & _IFF_UP)


def lingering() -> bool:
    """True where a user manager outlives log-outs and can take processes in: systemd-run, linger, and its bus.

    Not for a job of Slurm's: no process of it may leave what Slurm holds together.
    """
    return bool("SLURM_JOB_ID" not in os.environ and _linger_marked() and which("systemd-run") and _runtime_dir())


def _linger_marked():
    return os.path.exists("/var/lib/systemd/linger/" + user())


def _runtime_dir():
    path = os.environ.setdefault("XDG_RUNTIME_DIR", "/run/user/%d" % os.getuid())
    return path if os.path.exists(os.path.join(path, "systemd", "private")) else None


def logout_rules():
    """What logind does to a user's processes and IPC objects after the last log-out (logind.conf(5)); {} without logind."""
    if not _logind_runs():
        return {}
    settings = {"killuserprocesses": "no", "removeipc": "yes", "killexcludeusers": "root", "killonlyusers": ""}
    for path in _configuration():
        settings.update(_login_section(path))
    return {
        "kill": _applies(settings) and not _linger_marked(),
        "remove_ipc": _yes(settings["removeipc"]) and os.getuid() >= 1000 and not _linger_marked(),
    }


def _logind_runs(run="/run/systemd"):
    # sd-login(3) asks for seats/, sd_booted(3) for system/: containers and chroots may have the first one as a leftover.
    return all(os.path.isdir(os.path.join(run, name)) for name in ("seats", "system"))


def _configuration():
    folders = [os.path.join(top, "systemd") for top in ("/usr/lib", "/run", "/etc")]
    main = [os.path.join(folder, "logind.conf") for folder in folders]
    drops = [os.path.join(folder, "logind.conf.d") for folder in folders]
    parts = [
        os.path.join(drop, name) for drop in drops if os.path.isdir(drop) for name in os.listdir(drop) if name.endswith(".conf")
    ]
    return [path for path in main + sorted(parts, key=os.path.basename) if os.path.exists(path)]


def _login_section(path):
    """{key in lower case: value} of a file's [Login]; configparser would take longer to load than all the rest of a hello."""
    found, section = {}, ""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file]
    except OSError:
        return {}
    for line in lines:
        if line.startswith("["):
            section = line
        elif section == "[Login]" and "=" in line and line[0] not in "#;":
            key, _, value = line.partition("=")
            found[key.strip().lower()] = value.strip()
    return found


def _applies(settings):
    name = user()
    only = settings["killonlyusers"].split()
    return _yes(settings["killuserprocesses"]) and name not in settings["killexcludeusers"].split() and (not only or name in only)


def _yes(text):
    return text.strip().lower() in ("1", "yes", "true", "on", "y", "t")
