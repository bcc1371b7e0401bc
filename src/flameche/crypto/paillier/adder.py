"""The server's half: holds encrypted vectors, adds and subtracts them with the public key alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import gmpy2
from gmpy2 import mpz

from flameche.crypto.api import Sealed
from flameche.crypto.envelope import Envelope, pack, unpack
from flameche.crypto.paillier.packing import NAME, PaillierPublic
from flameche.errors import SealError


@dataclass(frozen=True)
class PaillierVector:
    """Encrypted sums, as the server holds them."""

    terms: int
    numbers: int
    ciphertexts: tuple[mpz, ...] = field(repr=False)
    public: PaillierPublic = field(repr=False)

    def to_bytes(self) -> bytes:
        """Write ciphertexts of equal width, lowest byte first."""
        body = b"".join(c.to_bytes(self.public.width, "little") for c in self.ciphertexts)
        return pack(NAME, self.public.mark, Envelope(self.terms, self.numbers, body))


class PaillierAdder:
    """Multiplies ciphertexts, which adds what is in them; made from the public key alone."""

    def __init__(self, public: PaillierPublic) -> None:
        self.public = public

    def __repr__(self) -> str:
        return f"<PaillierAdder {self.public.key_name[:4]}…>"

    def load(self, data: bytes) -> PaillierVector:
        """Read what `PaillierVector.to_bytes` wrote; SealError if it is no vector of this key."""
        public = self.public
        envelope = unpack(data, NAME, public.mark)
        public.codec.check_terms(envelope.terms)
        width, count = public.width, max(1, -(-envelope.numbers // public.slots))
        if len(envelope.body) != count * width:
            raise SealError(
                f"a sealed vector is damaged: {len(envelope.body)} bytes for {envelope.numbers} numbers, "
                f"expected {count * width}"
            )
        body = envelope.body
        ciphertexts = tuple(mpz.from_bytes(body[i : i + width], "little") for i in range(0, len(body), width))
        product = mpz(1)
        for c in ciphertexts:
            product = product * c % public.n
        if max(ciphertexts) >= public.square or gmpy2.gcd(product, public.n) != 1:
            raise SealError("a sealed vector is damaged: not a ciphertext of this key")
        return PaillierVector(envelope.terms, envelope.numbers, ciphertexts, public)

    def add(self, parts: Iterable[Sealed]) -> PaillierVector:
        """Add vectors of one length; at least one, at most as many terms as the codec has room for."""
        vectors = [self._own(part) for part in parts]
        if not vectors:
            raise SealError("nothing to add: a sum needs at least one sealed vector")
        lengths = {vector.numbers for vector in vectors}
        if len(lengths) > 1:
            raise SealError(f"vectors of different lengths cannot be added: {sorted(lengths)}")
        terms = sum(vector.terms for vector in vectors)
        self.public.codec.check_terms(terms)
        total = list(vectors[0].ciphertexts)
        for vector in vectors[1:]:
            total = self._multiply(total, vector.ciphertexts)
        return PaillierVector(terms, lengths.pop(), tuple(total), self.public)

    def subtract(self, total: Sealed, parts: Iterable[Sealed]) -> PaillierVector:
        """Take vectors out of a total again, and with them their offsets; at least one term must stay."""
        whole, out = self._own(total), self.add(parts)
        if whole.numbers != out.numbers:
            raise SealError(f"{out.numbers} numbers cannot be taken out of a total of {whole.numbers}")
        if whole.terms <= out.terms:
            raise SealError(f"{out.terms} terms taken out of a sum of {whole.terms} leave nothing to open")
        inverses = [gmpy2.invert(c, self.public.square) for c in out.ciphertexts]
        rest = self._multiply(whole.ciphertexts, inverses)
        return PaillierVector(whole.terms - out.terms, whole.numbers, tuple(rest), self.public)

    def _own(self, sealed: Sealed) -> PaillierVector:
        if not isinstance(sealed, PaillierVector) or sealed.public.mark != self.public.mark:
            raise SealError("a vector of another scheme, key or codec cannot be added to this key's")
        return sealed

    def _multiply(self, a: Iterable[mpz], b: Iterable[mpz]) -> list[mpz]:
        square = self.public.square
        return [x * y % square for x, y in zip(a, b, strict=True)]
