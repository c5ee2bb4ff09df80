package flashindexer

import (
	"encoding/binary"
	"math/bits"
)

// XXH3 with 64 bits and a seed: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md.

const (
	prime32x1 = 0x9E3779B1
	prime32x2 = 0x85EBCA77
	prime32x3 = 0xC2B2AE3D
	prime64x1 = 0x9E3779B185EBCA87
	prime64x2 = 0xC2B2AE3D27D4EB4F
	prime64x3 = 0x165667B19E3779F9
	prime64x4 = 0x85EBCA77C2B2AE63
	prime64x5 = 0x27D4EB2F165667C5
	primeMix1 = 0x165667919E3779F9
	primeMix2 = 0x9FB21C651E98DF25

	stripeBytes = 64
	// Bytes of the secret between two stripes.
	secretStep = 8
	// Stripes until the accumulators are scrambled.
	blockStripes = (len(secret) - stripeBytes) / secretStep
	// Offsets of the reference that cannot be derived.
	midSizeStart = 3
	midSizeLast  = 136 - 17
	lastStripe   = len(secret) - stripeBytes - 7
	mergeStart   = 11
)

var secret = [192]byte{
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
	0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
	0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
	0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
	0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
	0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
	0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
	0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
	0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}

func xxh3(data []byte, seed uint64) uint64 {
	switch length := len(data); {
	case length == 0:
		return avalanche64(seed ^ word(secret[56:]) ^ word(secret[64:]))
	case length <= 3:
		return upTo3(data, seed)
	case length <= 8:
		return upTo8(data, seed)
	case length <= 16:
		return upTo16(data, seed)
	case length <= 128:
		return upTo128(data, seed)
	case length <= 240:
		return upTo240(data, seed)
	default:
		return long(data, seed)
	}
}

func upTo3(data []byte, seed uint64) uint64 {
	length := len(data)
	combined := uint32(data[0])<<16 | uint32(data[length/2])<<24 | uint32(data[length-1]) | uint32(length)<<8
	flip := uint64(half(secret[0:])^half(secret[4:])) + seed
	return avalanche64(uint64(combined) ^ flip)
}

func upTo8(data []byte, seed uint64) uint64 {
	length := len(data)
	seed ^= uint64(bits.ReverseBytes32(uint32(seed))) << 32
	flip := (word(secret[8:]) ^ word(secret[16:])) - seed
	mixed := (uint64(half(data[length-4:])) + uint64(half(data))<<32) ^ flip
	mixed ^= bits.RotateLeft64(mixed, 49) ^ bits.RotateLeft64(mixed, 24)
	mixed *= primeMix2
	mixed ^= mixed>>35 + uint64(length)
	mixed *= primeMix2
	return mixed ^ mixed>>28
}

func upTo16(data []byte, seed uint64) uint64 {
	length := len(data)
	low := ((word(secret[24:]) ^ word(secret[32:])) + seed) ^ word(data)
	high := ((word(secret[40:]) ^ word(secret[48:])) - seed) ^ word(data[length-8:])
	return avalanche(uint64(length) + bits.ReverseBytes64(low) + high + fold(low, high))
}

func upTo128(data []byte, seed uint64) uint64 {
	length := len(data)
	sum := uint64(length) * prime64x1
	for pair := (length - 1) / 32; pair >= 0; pair-- {
		sum += mix16(data[16*pair:], secret[32*pair:], seed)
		sum += mix16(data[length-16*(pair+1):], secret[32*pair+16:], seed)
	}
	return avalanche(sum)
}

func upTo240(data []byte, seed uint64) uint64 {
	length := len(data)
	sum := uint64(length) * prime64x1
	for part := 0; part < 8; part++ {
		sum += mix16(data[16*part:], secret[16*part:], seed)
	}
	sum = avalanche(sum)
	for part := 8; part < length/16; part++ {
		sum += mix16(data[16*part:], secret[16*(part-8)+midSizeStart:], seed)
	}
	return avalanche(sum + mix16(data[length-16:], secret[midSizeLast:], seed))
}

func long(data []byte, seed uint64) uint64 {
	seeded := secret
	for at := 0; at < len(seeded); at += 16 {
		binary.LittleEndian.PutUint64(seeded[at:], word(secret[at:])+seed)
		binary.LittleEndian.PutUint64(seeded[at+8:], word(secret[at+8:])-seed)
	}
	sums := [8]uint64{prime32x3, prime64x1, prime64x2, prime64x3, prime64x4, prime32x2, prime64x5, prime32x1}
	stripes := (len(data) - 1) / stripeBytes
	for stripe := 0; stripe < stripes; stripe++ {
		inBlock := stripe % blockStripes
		accumulate(&sums, data[stripe*stripeBytes:], seeded[inBlock*secretStep:])
		if inBlock == blockStripes-1 {
			scramble(&sums, seeded[len(seeded)-stripeBytes:])
		}
	}
	accumulate(&sums, data[len(data)-stripeBytes:], seeded[lastStripe:])
	merged := uint64(len(data)) * prime64x1
	for pair := 0; pair < 4; pair++ {
		at := mergeStart + 16*pair
		merged += fold(sums[2*pair]^word(seeded[at:]), sums[2*pair+1]^word(seeded[at+8:]))
	}
	return avalanche(merged)
}

func accumulate(sums *[8]uint64, data, secret []byte) {
	for lane := range sums {
		value := word(data[8*lane:])
		keyed := value ^ word(secret[8*lane:])
		sums[lane^1] += value
		sums[lane] += (keyed & 0xFFFFFFFF) * (keyed >> 32)
	}
}

func scramble(sums *[8]uint64, secret []byte) {
	for lane, sum := range sums {
		sums[lane] = (sum ^ sum>>47 ^ word(secret[8*lane:])) * prime32x1
	}
}

func mix16(data, secret []byte, seed uint64) uint64 {
	return fold(word(data)^(word(secret)+seed), word(data[8:])^(word(secret[8:])-seed))
}

func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func avalanche(hash uint64) uint64 {
	hash ^= hash >> 37
	hash *= primeMix1
	return hash ^ hash>>32
}

func avalanche64(hash uint64) uint64 {
	hash ^= hash >> 33
	hash *= prime64x2
	hash ^= hash >> 29
	hash *= prime64x3
	return hash ^ hash>>32
}

func half(data []byte) uint32 { return binary.LittleEndian.Uint32(data) }

func word(data []byte) uint64 { return binary.LittleEndian.Uint64(data) }
