"""What students' containers may reach of the host and its network: rules, and a probe.  Pure.

miglab changes no firewall: the operator installs the rules, and `miglab doctor --egress` says which
and tries what gets through.
"""

from collections.abc import Iterable, Sequence

METADATA = "169.254.169.254"
PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16")
FORWARD, HOST = "MIGLAB-FORWARD", "MIGLAB-HOST"
_NO = "REJECT --reject-with icmp-admin-prohibited"  # a plain REJECT looks like a closed port

#: Says for each ``host:port`` given whether anything there answered, be it with a refusal.
PROBE = """
import errno, socket, sys
for where in sys.argv[1:]:
    host, port = where.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 3).close()
        is_reached = True
    except OSError as error:
        is_reached = error.errno == errno.ECONNREFUSED
    print(where, "reached" if is_reached else "not-reached")
"""


def rules(subnets: Sequence[str], ports: Iterable[int]) -> list[str]:
    """The iptables commands that leave containers the internet, and of this host the given ports.

    Args:
        subnets: of the students' networks.
        ports: TCP ports of this host that they need: the hub's API and the student listener.
    """
    own = [f"iptables -A {FORWARD} -d {subnet} -j RETURN" for subnet in subnets]
    private = [f"iptables -A {FORWARD} -d {network} -j {_NO}" for network in PRIVATE]
    open_ports = [f"iptables -A {HOST} -p tcp --dport {port} -j RETURN" for port in ports]
    jumps = [
        f"iptables -I {chain} -s {subnet} -j {target}"
        for subnet in subnets
        for chain, target in (("DOCKER-USER", FORWARD), ("INPUT", HOST))
    ]
    answers = "-m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    return [
        f"iptables -N {FORWARD}",
        f"iptables -A {FORWARD} {answers}",
        *own,
        *private,
        f"iptables -N {HOST}",
        f"iptables -A {HOST} {answers}",
        *open_ports,
        f"iptables -A {HOST} -j {_NO}",
        *jumps,
    ]


def reached(said: str) -> list[str]:
    """The addresses that `PROBE` reached, of what it printed."""
    lines = (line.split() for line in said.splitlines())
    return [words[0] for words in lines if len(words) == 2 and words[1] == "reached"]
