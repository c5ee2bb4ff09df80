package flashindexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// ErrDumpCutOff is the error of a dump that ended without its last line. What was read is incomplete.
var ErrDumpCutOff = errors.New("the dump has no last line: the service or the connection ended; read it again")

// APIError is a request that the service refused. Its text says what to do.
type APIError struct {
	// Status is the HTTP status.
	Status  int
	Message string
}

func (failed *APIError) Error() string { return fmt.Sprintf("%d: %s", failed.Status, failed.Message) }

// ConnectionError is a service that could not be reached, or closed the connection, in every attempt.
type ConnectionError struct {
	URL string
	Err error
}

func (failed *ConnectionError) Error() string {
	return fmt.Sprintf("failed to reach %s: %v; is it running?", failed.URL, failed.Err)
}

func (failed *ConnectionError) Unwrap() error { return failed.Err }

// URLError is a text that is no URL of HTTP, given to [New].
type URLError struct{ URL string }

func (wrong *URLError) Error() string {
	return fmt.Sprintf("%q is no URL of a service; give one such as http://127.0.0.1:8090", wrong.URL)
}

// IsUnknownCursor returns whether no engine of the service holds the prefix of a cursor. The caller then sends the whole
// prompt.
func IsUnknownCursor(err error) bool {
	var refused *APIError
	return errors.As(err, &refused) && refused.Status == http.StatusConflict && strings.Contains(refused.Message, "unknown cursor")
}

func errorOf(status int, body []byte) *APIError {
	var answer struct{ Error string }
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error == "" {
		answer.Error = string(body[:min(len(body), 200)])
	}
	return &APIError{status, answer.Error}
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}
