package flashindexer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
)

// One call of the vectors of all clients.
type callStep struct {
	Call         string         `json:"call"`
	Instance     string         `json:"instance"`
	BlockSize    int            `json:"block_size"`
	Prompt       [][2]uint32    `json:"prompt"`
	LoraName     string         `json:"lora_name"`
	CacheSalt    string         `json:"cache_salt"`
	AfterLast    bool           `json:"after_last"`
	Pods         []string       `json:"pods"`
	Matched      map[string]int `json:"matched"`
	Held         map[string]int `json:"held"`
	CursorTokens int            `json:"cursor_tokens"`
	Blocks       int            `json:"blocks"`
	Refused      int            `json:"refused"`
}

type callVectors struct {
	Model     string
	BlockSize int `json:"block_size"`
	Steps     []callStep
}

func TestCallsAnswerAsTheSharedVectorsSay(t *testing.T) {
	text, err := os.ReadFile("../testdata/calls.json")
	check(t, err)
	var vectors callVectors
	check(t, json.Unmarshal(text, &vectors))
	if len(vectors.Steps) < 19 {
		t.Fatalf("only %d steps", len(vectors.Steps))
	}
	cursor := ""
	for number, step := range vectors.Steps {
		next, err := step.make(vectors, cursor)
		var refused *APIError
		switch {
		case step.Refused == 0 && err != nil:
			t.Fatalf("step %d: %v", number, err)
		case step.Refused != 0 && (!errors.As(err, &refused) || refused.Status != step.Refused):
			t.Fatalf("step %d is refused with %d: %v", number, step.Refused, err)
		}
		cursor = next
	}
}

// Makes the call, checks its answer, and returns the cursor of the last answer to a query.
func (step callStep) make(vectors callVectors, cursor string) (string, error) {
	model, blockSize := vectors.Model, step.BlockSize
	if blockSize == 0 {
		blockSize = vectors.BlockSize
	}
	var tokens []uint32
	for _, segment := range step.Prompt {
		for i := uint32(0); i < segment[1]; i++ {
			tokens = append(tokens, segment[0]+i)
		}
	}
	switch step.Call {
	case "register":
		registration := Registration{InstanceID: step.Instance, Endpoint: "none", Model: model, BlockSize: blockSize}
		return cursor, client.Register(ctx(), registration)
	case "unregister":
		return cursor, client.Unregister(ctx(), step.Instance, model, UnregisterOptions{})
	case "predict":
		answer, err := client.Predict(ctx(), model, step.Instance, Tokens(tokens), PredictOptions{})
		if err == nil && answer.Blocks != step.Blocks {
			err = fmt.Errorf("%d blocks, not %d", answer.Blocks, step.Blocks)
		}
		return cursor, err
	case "score":
		answer, err := client.Score(ctx(), model, Tokens(tokens), ScoreOptions{Pods: step.Pods})
		if err != nil {
			return cursor, err
		}
		held := map[string]int{}
		for pod, score := range answer.Pods {
			held[pod] = score.HeldBlocks
		}
		return cursor, same(held, step.Held)
	case "query":
		options := QueryOptions{PromptOptions: PromptOptions{LoraName: step.LoraName, CacheSalt: step.CacheSalt}}
		if step.AfterLast {
			options.After = cursor
		}
		answer, err := client.Query(ctx(), model, tokens, options)
		if err != nil {
			return cursor, err
		}
		matched := map[string]int{}
		for name, held := range answer.Instances {
			matched[name] = held.LongestMatched
		}
		if err := same(matched, step.Matched); err != nil {
			return cursor, err
		}
		return answer.Cursor, same(answer.CursorTokens, step.CursorTokens)
	}
	return cursor, fmt.Errorf("unknown call %q", step.Call)
}

func same(got, expected any) error {
	if reflect.DeepEqual(got, expected) {
		return nil
	}
	return fmt.Errorf("got %v, not %v", got, expected)
}
