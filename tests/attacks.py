"""What whoever sees the opened sums can work out: which clients' terms solve, and what these are.

A client's term does not change from round to round, so every opened sum is a linear equation in the clients'
terms. The attack keeps what was opened and who was in it, and nothing else: no state of the code under
test, in particular not the leakage guard's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

SURE = 1e-9  # far above rounding: an unsolved client misses by a tenth or more


@dataclass
class OpenedSums:
    """A log of sums: how often each holds each client's term [T C], and what was read [T S]."""

    clients: int
    members: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def add(self, members, value):
        """Note a sum over these clients; one that is listed twice is in it twice."""
        self.members.append(np.bincount(members, minlength=self.clients).astype(np.float64))
        self.values.append(np.array(value, np.float64))

    def listen(self, sums):
        """Note from now on whatever the M-step's sums of this run open, and hand them on unchanged.

        Right where an opened sum is over exactly the members that were asked for: not under secure
        aggregation with `m_step = "seen"`, where some clients hold their changes back.
        """
        totals = sums.totals

        def heard(members, assignment):
            opened = totals(members, assignment)
            for k, total in enumerate(opened):
                if total is not None:
                    self.add(members[assignment == k], total)
            return opened

        sums.totals = heard

    @property
    def smallest(self):
        """Count the clients in the smallest sum that was opened."""
        return min(int((row > 0).sum()) for row in self.members)

    def solved(self):
        """Solve for every client that can be solved: its number and its term [S].

        Client i is solved if some combination of the sums holds it once and nobody else, which is to say
        that its unit vector is in the row space of `members`.
        """
        rows, values = np.array(self.members), np.array(self.values)
        weights = np.linalg.pinv(rows.T)  # [T C]: the best combination for each client
        missed = np.abs(rows.T @ weights - np.eye(self.clients)).max(axis=0)
        return {int(i): weights[:, i] @ values for i in np.flatnonzero(missed < SURE)}


def metadata_in(term, blocks, features):
    """Read a client's metadata [B F] and the weight of each block [B] off its term [w phi, w, 1]."""
    weight = term[blocks * features : -1]
    return term[: blocks * features].reshape(blocks, features) / weight[:, None], weight


@dataclass
class Values:
    """What whoever reads a federation's opened sums has: for each, whose terms are in it, and its value.

    It is written down from the sums as an exchange hands them out, for a federation's whole life, and knows
    nothing of guard, audit or ledger. Terms have names: sums of one name are sums of the same terms. A
    client whose data drifted has another term from then on. `truth` has the terms themselves, so that what
    the attack solves can be compared; the attack does not look at it, but for a key holder's own.
    """

    sums: list[tuple[str, tuple[tuple[int, int], ...], np.ndarray]] = field(default_factory=list)
    truth: dict[tuple[str, int, int], np.ndarray] = field(default_factory=dict)
    drifts: dict[int, int] = field(default_factory=dict)
    sessions: int = 0
    asked: int = 0

    def listen(self, method):
        """Note whatever a clustering session of this method opens from now on, and who drifts."""
        sums, drift, take = method.exchange.sums, method.drift, method._take

        def heard(what, terms, clients, cluster, clusters, kind="sum"):
            opened = sums(what, terms, clients, cluster, clusters, kind)
            self.asked += 1
            name = what
            if (
                what != "means"
            ):  # means are of one term for good, sketches of a session's, others of an exchange's
                name += f" {self.sessions}" if what == "sketches" else f" exchange {self.asked}"
            for i, term in zip(clients.tolist(), terms, strict=True):
                self.truth[(name, *self._now(i))] = term
            for k in np.flatnonzero(np.isfinite(opened).all(axis=1)).tolist():
                self.note(name, clients[cluster == k], opened[k])
            return opened

        def drifted(clients, metadata):
            drift(clients, metadata)
            for i in clients.tolist():
                self.drifts[i] = self.drifts.get(i, 0) + 1

        def taken(clients, found):
            self._sketched(found.sketch, found.centroids.theta.shape[1:])
            self.sessions += 1
            return take(clients, found)

        method.exchange.sums, method.drift, method._take = heard, drifted, taken

    def listen_to_means(self, sums, terms):
        """Note what the paper's M-steps open; terms [C S] are the clients', which do not change."""
        totals = sums.totals
        for i, term in enumerate(terms):
            self.truth["means", i, 0] = term

        def heard(members, assignment):
            opened = totals(members, assignment)
            for k, total in enumerate(opened):
                if total is not None:
                    self.note("means", members[assignment == k], total)
            return opened

        sums.totals = heard

    def note(self, name, clients, value):
        """Note a sum over these clients' terms of now."""
        self.sums.append((name, tuple(self._now(int(i)) for i in clients), np.array(value, np.float64)))

    def _now(self, client):
        return client, self.drifts.get(client, 0)

    def _sketched(self, sketch, blocks):
        """Use sums of metadata as sums of sketches, too: a sketch is a linear image of metadata.

        Right where all clients have equally many samples of each class.
        """
        size = int(np.prod(blocks))

        def image(total, count):
            weight = total[size:-1] / count
            phi = total[:size].reshape(blocks) / count / np.maximum(weight, 1e-9)[:, None]
            return count * sketch.of(phi[None], weight[None])[0]

        name = f"sketches {self.sessions}"
        for what, members, value in list(self.sums):
            if what == "means":
                self.sums.append((name, members, image(value, len(members))))
        for (what, *who), term in list(self.truth.items()):
            if what == "means" and (name, *who) not in self.truth:
                self.truth[(name, *who)] = image(term, 1)

    def solve(self, known=None):
        """Solve for single clients: {(name, client, version): term}; `known` is who uses its own terms."""
        found = {}
        for name in sorted({name for name, _, _ in self.sums}):
            some = [(members, value) for what, members, value in self.sums if what == name]
            column = {
                who: at for at, who in enumerate(sorted({who for members, _ in some for who in members}))
            }
            if known is not None:
                some += [((who,), self.truth[(name, *who)]) for who in column if who[0] == known]
            rows = np.zeros((len(some), len(column)))
            for row, (members, _) in zip(rows, some, strict=True):
                row[[column[who] for who in members]] = 1.0
            weights = np.linalg.pinv(rows.T)  # [T C], the best combination of sums for each client
            missed = np.abs(rows.T @ weights - np.eye(len(column))).max(axis=0)
            values = np.stack([value for _, value in some])
            for who, at in column.items():
                if missed[at] < SURE and who[0] != known:
                    found[(name, *who)] = weights[:, at] @ values
        return found

    def right(self, found, within):
        """List the clients of whom a solved term is right, up to the rounding of fixed point."""
        return {key[1] for key, term in found.items() if np.abs(term - self.truth[key]).max() < within}

    def pairs(self, within, clients):
        """Count the clients that some key holder solves by taking its own terms out, in the worst case."""
        return max(len(self.right(self.solve(known=i), within)) for i in clients)
