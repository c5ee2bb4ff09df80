// A router in Go with the index inside the process, by cgo.
//
//	CGO_LDFLAGS=-L/path/to/libraries go run .
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../include
#cgo LDFLAGS: -lflash_index -lpthread -ldl -lm
#include <flash_index.h>
*/
import "C"

import (
	"errors"
	"fmt"
	"log"
	"runtime"
)

const blockTokens = 16

// An index of engines' blocks.
type index struct{ handle *C.FlashIndex }

// Makes a call, and returns its error. The text belongs to the system thread, which must not change in between.
func call(status func() C.FlashIndexStatus) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status() == C.FLASH_INDEX_STATUS_OK {
		return nil
	}
	return errors.New(C.GoString(C.flash_index_last_error()))
}

func newIndex() (*index, error) {
	created := &index{}
	return created, call(func() C.FlashIndexStatus { return C.flash_index_create(blockTokens, &created.handle) })
}

func (index *index) register(engine uint64) error {
	return call(func() C.FlashIndexStatus { return C.flash_index_register(index.handle, C.uint64_t(engine), nil) })
}

// Stores the complete blocks of a prompt in an engine's device memory. first is the engine's own hash of the first one.
func (index *index) store(engine uint64, tokens []uint32, first uint64) error {
	blocks := len(tokens) / blockTokens
	locals, sequences := make([]uint64, blocks), make([]uint64, blocks)
	for at := range sequences {
		sequences[at] = first + uint64(at)
	}
	err := call(func() C.FlashIndexStatus {
		return C.flash_index_hash_tokens(tokensOf(tokens), C.size_t(len(tokens)), blockTokens, nil, nil, hashesOf(locals),
			C.size_t(blocks), nil)
	})
	if err != nil {
		return err
	}
	return call(func() C.FlashIndexStatus {
		return C.flash_index_store(index.handle, C.uint64_t(engine), 0, C.FLASH_INDEX_TIER_DEVICE, nil, hashesOf(sequences),
			hashesOf(locals), C.size_t(blocks), nil)
	})
}

// The engine that holds most of a prompt in device memory, and the number of these tokens; none if found is false.
func (index *index) best(prompt []uint32) (engine uint64, tokens int, found bool, err error) {
	var match C.FlashIndexMatch
	var count C.size_t
	err = call(func() C.FlashIndexStatus {
		return C.flash_index_query(index.handle, tokensOf(prompt), C.size_t(len(prompt)), nil, nil, &match, 1, &count)
	})
	return uint64(match.instance), int(match.blocks[0]) * blockTokens, count == 1, err
}

// The slices are not empty here.
func tokensOf(tokens []uint32) *C.uint32_t {
	return (*C.uint32_t)(&tokens[0])
}

func hashesOf(hashes []uint64) *C.uint64_t {
	return (*C.uint64_t)(&hashes[0])
}

func run() error {
	index, err := newIndex()
	if err != nil {
		return err
	}
	defer C.flash_index_free(index.handle)
	session := make([]uint32, 200)
	for at := range session {
		session[at] = uint32(at)
	}
	// Engine 1 holds a system prompt of 64 tokens, engine 2 holds that prompt and the first turn of a session.
	for engine, tokens := range map[uint64]int{1: 64, 2: 192} {
		if err := index.register(engine); err != nil {
			return err
		}
		if err := index.store(engine, session[:tokens], 1000*engine); err != nil {
			return err
		}
	}
	engine, tokens, found, err := index.best(session)
	if err != nil || !found {
		return fmt.Errorf("no engine holds the session: %w", err)
	}
	fmt.Printf("the session's next turn: engine %d holds %d tokens\n", engine, tokens)
	return nil
}

func main() {
	if err := run(); err != nil {
		log.Fatal(err)
	}
}
