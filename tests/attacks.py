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


def solvable(rows, some):
    """Tell by brute force whether a combination of rows holds the clients `some` and nobody else.

    A row names terms by client and number, with how much of each it holds: {(client, number): weight}.
    """
    if not rows:
        return False
    terms = sorted({term for row in rows for term in row})
    whole = np.array([[row.get(term, 0.0) for term in terms] for row in rows])
    outside = whole[:, [client not in some for client, _ in terms]]
    rank = np.linalg.matrix_rank
    return rank(whole, tol=1e-8) > (rank(outside, tol=1e-8) if outside.size else 0)


def pairs(clients):
    """Every client, and every pair of clients."""
    return [{i, j} for i in range(clients) for j in range(i + 1)]


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
    sketches: list = field(default_factory=list)  # of each session, public
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
            self.sketches.append(found.sketch)
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


RIDGE = 1e-2  # of a covariance's mean variance, so that it can be inverted


class Shadow:
    """What an attacker knows of a kind of images from images of its own: features [n F] of one class.

    A block of metadata is a mean of features, scaled to length one; near their mean direction that is a
    projection, so all is compared in what is left of features when that direction is taken out.
    """

    def __init__(self, features):
        mean = features.mean(axis=0)
        self.length = np.linalg.norm(mean)
        self.direction = mean / self.length
        apart = self.apart(features)
        covariance = apart.T @ apart / len(apart)
        size = np.trace(covariance) / len(covariance)
        self.precision = np.linalg.inv(covariance + RIDGE * size * np.eye(len(covariance)))

    def apart(self, features):
        """Give features [n F] without their mean direction, in lengths of the mean."""
        return (features - np.outer(features @ self.direction, self.direction)) / self.length

    def in_mean(self, features, block, count, reference):
        """Weigh, for each image, whether it is among the `count` images of which a block [F] is the mean.

        A logarithm of likelihoods' ratio, to second order, under normal features. `reference` [F] is another
        mean of the same kind of images, or zeros: what this one would be without the image.
        """
        rest = block - (block @ self.direction) * self.direction - reference
        apart = self.apart(features)
        weighed = apart @ self.precision
        return weighed @ rest - 0.5 * (weighed * apart).sum(axis=1) / count

    def in_moments(self, features, matrix, scatter):
        """Weigh it by second moments [r r] of projected blocks about their mean; matrix [F r]."""
        own = self.apart(features) @ matrix
        inner = matrix.T @ np.linalg.inv(self.precision) @ matrix
        weighed = np.linalg.solve(inner, own.T).T
        return np.einsum("nr,rs,ns->n", weighed, scatter, weighed) / (weighed * own).sum(axis=1)


def in_span(features, matrix, moments):
    """Weigh whether an image is alone in some client's block: then its own block is in the moments' span.

    features [n F], matrix [F r], moments [r r] = sum of z zT over clients.
    """
    z = features / np.linalg.norm(features, axis=1, keepdims=True) @ matrix
    small = 1e-6 * np.trace(moments) / len(moments)
    return -np.einsum("nr,rs,ns->n", z, np.linalg.inv(moments + small * np.eye(len(moments))), z)


def auc(members, others):
    """Tell how often a member's score is above another's: 0.5 is guessing."""
    from scipy.stats import rankdata

    rank = rankdata(np.concatenate([members, others]))[: len(members)].sum()
    return float((rank - len(members) * (len(members) + 1) / 2) / (len(members) * len(others)))


class Rotation:
    """Second moments of a few clients, S = sum of v vT, leave their vectors open up to a rotation.

    v_i = R q_i, with R [D n] from S and q_i the columns of an orthogonal matrix. What else is known pins
    the rotation, if it can: that every block has about the mean length (exactly that where nothing was
    projected away), that sums over named clients were opened, and where members of a leaf lie.

    moments [B r+1 B r+1], as the session sums them, by a client's weight.
    """

    def __init__(self, moments, matrix, clients, full):
        blocks, _, width = matrix.shape
        self.clients, self.blocks = clients, blocks
        size = blocks * (width + 1)
        values, vectors = np.linalg.eigh(moments.reshape(size, size))
        root = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :clients]
        root = root.reshape(blocks, width + 1, clients)
        self.one = root[:, -1].mean(axis=0)  # every client's last entry of a block is one
        self.root = root[:, :-1]  # [B r n]
        own = (
            np.stack([np.linalg.pinv(matrix[b].T) @ self.root[b] for b in range(blocks)])
            if full
            else self.root
        )
        self.lengths = np.einsum("bfm,bfn->bmn", own, own)  # [B n n], a client's squared lengths: qT L q
        self.mean_length = np.trace(self.lengths, axis1=1, axis2=2) / clients
        self.flat = self.root.reshape(-1, clients)
        self.centre = self.flat @ self.one / clients  # the mean of all clients' vectors

    def vectors(self, q):
        """Give clients' projected blocks without their mean [n D], from columns q [n n]."""
        return (self.flat @ q).T - self.centre

    def guesses(self, rng, count):
        """Draw rotations at random among those for which every client's last entries are one: [count n n]."""
        first = np.column_stack([self.one, rng.standard_normal((self.clients, self.clients - 1))])
        left = np.linalg.qr(first)[0]
        left[:, 0] *= np.sign(left[:, 0] @ self.one)
        found = []
        for _ in range(count):
            right = np.linalg.qr(
                np.column_stack(
                    [np.ones(self.clients), rng.standard_normal((self.clients, self.clients - 1))]
                )
            )[0]
            right[:, 0] *= np.sign(right[:, 0].sum())
            inner = np.eye(self.clients)
            inner[1:, 1:] = np.linalg.qr(rng.standard_normal((self.clients - 1,) * 2))[0]
            found.append(left @ inner @ right.T)
        return np.stack(found)

    def alone(self, rng, starts):
        """Look for single clients by least squares from many starts: the best 2n solutions [2n D]."""
        from scipy.optimize import least_squares

        def wrong(q):
            lengths = np.einsum("m,bmn,n->b", q, self.lengths, q) / self.mean_length - 1.0
            return np.concatenate([lengths, [self.one @ q - 1.0, q @ q - 1.0]])

        def slope(q):
            lengths = 2 * np.einsum("bmn,n->bm", self.lengths, q) / self.mean_length[:, None]
            return np.vstack([lengths, self.one, 2 * q])

        tries = self.guesses(rng, -(-starts // self.clients)).transpose(0, 2, 1).reshape(-1, self.clients)
        found = [least_squares(wrong, q, jac=slope, max_nfev=200) for q in tries[:starts]]
        best, chosen = sorted(found, key=lambda one: one.cost), []
        for one in best:
            if all(np.abs(one.x - other).max() > 1e-3 for other in chosen):
                chosen.append(one.x)
        return self.vectors(np.stack(chosen[: 2 * self.clients]).T)

    def missed(self, blocks):
        """Tell by how much clients' projected blocks [n D] themselves miss the mean lengths."""
        q = np.linalg.lstsq(self.flat, blocks.T, rcond=None)[0]
        square = np.einsum("mi,bmn,ni->bi", q, self.lengths, q) / self.mean_length[:, None] - 1.0
        return float(0.5 * (square**2).sum())

    def together(self, rng, starts, sums=(), leaves=(), lengths=True):
        """Look for all clients at once by least squares, from many starts: vectors [n D], what is missed.

        sums: (members, matrix [q D], value [q]), a linear image of members' vectors, whose sum is known;
        leaves: (members, matrix [a D], edges [a x], counts [a x-1]), a histogram along some directions.
        """
        from scipy.optimize import least_squares

        n = self.clients
        pairs = np.triu_indices(n)
        linear = [(np.arange(n)[i : i + 1], self.one[None], np.ones(1)) for i in range(n)]
        for members, matrix, value in sums:
            image = matrix @ self.flat
            left, scale, right = np.linalg.svd(image, full_matrices=False)
            keep = scale > 1e-6 * scale[0]  # as many numbers as say something, each in its own scale
            linear.append((members, right[keep], (left.T @ value)[keep] / scale[keep]))
        bins = [
            (members, matrix @ self.flat, [np.repeat(np.arange(len(c)), c) for c in counts], edges)
            for members, matrix, edges, counts in leaves
        ]

        def parts(flat, bins):
            q = flat.reshape(n, n)  # a column a client
            yield (q.T @ q - np.eye(n))[pairs], _slope_of_products(q, pairs)
            if lengths:
                own = np.einsum("bmn,ni->bmi", self.lengths, q)
                square = np.einsum("bmi,mi->bi", own, q) / self.mean_length[:, None] - 1.0
                slope = np.zeros((self.blocks, n, n, n))
                slope[:, np.arange(n), :, np.arange(n)] = (
                    2 * own.transpose(2, 0, 1) / self.mean_length[:, None]
                )
                yield square.ravel(), slope.reshape(-1, n * n)
            for members, rows, value in linear:
                slope = np.zeros((len(rows), n, n))
                slope[:, :, members] = rows[:, :, None]
                yield rows @ q[:, members].sum(axis=1) - value, slope.reshape(len(rows), -1)
            for members, rows, at, edges in bins:
                for row, where, edge in zip(rows, at, edges, strict=True):
                    place = row @ q[:, members]
                    order = np.argsort(place)
                    low, high, width = edge[where], edge[where + 1], edge[2] - edge[1]
                    out = np.minimum(place[order] - low, 0.0) + np.maximum(place[order] - high, 0.0)
                    slope = np.zeros((len(members), n, n))
                    slope[np.arange(len(members)), :, members[order]] = row * (out != 0)[:, None]
                    yield out / width, slope.reshape(len(members), -1) / width

        def solved(start, bins):
            return least_squares(
                lambda flat: np.concatenate([wrong for wrong, _ in parts(flat, bins)]),
                start,
                jac=lambda flat: np.vstack([slope for _, slope in parts(flat, bins)]),
                xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=100,
            )  # fmt: skip

        best = None
        for start in self.guesses(rng, starts):
            found = solved(start.ravel(), [])
            if bins:  # which are rough: the second step
                found = solved(found.x, bins)
            if best is None or found.cost < best.cost:
                best = found
            if best.cost < 1e-18:
                break
        return self.vectors(best.x.reshape(n, n)), float(best.cost)


def _slope_of_products(q, pairs):
    """Differentiate the products of columns q_i q_j by q [n n]: [pairs n*n]."""
    n = len(q)
    slope = np.zeros((len(pairs[0]), n, n))
    every = np.arange(len(pairs[0]))
    slope[every, :, pairs[0]] += q[:, pairs[1]].T
    slope[every, :, pairs[1]] += q[:, pairs[0]].T
    return slope.reshape(len(every), -1)


def nearest(vectors, truth):
    """Tell each client's best cosine [n] with what an attack found [m D]; truth [n D], without the mean."""

    def scaled(rows):
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    return (scaled(truth) @ scaled(vectors).T).max(axis=1)
