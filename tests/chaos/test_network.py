"""A separate network: its faults lose the intended packets, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from chaos import world

PROGRAM = """
import json, socket, subprocess, sys
from chaos import network, world

SERVER = '''
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(100):
            self.request.send(data)
class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
with Server((sys.argv[1], 9092), Echo) as server:
    print("listening", flush=True)
    server.serve_forever()
'''
CLIENT = '''
import socket, sys
for host in sys.argv[1:]:
    try:
        with socket.create_connection((host, 9092), 0.5) as asked:
            asked.settimeout(0.5)
            asked.send(b"x")
            print(asked.recv(1).decode())
    except OSError:
        print("-")
'''

def server(host, command):
    program = [*command, sys.executable, "-c", SERVER, host]
    started = subprocess.Popen(program, stdout=subprocess.PIPE)
    started.stdout.readline()
    return started

def reached(command, hosts):
    program = [*command, sys.executable, "-c", CLIENT, *hosts]
    done = subprocess.run(program, capture_output=True, text=True)
    return "".join(done.stdout.split())

world.settle()
bridge = network.Bridge(3)
hosts = [bridge.address(number)[0] for number in (1, 2, 3)]
servers = [server(host, bridge.command(n)) for n, host in enumerate(hosts, 1)]

def table():
    return [reached(bridge.command(n), hosts) for n in (1, 2, 3)] + [reached((), hosts)]

found = {"whole": table()}
for name, fault in {
    "isolated": lambda: bridge.isolate(3),
    "parted": bridge.part_brokers,
    "lost": lambda: bridge.lose(1, 2),
    "requests lost": lambda: bridge.lose(1, 2, requests_only=True),
}.items():
    fault()
    found[name] = table()
    bridge.heal()
found["healed"] = table()
for each in servers:
    each.kill()
bridge.close()
network.Bridge(3).close()
print(json.dumps(found))
"""


def test_each_network_fault_cuts_exactly_its_connections() -> None:
    entry = world.command()
    if entry is None:
        pytest.skip("this system allows no separate network")
    done = subprocess.run(
        [*entry, sys.executable, "-c", PROGRAM],
        env={**os.environ, world.INSIDE: "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # The brokers that brokers 1, 2, 3 and the clients can reach.
    assert json.loads(done.stdout) == {
        "whole": ["xxx", "xxx", "xxx", "xxx"],
        "isolated": ["xx-", "xx-", "--x", "xx-"],
        "parted": ["x--", "-x-", "--x", "xxx"],
        "lost": ["x-x", "-xx", "xxx", "xxx"],
        "requests lost": ["x-x", "xxx", "xxx", "xxx"],
        "healed": ["xxx", "xxx", "xxx", "xxx"],
    }
