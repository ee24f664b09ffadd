package tokenizer

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestLoadDir: what the two other files of a folder change. That transformers
// does the same is compared in test/parity.
func TestLoadDir(t *testing.T) {
	files := variants(t)
	tests := []struct {
		name, variant, config, model string
		text                         string
		want                         string // what the tokens are, by their spelling
	}{
		{"alone", "llama2", "", "", " the", "▁ ▁the"},
		{"another class", "llama2", `{"tokenizer_class":"PreTrainedTokenizerFast"}`, `{"model_type":"llama"}`, " the", "▁ ▁the"},
		{"Llama's class", "llama2", `{"tokenizer_class":"LlamaTokenizer","legacy":true}`, `{"model_type":"llama"}`, " the", "▁the"},
		{"Llama's class without config.json", "llama2", `{"tokenizer_class":"LlamaTokenizerFast","legacy":true}`, "", " the", "▁the"},
		{"Llama's class, legacy", "llama2", `{"tokenizer_class":"LlamaTokenizer","legacy":true}`, `{"model_type":"llama"}`, "the</s>the", "▁the </s> ▁the"},
		{"Llama's class, not legacy", "llama2", `{"tokenizer_class":"LlamaTokenizer","legacy":false}`, `{"model_type":"llama"}`, "the</s>the", "▁the </s> the"},
		{"Llama's class without a space", "llama2", `{"tokenizer_class":"LlamaTokenizer","add_prefix_space":false}`, `{"model_type":"llama"}`, "the</s>the", "the </s> the"},
		{"Llama's class that does not count", "llama2", `{"tokenizer_class":"LlamaTokenizer","legacy":true}`, `{"model_type":"mistral"}`, " the", "▁ ▁the"},
		{"Llama's class on bytes", "deepseek", `{"tokenizer_class":"LlamaTokenizerFast"}`, "", " the", "Ġthe"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := fstest.MapFS{"tokenizer.json": {Data: files[tt.variant]}}
			if tt.config != "" {
				dir["tokenizer_config.json"] = &fstest.MapFile{Data: []byte(tt.config)}
			}
			if tt.model != "" {
				dir["config.json"] = &fstest.MapFile{Data: []byte(tt.model)}
			}
			tok, err := LoadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var want []uint32
			for _, token := range strings.Fields(tt.want) {
				id, ok := tok.TokenID(token)
				if !ok {
					t.Fatalf("no token %q", token)
				}
				want = append(want, id)
			}
			if got := tok.Encode(nil, tt.text); !slices.Equal(got, want) {
				t.Errorf("Encode(%q) = %v, want %s: %v", tt.text, got, tt.want, want)
			}
		})
	}
}

func TestLoadDirRefuses(t *testing.T) {
	good := variants(t)["llama2"]
	tests := []struct {
		name string
		dir  fstest.MapFS
		want string
	}{
		{"empty", fstest.MapFS{}, "tokenizer.json"},
		{"damaged", fstest.MapFS{"tokenizer.json": {Data: good[:1000]}}, "tokenizer.json: read tokenizer file: at byte"},
		{"damaged config", fstest.MapFS{"tokenizer.json": {Data: good}, "tokenizer_config.json": {Data: []byte(`{`)}}, "tokenizer_config.json: at byte"},
		{"damaged model config", fstest.MapFS{"tokenizer.json": {Data: good}, "config.json": {Data: []byte(`{"model_type":1}`)}}, "config.json: at byte"},
		{"other added tokens", fstest.MapFS{"tokenizer.json": {Data: good}, "tokenizer_config.json": {Data: []byte(`{"added_tokens_decoder":{"999":{"content":"<x>"}}}`)}}, `added_tokens_decoder["999"]: token "<x>"`},
		{"own code", fstest.MapFS{"tokenizer.json": {Data: good}, "tokenizer_config.json": {Data: []byte(`{"auto_map":{"AutoTokenizer":["x.XTokenizer",null]}}`)}}, "auto_map: a tokenizer with its own code"},
		{"other pattern", fstest.MapFS{"tokenizer.json": {Data: good}, "tokenizer_config.json": {Data: []byte(`{"fix_mistral_regex":true}`)}}, "fix_mistral_regex"},
		{"large", fstest.MapFS{"tokenizer.json": {Data: make([]byte, MaxFileBytes+1)}}, "tokenizer.json: read tokenizer file: it has 128 MB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := LoadDir(tt.dir); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
}
