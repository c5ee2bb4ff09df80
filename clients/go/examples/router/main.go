// A router for OpenAI-style back ends: sends each chat to the engine that has computed most of it.
//
//	go run ./examples/router -indexer http://127.0.0.1:8090 gpu-1=http://gpu-1:8000 gpu-2=http://gpu-2:8000
//
// The engines are registered at the service under the same names (Register), and the service has the model's tokenizer
// (--tokenizer-dir). An engine's score is the number of prompt blocks that it need not compute. The router subtracts the
// requests that it has sent to the engine and that are not answered yet, so a busy engine loses a tie. If the service
// does not answer in time, the requests alone decide.
package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"flashindexer"
)

const (
	// Number of prompt blocks that are worth one request less in an engine's queue.
	blocksPerRequest = 8
	bodyBytesMax     = 8 << 20
)

type engine struct {
	name    string
	proxy   *httputil.ReverseProxy
	running atomic.Int64
}

// Chooses engines and forwards requests to them.
type router struct {
	indexer *flashindexer.Client
	engines []*engine
	names   []string
}

func newRouter(indexer *flashindexer.Client, engines []string) (*router, error) {
	made := &router{indexer: indexer}
	for _, entry := range engines {
		name, address, _ := strings.Cut(entry, "=")
		target, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		proxy := httputil.NewSingleHostReverseProxy(target)
		// Answers are streams of tokens.
		proxy.FlushInterval = -1
		made.engines = append(made.engines, &engine{name: name, proxy: proxy})
		made.names = append(made.names, name)
	}
	return made, nil
}

// The engine with the longest cached prefix, less its load.
func (router *router) choose(ctx context.Context, chat flashindexer.Chat) *engine {
	scores, err := router.indexer.ScoreChat(ctx, chat, flashindexer.ScoreOptions{Pods: router.names})
	if err != nil {
		log.Printf("routing by load alone: %v", err)
		scores = &flashindexer.Scores{}
	}
	value := func(engine *engine) float64 {
		return scores.Pods[engine.name].Score - blocksPerRequest*float64(engine.running.Load())
	}
	best := router.engines[0]
	for _, other := range router.engines[1:] {
		if value(other) > value(best) {
			best = other
		}
	}
	return best
}

// Sends a chat to the chosen engine, and its answer back as it arrives.
func (router *router) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	chat, err := io.ReadAll(http.MaxBytesReader(response, request.Body, bodyBytesMax))
	if err != nil {
		http.Error(response, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	engine := router.choose(request.Context(), chat)
	engine.running.Add(1)
	defer engine.running.Add(-1)
	request.Body = io.NopCloser(bytes.NewReader(chat))
	response.Header().Set("X-Engine", engine.name)
	engine.proxy.ServeHTTP(response, request)
}

func main() {
	indexer := flag.String("indexer", "http://127.0.0.1:8090", "URL of the service")
	listen := flag.String("listen", "127.0.0.1:8000", "address to listen on")
	flag.Parse()
	if flag.NArg() == 0 {
		log.Fatal("name the engines: NAME=URL …")
	}
	client := flashindexer.New(*indexer, flashindexer.WithDeadline(200*time.Millisecond))
	router, err := newRouter(client, flag.Args())
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/v1/chat/completions", router)
	log.Fatal(http.ListenAndServe(*listen, nil))
}
