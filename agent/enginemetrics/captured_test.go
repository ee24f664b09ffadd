package enginemetrics

import "testing"

// TestCapturedVLLM reads what a real vLLM 0.32.0 (CPU) answered after one request of 14 prompt tokens and 40 output tokens.
func TestCapturedVLLM(t *testing.T) {
	s, err := Parse(read(t, "vllm-0.32.0-captured.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if s.Skipped != 0 || len(s.Ranks) != 1 || s.ProcessStart == 0 {
		t.Fatalf("skipped %d lines, %d ranks, process start %g; want 0, 1 and not 0", s.Skipped, len(s.Ranks), s.ProcessStart)
	}
	r := s.Ranks[0]
	if r.Model != "tiny" || r.Running != 0 || r.Waiting != 0 || r.KVUsage != 0 {
		t.Errorf("got model %q, running %d, waiting %d, use %g", r.Model, r.Running, r.Waiting, r.KVUsage)
	}
	if r.Cache.BlockSize != 32 || r.Cache.NumBlocks != 65536 || r.Cache.HashAlgo != "sha256_cbor" {
		t.Errorf("got cache %+v", r.Cache)
	}
}
