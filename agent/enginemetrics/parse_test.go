package enginemetrics

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func read(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func vllmRank(n int, model string) Rank {
	return Rank{
		Rank: n, Model: model, Running: 3 + n, Waiting: n, KVUsage: 0.125 * float64(n+1),
		Cache: CacheConfig{BlockSize: 16, NumBlocks: 27500 + n, HashAlgo: "sha256", PrefixCaching: true},
		Counters: Counters{
			PrefixQueryTokens: 12345678 + uint64(n), PrefixHitTokens: 9876543 + uint64(n), ExternalHitTokens: 5,
			PromptTokens: 12345678, CachedPromptTokens: 9876543, GenerationTokens: 345678, Preemptions: 2,
			TTFT: Sum{512.25, 1003}, InterToken: Sum{8640.5, 344675},
			PrefillTime: Sum{498.125, 1000}, PrefillComputed: Sum{2460000, 1000}, RequestPrompt: Sum{12300000, 1000},
		},
	}
}

func TestParse(t *testing.T) {
	const start = 1.79597270315e+09
	old := vllmRank(0, "tiny")
	old.KVUsage = 0.25
	old.Cache.HashAlgo = "builtin"
	old.Counters.PrefixQueryTokens, old.Counters.PrefixHitTokens = 120000, 80000
	old.Counters.ExternalHitTokens, old.Counters.CachedPromptTokens, old.Counters.PrefillComputed = 0, 0, Sum{}
	tests := []struct {
		file string
		want Sample
	}{
		{"vllm-0.32.txt", Sample{
			Engine: VLLM, ProcessStart: start,
			Ranks: []Rank{vllmRank(0, "meta-llama/Llama-3.1-8B-Instruct")},
			LoRA:  LoRA{Max: 4, Running: []string{"ad-b"}},
		}},
		{"vllm-0.32-dp2.txt", Sample{Engine: VLLM, ProcessStart: start, Ranks: []Rank{vllmRank(0, "tiny"), vllmRank(1, "tiny")}}},
		{"vllm-0.9.txt", Sample{Engine: VLLM, ProcessStart: start, Ranks: []Rank{old}}},
		{"sglang.txt", Sample{Engine: SGLang, ProcessStart: start, Ranks: []Rank{{
			Model: "qwen", Running: 2, Waiting: 1, KVUsage: 0.05,
			Cache: CacheConfig{BlockSize: 64, NumBlocks: 6250},
			Counters: Counters{
				PromptTokens: 80000, CachedPromptTokens: 42000, GenerationTokens: 7000,
				TTFT: Sum{12.5, 50}, InterToken: Sum{140, 6950},
			},
		}}}},
	}
	for _, tt := range tests {
		t.Run(tt.file, func(t *testing.T) {
			got, err := Parse(read(t, tt.file))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, cmpopts.IgnoreUnexported(Rank{})); diff != "" {
				t.Errorf("sample (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseLines(t *testing.T) {
	const ok = "vllm:num_requests_running{engine=\"0\"} 7\n"
	tests := []struct {
		name, text string
		skipped    int
		check      func(*Sample) bool
	}{
		{"no end of line", strings.TrimSpace(ok), 0, func(s *Sample) bool { return s.Ranks[0].Running == 7 }},
		{"carriage return", "vllm:num_requests_running 7\r\n", 0, func(s *Sample) bool { return s.Ranks[0].Running == 7 }},
		{"timestamp", "vllm:num_requests_running{} 7 1700000000000\n", 0, func(s *Sample) bool { return s.Ranks[0].Running == 7 }},
		{"escaped quote in a label", `vllm:num_requests_running{model_name="a\"b\\",engine="2"} 7`, 0,
			func(s *Sample) bool { return s.Ranks[0].Model == `a"b\` && s.Ranks[0].Rank == 2 }},
		{"brace and comma in a label", `vllm:num_requests_running{model_name="a},b", engine="1"} 7`, 0,
			func(s *Sample) bool { return s.Ranks[0].Model == "a},b" && s.Ranks[0].Rank == 1 }},
		{"asleep", ok + `vllm:engine_sleep_state{engine="0",sleep_state="awake"} 0
vllm:engine_sleep_state{engine="0",sleep_state="weights_offloaded"} 1
vllm:engine_sleep_state{engine="0",sleep_state="discard_all"} 0`, 0, func(s *Sample) bool { return s.Ranks[0].Sleep == WeightsOffloaded }},
		{"NaN", ok + "vllm:kv_cache_usage_perc NaN", 1, nil},
		{"negative", ok + "vllm:kv_cache_usage_perc -1", 1, nil},
		{"infinite", ok + "vllm:prompt_tokens_total +Inf", 1, nil},
		{"no number", ok + "vllm:kv_cache_usage_perc x", 1, nil},
		{"no value", ok + "vllm:kv_cache_usage_perc", 1, nil},
		{"open label", ok + `vllm:kv_cache_usage_perc{engine="0`, 1, nil},
		{"rank beyond limits", ok + `vllm:kv_cache_usage_perc{engine="4096"} 1`, 1, nil},
		{"rank not a number", ok + `vllm:kv_cache_usage_perc{engine="a"} 1`, 1, nil},
		{"usage above one", ok + "vllm:kv_cache_usage_perc 1.5", 0, func(s *Sample) bool { return s.Ranks[0].KVUsage == 1 }},
		{"unset in the configuration", ok + `vllm:cache_config_info{block_size="None",num_gpu_blocks="None",prefix_caching_hash_algo="None",enable_prefix_caching="False"} 1`, 0,
			func(s *Sample) bool { return s.Ranks[0].Cache == CacheConfig{} }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.text))
			if err != nil {
				t.Fatal(err)
			}
			if got.Skipped != tt.skipped || tt.check != nil && !tt.check(got) {
				t.Errorf("got %+v, skipped %d, want %d skipped", got, got.Skipped, tt.skipped)
			}
		})
	}
}

func TestParseNoEngine(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "python_info 1\n", "<html>not found</html>", "vllm:of_tomorrow 1\n", "vllm:lora_requests_info{max_lora=\"4\"} 1\n"} {
		if _, err := Parse([]byte(text)); !errors.Is(err, ErrNoEngine) {
			t.Errorf("Parse(%q): got %v, want ErrNoEngine", text, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"vllm-0.32.txt", "vllm-0.9.txt", "sglang.txt"} {
		var kept []byte
		for line := range bytes.Lines(read(f, name)) {
			if line[0] != '#' && !bytes.Contains(line, []byte("_bucket")) {
				kept = append(kept, line...)
			}
		}
		f.Add(kept)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse(b)
		if err != nil {
			return
		}
		tr := NewTracker()
		for range 2 {
			tr.Observe(t0, s)
		}
		for i, r := range s.Ranks {
			if r.Running < 0 || r.Waiting < 0 || !(r.KVUsage >= 0 && r.KVUsage <= 1) || r.Cache.NumBlocks < 0 || r.Cache.BlockSize < 0 {
				t.Errorf("rank out of range: %+v", r)
			}
			if r.Rank < 0 || r.Rank > maxRank || i > 0 && s.Ranks[i-1].Rank >= r.Rank {
				t.Errorf("ranks out of order at %d", i)
			}
			sane(t, tr.Prefill(r.Rank), tr.Decode(r.Rank))
		}
	})
}

func BenchmarkParse(b *testing.B) {
	text := read(b, "vllm-0.32.txt")
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			if _, err := Parse(text); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("expfmt", func(b *testing.B) {
		b.ReportAllocs()
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			parser := expfmt.NewTextParser(model.UTF8Validation)
			if _, err := parser.TextToMetricFamilies(bytes.NewReader(text)); err != nil {
				b.Fatal(err)
			}
		}
	})
}
