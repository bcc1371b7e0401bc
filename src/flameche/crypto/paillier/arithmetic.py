"""Primes, powers from comb tables, and threads to compute them in."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import gmpy2
from gmpy2 import mpz

PRIME_ROUNDS = 40  # of Miller-Rabin with secret bases: a composite passes once in 2^80
COMB_ROWS = 8  # a digit is a byte
COMB_BLOCKS = 8
WORTH_A_THREAD = 4  # ciphertexts; below, starting threads costs more than they save

T = TypeVar("T")
R = TypeVar("R")


def draw_prime(bits: int) -> mpz:
    """Draw a prime of 3 mod 4 whose two highest bits are set, so that a product of two has twice the bits."""
    while True:
        candidate = mpz(secrets.randbits(bits) | 3 << (bits - 2) | 3)
        if not gmpy2.is_prime(candidate):
            continue
        bases = (secrets.randbelow(int(candidate) - 3) + 2 for _ in range(PRIME_ROUNDS))
        if all(gmpy2.is_strong_prp(candidate, base) for base in bases):
            return candidate


def comb_table(base: mpz, modulus: mpz, digits: int) -> list[list[mpz]]:
    """Tabulate powers for `comb_power`: [COMB_BLOCKS, 256] of them.

    Bit i of digit s, where s = k COMB_BLOCKS + j, stands for the exponent's bit i digits + j steps + k, with
    steps = digits / COMB_BLOCKS.
    """
    steps = digits // COMB_BLOCKS
    powers = [base]
    for _ in range(COMB_ROWS * COMB_BLOCKS - 1):
        powers.append(gmpy2.powmod(powers[-1], 1 << steps, modulus))
    table = []
    for j in range(COMB_BLOCKS):
        products = [mpz(1)]
        for power in powers[j::COMB_BLOCKS]:
            products += [product * power % modulus for product in products]
        table.append(products)
    return table


def comb_power(table: list[list[mpz]], modulus: mpz, digits: bytes) -> mpz:
    """Raise the table's base to an exponent given by its digits; random bytes are a random exponent."""
    result = mpz(1)
    for start in range(len(digits) - COMB_BLOCKS, -1, -COMB_BLOCKS):
        result = result * result % modulus
        for products, digit in zip(table, digits[start : start + COMB_BLOCKS], strict=True):
            result = result * products[digit] % modulus
    return result


def spread(work: Callable[[list[T]], list[R]], items: list[T], threads: int) -> list[R]:
    """Work on items in threads, in order; gmpy2 lets go of the interpreter only where its context says so."""
    threads = min(threads, len(items) // WORTH_A_THREAD)
    if threads < 2:
        return work(items)

    def released(part: list[T]) -> list[R]:
        with gmpy2.context(gmpy2.get_context(), allow_release_gil=True):
            return work(part)

    size = -(-len(items) // threads)
    with ThreadPoolExecutor(threads) as pool:
        parts = pool.map(released, [items[i : i + size] for i in range(0, len(items), size)])
        return [result for part in parts for result in part]
