package extproc

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestEventsHoweverCut: what is read of an event stream does not depend on where it was cut, nor on how its lines end.
func TestEventsHoweverCut(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	read := func(stream string, most int) (seen int, output bool, usage string) {
		a := answer{form: formEvents}
		for len(stream) > 0 {
			n := min(1+rng.IntN(most), len(stream))
			a.body([]byte(stream[:n]), false)
			stream = stream[n:]
		}
		return a.seen, a.output, fmt.Sprint(a.counted, a.usage)
	}
	for _, end := range []string{"\n", "\r\n", "\r"} {
		stream := strings.ReplaceAll(": hello\n\n\n"+firstEvent+"event: x\nid: 1\ndata: {\ndata: }\n\n"+lastEvents+"data: cut", "\n", end)
		seen, output, usage := read(stream, len(stream)+1)
		for range 200 {
			s, o, u := read(stream, 1+rng.IntN(40))
			if diff := cmp.Diff([]any{seen, output, usage}, []any{s, o, u}); diff != "" || seen != 7 || !output {
				t.Fatalf("lines that end with %q: %d events in one piece; in several %s", end, seen, diff)
			}
		}
	}
}

// TestLongEventInSmallPieces: an event of nearly maxEvent that comes in a great many pieces costs no more than it is long.
func TestLongEventInSmallPieces(t *testing.T) {
	for name, piece := range map[string]string{"one line": "xxxx", "many lines": "x:y\n", "carriage returns": "x:y\r"} {
		a := answer{form: formEvents}
		began := time.Now()
		for range maxEvent/len(piece) - 1 {
			a.body([]byte(piece), false)
		}
		a.body([]byte("\n\n"), false)
		if took := time.Since(began); took > 5*time.Second || a.seen == 0 {
			t.Errorf("%s: %d events after %v", name, a.seen, took)
		}
	}
}
