package flashindexer

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

// The vectors of all clients.
type hashCase struct {
	FirstToken uint32   `json:"first_token"`
	Step       uint32   `json:"step"`
	Tokens     uint32   `json:"tokens"`
	BlockSize  int      `json:"block_size"`
	LoraName   string   `json:"lora_name"`
	CacheSalt  string   `json:"cache_salt"`
	Hashes     []string `json:"hashes"`
}

func TestLocalHashesMatchTheSharedVectors(t *testing.T) {
	text, err := os.ReadFile("../testdata/local-hashes.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors struct{ Cases []hashCase }
	if err := json.Unmarshal(text, &vectors); err != nil {
		t.Fatal(err)
	}
	if len(vectors.Cases) < 40 {
		t.Fatalf("only %d cases", len(vectors.Cases))
	}
	for _, vector := range vectors.Cases {
		tokens := make([]uint32, vector.Tokens)
		for i := range tokens {
			tokens[i] = vector.FirstToken + uint32(i)*vector.Step
		}
		options := PromptOptions{LoraName: vector.LoraName, CacheSalt: vector.CacheSalt}
		hashes, err := LocalHashes(tokens, vector.BlockSize, options)
		if err != nil || len(hashes) != len(vector.Hashes) {
			t.Fatalf("%+v: %d hashes, %v", vector, len(hashes), err)
		}
		for i, hash := range hashes {
			if strconv.FormatUint(hash, 10) != vector.Hashes[i] {
				t.Errorf("%+v: hash %d is %d", vector, i, hash)
			}
		}
	}
}

func TestABlockWithoutTokensIsRefused(t *testing.T) {
	if _, err := LocalHashes([]uint32{1}, 0, PromptOptions{}); err == nil {
		t.Error("a block size of 0 is an error")
	}
}
