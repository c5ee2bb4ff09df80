package flashindexer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Dump reads every held block, line by line. The function gets each line, valid until it returns; its error ends the
// dump. The client's deadline is the longest time without a line, and the context's deadline is for the whole dump.
func (client *Client) Dump(ctx context.Context, filter Filter, line func(json.RawMessage) error) error {
	if err := client.check(); err != nil {
		return err
	}
	parent := ctx
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	silence := time.AfterFunc(client.deadline, cancel)
	defer silence.Stop()
	request := call{method: http.MethodGet, path: "/dump", params: filter.params(), accept: "application/x-ndjson"}
	answer, err := client.open(ctx, request)
	if err != nil {
		return client.dumpError(parent, ctx, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode >= 300 {
		body, _ := io.ReadAll(answer.Body)
		return errorOf(answer.StatusCode, body)
	}
	lines := bufio.NewReader(answer.Body)
	isWhole := false
	for {
		silence.Reset(client.deadline)
		text, err := lines.ReadBytes('\n')
		silence.Stop()
		if text = bytes.TrimSpace(text); len(text) > 0 {
			var record struct{ End json.RawMessage }
			if err := json.Unmarshal(text, &record); err != nil {
				return fmt.Errorf("%w (%v)", ErrDumpCutOff, err)
			}
			isWhole = record.End != nil
			if err := line(text); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && isWhole:
			return nil
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return ErrDumpCutOff
		case err != nil:
			return client.dumpError(parent, ctx, err)
		}
	}
}

func (client *Client) dumpError(parent, ctx context.Context, err error) error {
	switch {
	case parent.Err() != nil:
		return parent.Err()
	case ctx.Err() != nil:
		return fmt.Errorf("the dump stood still for %v; raise the deadline: %w", client.deadline, context.DeadlineExceeded)
	default:
		return &ConnectionError{client.url, err}
	}
}
