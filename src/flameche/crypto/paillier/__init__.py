"""Paillier encryption, packed: many fixed-point numbers in one ciphertext, exact sums, opened by clients.

P. Paillier, "Public-key cryptosystems based on composite degree residuosity classes", Eurocrypt 1999: with
g = n + 1 a ciphertext is (1 + m n) r^n mod n², and a product of ciphertexts holds the sum of the messages.
I. Damgård, M. Jurik, J. Nielsen, "A generalization of Paillier's public-key system with applications to
electronic voting", Int. J. Information Security 9, 2010: r^n is drawn as (h^n)^a, h = -x² mod n, with an
exponent a of half the key's length, for primes p = q = 3 mod 4 and gcd(p - 1, q - 1) = 2.
C. Lim, P. Lee, "More flexible exponentiation with precomputation", Crypto 1994: (h^n)^a from a table.

Keys of 3072 bits give 128 bits of security, of 2048 bits 112 (NIST SP 800-57). All clients hold one key, as
in FLAMECHE's setting, and therefore compute modulo p² and q² (Chinese remainders), both ways.

A plaintext is, from the lowest bit: slots of value + offset, never negative and wide enough for max_terms
of them; above the last slot the number 1, which sums to the number of terms. An opened plaintext without
it was altered or sealed under another key. This finds accidents, not a malicious server: whoever knows n can
add a number of his own to a ciphertext, as in every scheme that adds. Running times depend on the secrets.
"""

from flameche.crypto.paillier.adder import PaillierAdder, PaillierVector
from flameche.crypto.paillier.arithmetic import (
    COMB_BLOCKS,
    COMB_ROWS,
    PRIME_ROUNDS,
    WORTH_A_THREAD,
    comb_power,
    comb_table,
    draw_prime,
    spread,
)
from flameche.crypto.paillier.keys import PaillierKey, PaillierPrivate
from flameche.crypto.paillier.packing import CHECK_BITS, NAME, WIDEST_SLOT, PaillierPublic, name_of
from flameche.crypto.paillier.scheme import KEY_BITS, Paillier, key_info

__all__ = [
    "CHECK_BITS",
    "COMB_BLOCKS",
    "COMB_ROWS",
    "KEY_BITS",
    "NAME",
    "PRIME_ROUNDS",
    "WIDEST_SLOT",
    "WORTH_A_THREAD",
    "Paillier",
    "PaillierAdder",
    "PaillierKey",
    "PaillierPrivate",
    "PaillierPublic",
    "PaillierVector",
    "comb_power",
    "comb_table",
    "draw_prime",
    "key_info",
    "name_of",
    "spread",
]
