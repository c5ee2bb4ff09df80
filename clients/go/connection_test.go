package flashindexer

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestATokenFromAFileIsSentWithoutItsLastLineBreak(t *testing.T) {
	var token string
	url, _ := fake(t, func(response http.ResponseWriter, request *http.Request, _ int64) {
		token = request.Header.Get("Authorization")
		io.WriteString(response, noMatches)
	})
	check(t, query(New(url, WithToken("fidx_1\n"))))
	equal(t, token, "Bearer fidx_1")
	check(t, query(New(url, WithToken(""))))
	equal(t, token, "")
}

func TestATokenThatCannotBeSentIsAnErrorOfItsOwn(t *testing.T) {
	url, asked := fake(t, always(200, noMatches))
	for _, token := range []string{" ", "\n", "fidx_secret\nx", "fidx_secret\u00e9", "fidx secret"} {
		client := New(url, WithToken(token))
		for _, err := range []error{query(client), client.Dump(ctx(), Filter{}, nil)} {
			if err != ErrInvalidToken {
				t.Errorf("%q: expected an invalid token, got %v", token, err)
			}
		}
	}
	equal(t, asked.Load(), 0)
}

// An address at which each connection is answered with these bytes, regardless of the request.
func answeringBytes(t *testing.T, answer string) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return
			}
			connection.Read(make([]byte, 4096))
			io.WriteString(connection, answer)
			connection.Close()
		}
	}()
	return listener.Addr().String()
}

func TestAFailedConnectionSaysWhatToDo(t *testing.T) {
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	otherHost := secure.Client()
	otherHost.Transport.(*http.Transport).TLSClientConfig.ServerName = "gpu-9"
	unresolved := func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.DNSError{Err: "no such host", Name: "gpu-9", IsNotFound: true}
	}
	const authority = "give WithHTTPClient a client with the authority of the service's certificate"
	for _, failing := range []struct {
		url    string
		remedy string
		option Option
	}{
		{"https://" + answeringBytes(t, "HTTP/1.1 400 Bad Request\r\n\r\n"), "give an http:// URL", WithAttempts(1)},
		{"https://" + answeringBytes(t, "+PONG\r\n"), "give an http:// URL", WithAttempts(1)},
		{"http://" + answeringBytes(t, "\x15\x03\x03\x00\x02\x02\x46"), "give an https:// URL", WithAttempts(1)},
		{"http://" + answeringBytes(t, ""), "give an https:// URL", WithAttempts(1)},
		{secure.URL, authority, WithAttempts(1)},
		{secure.URL, authority, WithHTTPClient(otherHost)},
		{"http://gpu-9:8090", `the host "gpu-9" cannot be resolved`, WithHTTPClient(&http.Client{Transport: &http.Transport{DialContext: unresolved}})},
		{"http://127.0.0.1:1", "check that the service runs", WithAttempts(1)},
	} {
		err := query(New(failing.url, WithDeadline(patience), failing.option))
		var failed *ConnectionError
		if !errors.As(err, &failed) || !strings.Contains(err.Error(), failing.remedy) {
			t.Errorf("expected %s, got %v", failing.remedy, err)
		}
	}
}
