"""Refuses connections to other machines, in this process and in Python processes that tests start.

`conftest.py` puts this folder on PYTHONPATH; Python imports a module of this name whenever it starts.
"""

import ipaddress
import socket
import sys

CONNECTS = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname")


def refuse_other_machines(event: str, arguments: tuple) -> None:
    """Raise an error where an address or a name is not this machine's; sockets of Unix are."""
    if event in CONNECTS and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event in LOOKUPS:
        host = arguments[0]
    else:
        return
    if not is_here(host.decode() if isinstance(host, bytes) else host):
        raise ConnectionRefusedError(f"tests have no network: expected this machine, got {host}")


def is_here(host: str | None) -> bool:
    """Tell whether a host is this machine."""
    if not host or host in ("localhost", socket.gethostname()):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


sys.addaudithook(refuse_other_machines)
