"""A network device whose packets a program reads and writes.

    device = open_device(IPv4Interface("198.18.0.1/15"))    # in a network namespace of its own
    packet = os.read(device, MTU)

See the kernel's Documentation/networking/tuntap.rst and netdevice(7).
"""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct

from tfdist.errors import os_error_is_usage_error
from tfdist.tools.launch.isolation import bring_up

#: The largest packet, in bytes. Large packets need fewer system calls.
MTU = 65_000

_DEVICE = "/dev/net/tun"
_NAME = b"tls0"
# linux/if_tun.h and linux/sockios.h.
_SET_DEVICE = 0x400454CA
_TUN, _NO_PACKET_INFORMATION = 0x0001, 0x1000
_SET_ADDRESS, _SET_MASK, _SET_MTU = 0x8916, 0x891C, 0x8922


def open_device(own: ipaddress.IPv4Interface) -> int:
    """Opens a new device with an address and a route to its network; returns its descriptor.

    Raises:
      UsageError: this machine does not allow it.
    """
    remedy = "Run modprobe tun, or add the device to the container; see docs/security.md."
    with os_error_is_usage_error("--tls", _DEVICE, "where this user may open the device", remedy):
        device = os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
        fcntl.ioctl(
            device, _SET_DEVICE, struct.pack("16sH22x", _NAME, _TUN | _NO_PACKET_INFORMATION)
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for request, address in ((_SET_ADDRESS, own.ip), (_SET_MASK, own.netmask)):
            # `struct ifreq`: the name, then the family, port and address.
            content = struct.pack("16sHH4s16x", _NAME, socket.AF_INET, 0, address.packed)
            fcntl.ioctl(control, request, content)
        fcntl.ioctl(control, _SET_MTU, struct.pack("16si20x", _NAME, MTU))
    bring_up(_NAME)
    return device
