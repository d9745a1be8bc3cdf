"""The network interfaces of this machine.

interfaces()      # {"lo": IPv4Interface('127.0.0.1/8'), "eth0": IPv4Interface('10.0.0.4/24')}
"""

from __future__ import annotations

import fcntl
import ipaddress
import socket
import struct

# netdevice(7)
_SIOCGIFADDR, _SIOCGIFNETMASK = 0x8915, 0x891B


def interfaces() -> dict[str, ipaddress.IPv4Interface]:
    """The IPv4 address and the network of each interface that has one, by name."""
    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            try:
                # `struct ifreq`: the name in 16 bytes, then family, port and address.
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(probe, number, request)[20:24])
                    for number in (_SIOCGIFADDR, _SIOCGIFNETMASK)
                )
            except OSError:
                continue  # It has no address.
            found[name] = ipaddress.IPv4Interface(f"{address}/{mask}")
    return found
