"""Local hashes of a prompt's blocks, for `query_by_hash`: the tokens then stay with the caller."""

import sys
from array import array
from collections.abc import Collection, Iterable
from numbers import Integral
from operator import index
from reprlib import repr as shortened

from xxhash import xxh3_64_intdigest

_SEED = 1337
_LORA_SEED = 0
_SALT_SEED = 1
_MASK = (1 << 64) - 1

# The code of a C type of 32 bits, which `array` does not guarantee for "I".
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
    integers, such as an array of two dimensions.
    """
    try:
        buffer = memoryview(tokens)  # type: ignore[arg-type]
    except TypeError:
        buffer = None
    # A buffer is copied row by row, so tokens of several prompts would become one.
    if buffer is not None and buffer.ndim != 1:
        raise TypeError(f"{argument} has {buffer.ndim} dimensions; give a list of integers, which has one")
    if buffer is not None and buffer.itemsize == 4 and buffer.format in ("I", "L", "=I", "=L") and buffer.c_contiguous:
        words = array(_U32)
        words.frombytes(buffer.tobytes())
        return words
    try:
        return array(_U32, tokens if buffer is None else buffer.tolist())
    except OverflowError as error:
        raise ValueError(f"a token is not in 0 to 2^32 - 1: {error}") from error
    except (TypeError, NotImplementedError) as error:  # the latter for items that `memoryview` does not read
        raise TypeError(f"{argument} is {shortened(tokens)}; give a list of integers") from error


def hash_integers(hashes: Iterable[int], argument: str) -> list[int]:
    """The hashes of a call's argument, as integers of Python. Raises `TypeError` if it is no list of integers."""
    try:
        if isinstance(hashes, bytes | bytearray):
            raise TypeError("the items of bytes are not hashes")
        return [index(value) for value in hashes]
    except TypeError as error:
        raise TypeError(f"{argument} is {shortened(hashes)}; give a list of integers") from error


def utf8(text: str, argument: str) -> bytes:
    """The text of a call's argument as UTF-8. Raises `ValueError` for a text with a lone surrogate, which has none."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{argument} is {shortened(text)}, which has a lone surrogate; give a valid text") from error


def local_hashes(
    tokens: Collection[int], block_size: int, *, lora_name: str | None = None, cache_salt: str | None = None
) -> list[int]:
    """The local hash of each complete block of `block_size` tokens: unsigned 64-bit integers.

    They equal the service's for blocks without multimodal items, under the same adapter and salt. An empty adapter or
    salt counts as absent. Raises `ValueError` for a block size below one, and for a name with a lone
    surrogate.
    """
    if not isinstance(block_size, Integral):
        raise TypeError(f"block_size is {block_size!r}; give a number of tokens")
    if block_size < 1:
        raise ValueError(f"a block has at least one token, not {block_size}")
    seed = _SEED
    if lora_name:
        seed += xxh3_64_intdigest(utf8(lora_name, "lora_name"), _LORA_SEED)
    if cache_salt:
        seed += xxh3_64_intdigest(utf8(cache_salt, "cache_salt"), _SALT_SEED)
    seed &= _MASK
    data = memoryview(token_bytes(tokens, "tokens"))
    size = 4 * block_size
    return [xxh3_64_intdigest(data[at : at + size], seed) for at in range(0, len(data) - size + 1, size)]
