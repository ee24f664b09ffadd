package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
)

// LoadDir reads a model folder as engines do, by transformers' AutoTokenizer
// (5.19, models/auto/tokenization_auto.py): tokenizer.json is not all that
// counts there. Where tokenizer_config.json names LlamaTokenizer and config.json
// a model type that goes by it, transformers takes only the vocabulary and the
// merges from tokenizer.json and puts Llama's components around them; Gemma's
// class adds <mask>. The other classes come out as tokenizer.json has them;
// add_bos_token and add_eos_token count only where there is none. Both files may
// be missing. The error names file and place; see Parse.
func LoadDir(dir fs.FS) (*Tokenizer, error) {
	data, err := readFile(dir, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	f, err := parseFile(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	var c autoConfig
	var m struct {
		ModelType string `json:"model_type"`
	}
	if err := readJSON(dir, "tokenizer_config.json", &c); err != nil {
		return nil, err
	}
	if err := readJSON(dir, "config.json", &m); err != nil {
		return nil, err
	}
	if err := c.check(f); err != nil {
		return nil, fmt.Errorf("tokenizer_config.json: %w", err)
	}
	switch strings.TrimSuffix(c.Class, "Fast") {
	case "LlamaTokenizer":
		if llamaClass(m.ModelType, f) {
			c.llama(f)
		}
	case "GemmaTokenizer":
		c.gemma(f)
	}
	t, err := build(f)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// readJSON leaves v alone if there is no such file.
func readJSON(dir fs.FS, name string, v any) error {
	data, err := readFile(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		if err = json.Unmarshal(data, v); err != nil {
			err = fmt.Errorf("%s: %w", name, describe(err, len(data)))
		}
	}
	return err
}

// autoConfig is tokenizer_config.json, as far as it changes ids.
type autoConfig struct {
	Class          string                     `json:"tokenizer_class"`
	AddPrefixSpace *bool                      `json:"add_prefix_space"`
	Legacy         *bool                      `json:"legacy"`
	Added          map[string]json.RawMessage `json:"added_tokens_decoder"`
	AutoMap        json.RawMessage            `json:"auto_map"`
	FixMistral     bool                       `json:"fix_mistral_regex"`
}

// tokenName is a token, written as such or as an object.
type tokenName string

func (n *tokenName) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var o struct {
			Content string `json:"content"`
		}
		err := json.Unmarshal(b, &o)
		*n = tokenName(o.Content)
		return err
	}
	return json.Unmarshal(b, (*string)(n))
}

// check refuses what LoadDir does not follow: tokenizers with code of their own,
// a pattern put in place of the file's, and two files that know different added
// tokens (transformers would add those of tokenizer_config.json).
func (c *autoConfig) check(f *file) error {
	if len(c.AutoMap) > 0 && strings.Contains(string(c.AutoMap), "okenizer") {
		return unsupported("auto_map", "a tokenizer with its own code")
	}
	if c.FixMistral {
		return unsupported("fix_mistral_regex", "true")
	}
	for key, raw := range c.Added {
		var name tokenName
		id, err := strconv.ParseUint(key, 10, 32)
		if err == nil {
			err = json.Unmarshal(raw, &name)
		}
		if err != nil {
			return fmt.Errorf("added_tokens_decoder[%q]: %w", key, err)
		}
		i := slices.IndexFunc(f.AddedTokens, func(a addedFile) bool { return uint64(a.ID) == id })
		if i < 0 || f.AddedTokens[i].Content != string(name) {
			return fmt.Errorf("added_tokens_decoder[%q]: token %q is not an added token of tokenizer.json", key, string(name))
		}
	}
	return nil
}

// asFile are the model types for which transformers 5.19 does not go by
// LlamaTokenizer even if tokenizer_config.json names it
// (TOKENIZER_MAPPING_NAMES, MODELS_WITH_INCORRECT_HUB_TOKENIZER_CLASS).
const asFile = ` EvollaModel arctic aria bigbird_pegasus camembertv2-base canary chameleon chatlm cohere_asr deepseek_ocr deepseek_ocr2
 deepseek_v2 deepseek_v3 deepseek_v32 deepseek_v4 deepseek_vl deepseek_vl_hybrid deepseek_vl_v2 ernie4_5 ernie4_5_moe flex_olmo
 fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode granite granitemoe granitemoehybrid
 granitemoeshared h2ovl_chat hyperclovax hyperclovax_vision_v2 hyperclovax_vlm internlm2 jamba janus kimi_k25 kimi_linear kosmos-2
 llava llava_next mimo_v2_flash minicpm3 minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3 mixtral
 modernbert modernbert-decoder molmo molmo2 nemotron nvfp4 nystromformer olmo2 olmo3 olmo_hybrid opencua openvla paddleocr_vl
 pegasus_x persimmon phi3 phi3_v phimoe pix2struct pixtral qwen2 qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen4_exp smolvlm stablelm
 step3_vl step3p5 umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl `

// llamaClass tells whether LlamaTokenizer's components take the place of the
// file's. Without a config.json a byte-level file keeps its own.
func llamaClass(modelType string, f *file) bool {
	if modelType != "" {
		return !slices.Contains(strings.Fields(asFile), modelType)
	}
	level := false
	sub := func(c *component) []component { return c.PreTokenizers }
	_ = parts("", f.PreTokenizer, sub, func(_ string, c *component) error { // never fails
		level = level || c.Type == "ByteLevel"
		return nil
	})
	return !level
}

// llama puts LlamaTokenizer's components in place
// (models/llama/tokenization_llama.py).
func (c *autoConfig) llama(f *file) {
	no, rep := false, "▁"
	scheme := "first"
	switch {
	case c.AddPrefixSpace != nil && !*c.AddPrefixSpace:
		scheme = "never"
	case c.Legacy != nil && *c.Legacy:
		scheme = "always"
	}
	f.Normalizer = nil
	f.PreTokenizer = &component{Type: "Metaspace", Replacement: rep, PrependScheme: scheme, Split: &no}
	f.Decoder = &component{Type: "Sequence", Decoders: []component{
		{Type: "Replace", Pattern: pattern{String: &rep}, Content: " "}, {Type: "ByteFallback"}, {Type: "Fuse"},
	}}
	if scheme != "never" {
		f.Decoder.Decoders = append(f.Decoder.Decoders, component{Type: "Strip", Content: " ", Start: 1})
	}
	if f.Model != nil {
		f.Model.Unk, f.Model.FuseUnk, f.Model.ByteFallback, f.Model.IgnoreMerges = nil, true, true, false
	}
}

// gemma adds the mask token (models/gemma/tokenization_gemma.py); the other
// components are the file's.
func (c *autoConfig) gemma(f *file) {
	const mask = "<mask>"
	i := slices.IndexFunc(f.AddedTokens, func(a addedFile) bool { return a.Content == mask })
	if i >= 0 {
		f.AddedTokens[i].Special = true
		return
	}
	if f.Model == nil {
		return
	}
	if vocab, err := scanVocab(f.Model.Vocab); err == nil { // else build says why
		if id, ok := vocab[mask]; ok {
			f.AddedTokens = append(f.AddedTokens, addedFile{ID: id, Content: mask, Special: true})
		}
	}
}
