package flashindexer

import (
	"bytes"
	"encoding/json"
)

// Trust is the reliability of a match: see the service's documentation of trust states.
type Trust string

// Trust states.
const (
	Exact       Trust = "exact"
	Cold        Trust = "cold"
	Recovering  Trust = "recovering"
	Degraded    Trust = "degraded"
	Approximate Trust = "approximate"
)

// InstanceMatch is the prefix that an instance holds, in tokens.
type InstanceMatch struct {
	// LongestMatched counts any tier.
	LongestMatched int `json:"longest_matched"`
	// GPU counts device memory; CPU host memory as well, and Disk disks as well.
	GPU  int `json:"gpu"`
	CPU  int `json:"cpu"`
	Disk int `json:"disk"`
	// DP counts device memory, by data-parallel rank.
	DP    map[string]int `json:"dp"`
	Trust Trust          `json:"trust"`
	// Partial: the index has evicted blocks of the instance, and its match may be too short.
	Partial bool `json:"partial"`
}

// Matches is the answer of a query.
type Matches struct {
	// Scores are tokens of the prefix in device memory, by instance and data-parallel rank.
	Scores    map[string]map[string]int `json:"scores"`
	Instances map[string]InstanceMatch  `json:"instances"`
	// TreeSizes are blocks that each rank holds.
	TreeSizes map[string]map[string]int `json:"tree_sizes"`
	// Frequencies are earlier queries that reached each leading block, if the service counts them.
	Frequencies []int `json:"frequencies"`
	// Cursor is the position at which a later query can continue the prompt; it covers the first CursorTokens tokens.
	Cursor       string `json:"cursor"`
	CursorTokens int    `json:"cursor_tokens"`
	// Store is "ok" or "unavailable" if the replicas share an index, else empty.
	Store string `json:"store"`
}

// Best returns the instance with the longest match in any tier, or "" if no instance holds a block of the prompt.
func (matches *Matches) Best() string {
	best, longest := "", 0
	for name, match := range matches.Instances {
		if match.LongestMatched > longest || match.LongestMatched == longest && longest > 0 && name > best {
			best, longest = name, match.LongestMatched
		}
	}
	return best
}

// PodScore is the score of one pod.
type PodScore struct {
	// Score is the sum of the weights of the prefix's blocks.
	Score           float64 `json:"score"`
	HeldBlocks      int     `json:"held_blocks"`
	PredictedBlocks int     `json:"predicted_blocks"`
	Trust           Trust   `json:"trust"`
	// Partial: the index has evicted blocks of the pod, and its score may be too low.
	Partial bool `json:"partial"`
}

// Partial is the position in a prompt with media from which the tokens are unknown.
type Partial struct {
	Reason    string `json:"reason"`
	FromBlock *int   `json:"from_block"`
	FromToken *int   `json:"from_token"`
}

// Scores are the scores of the pods that hold a block of the prompt.
type Scores struct {
	Pods    map[string]PodScore `json:"pods"`
	Partial *Partial            `json:"partial"`
	Store   string              `json:"store"`
}

// Prediction is the answer to a prediction.
type Prediction struct {
	Blocks  int      `json:"blocks"`
	Partial *Partial `json:"partial"`
}

// Picked is the answer to a pick: the picked pod, and the inputs of the choice.
type Picked struct {
	PickCandidate
	// Candidates are, with Detail, all pods that could be picked, and the pods that are not ready.
	Candidates []PickCandidate `json:"candidates"`
	// Blocks are the complete blocks of the prompt.
	Blocks      int         `json:"blocks"`
	Weights     PickWeights `json:"weights"`
	Temperature float64     `json:"temperature"`
	// Seed repeats the pick.
	Seed    uint64   `json:"seed"`
	Partial *Partial `json:"partial"`
	Store   string   `json:"store"`
}

// PickCandidate is a pod with its cost. Lower is better.
type PickCandidate struct {
	Pod             InstanceID `json:"pod"`
	Cost            float64    `json:"cost"`
	Score           float64    `json:"score"`
	HeldBlocks      int        `json:"held_blocks"`
	PredictedBlocks int        `json:"predicted_blocks"`
	Trust           Trust      `json:"trust"`
	// Ready: all engines of the pod are connected. A pod that is not ready is never picked.
	Ready bool `json:"ready"`
	Load  Load `json:"load"`
}

// Load are the requests in flight of a pod, before the pick.
type Load struct {
	Requests int `json:"requests"`
	// PrefillBlocks are still to be computed.
	PrefillBlocks int `json:"prefill_blocks"`
	// ActiveBlocks are in use.
	ActiveBlocks int `json:"active_blocks"`
}

// PickWeights are the weights of a cost's terms.
type PickWeights struct {
	Prefill  float64 `json:"prefill"`
	Active   float64 `json:"active"`
	Requests float64 `json:"requests"`
}

// InstanceID is the id of an instance, which the service returns as it was given: a number or a text.
type InstanceID string

// UnmarshalJSON reads a number or a text.
func (id *InstanceID) UnmarshalJSON(data []byte) error {
	if !bytes.HasPrefix(data, []byte(`"`)) {
		*id = InstanceID(data)
		return nil
	}
	return json.Unmarshal(data, (*string)(id))
}

// MatchEnd is the end of a match, and its reason.
type MatchEnd struct {
	// Position is the number of the block, from 0.
	Position int    `json:"position"`
	Reason   string `json:"reason"`
	Why      string `json:"why"`
}

// RankExplanation is the match of one rank.
type RankExplanation struct {
	InstanceID     InstanceID `json:"instance_id"`
	DPRank         int        `json:"dp_rank"`
	Trust          Trust      `json:"trust"`
	BlocksHeld     int        `json:"blocks_held"`
	GPU            int        `json:"gpu"`
	CPU            int        `json:"cpu"`
	Disk           int        `json:"disk"`
	LongestMatched int        `json:"longest_matched"`
	Ends           []MatchEnd `json:"ends"`
	LastError      string     `json:"last_error"`
}

// Explanation is the end of each rank's match, and its reason.
type Explanation struct {
	Model     string            `json:"model_name"`
	TenantID  string            `json:"tenant_id"`
	BlockSize int               `json:"block_size"`
	Blocks    int               `json:"blocks"`
	Ranks     []RankExplanation `json:"ranks"`
	Absent    []json.RawMessage `json:"absent"`
}

// Worker is a registered instance.
type Worker struct {
	InstanceID InstanceID        `json:"instance_id"`
	Model      string            `json:"model_name"`
	TenantID   string            `json:"tenant_id"`
	BlockSize  int               `json:"block_size"`
	Status     string            `json:"status"`
	Endpoints  map[string]string `json:"endpoints"`
	// Listeners are the listeners by data-parallel rank.
	Listeners map[string]Listener `json:"listeners"`
}

// Listener is the connection to the engine of a rank.
type Listener struct {
	Status         string `json:"status"`
	Trust          Trust  `json:"trust"`
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint"`
	// LastSeq is the sequence number of the last applied message, if there is one.
	LastSeq   *int64 `json:"last_seq"`
	LastError string `json:"last_error"`
}

// Readiness is whether the service is ready to answer, and the reason if it is not.
type Readiness struct {
	Ready bool
	// Answer is the answer of /ready, with the missing conditions.
	Answer map[string]any
}
