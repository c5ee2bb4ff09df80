package flashindexer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"testing"
	"time"
)

const (
	model     = "m"
	blockSize = 4
	patience  = 30 * time.Second
)

// Frames of ZMTP 3.0: https://rfc.zeromq.org/spec/23.
const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
)

// An engine that publishes to the service over a ZeroMQ socket. It is written here, so the module has no
// dependencies.
type engine struct {
	t          *testing.T
	name       string
	connection net.Conn
	reader     *bufio.Reader
	sequence   int64
}

// Registers an engine and waits until the service subscribes to it.
func newEngine(t *testing.T, name string) *engine {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	registration := Registration{InstanceID: name, Endpoint: "tcp://" + listener.Addr().String(), Model: model, BlockSize: blockSize}
	check(t, client.Register(context.Background(), registration))
	check(t, listener.(*net.TCPListener).SetDeadline(time.Now().Add(patience)))
	connection, err := listener.Accept()
	check(t, err)
	publisher := &engine{t: t, name: name, connection: connection, reader: bufio.NewReader(connection)}
	t.Cleanup(publisher.close)
	check(t, connection.SetDeadline(time.Now().Add(patience)))

	greeting := make([]byte, 64)
	copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL")
	_, err = connection.Write(greeting)
	check(t, err)
	_, err = io.ReadFull(publisher.reader, greeting)
	check(t, err)
	publisher.send(flagCommand, []byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"))
	// The command READY of the service, and then its subscription.
	publisher.receive()
	if _, body := publisher.receive(); len(body) == 0 || body[0] != 1 {
		t.Fatalf("the service sent %x instead of a subscription", body)
	}
	check(t, connection.SetDeadline(time.Time{}))
	go publisher.answerHeartbeats()
	return publisher
}

// Publishes blocks as one chain, and waits until the service has applied them.
func (publisher *engine) store(first, last int) {
	publisher.t.Helper()
	parent := []byte{0xc0}
	if first > 1 {
		parent = packInt(first - 1)
	}
	var blocks, ids [][]byte
	for block := first; block <= last; block++ {
		blocks = append(blocks, packInt(block))
		for _, token := range tokensOf(block, block) {
			ids = append(ids, packInt(int(token)))
		}
	}
	event := packArray(packText("BlockStored"), packArray(blocks...), parent, packArray(ids...), packInt(blockSize), []byte{0xc0})
	seconds := float64(time.Now().UnixNano()) / 1e9
	stamp := binary.BigEndian.AppendUint64([]byte{0xcb}, math.Float64bits(seconds))
	publisher.send(flagMore, nil)
	publisher.send(flagMore, binary.BigEndian.AppendUint64(nil, uint64(publisher.sequence)))
	publisher.send(0, packArray(stamp, packArray(event), []byte{0xc0}))
	waitFor(publisher.t, "the message", func() bool {
		workers, err := client.Workers(context.Background(), Filter{Model: model})
		check(publisher.t, err)
		for _, worker := range workers {
			seq := worker.Listeners["0"].LastSeq
			if string(worker.InstanceID) == publisher.name && seq != nil && *seq == publisher.sequence {
				return true
			}
		}
		return false
	})
	publisher.sequence++
}

func (publisher *engine) close() {
	publisher.connection.Close()
	check(publisher.t, client.Unregister(context.Background(), publisher.name, model, UnregisterOptions{}))
}

func (publisher *engine) send(flags byte, body []byte) {
	frame := binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	if flags&flagCommand != 0 {
		frame = []byte{flags, byte(len(body))}
	}
	_, err := publisher.connection.Write(append(frame, body...))
	check(publisher.t, err)
}

func (publisher *engine) receive() (byte, []byte) {
	flags, body, err := readFrame(publisher.reader)
	check(publisher.t, err)
	return flags, body
}

func (publisher *engine) answerHeartbeats() {
	for {
		flags, body, err := readFrame(publisher.reader)
		if err != nil {
			return
		}
		// A command PING has a time to live of two bytes, and a context that PONG repeats.
		if flags&flagCommand != 0 && bytes.HasPrefix(body, []byte("\x04PING")) {
			pong := append([]byte("\x04PONG"), body[7:]...)
			publisher.connection.Write(append([]byte{flagCommand, byte(len(pong))}, pong...))
		}
	}
}

func readFrame(reader *bufio.Reader) (byte, []byte, error) {
	flags, err := reader.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	size := make([]byte, 8)
	from := 7
	if flags&flagLong != 0 {
		from = 0
	}
	if _, err := io.ReadFull(reader, size[from:]); err != nil {
		return 0, nil, err
	}
	body := make([]byte, binary.BigEndian.Uint64(size))
	_, err = io.ReadFull(reader, body)
	return flags, body, err
}

// MessagePack.

func packInt(value int) []byte {
	return binary.BigEndian.AppendUint64([]byte{0xcf}, uint64(value))
}

func packText(text string) []byte { return append([]byte{0xd9, byte(len(text))}, text...) }

func packArray(items ...[]byte) []byte {
	packed := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(items)))
	return append(packed, bytes.Join(items, nil)...)
}

// The tokens of blocks by number.
func tokensOf(first, last int) []uint32 {
	var tokens []uint32
	for block := first; block <= last; block++ {
		for offset := 0; offset < blockSize; offset++ {
			tokens = append(tokens, uint32(100*block+offset))
		}
	}
	return tokens
}

func waitFor(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not happen within %v", what, patience)
		}
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(fmt.Errorf("unexpected error: %w", err))
	}
}
