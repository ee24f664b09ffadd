package wire

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/grapevine-llm/grapevine/gossip/bloom"
)

var update = flag.Bool("update", false, "rewrite testdata")

const testNode = 0x1122334455667788

// messages returns one message of each kind with every field set, by fixture name.
func messages() map[string]Message {
	key := Key{Endpoint: EndpointKey("llama", "10.0.0.5:8000"), Rank: 3}
	words := make([]uint64, SegmentWords)
	for i := range words {
		words[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	return map[string]Message{
		"info": &Info{
			Node: "pod-7f-1", Pool: "llama", Pod: "prod/llama-0", Address: "http://10.0.0.5:8000",
			Version: 4, SeedFingerprint: 0xcafe, BlockSize: 16, NumBlocks: 40_000, MaxModelLen: 131_072, MaxNumSeqs: 256,
			Engine: "vllm", EngineVersion: "0.30.1", Draining: true, KVEvents: "ok",
			Models: []Model{{Name: "llama-70b", MaxLen: 131_072}, {Name: "sql", Parent: "llama-70b"}},
			Ranks: []RankInfo{
				{Rank: 0, Epoch: 1_790_000_000_000, GPU: bloom.Geometry{Buckets: 5000, K: 4}},
				{Rank: 1, Epoch: 1_790_000_000_001, GPU: bloom.Geometry{Buckets: 5000, K: 4}, All: bloom.Geometry{Buckets: 90_000, K: 4}},
			},
		},
		"info-empty": &Info{},
		"tick": &Tick{
			Key: key, Epoch: 1_790_000_000_000, TickNo: 77, Interval: 200 * time.Millisecond,
			Flags: Partial | Suspect, InfoVersion: 4,
			HasLoad: true, Load: Load{
				Running: 12, Waiting: 3, BlocksTotal: 40_000, BlocksUsed: 10_000, BlocksCached: 29_000, BlocksFree: 1000,
				VictimIdle: 61 * time.Second, PrefillOverhead: 12 * time.Millisecond, PrefillPerToken: 1.0 / 8192,
				PrefillQuadratic: 1.0 / (1 << 32), PrefillFitted: true, DecodeStep: 9 * time.Millisecond,
				DecodePerToken: 1.0 / (1 << 24), HitTokens: 1 << 40, QueryTokens: 1 << 41,
			},
			HasHealth: true, Health: Health{GPUs: 8, Fault: 2, Slowdown: 0.5, MemUsedBytes: 70 << 30, MemTotalBytes: 80 << 30, UtilPercent: 99, Known: true},
			Set:   [Tiers][]uint32{{0, 1, 5, 640, 319_999}, {7}},
			Clear: [Tiers][]uint32{{2, 3}, {5_759_999}},
			CRCs:  []SegmentCRC{{Tier: TierGPU, Segment: 9, CRC: 0xdeadbeef}, {Tier: TierAll, Segment: 700, CRC: 1}},
		},
		"tick-heartbeat": &Tick{Key: key, Epoch: 1, TickNo: 1, Interval: time.Second},
		"tick-load-age":  &Tick{Key: key, Epoch: 1, TickNo: 2, HasLoad: true, Load: Load{Running: 1, Waiting: 2, Age: 130 * time.Millisecond}},
		"nack":           &Nack{Key: key, Epoch: 1_790_000_000_000, From: 70, To: 76, Tier: TierAll, Segments: []uint16{1, 2, 500}, WantInfo: true},
		"segment":        &Segment{Key: key, Epoch: 1_790_000_000_000, TickNo: 77, Tier: TierGPU, Geometry: bloom.Geometry{Buckets: 5000, K: 4}, Index: 7, Words: words},
		"segment-last":   &Segment{Key: key, Epoch: 1, TickNo: 0, Tier: TierAll, Geometry: bloom.Geometry{Buckets: 130, K: 4}, Index: 1, Words: words[:2]},
		"hello":          &Hello{Node: "gateway-1", Known: []KnownStream{{Key: key, Epoch: 5, TickNo: 6}, {Key: Key{Endpoint: 1}}}},
		"hello-new":      &Hello{Node: "gateway-1"},
		"hint": &Hint{
			Number: 8, Held: 3, Over: []uint64{40, 3}, Ended: []uint64{1 << 40},
			Bound: []HintBound{
				{
					ID: 41, Key: key, Age: 12 * time.Millisecond, PromptTokens: 32_000, CachedTokens: 16_000, Blocks: 1200,
					Last: 0xfeed, Before: 0xbeef, First: 1000, Count: 2000, Points: []uint32{1, 2, 0xffffffff}, Told: true,
				},
				{ID: 42, Key: Key{Endpoint: 7}},
			},
		},
		"hint-empty": &Hint{},
	}
}

func TestRoundTrip(t *testing.T) {
	for name, want := range messages() {
		t.Run(name, func(t *testing.T) {
			b := want.Append([]byte("kept"), testNode)
			if string(b[:4]) != "kept" {
				t.Fatal("Append overwrote what was in the slice")
			}
			h, got, err := Decode(b[4:])
			if err != nil {
				t.Fatal(err)
			}
			if h.Version != Version || h.Node != testNode {
				t.Errorf("header %+v", h)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("decoded message differs (-want +got):\n%s", d)
			}
		})
	}
}

// TestFrozenPackets holds version 1 to the bytes that were once sent: agents of
// that version stay in the field for weeks.
func TestFrozenPackets(t *testing.T) {
	for name, want := range messages() {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join("testdata", "v1", name+".hex")
			if *update {
				writeHex(t, file, want.Append(nil, testNode))
			}
			b := readHex(t, file)
			_, got, err := Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("frozen packet decodes differently (-want +got):\n%s", d)
			}
			if d := cmp.Diff(b, want.Append(nil, testNode)); Version == 1 && d != "" {
				t.Errorf("version 1 is written differently (-frozen +now):\n%s", d)
			}
		})
	}
}

func writeHex(t *testing.T, file string, b []byte) {
	t.Helper()
	s := hex.EncodeToString(b)
	var lines strings.Builder
	for len(s) > 0 {
		n := min(len(s), 96)
		lines.WriteString(s[:n] + "\n")
		s = s[n:]
	}
	if err := os.WriteFile(file, []byte(lines.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

func readHex(t testing.TB, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestUnknownFieldsAreSkipped(t *testing.T) {
	for name, want := range messages() {
		t.Run(name, func(t *testing.T) {
			b := want.Append(nil, testNode)
			b = append(b, 200, 3, 'n', 'e', 'w')
			b = append(b, 201, 0)
			_, got, err := Decode(b)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("an unknown field changed the message (-want +got):\n%s", d)
			}
		})
	}
}

func TestRecordsMayGrow(t *testing.T) {
	want := messages()["tick"].(*Tick)
	want.Load.Age = time.Millisecond
	b := appendHeader(nil, TypeTick, testNode)
	b = appendKey(b, want.Key)
	for range 5 {
		b = append(b, 0)
	}
	b = appendField(b, 1, func(b []byte) []byte { return append(want.Load.append(b), 1, 2, 3) })
	b = appendField(b, 2, func(b []byte) []byte { return append(want.Health.append(b), 1, 2, 3) })
	_, m, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	got := m.(*Tick)
	if d := cmp.Diff(want.Load, got.Load); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want.Health, got.Health); d != "" {
		t.Error(d)
	}
}

func TestSupported(t *testing.T) {
	tests := []struct {
		reader, packet uint8
		want           bool
	}{
		{1, 0, false}, {1, 1, true}, {1, 2, false},
		{3, 1, true}, {4, 1, false}, {4, 2, true}, {4, 4, true}, {4, 5, false},
	}
	for _, tt := range tests {
		if got := Supported(tt.reader, tt.packet); got != tt.want {
			t.Errorf("Supported(%d, %d) = %v, want %v", tt.reader, tt.packet, got, tt.want)
		}
	}
}

// TestTruncated cuts each message at every length: it is refused, except where an
// optional field happens to end.
func TestTruncated(t *testing.T) {
	for name, m := range messages() {
		t.Run(name, func(t *testing.T) {
			b := m.Append(nil, testNode)
			for n := range b {
				_, got, err := Decode(b[:n])
				if err == nil {
					if b2 := got.Append(nil, testNode); len(b2) != n {
						t.Fatalf("%d of %d bytes decode as a message of %d bytes", n, len(b), len(b2))
					}
				} else if got != nil || Reason(err) == "other" {
					t.Fatalf("%d of %d bytes: message %v, error %v", n, len(b), got, err)
				}
			}
		})
	}
}

func TestBadPackets(t *testing.T) {
	with := func(m Message, f func(b []byte) []byte) []byte { return f(m.Append(nil, testNode)) }
	field := func(tag uint8, value ...byte) []byte {
		return appendField((&Tick{}).Append(nil, testNode), tag, func(b []byte) []byte { return append(b, value...) })
	}
	segment := func(g bloom.Geometry, index uint16, words int) []byte {
		return (&Segment{Geometry: g, Index: index, Words: make([]uint64, words)}).Append(nil, testNode)
	}
	g := bloom.Geometry{Buckets: 200, K: 4}
	big := binary.AppendUvarint(nil, math.MaxUint64)
	tests := []struct {
		name   string
		packet []byte
		want   error
	}{
		{"empty", nil, ErrShort},
		{"version 0", with(&Hello{}, func(b []byte) []byte { b[0] = 0; return b }), ErrVersion},
		{"a later version", with(&Hello{}, func(b []byte) []byte { b[0] = Version + 1; return b }), ErrVersion},
		{"type 0", with(&Hello{}, func(b []byte) []byte { b[1] = 0; return b }), ErrType},
		{"a type whose decoder is not here", with(&Hello{}, func(b []byte) []byte { b[1] = byte(TypeVV); return b }), ErrType},
		{"tick over the packet limit", with(&Tick{}, func(b []byte) []byte { return append(b, make([]byte, MaxPacketBytes)...) }), ErrLimit},
		{"field longer than the packet", with(&Tick{}, func(b []byte) []byte { return append(append(b, 99), big...) }), ErrShort},
		{"string over the limit", (&Info{Pod: strings.Repeat("x", MaxStringBytes+1)}).Append(nil, 0), ErrLimit},
		{"too many models", (&Info{Models: make([]Model, MaxModels+1)}).Append(nil, 0), ErrLimit},
		{"too many ranks", (&Info{Ranks: make([]RankInfo, MaxRanks+1)}).Append(nil, 0), ErrLimit},
		{"geometry over the limit", (&Info{Ranks: []RankInfo{{GPU: bloom.Geometry{Buckets: bloom.MaxBuckets + 1, K: 4}}}}).Append(nil, 0), ErrInvalid},
		{"geometry without bits", (&Info{Ranks: []RankInfo{{GPU: bloom.Geometry{Buckets: 1}}}}).Append(nil, 0), ErrInvalid},
		{"list longer than its bits", field(3, 200, 0, 0), ErrShort},
		{"list count beyond any memory", field(3, append(big, 0)...), ErrShort},
		{"list with a huge parameter", field(3, 1, 60, 0), ErrLimit},
		{"list that never ends a code", field(3, 1, 0, 0xff, 0xff), ErrShort},
		{"list with bytes left", field(3, 1, 0, 0, 0), ErrInvalid},
		{"position over the limit", field(3, 1, maxRice, 1, 0, 0, 0), ErrLimit},
		{"crc count beyond the packet", field(7, big...), ErrShort},
		{"crc of no tier", field(7, 1, 9, 0, 0, 0, 0, 0, 0), ErrInvalid},
		{"nan in load", field(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xc0, 0x7f), ErrInvalid},
		{"negative number in health", field(2, 0, 0, 0, 0, 0x80, 0xbf), ErrInvalid},
		{"nack from after to", (&Nack{From: 5, To: 4}).Append(nil, 0), ErrInvalid},
		{"nack for too many segments", (&Nack{Segments: make([]uint16, MaxNackSegments+1)}).Append(nil, 0), ErrLimit},
		{"segment past the end", segment(g, 2, 128), ErrInvalid},
		{"segment not whole", segment(g, 0, 100), ErrInvalid},
		{"segment without words", segment(g, 0, 0), ErrInvalid},
		{"segment of no geometry", segment(bloom.Geometry{}, 0, 128), ErrInvalid},
		{"segment with a flipped bit", with(messages()["segment"], func(b []byte) []byte { b[200] ^= 1; return b }), ErrChecksum},
		{"too many known streams", (&Hello{Known: make([]KnownStream, MaxRanks+1)}).Append(nil, 0), ErrLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, m, err := Decode(tt.packet)
			if !errors.Is(err, tt.want) {
				t.Errorf("error %v, want %v", err, tt.want)
			}
			if m != nil {
				t.Errorf("message %v beside an error", m)
			}
		})
	}
}

func TestAppendClampsNumbers(t *testing.T) {
	in := &Tick{HasLoad: true, Load: Load{VictimIdle: -time.Second, PrefillPerToken: math.NaN(), PrefillQuadratic: -1, DecodePerToken: math.Inf(1), DecodeStep: math.MaxInt64}, Interval: 1500 * time.Microsecond}
	_, m, err := Decode(in.Append(nil, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := &Tick{HasLoad: true, Load: Load{DecodeStep: maxCost}, Interval: 2 * time.Millisecond}
	if d := cmp.Diff(want, m.(*Tick)); d != "" {
		t.Error(d)
	}
}

func TestInfoValidate(t *testing.T) {
	if err := messages()["info"].(*Info).Validate(); err != nil {
		t.Errorf("good info: %v", err)
	}
	bad := &Info{Pool: strings.Repeat("p", 300), Models: make([]Model, MaxModels+1), Ranks: []RankInfo{{GPU: bloom.Geometry{Buckets: 5}}}}
	err := bad.Validate()
	for _, want := range []string{"pool of 300 bytes", "513 models", "rank 0"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

func TestInfoKey(t *testing.T) {
	want := Key{Endpoint: EndpointKey("p", "10.0.0.5:8000"), Rank: 2}
	for _, address := range []string{"10.0.0.5:8000", "http://10.0.0.5:8000", "https://10.0.0.5:8000/v1"} {
		in := Info{Pool: "p", Address: address}
		if got := in.Key(2); got != want {
			t.Errorf("key of %q is %v, want %v", address, got, want)
		}
	}
}

// TestEndpointKey: agents and gateways get the address from different sources, which write it in different ways.
func TestEndpointKey(t *testing.T) {
	for want, others := range map[string][]string{
		"10.0.0.5:8000":     {"[::ffff:10.0.0.5]:8000"},
		"[fd00::5]:8000":    {"[FD00::5]:8000", "[fd00:0:0:0:0:0:0:5]:8000"},
		"pod.svc.local:443": {"pod.svc.local:443"},
	} {
		for _, other := range others {
			if EndpointKey("p", want) != EndpointKey("p", other) {
				t.Errorf("%s and %s have different keys", want, other)
			}
		}
	}
	if EndpointKey("p", "[fd00::5]:8000") == EndpointKey("p", "[fd00::6]:8000") {
		t.Error("two addresses have one key")
	}
}

// TestFitsDatagram: a tick and a segment of 1 KiB fit memberlist's datagram with
// everything that it adds (memberlist v0.7.0 net.go, security.go, label.go).
func TestFitsDatagram(t *testing.T) {
	const (
		datagram = 1400        // DefaultLANConfig().UDPBufferSize
		user     = 1           // message type userMsg
		crc      = 1 + 4       // hasCrcMsg
		compound = 1 + 1 + 2   // compoundMsg, part count, one length
		aes      = 1 + 12 + 16 // version, nonce, tag
		label    = 1 + 1 + 53  // type, length, a label of up to 53 bytes
	)
	if n := MaxPacketBytes + user + crc + compound + aes + label; n > datagram {
		t.Errorf("a full tick makes a datagram of %d B, limit %d", n, datagram)
	}
	s := &Segment{Key: Key{Endpoint: math.MaxUint64, Rank: math.MaxUint16}, Epoch: math.MaxUint64, TickNo: math.MaxUint64,
		Geometry: bloom.Geometry{Buckets: bloom.MaxBuckets, K: 4}, Index: bloom.MaxBuckets/SegmentWords - 1, Words: make([]uint64, SegmentWords)}
	if n := len(s.Append(nil, math.MaxUint64)); n > MaxPacketBytes {
		t.Errorf("a segment takes %d B, limit %d", n, MaxPacketBytes)
	}
}
