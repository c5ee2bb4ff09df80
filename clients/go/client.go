package flashindexer

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Client calls a service, from any number of goroutines.
//
// Each call ends within the deadline (2 s) or that of its context, whichever is earlier, with up to 3 attempts: a
// connection that fails and an answer of 429 or 503 are tried again, after the service's Retry-After or a growing pause.
// All calls can be repeated without harm.
//
// A call fails with an [*APIError] for a refused request, a [*ConnectionError], a [*URLError], [ErrInvalidToken], or an error
// that wraps the context's error.
type Client struct {
	url            string
	token          string
	isTokenInvalid bool
	deadline       time.Duration
	attempts       int
	http           *http.Client
}

// Option is a setting of a client.
type Option func(*Client)

// WithToken sends a bearer token, without the white space around it, as a file has it. An empty one is not sent. With a token
// that a header cannot contain, each call fails with [ErrInvalidToken].
func WithToken(token string) Option {
	return func(client *Client) {
		client.token = strings.TrimSpace(token)
		client.isTokenInvalid = token != "" && !isHeaderToken(client.token)
	}
}

func isHeaderToken(token string) bool {
	return token != "" && strings.IndexFunc(token, func(character rune) bool { return character < '!' || character > '~' }) < 0
}

// WithDeadline sets the time within which each call ends.
func WithDeadline(deadline time.Duration) Option {
	return func(client *Client) { client.deadline = deadline }
}

// WithAttempts sets the number of attempts of a call.
func WithAttempts(attempts int) Option { return func(client *Client) { client.attempts = attempts } }

// WithHTTPClient sets the HTTP client, for example one with certificates. By default redirects are not followed and
// proxies of the environment not used.
func WithHTTPClient(client *http.Client) Option {
	return func(made *Client) { made.http = client }
}

// New returns a client of the service at a URL such as http://127.0.0.1:8090. With another text, each call fails with a [*URLError].
func New(url string, options ...Option) *Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConnsPerHost = 32
	client := &Client{
		url:      strings.TrimRight(url, "/"),
		deadline: 2 * time.Second,
		attempts: 3,
		http: &http.Client{
			Transport:     transport,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	for _, option := range options {
		option(client)
	}
	return client
}

// Register registers a rank of an instance. Repeating it changes nothing.
func (client *Client) Register(ctx context.Context, registration Registration) error {
	body := struct {
		InstanceID any `json:"instance_id"`
		Registration
	}{registration.InstanceID, registration}
	if registration.IntegerID != nil {
		if registration.InstanceID != "" {
			return fmt.Errorf("InstanceID is %q and IntegerID is %d: give one of them", registration.InstanceID, *registration.IntegerID)
		}
		body.InstanceID = *registration.IntegerID
	}
	return client.send(ctx, call{path: "/register", body: body})
}

// Unregister unregisters an instance, or one of its ranks. An integer id is given in decimal.
func (client *Client) Unregister(ctx context.Context, instanceID, model string, options UnregisterOptions) error {
	body := struct {
		InstanceID string `json:"instance_id"`
		Model      string `json:"model_name"`
		UnregisterOptions
	}{instanceID, model, options}
	return client.send(ctx, call{path: "/unregister", body: body})
}

// Query returns the prefix of these tokens that each instance holds. With an outdated After it fails with an error that
// [IsUnknownCursor] recognises.
func (client *Client) Query(ctx context.Context, model string, tokens []uint32, options QueryOptions) (*Matches, error) {
	return client.query(ctx, model, tokenBytes(tokens), options)
}

func (client *Client) query(ctx context.Context, model string, tokens []byte, options QueryOptions) (*Matches, error) {
	params := options.PromptOptions.params(model)
	addQuery(params, options.TopK, options.MinScore, options.After)
	return ask[Matches](ctx, client, call{path: "/query", params: params, content: tokens})
}

// QueryByHash is Query for local hashes: see [LocalHashes].
func (client *Client) QueryByHash(ctx context.Context, model string, hashes []uint64, options HashQueryOptions) (*Matches, error) {
	params := PromptOptions{TenantID: options.TenantID}.params(model)
	addQuery(params, options.TopK, options.MinScore, options.After)
	return ask[Matches](ctx, client, call{path: "/query_by_hash", params: params, content: hashBytes(hashes)})
}

// Conversation returns a session whose turns repeat the prompts before them.
func (client *Client) Conversation(model string, options PromptOptions) *Conversation {
	return &Conversation{client: client, model: model, options: options}
}

// Score returns scores of the pods that hold a part of the prompt: [Tokens] or [Text].
func (client *Client) Score(ctx context.Context, model string, prompt Prompt, options ScoreOptions) (*Scores, error) {
	if tokens, ok := prompt.(Tokens); ok {
		params := options.params(model)
		return ask[Scores](ctx, client, call{path: "/score_completions", params: params, content: tokenBytes(tokens)})
	}
	body, err := bodyOf(prompt, model)
	if err != nil {
		return nil, err
	}
	options.addTo(body)
	return ask[Scores](ctx, client, call{path: prompt.scorePath(), body: body})
}

// ScoreChat is Score for an OpenAI chat request, which is sent unchanged and has its model.
func (client *Client) ScoreChat(ctx context.Context, request Chat, options ScoreOptions) (*Scores, error) {
	return client.Score(ctx, "", request, options)
}

// Predict reports the pod that gets a prompt: [Tokens], [Text] or [Chat]. Later scores count it.
func (client *Client) Predict(ctx context.Context, model, pod string, prompt Prompt, options PredictOptions) (*Prediction, error) {
	if tokens, ok := prompt.(Tokens); ok {
		params := options.PromptOptions.params(model)
		params.Set("pod", pod)
		setNonZero(params, "ttl_ms", int(options.TTL.Milliseconds()))
		if options.RequestID != "" {
			params.Set("request_id", options.RequestID)
		}
		return ask[Prediction](ctx, client, call{path: "/predict", params: params, content: tokenBytes(tokens)})
	}
	body, err := bodyOf(prompt, model)
	if err != nil {
		return nil, err
	}
	body["pod"] = pod
	options.PromptOptions.addTo(body)
	if options.TTL > 0 {
		body["ttl_ms"] = options.TTL.Milliseconds()
	}
	if options.RequestID != "" {
		body["request_id"] = options.RequestID
	}
	return ask[Prediction](ctx, client, call{path: "/predict", body: body})
}

// Pick asks which pod gets a prompt: [Tokens], [Text] or [Chat].
func (client *Client) Pick(ctx context.Context, model string, prompt Prompt, options PickOptions) (*Picked, error) {
	body, err := bodyOf(prompt, model)
	if err != nil {
		return nil, err
	}
	options.addTo(body)
	return ask[Picked](ctx, client, call{path: "/pick", body: body})
}

// Done reports that a request that Pick or Predict named has ended, or its prefill.
func (client *Client) Done(ctx context.Context, model, requestID string, options DoneOptions) error {
	body := map[string]any{"model_name": model, "request_id": requestID}
	if options.TenantID != "" {
		body["tenant_id"] = options.TenantID
	}
	if options.Phase != "" {
		body["phase"] = options.Phase
	}
	if options.Hits != nil {
		body["prompt_tokens"] = options.Hits.PromptTokens
		body["cached_tokens"] = options.Hits.CachedTokens
	}
	return client.send(ctx, call{path: "/done", body: body})
}

// Explain returns where each rank's match ends, and why; for one instance if it is not empty.
func (client *Client) Explain(ctx context.Context, model string, tokens []uint32, instanceID string, options PromptOptions) (*Explanation, error) {
	params := options.params(model)
	if instanceID != "" {
		params.Set("instance_id", instanceID)
	}
	return ask[Explanation](ctx, client, call{path: "/explain", params: params, content: tokenBytes(tokens)})
}

// Tokenize returns the tokens that scores of a text or a chat are computed for.
func (client *Client) Tokenize(ctx context.Context, model string, prompt Prompt) ([]uint32, error) {
	body, err := bodyOf(prompt, model)
	if err != nil {
		return nil, err
	}
	answer, err := ask[struct{ Tokens []uint32 }](ctx, client, call{path: "/tokenize", body: body})
	if err != nil {
		return nil, err
	}
	return answer.Tokens, nil
}

// Workers returns the registered instances and their listeners, of all models and tenants or of these.
func (client *Client) Workers(ctx context.Context, filter Filter) ([]Worker, error) {
	workers, err := ask[[]Worker](ctx, client, call{method: http.MethodGet, path: "/workers", params: filter.params()})
	if err != nil {
		return nil, err
	}
	return *workers, nil
}

// Ready returns whether the service is ready to answer. A service that is not ready is an answer, not an error.
func (client *Client) Ready(ctx context.Context) (*Readiness, error) {
	var readiness Readiness
	var status int
	request := call{method: http.MethodGet, path: "/ready", answer: &readiness.Answer, status: &status}
	if err := client.send(ctx, request); err != nil {
		return nil, err
	}
	readiness.Ready = status == http.StatusOK
	return &readiness, nil
}

// Makes a call whose answer has a type.
func ask[Answer any](ctx context.Context, client *Client, request call) (*Answer, error) {
	var answer Answer
	request.answer = &answer
	if err := client.send(ctx, request); err != nil {
		return nil, err
	}
	return &answer, nil
}

func addQuery(params url.Values, topK, minScore int, after string) {
	setNonZero(params, "top_k", topK)
	setNonZero(params, "min_score", minScore)
	if after != "" {
		params.Set("after", after)
	}
}

func setNonZero(params url.Values, name string, value int) {
	if value != 0 {
		params.Set(name, strconv.Itoa(value))
	}
}
