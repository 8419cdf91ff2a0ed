# promise: No network is reached, and no service of this machine.
# alone: runtime_error
# right: correct runtime_error deceptive
# tags: quick processes
# lacking: network, local sockets
import socket
for family in range(1, 46):
    for kind in (1, 2, 3, 5, 10):
        try:
            made = socket.socket(family, kind)
        except (OSError, OverflowError, ValueError):
            continue
        if family != socket.AF_UNIX:
            escaped(f"a socket of family {family}")
        made.close()
for path in ("/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/tmp/.X11-unix/X0", "\0/tmp/.X11-unix/X0", "\0dice"):
    with socket.socket(socket.AF_UNIX) as link:
        try:
            link.connect(path)
        except OSError:
            continue
        escaped(f"connected to {path}")
