package prompt

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestConverted: what vLLM 0.32 makes of requests of other APIs
// (openai/responses/utils.py, anthropic/serving.py), or that it is not known.
func TestConverted(t *testing.T) {
	const responses, anthropic = "/v1/responses", "/v1/messages"
	tests := []struct {
		name, path, body string
		messages         string // "": the engine is asked
		tools            string
	}{
		{"text", responses, `{"model":"m","input":"Hi \u00e9","stream":true,"max_output_tokens":5,"store":false}`, `[{"role":"user","content":"Hi é"}]`, ""},
		{"instructions", responses, `{"input":"Hi","instructions":"Be brief."}`, `[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]`, ""},
		{"empty instructions", responses, `{"input":"Hi","instructions":""}`, `[{"role":"user","content":"Hi"}]`, ""},
		{"items", responses, `{"input":[{"role":"developer","content":"D"},{"type":"message","role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},{"role":"assistant","content":"c"}]}`,
			`[{"role":"developer","content":"D"},{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},{"role":"assistant","content":"c"}]`, ""},
		{"an image", responses, `{"input":[{"role":"user","content":[{"type":"input_image","image_url":"x"}]}]}`, "", ""},
		{"a conversation kept by the engine", responses, `{"input":"Hi","previous_response_id":"r"}`, "", ""},
		{"reasoning", responses, `{"input":"Hi","reasoning":{"effort":"low"}}`, "", ""},
		{"tools", responses, `{"input":"Hi","tools":[{"type":"function","name":"f"}]}`, "", ""},
		{"an output item", responses, `{"input":[{"type":"message","role":"assistant","status":"incomplete","content":"x"}]}`, "", ""},
		{"a call", responses, `{"input":[{"type":"function_call","name":"f","arguments":"{}","call_id":"1"}]}`, "", ""},
		{"nothing", responses, `{"input":[]}`, "", ""},

		{"text", anthropic, `{"model":"m","max_tokens":5,"system":"S","messages":[{"role":"user","content":"Hi"}]}`,
			`[{"role":"system","content":"S"},{"role":"user","content":"Hi"}]`, ""},
		{"blocks", anthropic, `{"system":[{"type":"text","text":"x-anthropic-billing-header: 1"},{"type":"text","text":"A","cache_control":{"type":"ephemeral"}},{"type":"text","text":"B"}],
			"messages":[{"role":"user","content":[{"type":"text","text":"one"}]},{"role":"assistant","content":[{"type":"text","text":""},{"type":"text","text":"<two>"},{"type":"text","text":"three"}]}]}`,
			`[{"role":"system","content":"AB"},{"role":"user","content":"one"},{"role":"assistant","content":[{"type":"text","text":"<two>"},{"type":"text","text":"three"}]}]`, ""},
		{"tools", anthropic, `{"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}],"messages":[{"role":"user","content":"Hi"},
			{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"b":1,"a":2}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"1","content":[{"type":"text","text":"x"},{"type":"text","text":"y"}]},{"type":"text","text":"and?"}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"2","content":"z","is_error":true}]}]}`,
			`[{"role":"user","content":"Hi"},{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"b":1,"a":2}}}]},
			{"role":"tool","tool_call_id":"1","content":"x\ny"},{"role":"user","content":"and?"},{"role":"tool","tool_call_id":"2","content":"z"}]`,
			`[{"type":"function","function":{"name":"f","description":null,"parameters":{"type":"object","properties":{}}}}]`},
		{"a schema without a type", anthropic, `{"tools":[{"name":"f","input_schema":{}}],"messages":[{"role":"user","content":"Hi"}]}`, "", ""},
		{"an image", anthropic, `{"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"x"}}]}]}`, "", ""},
		{"thinking", anthropic, `{"messages":[{"role":"assistant","content":[{"type":"thinking","thinking":"x"}]}]}`, "", ""},
		{"thinking wanted", anthropic, `{"thinking":{"type":"enabled"},"messages":[{"role":"user","content":"Hi"}]}`, "", ""},
		{"a system message within", anthropic, `{"messages":[{"role":"system","content":"x"}]}`, "", ""},
		{"tool choice", anthropic, `{"tool_choice":{"type":"none"},"messages":[{"role":"user","content":"Hi"}]}`, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.path+" "+tt.name, func(t *testing.T) {
			got, err := converted(parse(t, tt.path, tt.body))
			if tt.messages == "" {
				if !errors.Is(err, errOtherForm) {
					t.Errorf("got %s, %v, want that the engine is asked", got.Messages, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !got.AddGenerationPrompt || got.ContinueFinalMessage {
				t.Error("no generation prompt")
			}
			for _, part := range [][2]string{{string(got.Messages), tt.messages}, {string(got.Tools), tt.tools}} {
				if part[1] == "" {
					part[1] = "null"
				}
				if part[0] == "" {
					part[0] = "null"
				}
				var have, want any
				if err := errors.Join(json.Unmarshal([]byte(part[0]), &have), json.Unmarshal([]byte(part[1]), &want)); err != nil {
					t.Fatalf("%s: %v", part[0], err)
				}
				if d := cmp.Diff(want, have); d != "" {
					t.Errorf("(-want +got):\n%s", d)
				}
			}
		})
	}
}
