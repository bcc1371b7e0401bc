"""Secure aggregation: the server learns the sum of integer vectors and none of its terms.

After Bonawitz et al., *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, CCS 2017 (the
honest-but-curious protocol, four rounds), and for larger cohorts the sparse graph of Bell et al., *Secure
Single-Server Aggregation with (Poly)Logarithmic Overhead*, CCS 2020 (SecAgg+, Algorithm 2).

    client                                    server
    advertise()        -- two public keys ->  roster(adverts)
    share(roster)      -- sealed shares --->  route(shares)
    mask(inbox, x)     -- masked vector --->  request(masked)      x + self mask + Σ ± pairwise masks, mod 2^w
    unmask(request)    -- shares ---------->  total(reveals)       own masks of survivors, keys of the dropped

Protected, against an honest-but-curious server together with fewer than `threshold` of the holders of a
client's shares: every single input; only the sum over `survivors` comes out. In a sparse graph this rests
moreover on corrupt and dropped clients not having been picked with the graph in view (`graph.risks`).
Every key is derived for one session and label: messages cannot be used again in another round.

Not protected. An active server: keys are advertised without signatures and survivors are not agreed on in a
consistency round (Bonawitz et al., CCS 2017, the active-adversary variant), so a server that impersonates
clients is not stopped. One that merely tells holders different stories about who survived gets both secrets
of a client only if 2 threshold - holders of them collude with it: by default a third.
Poisoned inputs, and what the sum itself gives away: a sum over few clients, or two sums that differ by one.
Python cannot erase memory: references to secrets are dropped, their bytes fade when memory is used again.

Deviations. The server picks the graph's seed before it sees any key and clients derive the graph themselves.
A client is among the holders of its own shares, in the sparse graph too. Each client commits to its
self-mask seed (SHA-256) when it shares, so a seed put together from wrong shares is noticed, as a wrong
private key is by its public key; a slot that counts the terms is summed along with the vector.
"""

from flameche.crypto.secagg.client import SecAggClient
from flameche.crypto.secagg.driver import Costs, aggregate
from flameche.crypto.secagg.server import SecAggServer
from flameche.crypto.secagg.session import Abort, Session

__all__ = ["Abort", "Costs", "SecAggClient", "SecAggServer", "Session", "aggregate"]
