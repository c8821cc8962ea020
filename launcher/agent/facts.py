"""What a node tells of itself, and how its log-in manager treats processes of users who are gone.

Runs on the nodes: standard library only, Python 3.8.
"""

import _socket as socket  # the interpreter's own part: `socket` would bring enum and selectors
import ctypes
import os
import pwd
import struct
import sys
import time

from launcher.agent import procs


def machine(root):
    """Facts of this machine as a JSON object; ``root`` is our directory, whose file system is measured."""
    space = os.statvfs(root)
    return {
        "hostname": socket.gethostname(),
        "user": user(),
        "uid": os.getuid(),
        "boot_id": procs.boot_id(),
        "python_version": ".".join(map(str, sys.version_info[:3])),
        "time": time.time(),
        "gpus": len(gpu_ids()),
        "gpu_ids": gpu_ids(),
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


class _Ifaddrs(ctypes.Structure):
    """struct ifaddrs of getifaddrs(3), as far as it is read here."""


_Ifaddrs._fields_ = [
    ("next", ctypes.POINTER(_Ifaddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def addresses():
    """[interface, address] of every interface that is up, loopback and link-local addresses left out."""
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Ifaddrs)()
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs")
    found, entry = [], first
    while entry:
        text = _address(entry.contents.address)
        if text and entry.contents.flags & 1 and not text.startswith(("127.", "169.254.", "fe80:")) and text != "::1":
            found.append([entry.contents.name.decode(), text])
        entry = entry.contents.next
    libc.freeifaddrs(first)
    return found


def _address(pointer):
    if not pointer:
        return None
    family = struct.unpack("H", ctypes.string_at(pointer, 2))[0]
    # struct sockaddr_in has the address at byte 4, sockaddr_in6 at byte 8 (ip(7), ipv6(7)).
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return None


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
