"""The network interfaces of this machine.

interfaces()      # {"lo": IPv4Interface('127.0.0.1/8'), "eth0": IPv4Interface('10.0.0.4/24')}
"""

from __future__ import annotations

import ipaddress
import socket


def interfaces() -> dict[str, ipaddress.IPv4Interface]:
    """The IPv4 address and the network of each interface that has one, by name."""
    # Most jobs do not need it.
    import psutil

    return {
        name: ipaddress.IPv4Interface(f"{found.address}/{found.netmask}")
        for name, addresses in psutil.net_if_addrs().items()
        for found in addresses
        if found.family == socket.AF_INET
    }
