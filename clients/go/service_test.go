package flashindexer

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A client of a running service.
var client *Client

func TestMain(m *testing.M) {
	code, err := withService(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func withService(tests func() int) (int, error) {
	binary := os.Getenv("FLASH_INDEXER_BINARY")
	if binary == "" {
		binary = "../../target/debug/flash-indexer"
	}
	command := exec.Command(binary, "serve", "--port", "0")
	output, err := command.StderrPipe()
	if err != nil {
		return 1, err
	}
	if err := command.Start(); err != nil {
		return 1, fmt.Errorf("%w; build the program with `cargo build`, or set FLASH_INDEXER_BINARY", err)
	}
	lines := bufio.NewScanner(output)
	lines.Scan()
	address := regexp.MustCompile(`http://\S+`).FindString(lines.Text())
	go func() {
		for lines.Scan() {
		}
	}()
	client = New(address, WithDeadline(patience))
	code := tests()
	if err := command.Process.Signal(syscall.SIGTERM); err != nil {
		return 1, err
	}
	return code, command.Wait()
}

func ctx() context.Context { return context.Background() }

func TestAQueryByTokensOrHashesHasTheSameMatches(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	prompt := append(tokensOf(1, 50), tokensOf(900, 904)...)
	expected, err := client.Query(ctx(), model, prompt, QueryOptions{})
	check(t, err)
	equal(t, expected.Scores, map[string]map[string]int{"gpu-1": {"0": 200}})
	equal(t, expected.TreeSizes, map[string]map[string]int{"gpu-1": {"0": 100}})
	equal(t, expected.Instances["gpu-1"].LongestMatched, 200)
	equal(t, expected.Instances["gpu-1"].Trust, Exact)
	equal(t, expected.Best(), "gpu-1")
	hashes, err := LocalHashes(prompt, blockSize, PromptOptions{})
	check(t, err)
	byHash, err := client.QueryByHash(ctx(), model, hashes, HashQueryOptions{})
	check(t, err)
	equal(t, byHash.Scores, expected.Scores)

	for _, other := range []struct {
		tokens  []uint32
		options QueryOptions
	}{
		{tokensOf(7, 8), QueryOptions{}},
		{prompt, QueryOptions{PromptOptions: PromptOptions{LoraName: "other"}}},
		{prompt, QueryOptions{PromptOptions: PromptOptions{CacheSalt: "a&b"}}},
		{prompt, QueryOptions{MinScore: 201}},
	} {
		matches, err := client.Query(ctx(), model, other.tokens, other.options)
		check(t, err)
		equal(t, matches.Best(), "")
	}
}

func TestAConversationSendsOnlyWhatIsNew(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	turns := client.Conversation(model, PromptOptions{})
	for _, blocks := range []int{50, 70, 100, 120} {
		prompt := tokensOf(1, blocks)
		whole, err := client.Query(ctx(), model, prompt, QueryOptions{})
		check(t, err)
		turn, err := turns.Query(ctx(), prompt)
		check(t, err)
		equal(t, turn, whole)
		equal(t, turns.CoveredTokens(), whole.CursorTokens)
	}
	equal(t, turns.CoveredTokens(), 96*blockSize)
	other, err := turns.Query(ctx(), append(tokensOf(1, 39), make([]uint32, 300)...))
	check(t, err)
	equal(t, other.Scores, map[string]map[string]int{"gpu-1": {"0": 39 * blockSize}})
}

func TestACursorThatIsUnknownByNowCostsASecondRequest(t *testing.T) {
	turns := client.Conversation(model, PromptOptions{})
	prompt := tokensOf(1, 100)
	var cursor string
	t.Run("the first turn", func(t *testing.T) {
		newEngine(t, "gpu-2").store(1, 100)
		matches, err := turns.Query(ctx(), prompt)
		check(t, err)
		cursor = matches.Cursor
	})
	newEngine(t, "gpu-3")
	_, err := client.Query(ctx(), model, prompt[96*blockSize:], QueryOptions{After: cursor})
	if !IsUnknownCursor(err) {
		t.Errorf("the cursor is unknown: %v", err)
	}
	matches, err := turns.Query(ctx(), prompt)
	check(t, err)
	equal(t, matches.Scores, map[string]map[string]int{"gpu-3": {"0": 0}})
}

func TestScoresCountPredictions(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	prompt := Tokens(append(tokensOf(1, 10), tokensOf(500, 509)...))
	before, err := client.Score(ctx(), model, prompt, ScoreOptions{})
	check(t, err)
	equal(t, before.Pods["gpu-1"].HeldBlocks, 10)
	prediction, err := client.Predict(ctx(), model, "gpu-1", prompt, PredictOptions{TTL: patience})
	check(t, err)
	equal(t, prediction.Blocks, 20)
	after, err := client.Score(ctx(), model, prompt, ScoreOptions{Pods: []string{"gpu-1"}})
	check(t, err)
	equal(t, after.Pods["gpu-1"].HeldBlocks, 10)
	equal(t, after.Pods["gpu-1"].PredictedBlocks, 10)
	none, err := client.Score(ctx(), model, prompt, ScoreOptions{Pods: []string{"another"}})
	check(t, err)
	equal(t, len(none.Pods), 0)
}

func TestAPickCountsWhatIsHeldAndInFlight(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	prompt := Tokens(tokensOf(1, 10))
	seed := uint64(7)
	picked, err := client.Pick(ctx(), model, prompt, PickOptions{RequestID: "r1", Seed: &seed, Detail: true})
	check(t, err)
	equal(t, picked.Pod, InstanceID("gpu-1"))
	equal(t, []int{picked.HeldBlocks, picked.Blocks, picked.Load.Requests, len(picked.Candidates)}, []int{10, 10, 0, 1})
	equal(t, picked.Seed, seed)
	equal(t, picked.Ready, true)
	again, err := client.Pick(ctx(), model, prompt, PickOptions{})
	check(t, err)
	equal(t, again.Load.Requests, 1)
	equal(t, again.Cost > picked.Cost, true)
	check(t, client.Done(ctx(), model, "r1", DoneOptions{Phase: Prefill}))
	var failed *APIError
	equal(t, errors.As(client.Done(ctx(), model, "r1", DoneOptions{Hits: &ReportedHits{8, 9}}), &failed) && failed.Status == 422, true)
	check(t, client.Done(ctx(), model, "r1", DoneOptions{Hits: &ReportedHits{8, 4}}))
	last, err := client.Pick(ctx(), model, prompt, PickOptions{})
	check(t, err)
	equal(t, last.Load.Requests, 0)
	equal(t, errors.As(client.Done(ctx(), model, "r1", DoneOptions{}), &failed) && failed.Status == 404, true)
}

func TestAnExplanationSaysWhereAMatchEnds(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	prompt := append(tokensOf(1, 30), tokensOf(800, 801)...)
	explanation, err := client.Explain(ctx(), model, prompt, "gpu-1", PromptOptions{})
	check(t, err)
	equal(t, len(explanation.Ranks), 1)
	rank := explanation.Ranks[0]
	equal(t, rank.InstanceID, InstanceID("gpu-1"))
	equal(t, rank.GPU, 30*blockSize)
	equal(t, rank.Ends[0].Position, 30)
	equal(t, rank.Ends[0].Reason, "never_seen")
}

func TestADumpHasEveryBlockAndItsLastLine(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 100)
	stored := 0
	check(t, client.Dump(ctx(), Filter{Model: model}, func(line json.RawMessage) error {
		var record struct {
			Event struct {
				Data struct {
					Stored struct{ Blocks []json.RawMessage }
				}
			}
		}
		check(t, json.Unmarshal(line, &record))
		stored += len(record.Event.Data.Stored.Blocks)
		return nil
	}))
	equal(t, stored, 100)
	full := errors.New("full")
	if err := client.Dump(ctx(), Filter{}, func(json.RawMessage) error { return full }); err != full {
		t.Errorf("the error of the function ends the dump: %v", err)
	}
}

func TestARefusedRequestSaysWhy(t *testing.T) {
	newEngine(t, "gpu-1").store(1, 1)
	other := Registration{InstanceID: "gpu-1", Endpoint: "tcp://127.0.0.1:1", Model: model, BlockSize: blockSize + 1}
	var refused *APIError
	if err := client.Register(ctx(), other); !errors.As(err, &refused) || refused.Status != 409 ||
		!strings.Contains(refused.Message, "has blocks of 4 tokens, not 5") {
		t.Errorf("%v", err)
	}
	_, text := client.Score(ctx(), model, Text("a text"), ScoreOptions{})
	_, chat := client.ScoreChat(ctx(), Chat(`{"model": "m", "messages": []}`), ScoreOptions{})
	_, tokens := client.Tokenize(ctx(), model, Text("a text"))
	for _, err := range []error{text, chat, tokens} {
		if !errors.As(err, &refused) || refused.Status != 501 {
			t.Errorf("no tokenizer is configured: %v", err)
		}
	}
	if _, err := client.ScoreChat(ctx(), Chat(`[]`), ScoreOptions{}); err == nil || errors.As(err, &refused) && refused.Status != 501 {
		t.Errorf("a list is no chat: %v", err)
	}
}

func TestAnIntegerIDIsAWorkerOfTheMatchesByTier(t *testing.T) {
	id := uint64(7)
	registration := Registration{IntegerID: &id, Endpoint: "none", Model: model, BlockSize: blockSize}
	check(t, client.Register(ctx(), registration))
	prompt := tokensOf(1, 3)
	_, err := client.Predict(ctx(), model, "7", Tokens(prompt), PredictOptions{})
	check(t, err)
	hashes, err := LocalHashes(prompt, blockSize, PromptOptions{})
	check(t, err)
	params := PromptOptions{}.params(model)
	answer, err := ask[json.RawMessage](ctx(), client, call{path: "/query_tiered_by_hash", params: params, content: hashBytes(hashes)})
	check(t, err)
	if !strings.Contains(string(*answer), `[{"worker_id":7,"dp_rank":0},3]`) {
		t.Errorf("worker 7 holds 3 blocks: %s", *answer)
	}
	check(t, client.Unregister(ctx(), "7", model, UnregisterOptions{}))
	registration.InstanceID = "gpu-7"
	if err := client.Register(ctx(), registration); err == nil || !strings.Contains(err.Error(), "IntegerID is 7: give one of them") {
		t.Errorf("a rank has one id: %v", err)
	}
}

func TestANilPromptIsAnErrorThatNamesIt(t *testing.T) {
	_, score := client.Score(ctx(), model, nil, ScoreOptions{})
	_, predict := client.Predict(ctx(), model, "gpu-1", nil, PredictOptions{})
	_, pick := client.Pick(ctx(), model, nil, PickOptions{})
	_, tokenize := client.Tokenize(ctx(), model, nil)
	for _, err := range []error{score, predict, pick, tokenize} {
		if err == nil || !strings.HasPrefix(err.Error(), "prompt is nil; give Tokens") {
			t.Errorf("%v", err)
		}
	}
}

func TestReadiness(t *testing.T) {
	readiness, err := client.Ready(ctx())
	check(t, err)
	equal(t, readiness.Ready, true)
	equal[any](t, readiness.Answer["recovered_from"], "engines")
}

func equal[Value any](t *testing.T, got, expected Value) {
	t.Helper()
	if !reflect.DeepEqual(got, expected) {
		t.Errorf("got %+v, expected %+v", got, expected)
	}
}
