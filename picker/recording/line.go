package recording

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/grapevine-llm/grapevine/gossip/blockhash"
)

// line is one request of a recording. It holds neither text nor token ids, and of hashes and names only what their
// key makes of them: equal where they are equal in this recording, and nothing else.
type line struct {
	Timestamp    float64  `json:"timestamp"`     // arrival, ms since the recording began
	InputLength  int      `json:"input_length"`  // tokens
	OutputLength int      `json:"output_length"` // tokens
	HashIDs      []uint64 `json:"hash_ids"`      // one a full block, each for all of the prompt up to its end; empty: not known
	BlockTokens  int      `json:"block_tokens"`
	Session      string   `json:"session,omitempty"`
	ThinkMs      float64  `json:"think_ms,omitempty"` // since the end of the session's call before
	// Beside another router: who served, and the prompt tokens that the engine found in its cache, if it told.
	Served       string `json:"served,omitempty"`
	CachedTokens *int   `json:"cached_tokens,omitempty"`
	// What the engine did not report and is guessed.
	InputEstimated  bool `json:"input_estimated,omitempty"`
	OutputEstimated bool `json:"output_estimated,omitempty"`
}

// maxTokens is what a length may be: an engine's word is not taken for more, which those who read recordings refuse.
const maxTokens = 1 << 30

// defaultBlockTokens is for a recording that begins before any endpoint is known.
const defaultBlockTokens = 16

// recording is the state of one. Safe for concurrent use.
type recording struct {
	start       time.Time
	duration    time.Duration // requests that come later are not in it; 0: all are
	blockTokens int
	maxBytes    int
	key         key
	stopped     atomic.Bool // nobody reads it any more

	mu        sync.Mutex // guards what follows
	sessions  *sessions
	waiting   []byte // lines for the reader
	status    Status
	reported  int // requests whose answers said how long they were
	generated int // tokens of these
}

// newRecording returns one with a key of its own. Of several block sizes in a pool the smallest says most.
func newRecording(now time.Time, sizes []int, maxBytes int) *recording {
	size := defaultBlockTokens
	if len(sizes) > 0 {
		size = slices.Min(sizes)
	}
	return &recording{
		start: now, blockTokens: size, maxBytes: maxBytes, key: newKey(), sessions: newSessions(),
		status: Status{BlockTokens: size},
	}
}

// covers reports whether a request that came at a time belongs to the recording.
func (r *recording) covers(at time.Time) bool { return r.duration == 0 || at.Sub(r.start) < r.duration }

// begin takes note of a request that comes now; add must follow.
func (r *recording) begin(now time.Time) {
	if !r.covers(now) {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.InProgress++
}

// add takes in a request that ended now. False: its line is lost.
func (r *recording) add(c *Call, now time.Time, h blockhash.Hasher) bool {
	if !r.covers(c.Arrived) {
		return true
	}
	if other := c.Request != nil && !c.Request.Kind.Generates(); other || c.Status/100 != 2 {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.status.InProgress--
		if !other {
			r.status.Unserved++
		}
		return true
	}
	l := line{Timestamp: msOf(max(0, c.Arrived.Sub(r.start))), BlockTokens: r.blockTokens}
	o := &c.Outcome
	if l.InputLength = min(o.PromptTokens, maxTokens); l.InputLength <= 0 {
		l.InputLength = max(1, c.Pick.PromptTokens, len(c.Pick.TokenIDs))
		l.InputEstimated = c.Pick.TokenIDs == nil && c.Pick.Chains == nil || c.Partial
	}
	l.HashIDs = r.hashIDs(c, h)
	l.HashIDs = l.HashIDs[:min(len(l.HashIDs), l.InputLength/r.blockTokens)]
	if _, err := netip.ParseAddrPort(c.Served); err == nil { // else it is whatever a client may have put into a header
		l.Served = c.Served
	}
	if c.Served != "" && o.CachedTokens >= 0 {
		l.CachedTokens = &o.CachedTokens
	}
	session := r.key.name(c.Pick.Session)

	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.InProgress--
	r.status.Requests++
	switch {
	case o.PromptTokens > 0: // then there was a usage
		l.OutputLength = max(0, min(o.OutputTokens, maxTokens))
		r.reported++
		r.generated += l.OutputLength
	case c.Streaming: // about one token an event, beside the first and the last
		l.OutputLength, l.OutputEstimated = max(1, c.Events-2), true
	default:
		l.OutputLength, l.OutputEstimated = max(1, r.generated/max(1, r.reported)), true
		if limit := c.Pick.MaxOutputTokens; limit > 0 {
			l.OutputLength = min(l.OutputLength, limit)
		}
	}
	if session != "" {
		var think time.Duration
		l.Session, think = r.sessions.place(session, c.Arrived.Sub(r.start), now.Sub(r.start))
		l.ThinkMs = msOf(think)
	}
	text, err := json.Marshal(&l)
	if err != nil || len(r.waiting)+len(text) >= r.maxBytes {
		r.status.Lost++
		return false
	}
	r.waiting = append(append(r.waiting, text...), '\n')
	return true
}

// take returns the lines that wait, and goes on with dst's memory. Complete: there will be no more.
func (r *recording) take(dst []byte, now time.Time) (lines []byte, s Status, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	lines, r.waiting = r.waiting, dst
	s = r.status
	s.Seconds = math.Round(now.Sub(r.start).Seconds()*1e3) / 1e3
	return lines, s, s.InProgress == 0 && !r.covers(now.Add(-every))
}

// hashIDs are the keyed hashes of the prompt's full blocks; none if the prompt is not known.
func (r *recording) hashIDs(c *Call, h blockhash.Hasher) []uint64 {
	var chain []blockhash.Hash
	if i := slices.IndexFunc(c.Pick.Chains, func(x blockhash.Chain) bool { return x.BlockSize == r.blockTokens }); i >= 0 {
		chain = c.Pick.Chains[i].Hashes
	} else {
		chain = h.AppendChain(nil, h.Root(c.Pick.Extras...), c.Pick.TokenIDs, r.blockTokens)
	}
	return r.key.ids(chain)
}

// msOf is a duration in ms, whole microseconds.
func msOf(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

// key hides what a recording's hashes and names are of. It is random, one recording's alone, and leaves the process
// in no way: who has a recording can't test whether a known prompt or name is in it, nor compare it with another recording.
type key struct {
	blocks cipher.Block
	names  []byte
}

func newKey() key {
	var secret [64]byte
	_, _ = rand.Read(secret[:]) // never fails
	blocks, err := aes.NewCipher(secret[:32])
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	return key{blocks, secret[32:]}
}

// idBits keeps ids exact in JSON readers that make floating-point numbers of them. Of 10 million blocks, two have the same
// id by chance with a probability of half a percent.
const idBits = 53

// ids maps block hashes: AES under the key is a pseudorandom permutation, of which idBits are kept.
func (k *key) ids(chain []blockhash.Hash) []uint64 {
	out := make([]uint64, len(chain))
	var in, sealed [aes.BlockSize]byte
	for i, hash := range chain {
		binary.LittleEndian.PutUint64(in[:], uint64(hash))
		k.blocks.Encrypt(sealed[:], in[:])
		out[i] = binary.LittleEndian.Uint64(sealed[:]) >> (64 - idBits)
	}
	return out
}

// name maps a session's name; "" stays.
func (k *key) name(session string) string {
	if session == "" {
		return ""
	}
	mac := hmac.New(sha256.New, k.names)
	mac.Write([]byte(session))
	return hex.EncodeToString(mac.Sum(nil)[:8])
}

const (
	maxSessions = 1 << 14 // the last ones
	maxLanes    = 256     // of a session
	// handOver is how late a gateway may be to know that an answer has ended: its client has the last event before, and may
	// have sent the next call.
	handOver = 50 * time.Millisecond
)

// sessions knows when the calls of each session ended. A call that came while others of its session ran did not wait
// for these, so it counts as another session, a lane of the first: in each lane a call begins after the one before has ended.
type sessions struct {
	lru *simplelru.LRU[string, []time.Duration] // by name, the last end of each lane
}

func newSessions() *sessions {
	lru, err := simplelru.NewLRU[string, []time.Duration](maxSessions, nil)
	if err != nil {
		panic(err) // the size is positive
	}
	return &sessions{lru}
}

// place finds the lane of a call that has just ended, and how long it came after the lane's call before (0 for the first). The
// name is empty for a call beside maxLanes others.
func (s *sessions) place(session string, arrived, ended time.Duration) (name string, think time.Duration) {
	ends, _ := s.lru.Get(session)
	lane := -1 // the one that ended last of those that ended before
	for i, end := range ends {
		if end <= arrived+handOver && (lane < 0 || end > ends[lane]) {
			lane = i
		}
	}
	switch {
	case lane >= 0:
		think = max(0, arrived-ends[lane])
		ends[lane] = ended
	case len(ends) < maxLanes:
		lane = len(ends)
		s.lru.Add(session, append(ends, ended))
	default:
		return "", 0
	}
	if lane > 0 {
		session += "." + strconv.Itoa(lane)
	}
	return session, think
}
