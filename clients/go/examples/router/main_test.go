package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"flashindexer"
)

const chat = `{"model": "m", "messages": [{"role": "user", "content": "hi"}]}`

// An engine that answers with its name, and the request's path and body.
func fakeEngine(t *testing.T, name string) string {
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		fmt.Fprintf(response, "%s %s %s", name, request.URL.Path, body)
	}))
	t.Cleanup(server.Close)
	return name + "=" + server.URL
}

// A router between two engines, and a service that gives these scores.
func start(t *testing.T, answer string) (*router, string) {
	indexer := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		io.WriteString(response, answer)
	}))
	t.Cleanup(indexer.Close)
	router, err := newRouter(flashindexer.New(indexer.URL), []string{fakeEngine(t, "a"), fakeEngine(t, "b")})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(router)
	t.Cleanup(server.Close)
	return router, server.URL
}

func send(t *testing.T, url string) string {
	answer, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(chat))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 {
		t.Fatalf("%d %s %v", answer.StatusCode, body, err)
	}
	return string(body)
}

// A request is counted for its engine until its answer is forwarded. This may be after the client has read the answer.
func untilIdle(t *testing.T, router *router) {
	deadline := time.Now().Add(30 * time.Second)
	for _, engine := range router.engines {
		for engine.running.Load() != 0 {
			if time.Now().After(deadline) {
				t.Fatal("an answered request counts no more")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

func TestAChatGoesToTheEngineWithTheLongestPrefixLessItsLoad(t *testing.T) {
	router, url := start(t, `{"pods": {"b": {"score": 12, "held_blocks": 12, "predicted_blocks": 0, "trust": "exact"}}}`)
	if got := send(t, url); got != "b /v1/chat/completions "+chat {
		t.Errorf("b holds the prefix: %s", got)
	}
	untilIdle(t, router)
	router.engines[1].running.Store(2)
	if got := send(t, url); !strings.HasPrefix(got, "a ") {
		t.Errorf("b is busy: %s", got)
	}
	router.engines[1].running.Store(0)
	untilIdle(t, router)
}

func TestWithoutAnAnswerTheLoadDecides(t *testing.T) {
	router, url := start(t, "no JSON")
	router.engines[0].running.Store(1)
	if got := send(t, url); !strings.HasPrefix(got, "b ") {
		t.Errorf("a is busy: %s", got)
	}
}
