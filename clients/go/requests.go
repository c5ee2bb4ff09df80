package flashindexer

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// PromptOptions are the names under which a prompt's blocks are looked up. Empty ones are left out.
type PromptOptions struct {
	TenantID  string
	LoraName  string
	CacheSalt string
}

// QueryOptions are options of a query.
type QueryOptions struct {
	PromptOptions
	// TopK keeps the ranks with the deepest matches.
	TopK int
	// MinScore keeps ranks with at least this number of tokens.
	MinScore int
	// After is the cursor of an earlier answer: the tokens are then the tokens after the covered ones.
	After string
}

// HashQueryOptions are options of a query by hash. Local hashes include adapter and salt.
type HashQueryOptions struct {
	TenantID string
	TopK     int
	MinScore int
	After    string
}

// ScoreOptions are options of a score.
type ScoreOptions struct {
	PromptOptions
	// Pods limits the scores to these pods.
	Pods                 []string
	TopK                 int
	TruncatePromptTokens int
}

// PredictOptions are options of a prediction.
type PredictOptions struct {
	PromptOptions
	// TTL is the time for which the prediction is used; the service's default if zero.
	TTL time.Duration
	// RequestID is the router's name of the request, which is in flight until Done; if empty, no request is recorded.
	RequestID string
}

// PickOptions are options of a pick.
type PickOptions struct {
	PromptOptions
	// Pods limits the choice to these pods.
	Pods                 []string
	TruncatePromptTokens int
	// RequestID is the router's name of the request, which is in flight until Done; if empty, no request is recorded.
	RequestID string
	// Temperature is the randomness of the choice: zero picks the lowest cost.
	Temperature float64
	// Seed repeats a choice; a random one if nil.
	Seed *uint64
	// PrefillWeight, ActiveWeight and RequestWeight are the weights of the cost's terms; the service's defaults if nil.
	PrefillWeight *float64
	ActiveWeight  *float64
	RequestWeight *float64
	// Detail asks for all candidates.
	Detail bool
}

// RequestPhase is a part of a request.
type RequestPhase string

// Phases of requests.
const (
	// Prefill ends with the first token.
	Prefill RequestPhase = "prefill"
	// Finished is the end of the whole request.
	Finished RequestPhase = "finished"
)

// DoneOptions are options of Done.
type DoneOptions struct {
	TenantID string
	// Phase is the part that has ended; Finished if empty.
	Phase RequestPhase
	// Hits are reported with the end; none if nil.
	Hits *ReportedHits
}

// ReportedHits are the tokens of a prompt, and how many of them the engine had cached, from the usage in its answer.
type ReportedHits struct {
	PromptTokens int
	CachedTokens int
}

// Registration is a rank of an instance, which InstanceID or IntegerID names. The fields after BlockSize are optional.
// An engine of vLLM whose Endpoint is "vllm://host:port", the address of its gRPC server, needs no Model and no BlockSize.
type Registration struct {
	InstanceID     string `json:"instance_id"`
	Endpoint       string `json:"endpoint"`
	Model          string `json:"model_name,omitempty"`
	BlockSize      int    `json:"block_size,omitempty"`
	TenantID       string `json:"tenant_id,omitempty"`
	DPRank         int    `json:"dp_rank,omitempty"`
	ReplayEndpoint string `json:"replay_endpoint,omitempty"`
	LoraName       string `json:"lora_name,omitempty"`
	Engine         string `json:"engine,omitempty"`
	Removal        string `json:"removal,omitempty"`
	ExtraKeys      bool   `json:"extra_keys,omitempty"`
	// CacheBlocks is the size of the cache of an engine without events, whose Endpoint is "none".
	CacheBlocks int `json:"cache_blocks,omitempty"`
	// Kind is "node" or "pool" for a shared cache, whose InstanceID begins with the kind and a colon.
	Kind string `json:"kind,omitempty"`
	// SharedCaches are the shared caches from which the engine loads blocks.
	SharedCaches []string `json:"shared_caches,omitempty"`
	// IntegerID is an integer in place of InstanceID, as Dynamo's selection service needs it. Other calls take it in decimal.
	IntegerID *uint64 `json:"-"`
}

// UnregisterOptions select the ranks of an instance that are unregistered; all without options.
type UnregisterOptions struct {
	TenantID string `json:"tenant_id,omitempty"`
	DPRank   *int   `json:"dp_rank,omitempty"`
}

// Filter names a model and a tenant. Empty fields mean all.
type Filter struct {
	Model    string
	TenantID string
}

// Prompt is [Tokens], [Text] or [Chat].
type Prompt interface {
	// The JSON request for this prompt.
	body(model string) (map[string]any, error)
	scorePath() string
}

// Tokens are the token ids of a prompt. They are sent in binary.
type Tokens []uint32

// Text is a prompt that the service tokenizes.
type Text string

// Chat is the JSON of an OpenAI chat request, which the service renders and tokenizes.
type Chat json.RawMessage

// The JSON request for a prompt that a caller gave.
func bodyOf(prompt Prompt, model string) (map[string]any, error) {
	if prompt == nil {
		return nil, errors.New("prompt is nil; give Tokens, Text or a Chat")
	}
	return prompt.body(model)
}

func (tokens Tokens) body(model string) (map[string]any, error) {
	return map[string]any{"model_name": model, "token_ids": []uint32(tokens)}, nil
}

func (text Text) body(model string) (map[string]any, error) {
	return map[string]any{"model_name": model, "prompt": string(text)}, nil
}

func (chat Chat) body(model string) (map[string]any, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(chat, &fields); err != nil {
		return nil, fmt.Errorf("failed to read the chat request: %w", err)
	}
	if fields == nil {
		return nil, errors.New("failed to read the chat request: it is not a JSON object")
	}
	body := make(map[string]any, len(fields)+4)
	for name, value := range fields {
		body[name] = value
	}
	if model != "" {
		body["model_name"] = model
		// A model under two names must have one value.
		delete(body, "model")
	}
	return body, nil
}

func (Tokens) scorePath() string { return "/score_completions" }
func (Text) scorePath() string   { return "/score_completions" }
func (Chat) scorePath() string   { return "/score_chat_completions" }

func (options PromptOptions) fields() map[string]string {
	return map[string]string{"tenant_id": options.TenantID, "lora_name": options.LoraName, "cache_salt": options.CacheSalt}
}

func (options PromptOptions) params(model string) url.Values {
	params := url.Values{"model_name": {model}}
	for name, value := range options.fields() {
		if value != "" {
			params.Set(name, value)
		}
	}
	return params
}

func (options PromptOptions) addTo(body map[string]any) {
	for name, value := range options.fields() {
		if value != "" {
			body[name] = value
		}
	}
}

func (options ScoreOptions) params(model string) url.Values {
	params := options.PromptOptions.params(model)
	params.Set("detail", "true")
	for _, pod := range options.Pods {
		params.Add("pods", pod)
	}
	setNonZero(params, "top_k", options.TopK)
	setNonZero(params, "truncate_prompt_tokens", options.TruncatePromptTokens)
	return params
}

func (options ScoreOptions) addTo(body map[string]any) {
	options.PromptOptions.addTo(body)
	body["detail"] = true
	if len(options.Pods) > 0 {
		body["pods"] = options.Pods
	}
	if options.TopK != 0 {
		body["top_k"] = options.TopK
	}
	if options.TruncatePromptTokens != 0 {
		body["truncate_prompt_tokens"] = options.TruncatePromptTokens
	}
}

func (options PickOptions) addTo(body map[string]any) {
	options.PromptOptions.addTo(body)
	if len(options.Pods) > 0 {
		body["pods"] = options.Pods
	}
	if options.TruncatePromptTokens != 0 {
		body["truncate_prompt_tokens"] = options.TruncatePromptTokens
	}
	if options.RequestID != "" {
		body["request_id"] = options.RequestID
	}
	if options.Temperature != 0 {
		body["pick_temperature"] = options.Temperature
	}
	if options.Seed != nil {
		body["pick_seed"] = *options.Seed
	}
	for name, weight := range map[string]*float64{
		"prefill_weight": options.PrefillWeight, "active_weight": options.ActiveWeight, "request_weight": options.RequestWeight,
	} {
		if weight != nil {
			body[name] = *weight
		}
	}
	if options.Detail {
		body["detail"] = true
	}
}

func (filter Filter) params() url.Values {
	params := url.Values{}
	if filter.Model != "" {
		params.Set("model_name", filter.Model)
	}
	if filter.TenantID != "" {
		params.Set("tenant_id", filter.TenantID)
	}
	return params
}

func hashBytes(hashes []uint64) []byte {
	bytes := make([]byte, 0, 8*len(hashes))
	for _, hash := range hashes {
		bytes = binary.LittleEndian.AppendUint64(bytes, hash)
	}
	return bytes
}
