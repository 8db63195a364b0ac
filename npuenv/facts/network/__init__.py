"""The host's own network: proxies, interfaces, names, ports. Some programs run only where there are several nodes."""

from __future__ import annotations

from npuenv.facts.network.interfaces import InterfaceFacts, PortFacts
from npuenv.facts.network.services import EnvironFacts, ServiceFacts


class NetworkFacts(ServiceFacts, PortFacts, InterfaceFacts, EnvironFacts):
    """What is true of the network that the host itself uses."""
