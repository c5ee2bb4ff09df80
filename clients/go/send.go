package flashindexer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	firstPause = 20 * time.Millisecond
	pauseMax   = time.Second
)

// A request, and the destination of its decoded answer.
type call struct {
	// POST if empty.
	method string
	path   string
	params url.Values
	// The body: JSON of this value, or else these bytes.
	body    any
	content []byte
	accept  string
	answer  any
	// Destination of the status of a call for which 503 is an answer. Such a call is attempted once.
	status *int
}

// Makes the attempts of a call, all before its deadline.
func (client *Client) send(ctx context.Context, call call) error {
	if err := client.check(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, client.deadline)
	defer cancel()
	if call.body != nil {
		var err error
		if call.content, err = json.Marshal(call.body); err != nil {
			return fmt.Errorf("failed to encode the request for %s: %w", call.path, err)
		}
	}
	pause := firstPause
	for attempt := 1; ; attempt++ {
		answer, body, err := client.attempt(ctx, call)
		if err != nil && ctx.Err() != nil {
			return unanswered(ctx, call)
		}
		isLast := attempt >= client.attempts || call.status != nil
		wait := time.Duration((0.5 + rand.Float64()/2) * float64(pause))
		switch {
		case err != nil && isLast:
			return &ConnectionError{client.url, err}
		case err != nil:
		case isRefusedForNow(answer.StatusCode) && !isLast:
			if seconds, err := strconv.ParseUint(answer.Header.Get("Retry-After"), 10, 31); err == nil {
				wait = later(wait, time.Duration(seconds)*time.Second)
			}
		default:
			return call.decode(answer.StatusCode, body)
		}
		// The client does not wait for a pause that ends after the deadline: it returns the last result.
		if end, ok := ctx.Deadline(); ok && time.Now().Add(wait).After(end) {
			if err != nil {
				return &ConnectionError{client.url, err}
			}
			return call.decode(answer.StatusCode, body)
		}
		pause = earlier(2*pause, pauseMax)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return unanswered(ctx, call)
		}
	}
}

// Returns an error if no call can be sent with the settings of the client.
func (client *Client) check() error {
	parsed, err := url.Parse(client.url)
	if err != nil || parsed.Host == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return &URLError{client.url}
	}
	if client.isTokenInvalid {
		return ErrInvalidToken
	}
	return nil
}

func unanswered(ctx context.Context, call call) error {
	return fmt.Errorf("failed to get an answer of %s: %w; raise the deadline, or ask /ready for the cause", call.path, ctx.Err())
}

func (client *Client) attempt(ctx context.Context, call call) (*http.Response, []byte, error) {
	answer, err := client.open(ctx, call)
	if err != nil {
		return nil, nil, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return answer, body, err
}

// Sends a request and returns the answer, whose body is not read yet.
func (client *Client) open(ctx context.Context, call call) (*http.Response, error) {
	address := client.url + call.path
	if len(call.params) > 0 {
		address += "?" + call.params.Encode()
	}
	method := call.method
	if method == "" {
		method = http.MethodPost
	}
	request, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(call.content))
	if err != nil {
		return nil, err
	}
	switch {
	case call.body != nil:
		request.Header.Set("Content-Type", "application/json")
	case method == http.MethodPost:
		request.Header.Set("Content-Type", "application/octet-stream")
	}
	if call.accept != "" {
		request.Header.Set("Accept", call.accept)
	}
	if client.token != "" {
		request.Header.Set("Authorization", "Bearer "+client.token)
	}
	answer, err := client.http.Do(request)
	var failed *url.Error
	if errors.As(err, &failed) {
		// Its text has the URL, which contains names of models and tenants.
		err = failed.Err
	}
	return answer, err
}

func (call call) decode(status int, body []byte) error {
	if status >= 300 && (call.status == nil || status != http.StatusServiceUnavailable) {
		return errorOf(status, body)
	}
	if call.status != nil {
		*call.status = status
	}
	if call.answer == nil {
		return nil
	}
	if err := json.Unmarshal(body, call.answer); err != nil {
		return fmt.Errorf("failed to decode the answer of %s: %w; check that the URL is Flash Indexer's", call.path, err)
	}
	return nil
}

func isRefusedForNow(status int) bool {
	return status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
}

func later(a, b time.Duration) time.Duration {
	if a > b {
		return a
	}
	return b
}

func earlier(a, b time.Duration) time.Duration {
	if a < b {
		return a
	}
	return b
}
