"""What methods cost beside the plain network, and beside other libraries: time, memory and parameters.

`bench` measures one network; ``leanbayes bench`` is its command. A figure is reported only of what has passed a check
of its results.
"""

from leanbayes.bench.contenders import CONTENDERS, contender, contenders
from leanbayes.bench.networks import NETWORKS
from leanbayes.bench.peers import PEERS, Peer
from leanbayes.bench.run import Plan, bench

__all__ = ["CONTENDERS", "NETWORKS", "PEERS", "Peer", "Plan", "bench", "contender", "contenders"]
