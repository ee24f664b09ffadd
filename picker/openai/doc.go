// Package openai reads the parts of OpenAI-style requests and answers that
// routing needs, and nothing else: who is asked (model), what decides the
// prompt's token ids, how much output is wanted, and what the engine reports
// back (usage, first output).
//
// It is a core: bytes in, values out. A body is read once by a small scanner
// that checks the JSON grammar, bounds nesting and keeps raw slices of what
// other packages decode later (messages, tools). Parts that nobody needs are
// skipped, never turned into a tree.
//
//	req, err := openai.Parse("/v1/chat/completions", body) // err: answer 400
//	body, asked := req.ForceUsage(nil)                    // asked: strip it from the stream again
//	events.Add(piece) // of an answer's stream
//	event, ok := events.Next()
//	if u, ok := openai.ReadUsage(openai.Data(event)); ok { ... }
//
// Engines read bodies with Python's json module, so this package sides with it
// where JSON leaves a choice: the last of duplicate keys wins, and NaN and
// Infinity are numbers. Field names and defaults are those of vLLM 0.32
// (vllm/entrypoints/openai/*/protocol.py).
package openai
