package flashindexer

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// ErrDumpCutOff is the error of a dump that ended without its last line. The data read so far is incomplete.
var ErrDumpCutOff = errors.New("the dump has no last line: the service or the connection ended; read it again")

// ErrInvalidToken is the error of a token that cannot be sent, given to [WithToken]. It does not show the token.
var ErrInvalidToken = errors.New("the token is empty or has a character that a header cannot have; give another one")

// APIError is a request that the service refused. Its text contains the remedy.
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
	return fmt.Sprintf("failed to reach %s: %v; %s", failed.URL, failed.Err, failed.remedy())
}

// Remedy for the failed connection. Package net/http returns some causes as text.
func (failed *ConnectionError) remedy() string {
	var (
		unresolved     *net.DNSError
		noTLS          tls.RecordHeaderError
		otherAuthority x509.UnknownAuthorityError
		otherHost      x509.HostnameError
		outdated       x509.CertificateInvalidError
		text           = fmt.Sprint(failed.Err)
	)
	switch {
	case errors.As(failed.Err, &unresolved):
		return fmt.Sprintf("the host %q cannot be resolved: check the URL and the DNS", unresolved.Name)
	case errors.As(failed.Err, &otherAuthority), errors.As(failed.Err, &otherHost), errors.As(failed.Err, &outdated):
		return "give WithHTTPClient a client with the authority of the service's certificate, and a URL with a host that the certificate names"
	case errors.As(failed.Err, &noTLS), strings.Contains(text, "HTTP response to HTTPS client"):
		return "if this port has no TLS, give an http:// URL"
	case strings.HasPrefix(failed.URL, "http:") && (errors.Is(failed.Err, io.EOF) || strings.Contains(text, "malformed HTTP")):
		return "is it a Flash Indexer? If this port has TLS, give an https:// URL"
	}
	return "check that the service runs"
}

func (failed *ConnectionError) Unwrap() error { return failed.Err }

// URLError is a text passed to [New] that is not an HTTP URL.
type URLError struct{ URL string }

func (wrong *URLError) Error() string {
	return fmt.Sprintf("invalid service URL %q; give one such as http://127.0.0.1:8090", wrong.URL)
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
