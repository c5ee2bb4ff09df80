// Package flashindexer asks a Flash Indexer which LLM engines hold the longest prefix of a prompt.
//
//	client := flashindexer.New("http://127.0.0.1:8090")
//	matches, err := client.Query(ctx, "llama-3-8b", tokens, flashindexer.QueryOptions{})
//	engine := matches.Best()
//
// It has no dependencies, and has the calls of the Python client.
package flashindexer
