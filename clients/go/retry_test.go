package flashindexer

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const noMatches = `{"scores": {}, "instances": {}}`

// A service that answers the nth request by this function, and the number of its requests.
func fake(t *testing.T, answer func(response http.ResponseWriter, request *http.Request, number int64)) (string, *atomic.Int64) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(response http.ResponseWriter, request *http.Request) {
		answer(response, request, asked.Add(1))
	}))
	t.Cleanup(server.Close)
	return server.URL, &asked
}

// Answers every request with a status and a body.
func always(status int, body string, headers ...string) func(http.ResponseWriter, *http.Request, int64) {
	return func(response http.ResponseWriter, _ *http.Request, _ int64) {
		for i := 0; i < len(headers); i += 2 {
			response.Header().Set(headers[i], headers[i+1])
		}
		response.WriteHeader(status)
		io.WriteString(response, body)
	}
}

func query(client *Client) error {
	_, err := client.Query(ctx(), "m", []uint32{1}, QueryOptions{})
	return err
}

func refusedWith(t *testing.T, err error, status int, text string) {
	t.Helper()
	var refused *APIError
	if !errors.As(err, &refused) || refused.Status != status || !strings.Contains(refused.Message, text) {
		t.Errorf("expected %d %s, got %v", status, text, err)
	}
}

func TestWhatIsRefusedForNowIsTriedAgain(t *testing.T) {
	url, asked := fake(t, func(response http.ResponseWriter, request *http.Request, number int64) {
		body, _ := io.ReadAll(request.Body)
		if len(body) != 4 {
			t.Errorf("attempt %d has %d bytes of tokens", number, len(body))
		}
		if number < 3 {
			response.WriteHeader(503)
		}
		io.WriteString(response, noMatches)
	})
	check(t, query(New(url, WithDeadline(patience))))
	equal(t, asked.Load(), 3)
}

func TestAttemptsAreCountedAndTheLastAnswerIsReturned(t *testing.T) {
	url, asked := fake(t, always(429, `{"error": "slower"}`))
	refusedWith(t, query(New(url, WithDeadline(patience), WithAttempts(2))), 429, "slower")
	equal(t, asked.Load(), 2)
}

func TestARetryAfterTheDeadlineIsNotWaitedFor(t *testing.T) {
	url, asked := fake(t, always(503, `{"error": "later"}`, "Retry-After", "60"))
	refusedWith(t, query(New(url, WithDeadline(patience))), 503, "later")
	equal(t, asked.Load(), 1)
}

func TestOtherErrorsAreNotTriedAgain(t *testing.T) {
	url, asked := fake(t, always(500, "<html>"))
	refusedWith(t, query(New(url, WithDeadline(patience))), 500, "<html>")
	equal(t, asked.Load(), 1)
	url, asked = fake(t, always(302, "elsewhere", "Location", "/elsewhere"))
	refusedWith(t, query(New(url)), 302, "elsewhere")
	equal(t, asked.Load(), 1)
}

func TestASilentServiceEndsAtTheDeadline(t *testing.T) {
	release := make(chan struct{})
	url, asked := fake(t, func(http.ResponseWriter, *http.Request, int64) { <-release })
	// Runs before the server is closed: the close waits for the handler.
	t.Cleanup(func() { close(release) })
	if err := query(New(url, WithDeadline(200*time.Millisecond))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expected the deadline, got %v", err)
	}
	equal(t, asked.Load(), 1)

	ended, end := context.WithCancel(ctx())
	end()
	if _, err := New(url).Ready(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("expected the end of the context, got %v", err)
	}
}

func TestAServiceThatIsNotThereIsAConnectionError(t *testing.T) {
	var failed *ConnectionError
	if err := query(New("http://127.0.0.1:1", WithDeadline(patience))); !errors.As(err, &failed) {
		t.Errorf("expected a failed connection, got %v", err)
	}
	if err := New("http://127.0.0.1:1").Dump(ctx(), Filter{}, nil); !errors.As(err, &failed) {
		t.Errorf("expected a failed connection, got %v", err)
	}
}

func TestATextThatIsNoURLOfHTTPIsAnErrorOfItsOwn(t *testing.T) {
	for _, wrong := range []string{"localhost:8090", "localhost", "", "http://", "http:localhost:8090", "ftp://a", "http://["} {
		var failed *URLError
		if err := query(New(wrong)); !errors.As(err, &failed) || !strings.Contains(err.Error(), "such as http://127.0.0.1:8090") {
			t.Errorf("%q: expected a wrong URL, got %v", wrong, err)
		}
		if err := New(wrong).Dump(ctx(), Filter{}, nil); !errors.As(err, &failed) {
			t.Errorf("%q: expected a wrong URL, got %v", wrong, err)
		}
	}
}

func TestADumpThatIsCutOffOrStandsStillIsAnError(t *testing.T) {
	lines := 0
	count := func(json.RawMessage) error { lines++; return nil }
	line := `{"rank": {"instance_id": 1}}` + "\n"
	url, _ := fake(t, always(200, line))
	if err := New(url).Dump(ctx(), Filter{}, count); err != ErrDumpCutOff || lines != 1 {
		t.Errorf("expected a dump that is cut off after 1 line, got %v after %d", err, lines)
	}
	url, _ = fake(t, always(200, line+`{"ra`))
	if err := New(url).Dump(ctx(), Filter{}, count); !errors.Is(err, ErrDumpCutOff) {
		t.Errorf("expected a dump that is cut off, got %v", err)
	}
	url, _ = fake(t, always(503, `{"error": "this indexer is recovering"}`))
	refusedWith(t, New(url).Dump(ctx(), Filter{}, count), 503, "recovering")

	release := make(chan struct{})
	url, _ = fake(t, func(response http.ResponseWriter, _ *http.Request, _ int64) {
		io.WriteString(response, line)
		response.(http.Flusher).Flush()
		<-release
	})
	t.Cleanup(func() { close(release) })
	if err := New(url, WithDeadline(200*time.Millisecond)).Dump(ctx(), Filter{}, count); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("expected the deadline, got %v", err)
	}
}

func TestReadinessIsAnAnswerOnceAndOtherErrorsAreNot(t *testing.T) {
	url, asked := fake(t, always(503, `{"status": "starting"}`))
	readiness, err := New(url).Ready(ctx())
	check(t, err)
	equal(t, readiness.Ready, false)
	equal(t, asked.Load(), 1)
	url, _ = fake(t, always(404, `{"error": "elsewhere"}`))
	_, err = New(url).Ready(ctx())
	refusedWith(t, err, 404, "elsewhere")
}

// The request of a call.
type sent struct {
	path, query, body, contentType, token string
}

func TestRequestsHaveTheFieldsOfTheAPI(t *testing.T) {
	var last sent
	url, _ := fake(t, func(response http.ResponseWriter, request *http.Request, _ int64) {
		body, _ := io.ReadAll(request.Body)
		header := request.Header
		last = sent{request.URL.Path, request.URL.RawQuery, string(body), header.Get("Content-Type"), header.Get("Authorization")}
		io.WriteString(response, `{}`)
	})
	const binary, text = "application/octet-stream", "application/json"
	client := New(url+"/", WithToken("secret"))
	prompt := PromptOptions{TenantID: "t", LoraName: "l", CacheSalt: "a&b"}
	rank := 3
	seed, none := ^uint64(0), 0.0
	for _, call := range []struct {
		make     func() error
		expected sent
	}{
		{func() error {
			_, err := client.Query(ctx(), "m/é", []uint32{1}, QueryOptions{prompt, 3, 2, "7"})
			return err
		}, sent{"/query", "after=7&cache_salt=a%26b&lora_name=l&min_score=2&model_name=m%2F%C3%A9&tenant_id=t&top_k=3", "\x01\x00\x00\x00", binary, ""}},
		{func() error {
			_, err := client.QueryByHash(ctx(), "m", []uint64{1 << 63}, HashQueryOptions{TopK: 1})
			return err
		}, sent{"/query_by_hash", "model_name=m&top_k=1", "\x00\x00\x00\x00\x00\x00\x00\x80", binary, ""}},
		{func() error {
			_, err := client.Score(ctx(), "m", Tokens{1}, ScoreOptions{Pods: []string{"a", "b"}, TruncatePromptTokens: -1})
			return err
		}, sent{"/score_completions", "detail=true&model_name=m&pods=a&pods=b&truncate_prompt_tokens=-1", "\x01\x00\x00\x00", binary, ""}},
		{func() error {
			_, err := client.Score(ctx(), "m", Text("hi"), ScoreOptions{prompt, []string{"a"}, 2, 9})
			return err
		}, sent{"/score_completions", "", `{"cache_salt":"a\u0026b","detail":true,"lora_name":"l","model_name":"m","pods":["a"],"prompt":"hi","tenant_id":"t","top_k":2,"truncate_prompt_tokens":9}`, text, ""}},
		{func() error {
			_, err := client.ScoreChat(ctx(), Chat(`{"model": "m", "seed": 12345678901234567890}`), ScoreOptions{})
			return err
		}, sent{"/score_chat_completions", "", `{"detail":true,"model":"m","seed":12345678901234567890}`, text, ""}},
		{func() error {
			_, err := client.Predict(ctx(), "m", "a", Tokens{1}, PredictOptions{TTL: time.Second})
			return err
		}, sent{"/predict", "model_name=m&pod=a&ttl_ms=1000", "\x01\x00\x00\x00", binary, ""}},
		{func() error {
			_, err := client.Predict(ctx(), "m", "a", Chat(`{"model": "other"}`), PredictOptions{TTL: time.Second})
			return err
		}, sent{"/predict", "", `{"model_name":"m","pod":"a","ttl_ms":1000}`, text, ""}},
		{func() error {
			_, err := client.Predict(ctx(), "m", "a", Tokens{1}, PredictOptions{RequestID: "r"})
			return err
		}, sent{"/predict", "model_name=m&pod=a&request_id=r", "\x01\x00\x00\x00", binary, ""}},
		{func() error {
			_, err := client.Pick(ctx(), "m", Tokens{1}, PickOptions{RequestID: "r"})
			return err
		}, sent{"/pick", "", `{"model_name":"m","request_id":"r","token_ids":[1]}`, text, ""}},
		{func() error {
			_, err := client.Pick(ctx(), "m", Text("hi"), PickOptions{prompt, []string{"a"}, 9, "r", 0.5, &seed, &none, &none, &none, true})
			return err
		}, sent{"/pick", "", `{"active_weight":0,"cache_salt":"a\u0026b","detail":true,"lora_name":"l","model_name":"m","pick_seed":18446744073709551615,"pick_temperature":0.5,"pods":["a"],"prefill_weight":0,"prompt":"hi","request_id":"r","request_weight":0,"tenant_id":"t","truncate_prompt_tokens":9}`, text, ""}},
		{func() error {
			_, err := client.Pick(ctx(), "m", Chat(`{"model": "other", "temperature": 1}`), PickOptions{})
			return err
		}, sent{"/pick", "", `{"model_name":"m","temperature":1}`, text, ""}},
		{func() error {
			return client.Done(ctx(), "m", "r", DoneOptions{})
		}, sent{"/done", "", `{"model_name":"m","request_id":"r"}`, text, ""}},
		{func() error {
			return client.Done(ctx(), "m", "r", DoneOptions{TenantID: "t", Phase: Prefill})
		}, sent{"/done", "", `{"model_name":"m","phase":"prefill","request_id":"r","tenant_id":"t"}`, text, ""}},
		{func() error {
			_, err := client.Explain(ctx(), "m", nil, "a", PromptOptions{})
			return err
		}, sent{"/explain", "instance_id=a&model_name=m", "", binary, ""}},
		{func() error {
			_, err := client.Tokenize(ctx(), "m", Text("hi"))
			return err
		}, sent{"/tokenize", "", `{"model_name":"m","prompt":"hi"}`, text, ""}},
		{func() error {
			return client.Register(ctx(), Registration{InstanceID: "a", Endpoint: "tcp://e:1", Model: "m", BlockSize: 16, DPRank: 1, Engine: "vllm"})
		}, sent{"/register", "", `{"instance_id":"a","endpoint":"tcp://e:1","model_name":"m","block_size":16,"dp_rank":1,"engine":"vllm"}`, text, ""}},
		{func() error {
			return client.Register(ctx(), Registration{IntegerID: &seed, Endpoint: "none", Model: "m", BlockSize: 16})
		}, sent{"/register", "", `{"instance_id":18446744073709551615,"endpoint":"none","model_name":"m","block_size":16}`, text, ""}},
		{func() error {
			return client.Unregister(ctx(), "a", "m", UnregisterOptions{"t", &rank})
		}, sent{"/unregister", "", `{"instance_id":"a","model_name":"m","tenant_id":"t","dp_rank":3}`, text, ""}},
	} {
		check(t, call.make())
		call.expected.token = "Bearer secret"
		equal(t, last, call.expected)
	}
}
