"""Local hashes of a prompt's blocks, for `query_by_hash`: the tokens then stay with the caller."""

import sys
from array import array
from collections.abc import Collection
from numbers import Integral
from reprlib import repr as shortened

from xxhash import xxh3_64_intdigest

_SEED = 1337
_LORA_SEED = 0
_SALT_SEED = 1
_MASK = (1 << 64) - 1

# The code of a C type of 32 bits, which `array` does not promise for "I".
_U32 = "I" if array("I").itemsize == 4 else "L"


def token_bytes(tokens: Collection[int], argument: str = "token_ids") -> bytes:
    """The tokens of a call's argument as little-endian unsigned 32-bit integers. Raises what `token_words` raises."""
    words = token_words(tokens, argument)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def token_words(tokens: Collection[int], argument: str) -> "array[int]":
    """The tokens of a call's argument as unsigned 32-bit integers.

    A contiguous buffer of them, such as a numpy array of `uint32`, is copied at once. Other collections cost a step for
    each token.

    Raises `ValueError` for a token outside of 0 to 2^32 - 1, and `TypeError` for an argument that is no list of
    integers.
    """
    try:
        buffer = memoryview(tokens)  # type: ignore[arg-type]
    except TypeError:
        buffer = None
    if buffer is not None and buffer.itemsize == 4 and buffer.format in ("I", "L", "=I", "=L") and buffer.c_contiguous:
        words = array(_U32)
        words.frombytes(buffer.tobytes())
        return words
    try:
        return array(_U32, tokens if buffer is None else buffer.tolist())
    except OverflowError as error:
        raise ValueError(f"a token is not in 0 to 2^32 - 1: {error}") from error
    except TypeError as error:
        raise TypeError(f"{argument} is {shortened(tokens)}; give a list of integers") from error


def local_hashes(
    tokens: Collection[int], block_size: int, *, lora_name: str | None = None, cache_salt: str | None = None
) -> list[int]:
    """The local hash of each complete block of `block_size` tokens: unsigned 64-bit integers.

    They equal the service's for blocks without multimodal items, under the same adapter and salt. An empty adapter or
    salt counts as absent. Raises `ValueError` for a block size below one.
    """
    if not isinstance(block_size, Integral):
        raise TypeError(f"block_size is {block_size!r}; give a number of tokens")
    if block_size < 1:
        raise ValueError(f"a block has at least one token, not {block_size}")
    seed = _SEED
    if lora_name:
        seed += xxh3_64_intdigest(lora_name.encode(), _LORA_SEED)
    if cache_salt:
        seed += xxh3_64_intdigest(cache_salt.encode(), _SALT_SEED)
    seed &= _MASK
    data = memoryview(token_bytes(tokens, "tokens"))
    size = 4 * block_size
    return [xxh3_64_intdigest(data[at : at + size], seed) for at in range(0, len(data) - size + 1, size)]
