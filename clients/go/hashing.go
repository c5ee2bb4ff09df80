package flashindexer

import (
	"encoding/binary"
	"fmt"
)

const (
	localSeed = 1337
	loraSeed  = 0
	saltSeed  = 1
)

// LocalHashes returns the local hash of each complete block of blockSize tokens, for [Client.QueryByHash]: the tokens
// then stay with the caller.
//
// They equal the service's for blocks without multimodal items, under the adapter and the salt of the options. An empty
// adapter or salt is treated as absent.
func LocalHashes(tokens []uint32, blockSize int, options PromptOptions) ([]uint64, error) {
	if blockSize < 1 {
		return nil, fmt.Errorf("failed to hash blocks: a block has at least one token, not %d", blockSize)
	}
	seed := uint64(localSeed)
	if options.LoraName != "" {
		seed += xxh3([]byte(options.LoraName), loraSeed)
	}
	if options.CacheSalt != "" {
		seed += xxh3([]byte(options.CacheSalt), saltSeed)
	}
	hashes := make([]uint64, 0, len(tokens)/blockSize)
	block := make([]byte, 0, 4*blockSize)
	for ; len(tokens) >= blockSize; tokens = tokens[blockSize:] {
		block = appendTokens(block[:0], tokens[:blockSize])
		hashes = append(hashes, xxh3(block, seed))
	}
	return hashes, nil
}

func appendTokens(bytes []byte, tokens []uint32) []byte {
	for _, token := range tokens {
		bytes = binary.LittleEndian.AppendUint32(bytes, token)
	}
	return bytes
}

func tokenBytes(tokens []uint32) []byte {
	return appendTokens(make([]byte, 0, 4*len(tokens)), tokens)
}
