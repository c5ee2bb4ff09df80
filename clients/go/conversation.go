package flashindexer

import (
	"bytes"
	"context"
)

// Conversation is a session, for one goroutine at a time: each prompt repeats the one before it, and only its new tokens
// are sent. Answers are those of [Client.Query] for the whole prompt.
//
// It keeps four bytes for each token that a cursor covers. A cursor that the service no longer has costs a second
// request with the whole prompt.
type Conversation struct {
	client  *Client
	model   string
	options PromptOptions
	cursor  string
	covered []byte
}

// CoveredTokens returns the number of tokens that need not be sent again if the next prompt begins with them.
func (session *Conversation) CoveredTokens() int { return len(session.covered) / 4 }

// Query returns the matches of a turn's whole prompt.
func (session *Conversation) Query(ctx context.Context, tokens []uint32) (*Matches, error) {
	prompt := tokenBytes(tokens)
	if !bytes.HasPrefix(prompt, session.covered) {
		session.forget()
	}
	matches, err := session.ask(ctx, prompt)
	if IsUnknownCursor(err) {
		session.forget()
		matches, err = session.ask(ctx, prompt)
	}
	if err == nil && matches.Cursor != "" {
		session.cursor, session.covered = matches.Cursor, prompt[:4*matches.CursorTokens]
	}
	return matches, err
}

func (session *Conversation) ask(ctx context.Context, prompt []byte) (*Matches, error) {
	options := QueryOptions{PromptOptions: session.options, After: session.cursor}
	return session.client.query(ctx, session.model, prompt[len(session.covered):], options)
}

func (session *Conversation) forget() { session.cursor, session.covered = "", nil }
