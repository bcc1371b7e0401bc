"""The clients' half: the private key, which seals vectors and opens sums."""

from __future__ import annotations

import os
import secrets
from functools import cached_property
from typing import NoReturn

import gmpy2
import numpy as np
from gmpy2 import mpz
from numpy.typing import NDArray

from flameche.crypto.paillier.adder import PaillierAdder, PaillierVector
from flameche.crypto.paillier.arithmetic import (
    COMB_BLOCKS,
    COMB_ROWS,
    comb_power,
    comb_table,
    draw_prime,
    spread,
)
from flameche.crypto.paillier.packing import PaillierPublic, name_of
from flameche.errors import SealError


class _Secret:
    """Prints as the public name of its key, and stays in this process."""

    key_name: str

    def __repr__(self) -> str:
        return f"<{type(self).__name__.lstrip('_')} {self.key_name[:4]}…>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds a private key and is not pickled; use secret_bytes")

    def __getstate__(self) -> NoReturn:
        self.__reduce__()


class _Half(_Secret):
    """Everything modulo the square of one prime."""

    def __init__(self, prime: mpz, other: mpz, h: mpz, key_name: str) -> None:
        self.key_name = key_name
        self.prime, self.square = prime, prime * prime
        # L(g^(p-1) mod p²) = -q mod p, for g = n + 1
        self._unscale = gmpy2.invert(-other, prime)
        self._digits = (prime * other).bit_length() // (2 * COMB_ROWS)
        self._table = comb_table(gmpy2.powmod(h, prime * other, self.square), self.square, self._digits)

    def blind(self, digits: bytes) -> mpz:
        """Raise h^n to the exponent of these digits."""
        return comb_power(self._table, self.square, digits)

    def read(self, ciphertexts: list[mpz]) -> list[mpz]:
        """Decrypt modulo the prime: L(c^(p-1) mod p²) / L(g^(p-1) mod p²), where L(u) = (u - 1) / p."""
        powers = gmpy2.powmod_base_list(ciphertexts, self.prime - 1, self.square)
        return [u // self.prime * self._unscale % self.prime for u in powers]


class PaillierPrivate(_Secret):
    """The primes, and what is computed from them once: whoever holds this reads every vector."""

    def __init__(self, p: int, q: int) -> None:
        p, q = mpz(p), mpz(q)
        bits = (p * q).bit_length()
        alike = p != q and p.bit_length() == q.bit_length() and gmpy2.gcd(p - 1, q - 1) == 2
        if not alike or p % 4 != 3 or q % 4 != 3:
            raise SealError("these are not the primes of a Paillier key; make a new one")
        if bits % (2 * COMB_ROWS * COMB_BLOCKS):
            raise SealError(f"a key's bits must be a multiple of {2 * COMB_ROWS * COMB_BLOCKS}, not {bits}")
        self.p, self.q, self.n = p, q, p * q
        self.key_name = name_of(self.n)

    @classmethod
    def generate(cls, key_bits: int) -> PaillierPrivate:
        """Draw primes until both fit each other."""
        p = draw_prime(key_bits // 2)
        while True:
            q = draw_prime(key_bits // 2)
            if p != q and gmpy2.gcd(p - 1, q - 1) == 2:
                return cls(p, q)

    @cached_property
    def halves(self) -> tuple[_Half, _Half]:
        """Both moduli, with tables of powers of one h; the h is drawn anew in every process."""
        x = secrets.randbelow(int(self.n) - 2) + 2
        h = -mpz(x) * x % self.n
        return _Half(self.p, self.q, h, self.key_name), _Half(self.q, self.p, h, self.key_name)

    @cached_property
    def inverses(self) -> tuple[mpz, mpz]:
        """1 / p mod q and 1 / p² mod q², for the Chinese remainders."""
        return gmpy2.invert(self.p, self.q), gmpy2.invert(self.p**2, self.q**2)


class PaillierKey(_Secret):
    """A client's half: seals vectors, opens sums."""

    def __init__(self, private: PaillierPrivate, public: PaillierPublic, threads: int | None = None) -> None:
        self.key_name = public.key_name
        self._private, self._public = private, public
        self._threads = threads or os.cpu_count() or 1

    def seal(self, vector: NDArray[np.float64]) -> bytes:
        """Encrypt a vector [S] with fresh randomness; OverflowBudget if a value is out of range."""
        if vector.ndim != 1:
            raise SealError(f"a vector [S] is sealed, not an array of shape {vector.shape}")
        values = self._public.codec.encode(np.asarray(vector, np.float64))
        ciphertexts = self._encrypt(self._public.to_plaintexts(values))
        return PaillierVector(1, len(vector), tuple(ciphertexts), self._public).to_bytes()

    def open(self, data: bytes) -> NDArray[np.float64]:
        """Decrypt a sum [S]; SealError if it was sealed under another key, or altered."""
        vector = PaillierAdder(self._public).load(data)
        plaintexts = spread(self._decrypt, list(vector.ciphertexts), self._threads)
        return self._public.codec.decode(
            self._public.from_plaintexts(plaintexts, vector.terms, vector.numbers)
        )

    def _encrypt(self, plaintexts: list[mpz]) -> list[mpz]:
        n, square, (_, inverse) = self._public.n, self._public.square, self._private.inverses
        at_p, at_q = self._private.halves
        ciphertexts = []
        # not spread over threads: a product takes microseconds, too short to let go of the interpreter for
        for plaintext in plaintexts:
            digits = secrets.token_bytes(self._public.key_bits // (2 * COMB_ROWS))
            a, b = at_p.blind(digits), at_q.blind(digits)
            blind = a + at_p.square * ((b - a) * inverse % at_q.square)
            ciphertexts.append((1 + plaintext * n) * blind % square)
        return ciphertexts

    def _decrypt(self, ciphertexts: list[mpz]) -> list[mpz]:
        at_p, at_q = self._private.halves
        inverse, _ = self._private.inverses
        return [
            a + at_p.prime * ((b - a) * inverse % at_q.prime)
            for a, b in zip(at_p.read(ciphertexts), at_q.read(ciphertexts), strict=True)
        ]
